"""Whether a trigger or a process that Airflow stops was killed by a person, and the deletion that follows from it.

Airflow's ``on_kill`` is no proof: it also comes when another triggerer took the task over, and for a fired trigger that
is slow to return. A process is told to stop by the same signal when its worker is restarted. What a kill leaves behind
is a task that is over while the job still belongs to its try.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_multikueue.decisions import jobs
from airflow_provider_multikueue.decisions.kinds import find_kind, outcome
from airflow_provider_multikueue.fleets import stop

if TYPE_CHECKING:
    from airflow_provider_multikueue.fleets.fleet import Fleet
    from airflow_provider_multikueue.logs.emit import Sink

__all__ = ["Judgement", "delete_if_mine", "judge", "judge_process", "kill"]

Judgement = Literal["delete", "keep", "unclear"]

OVER = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
ALIVE = frozenset({"deferred", "running", "up_for_retry", "up_for_reschedule", "restarting"})

ATTEMPTS = 10

UNCLEAR_SECONDS = 8.0
"""How long a task may be about to run or to be cleared before that is taken for what it looks like."""


def judge(state: str | None, *, patient: bool) -> Judgement:
    """Say what a task's state means for its job; ``patient`` while an unclear state may still become clear.

    ``None`` is a task instance that is gone, ``"no_status"`` one that was cleared and not scheduled yet. A task that is
    scheduled or queued is either resuming (its job's end is to be reported) or cleared (its next try takes the job
    over): both keep the job.
    """
    if state in OVER:
        return "delete"
    if state in ALIVE:
        return "keep"
    if patient:
        return "unclear"
    return "delete" if state in (None, "no_status") else "keep"


def judge_process(state: str | None, *, retried: bool) -> bool:
    """Whether a task process that is told to stop leaves a job for which nobody will wait.

    A task that Airflow still takes for running was not killed by a person: its worker ends, and its try fails.
    """
    if state == "running":
        return not retried
    return judge(state, patient=False) == "delete"


async def kill(
    fleet: Fleet,
    job: Mapping[str, Any],
    *,
    owner: jobs.Owner | None,
    state: Callable[[], Awaitable[str | None]],
    sink: Sink,
    wait: float = stop.GONE_SECONDS,
) -> bool:
    """Delete the job if its task is over and the job is still this owner's (None: whoever's); return whether it was.

    ``wait`` is for how many seconds its pods are waited for.
    """
    if not await _is_over(state):
        sink.record(logging.DEBUG, f"job {job['name']} is kept: its task goes on")
        return False
    return await delete_if_mine(fleet, job, owner=owner, sink=sink, wait=wait)


async def delete_if_mine(
    fleet: Fleet,
    job: Mapping[str, Any],
    *,
    owner: jobs.Owner | None,
    sink: Sink,
    keep_ended: bool = False,
    wait: float = stop.GONE_SECONDS,
) -> bool:
    """Delete the job if it is still this owner's (None: whoever's), and ``wait`` for its pods; return whether it was.

    The deletion holds only for the job as it was when the owner was read, so a try that takes it over at that moment
    keeps it. With ``keep_ended`` a job that has ended is left to the try that will report it.
    """
    for _ in range(ATTEMPTS):
        version = await _version_if_mine(fleet, job, owner, keep_ended=keep_ended)
        if version is None:
            return False
        sink.record(logging.WARNING, f"The task was stopped: deleting {job['kind']} {job['namespace']}/{job['name']}")
        # Kueue writes to the job as well, so a conflict is no sign of another owner: look again.
        if await stop.delete_job(fleet, job, sink, resource_version=version, wait=wait):
            return True
    return False


async def _is_over(state: Callable[[], Awaitable[str | None]]) -> bool:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + UNCLEAR_SECONDS
    while (judgement := judge(await state(), patient=loop.time() < deadline)) == "unclear":  # noqa: ASYNC110
        await asyncio.sleep(1)  # the state is Airflow's: nothing here could be waited for
    return judgement == "delete"


async def _version_if_mine(
    fleet: Fleet, job: Mapping[str, Any], owner: jobs.Owner | None, *, keep_ended: bool
) -> str | None:
    from airflow_provider_multikueue.clusters.client import ApiError

    kind = find_kind(str(job["api_version"]), str(job["kind"]))
    resource = await fleet.manager.resource(kind.group, kind.plural)
    try:
        current = await fleet.manager.get(resource, str(job["name"]), str(job["namespace"]))
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    if current["metadata"]["uid"] != job["uid"]:
        return None
    if owner is not None and jobs.owner_of(current) != owner:
        return None
    if keep_ended and outcome(kind, current) is not None:
        return None
    return str(current["metadata"]["resourceVersion"])
