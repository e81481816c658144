"""Which local program stands for a container image, and what a container's command line becomes with it.

Nothing is pulled. An image that is not in the table does not exist, as for a kubelet whose registry does not have it.
"""

from __future__ import annotations

import hashlib
import math
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = [
    "IMAGES",
    "Image",
    "find_image",
    "image_id",
    "parse_go_duration",
    "program",
    "search_path",
    "valid_reference",
]


@dataclass(frozen=True, slots=True)
class Image:
    """What an image's own configuration says, and which kind of program is behind it."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    kind: Literal["plain", "python", "sleep"] = "plain"


SHELL = Image(command=("sh",))
PYTHON = Image(command=("python3",), kind="python")
SLEEP = Image(entrypoint=("/sleep",), kind="sleep")

IMAGES: Mapping[str, Image] = {
    "alpine": SHELL,
    "bash": Image(entrypoint=("bash",)),
    "busybox": SHELL,
    "debian": SHELL,
    "gcr.io/k8s-staging-perf-tests/sleep": SLEEP,
    "nvidia/cuda": SHELL,
    "python": PYTHON,
    "pytorch/pytorch": PYTHON,
    "registry.k8s.io/pause": Image(entrypoint=("sleep", "infinity")),
    "tensorflow/tensorflow": PYTHON,
    "ubuntu": SHELL,
}
"""Repositories without tag; those of Docker's library go by their short name, also where a mirror serves them."""

_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?P<repository>(?:[A-Za-z0-9.-]+(?::\d+)?/)?{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::[\w][\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_PYTHON_NAME = re.compile(r"(?:/usr/bin/|/usr/local/bin/)?python(?:3(?:\.\d+)?)?")
_LIBRARY = ("docker.io/library/", "index.docker.io/library/", "library/", "docker.io/", "mirror.gcr.io/library/")


def valid_reference(reference: str) -> bool:
    """Return whether a runtime could even parse this image name."""
    return _REFERENCE.fullmatch(reference) is not None


def find_image(reference: str, extra: Mapping[str, Image] | None = None) -> Image | None:
    """Return the image that ``reference`` names, in any tag, or None when there is no such image."""
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        return None
    repository = match["repository"]
    short = next((repository.removeprefix(prefix) for prefix in _LIBRARY if repository.startswith(prefix)), repository)
    table = {**IMAGES, **(extra or {})}
    return table.get(repository) or table.get(short)


def image_id(reference: str) -> str:
    """Return a digest reference for a container status; invented, but the same for the same name."""
    return f"docker.io/{reference.split('@')[0]}@sha256:{hashlib.sha256(reference.encode()).hexdigest()}"


def program(image: Image, command: Sequence[str], args: Sequence[str]) -> list[str]:
    """Return the local command line for a container of ``image``; empty when it has none.

    ``command`` replaces the image's entrypoint and its command, ``args`` its command alone.
    """
    if command:
        line = [*command, *args]
    elif args:
        line = [*image.entrypoint, *args]
    else:
        line = [*image.entrypoint, *image.command]
    if not line:
        return []
    if image.kind == "python" and _PYTHON_NAME.fullmatch(line[0]):
        return [sys.executable, *line[1:]]
    if image.kind == "sleep" and line[0] in {"/sleep", "sleep"}:
        return _sleep(line[1:])
    return line


def search_path(image: Image, path: str) -> str:
    """Return PATH for a container of ``image``: Python's images find their interpreter's tools first."""
    return f"{Path(sys.executable).parent}:{path}" if image.kind == "python" else path


# -- the seed's sleep image

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)([^\d.]*)")


def parse_go_duration(text: str) -> float:
    """Return the seconds of a Go duration such as ``1h15m30.918s``; ValueError with Go's own text otherwise."""
    body = text[1:] if text[:1] in {"+", "-"} else text
    if body == "0":
        return 0.0
    seconds, position = 0.0, 0
    while position < len(body):
        part = _PART.match(body, position)
        if part is None:
            break
        number, unit = part.groups()
        if not unit:
            raise ValueError(f'time: missing unit in duration "{text}"')
        if unit not in _UNITS:
            raise ValueError(f'time: unknown unit "{unit}" in duration "{text}"')
        seconds += float(number) * _UNITS[unit]
        position = part.end()
    if not body or position < len(body):
        raise ValueError(f'time: invalid duration "{text}"')
    return math.copysign(seconds, -1.0) if text[0] == "-" else seconds


def _sleep(args: Sequence[str]) -> list[str]:
    """Return the sleep program: a duration, and flags that say how it takes SIGTERM (without them it dies of it)."""
    flags, rest = _flags(args)
    unknown = sorted(flags.keys() - {"termination-grace-period", "termination-code"})
    if unknown:
        return ["sh", "-c", f"echo {shlex.quote(f'flag provided but not defined: -{unknown[0]}')} >&2; exit 2"]
    try:
        seconds = max(parse_go_duration(rest[0]), 0.0) if rest else 0.0
        grace = max(parse_go_duration(flags.get("termination-grace-period", "0")), 0.0)
        code = int(flags.get("termination-code", "0"))
    except ValueError as error:
        return ["sh", "-c", f"echo {shlex.quote(str(error))}; exit 1"]
    if not flags:
        return ["sleep", f"{seconds:.9f}"]
    farewell = f"sleep {grace:.9f}; exit {code & 255}"
    return ["sh", "-c", f"trap {shlex.quote(farewell)} TERM; sleep {seconds:.9f} & wait"]


def _flags(args: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split Go-style flags (``-name=value`` or ``-name value``, one dash or two) from what follows them."""
    flags: dict[str, str] = {}
    rest = list(args)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        name, equals, value = rest.pop(0).lstrip("-").partition("=")
        flags[name] = value if equals or not rest else rest.pop(0)
    return flags, rest
