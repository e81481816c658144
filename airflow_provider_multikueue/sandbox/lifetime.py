"""Ties the life of a process to that of its parent, or of its descendants to its own. Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

__all__ = ["adopt_orphans", "die_with_parent"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int) -> Callable[[], None]:
    """Return what a new child runs before its program, so that the kernel kills it when ``parent`` ends in any way."""

    def prepare() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def adopt_orphans() -> None:
    """Become the parent of each descendant whose own parent ends."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
