"""How a wait ended, on its way from the trigger or the loop to the task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_multikueue.exceptions import MultiKueueError, from_event, to_event

__all__ = ["Outcome"]

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The report of the job, and the error that the task is to raise, if any.

    ``ended`` is False while the job itself goes on: at admission, or when it can't be followed any more. ``deleted`` is
    True when the wait has deleted it already.
    """

    report: dict[str, Any] | None
    error: MultiKueueError | None = None
    ended: bool = True
    deleted: bool = False

    def to_event(self) -> dict[str, Any]:
        """Return the plain form that travels through a trigger event."""
        failure = to_event(self.error) if self.error else None
        event = {"version": VERSION, "report": self.report, "failure": failure, "ended": self.ended}
        return event | ({"deleted": True} if self.deleted else {})

    @classmethod
    def from_event(cls, event: Mapping[str, Any] | None) -> Outcome:
        """Return the outcome in ``event``.

        Raises:
            MultiKueueError: the event is not one of ours.
        """
        if not event or event.get("version") != VERSION or "report" not in event:
            raise MultiKueueError(
                f"The trigger sent {str(event)[:200]!r}, which is no event of this provider: are the worker and the "
                f"triggerer on the same version of airflow-provider-multikueue?"
            )
        failure = event.get("failure")
        error = from_event(failure) if failure else None
        ended, deleted = bool(event.get("ended", True)), bool(event.get("deleted"))
        return cls(report=event["report"], error=error, ended=ended, deleted=deleted)
