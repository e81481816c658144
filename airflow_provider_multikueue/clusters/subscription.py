"""What somebody who waits for objects has of a shared watch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Subscription", "Trouble", "Watching"]

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why the cluster cannot be watched at the moment."""

    since: float
    """Epoch seconds of the first failure."""
    text: str
    status: int = 0
    """HTTP status of the last failure; 0 when there was no answer."""


class Watching(Protocol):
    """What a subscription asks of its watch."""

    synced: bool
    trouble: Trouble | None

    def leave(self, subscription: Subscription) -> None:
        """Take a subscription off."""
        ...


class Subscription:
    """The present objects of one key, until it is closed."""

    __slots__ = ("_closed", "_watch", "key", "missing", "notify", "objects")

    def __init__(self, watch: Watching, key: str, notify: Callable[[], None], objects: dict[str, Object]) -> None:
        self._watch = watch
        self._closed = False
        self.missing = False
        """Whether objects that exist are still to be fetched."""
        self.key = key
        self.notify = notify
        self.objects = objects
        """Trimmed objects by uid; changes in place. Not to be written to."""

    @property
    def synced(self) -> bool:
        """Whether ``objects`` is all there was at some moment since the subscription."""
        return self._watch.synced and not self.missing

    @property
    def trouble(self) -> Trouble | None:
        """Why the cluster cannot be watched, if so."""
        return self._watch.trouble

    def close(self) -> None:
        """End the subscription; may be called twice."""
        if not self._closed:
            self._closed = True
            self._watch.leave(self)
