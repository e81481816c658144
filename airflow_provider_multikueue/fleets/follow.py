"""Follow one job to its end: watches in, one decision, and its consequences out.

The loop is the same for a trigger, for an operator that does not defer, and for the hook. It wakes at a change of
anything that is watched, asks ``observe`` what that means, says what is new, reads the pods of the placed dispatch, and
stops at the job's end or at a verdict. It never polls.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_multikueue.decisions import endings, narrate, report
from airflow_provider_multikueue.decisions.jobs import QUEUE_LABEL, held_for, release
from airflow_provider_multikueue.decisions.kinds import find_kind
from airflow_provider_multikueue.decisions.names import DISPATCHES, JOINED, cursors_of
from airflow_provider_multikueue.decisions.orders import Orders, Verdict, next_deadline, outside_regions, verdict
from airflow_provider_multikueue.decisions.outcome import Outcome
from airflow_provider_multikueue.decisions.pods import pods_of_stay
from airflow_provider_multikueue.decisions.results import read_result
from airflow_provider_multikueue.decisions.workload import Memory, Observation, Phase, observe, remember
from airflow_provider_multikueue.exceptions import (
    FleetConfigurationError,
    JobDeletedError,
    MultiKueueError,
    ResultError,
)
from airflow_provider_multikueue.fleets import stop
from airflow_provider_multikueue.fleets.attention import Attention
from airflow_provider_multikueue.fleets.notes import Notes
from airflow_provider_multikueue.fleets.output import cloud_source, gone
from airflow_provider_multikueue.fleets.zones import zones_of
from airflow_provider_multikueue.logs.reader import PodLogs
from airflow_provider_multikueue.logs.store import LogStore

if TYPE_CHECKING:
    from airflow_provider_multikueue.fleets.fleet import Fleet
    from airflow_provider_multikueue.logs.emit import Sink
    from airflow_provider_multikueue.logs.reader import LogPolicy
    from airflow_provider_multikueue.logs.store import Target

__all__ = ["Following", "follow", "resolve"]

DRAIN_SECONDS = 15.0
"""How long the end of a job waits for its last log lines; the outcome does not depend on them."""

LAST_STATUS_SECONDS = 2.0
"""How long the end waits for the pods' final statuses, which hold the exit codes."""

NOTE_SECONDS = 2.0
"""How long a reader that stops waits for its last note; a manager whose Kueue hangs answers after 10 s."""

SETTLE_SECONDS = 3.0
NOTICE_SECONDS = 1.0
LONGEST_SLEEP = 60.0
"""While a cluster does not answer or a copy is dead: what is done about it depends on the time that passes."""
SPREAD_SECONDS = 60.0
"""Thousands of tasks that began together must not look all at once whether it is time to say that they still wait."""
SAVE_SECONDS = 5.0
"""How often positions in the logs are saved: what a reader that is lost can make the next one repeat."""
SAVES_PER_SECOND = 10.0
"""The most that all readers of a process save: hundreds of them save more seldom, to spare the manager."""
UNASKED_SECONDS = 10.0
GRACE_SECONDS = 10.0
"""How long a job may take to be seen although the time for it is over: it may have ended before that."""


@dataclass(slots=True)
class Following:
    """One job being followed; ``run`` may be called once."""

    fleet: Fleet
    job: Mapping[str, Any]
    orders: Orders
    sink: Sink
    on_placement: Callable[[dict[str, Any]], None] = lambda _: None
    clock: Callable[[], float] = time.time
    target: Target | None = None
    """Where the whole output is stored."""
    reader: str | None = ""
    """Whose task log it is: who goes on under the same name goes on where that log ends. None: nobody goes on."""

    _attention: Attention = field(init=False)
    _memory: Memory = field(default_factory=Memory, init=False)
    _seen: Observation | None = field(default=None, init=False)
    _seen_at: float = field(default=0.0, init=False)
    _resumed: bool = field(default=False, init=False)
    _saved_at: float = field(default=0.0, init=False)
    _told_at: float = field(default=0.0, init=False)
    _begun_at: float = field(default=0.0, init=False)
    _dispatches: report.Dispatches | None = field(default=None, init=False)
    _noted: report.Dispatches | None = field(default=None, init=False)
    _moved_at: float = field(default=0.0, init=False)
    _logs: PodLogs | None = field(default=None, init=False)
    _notes: Notes = field(init=False)
    _healer: stop.Healer = field(default_factory=stop.Healer, init=False)

    def __post_init__(self) -> None:
        """Nothing is watched yet."""
        self._told_at = self._begun_at = self.clock()
        self._attention = Attention(self.fleet, self.job, self.sink)
        self._notes = Notes(self._annotate)

    async def run(self) -> Outcome:
        """Wait until the orders are fulfilled, the job is over, or a verdict ends the wait."""
        await self._in_time(self._begin())
        while True:
            self._attention.changed.clear()
            seen = await self._look()
            if outcome := await self._decide(seen):
                return outcome
            self._save()
            await self._sleep(seen)

    async def _begin(self) -> None:
        await self._attention.start()
        await self._release()
        if self.orders.until == "now":
            await self._settle()

    async def _in_time(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what may have to wait for a manager that does not answer, until it is time for a verdict."""
        due = next_deadline(self._observe(), self._limits)
        left = None if due is None else max(due - self.clock(), GRACE_SECONDS)
        try:
            async with asyncio.timeout(left) as limit:
                await work
        except TimeoutError:
            if not limit.expired():
                raise

    @property
    def _limits(self) -> Orders:
        """The orders, as far as it is known whether they are kept.

        Where the time for admission was over before this reader began, an earlier one has seen the job admitted in
        time; while the manager does not answer, nothing else says so.
        """
        attention, until = self._attention, self.orders.admission_deadline
        unknown = attention.job is None or (attention.workload is None and attention.troubled)
        if until is None or not unknown or datetime.fromisoformat(until).timestamp() > self._begun_at:
            return self.orders
        return replace(self.orders, admission_deadline=None)

    async def hand_over(self) -> None:
        """Leave what the reader that comes next can't find out: where the streams stand, and the stays so far."""
        self._note_dispatches()
        if self._logs is not None:
            cursors = await self._logs.hand_over()
            self._note_positions(cursors, in_order=not self._logs.lost)
        await self._notes.flush(NOTE_SECONDS)

    def _save(self) -> None:
        """Note from time to time where the streams stand, for a reader that begins after this one was lost.

        A stay is noted with them, or when it has lasted a while: a job that ends soon is spared it.
        """
        if self._reading and self.clock() >= self._saved_at + _save_pause():
            self._saved_at = self.clock()
            _saving.add(id(self))
            self._note_positions(self._logs.settled() if self._logs else {}, in_order=False)
            self._note_dispatches()
        elif self.clock() >= self._moved_at + SAVE_SECONDS:
            self._note_dispatches()

    @property
    def _reading(self) -> bool:
        return self._logs is not None and self.reader is not None and bool(self._logs.reading)

    def _note_dispatches(self) -> None:
        """Note the stays so far: where the job was while nobody looked is nowhere else."""
        if self._dispatches is not None and self._dispatches is not self._noted and self.orders.may_delete:
            self._noted = self._dispatches
            self._notes.put(DISPATCHES, self._noted.to_json())

    def _note_positions(self, streams: dict[str, Any], *, in_order: bool) -> None:
        """Note where the streams stand; when, too, if more may be in the log by the time that this is read."""
        if self.reader is not None:
            at = {} if in_order else {"at": datetime.fromtimestamp(self.clock(), UTC).isoformat()}
            self._notes.put(cursors_of(self.reader), json.dumps({"streams": streams, **at}))

    async def close(self) -> None:
        """Let go of watches and streams; the job is left as it is."""
        _saving.discard(id(self))
        self._attention.close()
        await self._notes.close()
        if self._logs is not None:
            await self._logs.close()

    async def _release(self) -> None:
        """Put the job into its queue, now that nothing it does can be missed."""
        patch = release(self._attention.job, now=datetime.fromtimestamp(self.clock(), UTC))
        if patch is None or not self.orders.may_delete:
            self._resumed = self.orders.may_delete and self._attention.annotation(JOINED) is not None
            self.orders = self.orders.after_holding(held_for(self._attention.job))
            return
        attention = self._attention
        await attention.persist(lambda: self._patch(patch))
        self.sink.record(logging.INFO, f"Joined queue {patch['metadata']['labels'][QUEUE_LABEL]}.")
        created = datetime.fromisoformat(str((self._attention.job or {})["metadata"]["creationTimestamp"]))
        self.orders = self.orders.after_holding(datetime.fromtimestamp(self.clock(), UTC) - created)
        # Kueue makes the Workload within milliseconds: without it there would be nothing to tell but that.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NOTICE_SECONDS):
                while attention.workload is None:
                    attention.changed.clear()
                    await attention.changed.wait()
                    attention.collect()

    async def _settle(self) -> None:
        """Give what has only begun to be watched a moment to be seen, as there will be no second look."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                await self._look()
                while not self._attention.settled:
                    self._attention.changed.clear()
                    await self._attention.changed.wait()

    async def _look(self) -> Observation:
        if self._attention.job is None:
            await self._in_time(self._attention.resolve_doubt())
        seen = self._observe()
        interest = self._of_interest(seen)
        await self._attention.widen(interest, seen.cluster)
        if seen.phase.placed or seen.phase is Phase.QUEUED:  # else any worker may be asked next, unsaid
            self._attention.narrow(interest)
        seen = self._observe()
        self._tell(seen)
        await self._read_pods(seen)
        return seen

    def _of_interest(self, seen: Observation) -> tuple[str, ...]:
        """Return the workers to watch; all of them when none is asked, since one that hangs holds up all the others."""
        if seen.cluster:
            return (*seen.asked, seen.cluster)
        if seen.admitted is not None:
            return self.fleet.worker_names  # admitted, and the manager does not say where
        idle = seen.phase is Phase.PLACING and not seen.asked and self.clock() - self._seen_at > UNASKED_SECONDS
        return self.fleet.worker_names if idle else seen.asked

    def _observe(self) -> Observation:
        self._attention.collect()
        view = self._attention.view(self.clock(), self._can_heal)
        self._memory = remember(self._memory, view)
        return observe(replace(view, memory=self._memory))

    def _can_heal(self, worker: str) -> bool:
        """Whether a dead copy on ``worker`` can be deleted; who only looks on takes it that the job's own task can."""
        return not self.orders.may_delete or (self.orders.heal and self._healer.may_heal(worker))

    def _tell(self, seen: Observation) -> None:
        lines = narrate.narrate(self._seen, seen)
        if self._seen is None and self._resumed and seen.ending is None:
            # An earlier reader told it; thousands of tasks that go on at once would fill the log's narrow pipe.
            lines, self._told_at = [line for line in lines if line[0] > logging.INFO], self.clock()
        if not lines and seen.ending is None and self.clock() >= narrate.next_heartbeat(seen, self._told_at):
            lines = [(logging.INFO, narrate.describe_waiting(seen, now=self.clock()))]
        if lines:
            self._told_at = self.clock()
        for level, text in lines:
            self.sink.record(level, text)
        if seen.cluster and (self._seen is None or self._seen.cluster != seen.cluster):
            placement = report.placement_part(seen)
            if placement is not None:
                self.on_placement(dict(placement))
        self._follow_moves(seen)
        if self._seen != seen:
            self._seen, self._seen_at = seen, self.clock()

    def _follow_moves(self, seen: Observation) -> None:
        if self._dispatches is None and self._attention.job is not None:
            self._dispatches = self._noted = report.Dispatches.from_json(self._attention.annotation(DISPATCHES))
        before = self._stays
        after = before.update(seen)
        if self._dispatches is None or after is before:
            return
        self._dispatches, self._moved_at = after, self.clock()
        if len(after.items) > len(before.items) > 0:
            self._note_dispatches()  # a move is rare

    @property
    def _stays(self) -> report.Dispatches:
        return self._dispatches or report.Dispatches()

    async def _read_pods(self, seen: Observation) -> None:
        if self.orders.until != "finished":
            return
        for name, pods in self._attention.pods.items():
            cluster = await self.fleet.worker(name) if pods else None
            if cluster is None:
                continue
            self._open_logs(seen).update(cluster, self.fleet.region(name), pods.values())
        if seen.cluster and self._attention.blind(seen.cluster):
            self._read_elsewhere(seen, seen.cluster)

    def _open_logs(self, seen: Observation) -> PodLogs:
        if self._logs is None:
            saved = None if self.reader is None else self._attention.annotation(cursors_of(self.reader))
            cursors, lost_at = _cursors(saved)
            self._logs = PodLogs(
                sink=self.sink,
                policy=cast("LogPolicy", self.orders.logs),
                cursors=cursors,
                resumed_at=lost_at,
                several=self._attention.pods_expected > 1,
                store=LogStore(self.target, self._attention.name, self.sink.record) if self.target else None,
                cloud=lambda worker: cloud_source(self.fleet, self.job, worker),
                since=seen.admitted.isoformat() if seen.admitted else "",
            )
        return self._logs

    def _read_elsewhere(self, seen: Observation, worker: str) -> bool:
        """Show the output from Cloud Logging if that has it; return whether it has."""
        if cloud_source(self.fleet, self.job, worker) is None:
            return False
        return self._open_logs(seen).read_cloud(worker, self.fleet.region(worker) or worker)

    def _look_back(self, seen: Observation) -> None:
        """Show, or say where to find, the output of a job whose pods were gone before anybody looked."""
        if self.orders.logs == "none" or self.orders.until == "admitted" or seen.admitted is None:
            return
        if pods_of_stay(self._attention.last_pods(seen.cluster), seen.admitted):
            return
        if not (seen.cluster and self._read_elsewhere(seen, seen.cluster)):
            self.sink.record(logging.WARNING, gone(self.fleet, self.job, seen.cluster))

    async def _patch(self, body: Mapping[str, Any]) -> None:
        kind = self._attention.kind
        resource = await self.fleet.manager.resource(kind.group, kind.plural)
        await self.fleet.manager.patch(resource, self._attention.name, dict(body), self._attention.namespace)

    async def _annotate(self, notes: dict[str, str]) -> None:
        await self._patch({"metadata": {"uid": self.job["uid"], "annotations": notes}})

    async def _decide(self, seen: Observation) -> Outcome | None:
        if outside := outside_regions(seen, self.orders, self._stays.items):
            return await self._give_up(seen, outside)
        if seen.ending is not None:
            return await self._end(seen)
        placed = seen.cluster is not None and seen.admitted is not None
        if self.orders.until == "now" or (self.orders.until == "admitted" and placed):
            return Outcome(report=await self._report(seen), ended=False)
        judged = verdict(
            seen,
            self._limits,
            dispatches=self._stays.items,
            pods=self._attention.last_pods(seen.cluster),
            tried=narrate.describe_waiting(seen, now=self.clock()),
            now=self.clock(),
        )
        if judged is not None:
            return await self._give_up(seen, judged)
        if self.orders.heal and seen.dead:
            await self._healer.heal(self.fleet, seen.dead, self.sink, self.clock())
        return None

    async def _end(self, seen: Observation) -> Outcome:
        """Collect what only the worker knows, then report; bounded, since the outcome is already decided."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_STATUS_SECONDS):
                while self._attention.unfinished(seen.cluster):
                    self._attention.changed.clear()
                    await self._attention.changed.wait()
        self._attention.collect()
        await self._read_pods(seen)
        self._look_back(seen)
        if self._logs is not None:
            await self._logs.drain(DRAIN_SECONDS)
        tail = self._logs.tail() if self._logs is not None else []
        error = endings.error_for(seen, self._attention.last_pods(seen.cluster), tail)
        outcome = await self._with_result(seen, error)
        if seen.ending is not None and seen.ending.leaves_job and self.orders.may_delete:
            return replace(outcome, deleted=await self._delete())
        return replace(outcome, deleted=seen.ending is not None and seen.ending.kind == "deleted")

    async def _with_result(self, seen: Observation, error: MultiKueueError | None) -> Outcome:
        result = None
        if error is None and self.orders.read_result:
            try:
                every = self.orders.read_result == "all"
                pods = pods_of_stay(self._attention.last_pods(seen.cluster), seen.admitted)
                result = read_result(pods, self._attention.kind, every=every, job=self._attention.job)
            except ResultError as failure:
                error = failure
        return Outcome(report=await self._report(seen, result), error=error)

    async def _give_up(self, seen: Observation, judged: Verdict) -> Outcome:
        self.sink.record(logging.ERROR, str(judged.error))
        deleted = judged.delete and await self._delete()
        if self._logs is not None:
            await self._logs.drain(DRAIN_SECONDS / 3)
        return Outcome(report=await self._report(seen), error=judged.error, ended=judged.delete, deleted=deleted)

    async def _delete(self) -> bool:
        """Delete the job; that the manager refuses or hangs is told, and changes nothing about how the wait ended."""
        from airflow_provider_multikueue.clusters.client import ApiError

        try:
            return await stop.delete_job(self.fleet, self.job, self.sink)
        except ApiError as error:
            self.sink.record(logging.ERROR, f"The job could not be deleted and may still run: {error}")
            return False

    async def _report(self, seen: Observation, result: Any = None) -> dict[str, Any]:
        pods = pods_of_stay(self._attention.last_pods(seen.cluster), seen.admitted)
        nodes = sorted({str(p["spec"]["nodeName"]) for p in pods if p.get("spec", {}).get("nodeName")})
        whole = report.build_report(
            seen,
            job=report.parse_job_reference(self.job),
            dispatches=self._stays,
            nodes=nodes,
            zones=await zones_of(self.fleet, seen.cluster, nodes),
            result=result,
        )
        return dict(whole)

    async def _sleep(self, seen: Observation) -> None:
        now = self.clock()
        saving = self._saved_at + _save_pause() if self._reading else None
        noting = self._moved_at + SAVE_SECONDS if self._dispatches is not self._noted else None
        unasked: float | None = self._seen_at + UNASKED_SECONDS
        if seen.phase is not Phase.PLACING or seen.asked or self._seen_at + UNASKED_SECONDS <= now:
            unasked = None
        times = (next_deadline(seen, self._limits), seen.recheck, unasked, saving, noting)
        longest = self._longest_sleep(seen, now)
        pause = min((max(t - now, 0.05) for t in times if t is not None and t > now - 1), default=longest)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(pause, longest)):
                await self._attention.changed.wait()

    def _longest_sleep(self, seen: Observation, now: float) -> float:
        """Return for how long nothing has to be done if nothing changes."""
        if seen.dead or self._attention.troubled:
            return LONGEST_SLEEP
        due = narrate.next_heartbeat(seen, self._told_at) - now
        return max(due, 0.0) + random.uniform(0, SPREAD_SECONDS)  # noqa: S311 - spreads load


_saving: set[int] = set()
"""Who saves positions in this process."""


def _save_pause() -> float:
    """Return the seconds between two saves of one reader."""
    return max(SAVE_SECONDS, len(_saving) / SAVES_PER_SECOND)


def _cursors(text: str | None) -> tuple[dict[str, Any], datetime | None]:
    """Return where an earlier reader left the streams, and when it was last seen if it did not leave in order."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        saved = json.loads(text or "{}")
        streams, at = saved.get("streams"), saved.get("at")
        return dict(streams or {}), datetime.fromisoformat(at) if at else None
    return {}, None


async def follow(
    opened: AbstractAsyncContextManager[tuple[Fleet, object]],
    job: Mapping[str, Any],
    orders: Orders,
    sink: Sink,
    *,
    on_placement: Callable[[dict[str, Any]], None] = lambda _: None,
    on_cancel: Callable[[Following], Awaitable[None]] | None = None,
    target: Target | None = None,
    reader: str | None = None,
) -> Outcome:
    """Open the fleet and follow the job; what prevents that is an outcome too, and says what to do."""
    from airflow_provider_multikueue.clusters.client import ApiError

    try:
        async with opened as (fleet, _):
            following = Following(fleet, job, orders, sink, on_placement=on_placement, target=target, reader=reader)
            try:
                return await following.run()
            except asyncio.CancelledError:
                if on_cancel is not None:
                    await on_cancel(following)
                raise
            finally:
                await following.close()
    except MultiKueueError as error:
        return Outcome(report=None, error=error, ended=False)
    except ApiError as error:
        refused = error.status in (401, 403)
        failure = FleetConfigurationError if refused else MultiKueueError
        text = f"Job {job['namespace']}/{job['name']} can't be followed: {error}"
        return Outcome(report=None, error=failure(text), ended=False)


async def resolve(fleet: Fleet, job: object) -> dict[str, Any]:
    """Return which object ``job`` is, its uid looked up where it is not stated.

    Raises:
        ManifestError: ``job`` is no job reference.
        JobDeletedError: there is no such job on the manager.
    """
    from airflow_provider_multikueue.clusters.client import ApiError

    part: dict[str, Any] = dict(report.parse_job_reference(job))
    if part["uid"]:
        return part
    kind = find_kind(part["api_version"], part["kind"])
    try:
        resource = await fleet.manager.resource(kind.group, kind.plural)
        found = await fleet.manager.get(resource, part["name"], part["namespace"])
    except ApiError as error:
        if error.status != 404:
            raise
        raise JobDeletedError(
            f"{part['kind']} {part['namespace']}/{part['name']} is not on the manager: it was never submitted "
            f"there, or it ended and was removed. Give the report of the task that submitted it."
        ) from error
    return {**part, "uid": found["metadata"]["uid"]}
