"""A job's result: the JSON that its leader wrote as its termination message.

A termination message needs no sidecar, no exec and no further right: it is part of the pod's status, which is watched
anyway. Kubernetes keeps 4096 bytes of it. In the container it is the file ``/dev/termination-log``, or what
``terminationMessagePath`` says.

What is larger goes to object storage, written by the job itself to wherever its manifest told it, and the message is
``{"result_uri": "gs://..."}``, with what else it likes to say: the report carries the address, and no part of Airflow
carries the data. So the job needs no library of ours, and Airflow no right to the data.

The leader is the succeeded pod that its controller marks as such, else the one with the lowest index of the role that
leads the kind (an indexed Job's index 0, the first pod of a JobSet's first replicated job, the master or launcher of a
training job); among pods that are all alike it is the first one that wrote a message. Where the job's manifest says who
leads, and that pod's success was not seen, there is no result: another pod's is another result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from airflow_provider_multikueue.decisions.conditions import items_at, text_at
from airflow_provider_multikueue.decisions.expected import missing_leader, missing_pods
from airflow_provider_multikueue.decisions.kinds import Kind, get_at
from airflow_provider_multikueue.decisions.podview import leads, ordinal, rank, role
from airflow_provider_multikueue.exceptions import ResultError

__all__ = ["MESSAGE_BYTES", "read_result"]

MESSAGE_BYTES: Final = 4096
"""What Kubernetes keeps of a termination message."""

SHOWN: Final = 200
HOW: Final = "Write JSON of at most 4 KiB to /dev/termination-log in the leader's container, or set read_result=False."

Pod = Mapping[str, Any]


def read_result(pods: Iterable[Pod], kind: Kind, *, every: bool = False, job: Mapping[str, Any] | None = None) -> Any:
    """Return the leader's result or, with ``every``, the list of all succeeded pods' results by index.

    ``job`` is the ended job on the manager; without it only the pods themselves tell who leads.

    Raises:
        ResultError: there is none, or the end of a pod that it needs was not seen, or it is no JSON; the text shows its
            first bytes.
    """
    known = list(pods)
    succeeded = [pod for pod in known if text_at(pod, "status", "phase") == "Succeeded"]
    succeeded.sort(key=lambda pod: (not leads(pod, kind.leader), rank(pod), ordinal(pod), _finished(pod)))
    if not succeeded:
        raise ResultError(f"The job has no result: the end of its pods was not seen on the worker. {HOW}")
    missing = missing_pods(succeeded, known, kind, job)
    if every:
        _refuse_without(missing)
        return [_value(pod, _message(pod)) for pod in succeeded]
    _refuse_without(missing_leader(succeeded[0], kind, job))
    leader, message = _leader(succeeded)
    if not message.strip() and not ordinal(leader):
        _refuse_without(missing)  # it may be one of those that are not known that wrote
    return _value(leader, message)


def _refuse_without(missing: str) -> None:
    if missing:
        raise ResultError(
            f"The job's result is not known: of {missing} no success was seen on the worker, whose pods are gone soon "
            "after their end. See in the task's log what kept them from being seen, or let the job write its result to "
            "object storage."
        )


def _leader(pods: list[Pod]) -> tuple[Pod, str]:
    """Return the leader and its message; a pod with an index, or the only one of its role, has no stand-in."""
    first = pods[0]
    alike = [first] if ordinal(first) else [pod for pod in pods if role(pod) == role(first)]
    return next(((pod, message) for pod in alike if (message := _message(pod))), (first, ""))


def _message(pod: Pod) -> str:
    messages = (
        str(get_at(status, ("state", "terminated", "message")) or "")
        for status in items_at(pod, "status", "containerStatuses")
    )
    return next((message for message in messages if message.strip()), "")


def _finished(pod: Pod) -> str:
    ends = (
        text_at(status, "state", "terminated", "finishedAt") for status in items_at(pod, "status", "containerStatuses")
    )
    return max(ends, default="")


def _value(pod: Pod, message: str) -> Any:
    name = text_at(pod, "metadata", "name")
    if not message.strip():
        raise ResultError(f"The job has no result: pod {name} wrote no termination message. {HOW}")
    try:
        value = json.loads(message, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        cut = len(message.encode("utf-8", "replace")) >= MESSAGE_BYTES
        what = f"was cut at {MESSAGE_BYTES} bytes" if cut else f"is not JSON ({error})"
        raise ResultError(f"The result that pod {name} wrote {what}: {message[:SHOWN]!r}. {HOW}") from error
    if isinstance(value, dict) and "result_uri" in value:
        _check_uri(name, value["result_uri"])
    return value


def _check_uri(pod: str, uri: Any) -> None:
    scheme, separator, rest = uri.partition("://") if isinstance(uri, str) else ("", "", "")
    if not (scheme and separator and rest):
        raise ResultError(
            f"The result that pod {pod} wrote has the result_uri {str(uri)[:SHOWN]!r}, which is no address. Write one "
            "such as gs://BUCKET/PATH, after the object is complete."
        )


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
