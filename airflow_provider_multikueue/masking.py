"""Hides tokens and keys in Airflow's logs that are known only once a cluster's credentials were loaded.

They come without end, at worst every few seconds, while Airflow's masker keeps all that it was ever told and searches
each line for all of it. So a long secret is hidden by its end, without which the rest is worth nothing. What a
connection to a cluster uses is hidden for as long as that connection is there, however often others renew theirs, and
of what it used before, the newest: the others have expired, or were refused.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import weakref
from collections.abc import Iterable
from typing import Any

from airflow_provider_multikueue._compat import mask_secrets, unmask

__all__ = ["hide", "mask_tokens"]

HIDDEN = 48
"""Characters that are hidden of a long secret."""
SHORTEST = 5
"""Shorter texts are not masked: masking them would hide half of every log line."""
REPLACED = 8
"""Secrets that stay hidden of each holder after it got others for them."""
KEPT = 64
"""Secrets that stay hidden though no holder has them any more: the newest of all."""

TOLD_SECONDS = 0.25
"""How long a connection waits for the supervisor to be told. A triggerer's can be busy for seconds, in which a
short job would be over; in this process the texts are hidden at once."""

_hidden: dict[str, None] = {}
"""What is hidden now, what was given last at the end."""
_held: weakref.WeakKeyDictionary[object, dict[str, None]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
"""A kill has a thread and a loop of its own."""
_telling: set[asyncio.Task[None]] = set()


async def mask_tokens(secrets: Iterable[str], holder: object) -> None:
    """Hide each of the texts in every log of this process from here on, and of its supervisor soon.

    They are all that ``holder`` uses now, and stay hidden until it is gone or has used several others since.
    """
    texts = sorted(text for text in map(_hideable, secrets) if len(text) >= SHORTEST)
    with _lock:
        new = [text for text in texts if text not in _hidden]
        _hold(texts, holder)
        _forget()
    if not new:
        return
    loop = asyncio.get_running_loop()
    # Each for itself: what the supervisor is told next must not wait to be hidden here.
    telling = [loop.create_task(mask_secrets([text]), context=contextvars.Context()) for text in new]
    _telling.update(telling)
    for each in telling:
        each.add_done_callback(_telling.discard)
    await asyncio.wait(telling, timeout=TOLD_SECONDS)


def _hold(texts: list[str], holder: object) -> None:
    held = _held.setdefault(holder, {})
    for text in texts:
        for known in (held, _hidden):
            known.pop(text, None)
            known[text] = None
    for text in [*held][: -len(texts) - REPLACED]:
        del held[text]


def _forget() -> None:
    """Let go of what nobody holds, but for the newest."""
    used = set().union(*_held.values())
    spare = [text for text in _hidden if text not in used]
    for text in spare[:-KEPT]:
        del _hidden[text]
        if len(text) == HIDDEN:  # a short one may be somebody else's secret as well
            unmask(text)


def hide(value: Any) -> Any:
    """Return plain JSON with what is masked in this process hidden in its texts.

    For what another process logs, which was told of other secrets: a pod's last lines may hold anything.
    """
    from airflow.providers.common.compat.sdk import redact

    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {key: hide(item) for key, item in value.items()}
    return [hide(item) for item in value] if isinstance(value, list) else value


def _hideable(secret: str) -> str:
    """Return what to hide of a secret: of a PEM its last line of data; Google fills its tokens up with dots."""
    lines = [line for line in secret.splitlines() if not line.startswith("-----")]
    return lines[-1].rstrip(".=")[-HIDDEN:] if lines else ""
