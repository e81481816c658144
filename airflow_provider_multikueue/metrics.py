"""The provider's metrics on their way to Airflow's: StatsD, DogStatsD or OpenTelemetry, whatever it is configured for.

Facts that are decided once (a submission, a report) are sent when they are. What happens often, anywhere in the process
(log lines, watches that break), is counted there and sent from here every few seconds while a fleet is open.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import weakref
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_multikueue.tally import Measure, tally

__all__ = ["emit", "reporting"]

log = logging.getLogger(__name__)

REPORT_SECONDS = 10.0


def emit(measures: Iterable[Measure]) -> None:
    """Send the metrics; a failure is logged and fails nothing."""
    from airflow_provider_multikueue._compat import Stats

    try:
        for each in measures:
            if each.unit == "seconds":
                Stats.timing(each.name, timedelta(seconds=each.value), tags=dict(each.tags))
            else:
                Stats.incr(each.name, int(each.value), tags=dict(each.tags))
    except Exception:  # whatever a metrics client does: the job is what matters
        log.warning("The provider's metrics could not be sent.", exc_info=True)


def reporting() -> AbstractContextManager[None]:
    """Send what the process counts every ten seconds while this is open, and once more at the end."""
    return _reporters.setdefault(asyncio.get_running_loop(), _Reporter())


@dataclass(slots=True)
class _Reporter:
    """One task an event loop, however many wait in it."""

    users: int = 0
    task: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        self.users += 1
        if self.task is None:
            # in a context of its own, since it is no task's
            self.task = asyncio.get_running_loop().create_task(_report(), context=contextvars.Context())

    def __exit__(self, *_: object) -> None:
        self.users -= 1
        if self.users == 0 and self.task is not None:
            self.task.cancel()
            self.task = None
            emit(tally.take())


async def _report() -> None:
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        emit(tally.take())


_reporters: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Reporter] = weakref.WeakKeyDictionary()
