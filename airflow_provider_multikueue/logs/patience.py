"""Whether a log can be followed on this way to the worker, judged by what comes.

A gateway may hold an answer back until it is complete, so that a stream stays silent although the container prints. A
quiet container's stream is silent too. So a stream that has not yet brought a line in time is left after a while for
one short read: if such reads have news twice in a row, the log is read in short reads from then on.
"""

from __future__ import annotations

from typing import Final

__all__ = ["SHORT_PAUSE", "Patience"]

SILENCE: Final = 300.0
"""Seconds after which a stream without a byte is opened anew, where following is known to work."""
FIRST_SILENCE: Final = 5.0
"""The same before that; it doubles each time that nothing was missed."""
DOUBTS: Final = 2
SHORT_READS: Final = 150
"""So many short reads are made before following is tried again."""
SHORT_PAUSE: Final = 2.0
"""Seconds between two of them."""


class Patience:
    """What is known of following one log."""

    def __init__(self) -> None:
        self._works = self._check = False
        self._first = FIRST_SILENCE
        self._doubts = self._short = 0

    @property
    def silence(self) -> float:
        """Seconds for which a stream may bring nothing."""
        return SILENCE if self._works else self._first

    @property
    def follow(self) -> bool:
        """Whether to follow next, or to make a short read."""
        return not (self._check or self._short)

    @property
    def short(self) -> bool:
        """Whether the log is read in short reads."""
        return self._short > 0

    def in_time(self) -> None:
        """Learn that a stream has brought a line just after it was written."""
        self._works, self._doubts = True, 0

    def silent(self) -> None:
        """Learn that a stream was left because nothing came."""
        self._works, self._check = False, True

    def read(self, *, news: bool) -> None:
        """Learn whether a short read has brought what the stream before had not."""
        self._check = False
        if self._short:
            self._short -= 1
            self._doubts = DOUBTS - 1
        elif not news:
            self._doubts, self._first = 0, min(2 * self._first, SILENCE)
        else:
            self._doubts += 1
            self._short = SHORT_READS if self._doubts >= DOUBTS else 0
