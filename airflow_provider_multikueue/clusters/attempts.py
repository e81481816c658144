"""How the attempts to follow one watch went, and what the next failure means: how long to wait, and whether to tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Attempts", "Failure"]

BACKOFF = (0.25, 30.0)
"""Seconds before the next attempt, the least and the most."""
SHORT_BACKOFF = 2.0
"""The most where the server has accepted the watch before it broke: it is there, and a pod's end must not be missed."""
PATIENT = 6
"""So many failures in a row are repeated without a growing pause: a short fault must not hide a pod's short life."""
TOLD_AFTER = 3.0
"""Seconds that a cluster does not answer before that is told: a network that hiccups every second is no news."""
VAIN = 18
"""So many accepted watches in a row that break before an event came are told too: nothing may be seen any more."""
STABLE = 5.0
"""Seconds after which a watch that was accepted counts as working."""


class Failure(NamedTuple):
    """What follows from a failure: seconds to wait, whether it is worth telling, and since when it is so."""

    pause: float
    told: bool
    since: float


@dataclass(slots=True)
class Attempts:
    """Counts what went wrong in a row. Times are seconds of one clock that never goes back."""

    failures: int = 0
    """Since a watch last lasted."""
    refusals: int = 0
    """Since a watch was last accepted."""
    vain: int = 0
    """Since the last event."""
    since: float = 0.0
    accepted_at: float | None = None

    def accepted(self, now: float) -> None:
        """Take note that the server has accepted a watch."""
        self.accepted_at = now

    def event(self) -> None:
        """Take note that an event came."""
        self.vain = 0

    def failed(self, now: float, *, anew: bool) -> Failure:
        """Take note that an attempt failed; ``anew`` where going on is no use, and all has to be listed again."""
        accepted, self.accepted_at = self.accepted_at, None
        if accepted is not None and now - accepted > STABLE:
            self.failures = 0
        self.failures += 1
        self.vain += 1
        self.refusals = self.refusals + 1 if accepted is None else 0
        if self.failures == 1 or accepted is not None:
            self.since = now
        again = self.failures > 1  # else a stream broke, and is resumed before anyone need know
        away = accepted is None and now - self.since >= TOLD_AFTER
        told = (again and (away or anew)) or self.vain > VAIN
        return Failure(self._pause(accepted is not None, anew=anew), told, self.since)

    def _pause(self, accepted: bool, *, anew: bool) -> float:
        """Return the pause. A network that cuts each watch must not add up to the one for a server that is away."""
        most, in_a_row = (SHORT_BACKOFF, self.failures) if accepted else (BACKOFF[1], self.refusals)
        growth = in_a_row - (1 if anew else PATIENT)
        pause: float = BACKOFF[0] * 2.0 ** min(max(growth, 0), 10)
        return min(most, pause)
