"""The error tree. Each error says what happened, where, and what to do next.

::

    MultiKueueError (AirflowException)
    ├── ManifestError            (also AirflowFailException)  the job's manifest cannot be submitted
    ├── FleetConfigurationError  (also AirflowFailException)  connection, queue or rights are wrong
    ├── RegionUnavailableError   (also AirflowFailException)  no queue satisfies ``regions``
    ├── AdmissionTimeoutError    no region admitted the job in time
    ├── AdmissionRejectedError   no region can ever admit the job
    ├── StartupError             admitted, but its containers cannot start
    ├── JobFailedError           the job's own code failed
    │   ├── JobOutOfMemoryError  a container was killed for its memory
    │   └── JobDeadlineError     the job's or the task's deadline passed
    ├── RunDurationExceededError the DWS run time was used up
    ├── JobEvictedError          evicted more often than ``max_dispatches`` allows, or deactivated
    ├── WorkerLostError          the worker that ran the job is gone
    ├── JobDeletedError          someone else deleted the job
    └── ResultError              the job's result is absent or unreadable

The three that are also an ``AirflowFailException`` fail the task without a retry, since the same input fails again.
All others can be retried and be told apart by a ``retry_policy``.

An error takes one positional text, so that it pickles and travels through a trigger event as its class name and that
text.
"""

from __future__ import annotations

from typing import TypedDict

from airflow_provider_multikueue._compat import AirflowException, AirflowFailException

__all__ = [
    "AdmissionRejectedError",
    "AdmissionTimeoutError",
    "ErrorEvent",
    "FleetConfigurationError",
    "JobDeadlineError",
    "JobDeletedError",
    "JobEvictedError",
    "JobFailedError",
    "JobOutOfMemoryError",
    "ManifestError",
    "MultiKueueError",
    "RegionUnavailableError",
    "ResultError",
    "RunDurationExceededError",
    "StartupError",
    "WorkerLostError",
    "from_event",
    "to_event",
]


class MultiKueueError(AirflowException):
    """Root of everything that this provider raises on purpose."""


class ManifestError(MultiKueueError, AirflowFailException):
    """The manifest cannot be submitted as it is; the text names the field."""


class FleetConfigurationError(MultiKueueError, AirflowFailException):
    """The connection, a queue or a right is missing or wrong; the text names what to set where."""


class RegionUnavailableError(MultiKueueError, AirflowFailException):
    """No queue, or not this queue, keeps the job within the regions asked for."""


class AdmissionTimeoutError(MultiKueueError):
    """No region admitted the job within ``admission_timeout``: capacity, not the job's code."""


class AdmissionRejectedError(MultiKueueError):
    """No region can admit the job any more."""


class StartupError(MultiKueueError):
    """The job was admitted but its containers cannot start: image, configuration or scheduling."""


class JobFailedError(MultiKueueError):
    """The job's own code failed; the text has exit code, reason, region and the last lines."""


class JobOutOfMemoryError(JobFailedError):
    """A container was killed because it used more memory than its limit."""


class JobDeadlineError(JobFailedError):
    """The job ran longer than its own or the task's deadline."""


class RunDurationExceededError(MultiKueueError):
    """The run time that was asked of Dynamic Workload Scheduler was used up."""


class JobEvictedError(MultiKueueError):
    """The job was evicted for good: deactivated, or moved more often than ``max_dispatches``."""


class WorkerLostError(MultiKueueError):
    """The worker that ran the job is gone, and its outcome with it."""


class JobDeletedError(MultiKueueError):
    """The job was deleted by someone else while the task waited for it."""


class ResultError(MultiKueueError):
    """The job ended well but its result is absent, too large or not JSON."""


class ErrorEvent(TypedDict):
    """An error on its way through a trigger event: a class name of this module, and its text."""

    error: str
    text: str


def to_event(error: MultiKueueError) -> ErrorEvent:
    """Return the plain form of ``error``."""
    return {"error": type(error).__name__, "text": str(error)}


def from_event(event: ErrorEvent) -> MultiKueueError:
    """Return the error that ``event`` describes; an unknown class name becomes the root class."""
    cls = globals().get(event["error"])
    if not (isinstance(cls, type) and issubclass(cls, MultiKueueError)):
        cls = MultiKueueError
    return cls(event["text"])
