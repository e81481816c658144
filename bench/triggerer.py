"""A real triggerer in which thousands of tasks wait: from a job's end to its task being scheduled again.

Between the two lie our trigger, Airflow's pipe from the triggers to their supervisor, and the supervisor's write into
the database. All other parts of the Airflow are stopped meanwhile, since tasks that go on would take the processor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.clusters.client import Cluster
from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from bench.context import Context, Results, Row, row
from bench.processes import children, cpu_seconds, until_quiet
from bench.waiter import memory_bytes, quantile
from bench.waiting import SINGLE_ENDS, one_by_one
from bench.waiting_jobs import End, Job, admit_jobs, end_jobs, make_jobs, remove_jobs, without_kueue

__all__ = ["run"]

WAITING = 2_000
BURST = 1_000
ADMISSIONS = 1_000
QUICK_ADMISSIONS = 100
PLACEMENT_SECONDS = 600.0
"""How long the placements of so many admissions may take: each is one XCom, a fifth of the supervisor's time."""
IDLE = 20.0
PROBE_SECONDS = 1.0
HEARTBEAT_SECONDS = 30
"""Airflow's own threshold: a triggerer whose heartbeat is older loses its triggers to others."""
MIB = 1024 * 1024


def run(context: Context) -> Results:
    """Measure a triggerer with 2,000 waiting tasks, or as many as the largest size if that is less."""
    return asyncio.run(_run(context, min(WAITING, max(context.sizes))))


async def _run(context: Context, count: int) -> Results:
    async with without_kueue(context), context.cluster() as manager:
        jobs = await make_jobs(manager, [f"bench-t-{number:06}" for number in range(count + SINGLE_ENDS)])
        try:
            async with _airflow(len(jobs)) as airflow:
                raw = await _measure(context, airflow, manager, jobs)
        finally:
            await remove_jobs(manager)  # else the next part's tasks find them in their namespace
    return {"rows": _rows(raw, count), "notes": NOTES, "raw": raw}


NOTES = [
    "From the moment that the end was sent to the manager's API server to `scheduled_dttm` of the task instance, "
    "SQLite. The tasks' rows are written by hand; triggerer, supervisor and database are Airflow's own.",
    "The supervisor is the one thread of a triggerer that serves all triggers; its share is its processor time.",
    "Placements are XComs, written one at a time with pauses: at most a fifth of the supervisor's time. The "
    "heartbeat's age is looked at twice a second, the event loop's lag measured by a trigger beside ours.",
]


def _airflow(count: int) -> LocalAirflow:
    return LocalAirflow(
        dags=Path(__file__).parent / "dags",
        settings={"triggerer.capacity": 2 * count, "core.max_map_length": 2 * count},
        variables={"BENCH_TASKS": str(count), "PYTHONPATH": str(Path(__file__).parent.parent)},
    )


async def _measure(context: Context, airflow: LocalAirflow, manager: Cluster, jobs: Sequence[Job]) -> dict[str, Any]:
    context.say(f"  an Airflow with {len(jobs)} deferred tasks")
    await airflow.api.post("/connections", _stored(context))
    await airflow.wait_dag("waiting")
    for component in ("scheduler", "dag-processor", "triggerer"):
        await airflow.stop_component(component)
    run_id = await airflow.api.trigger("waiting", {}, None)
    probe = Probing(context.folder)
    await asyncio.to_thread(_defer, airflow, run_id, jobs, probe)
    await airflow.stop_component("api-server")
    airflow.components["triggerer"].start()
    supervisor, runner = await _processes(airflow)
    found: dict[str, Any] = {"waiting": len(jobs)}
    found["start"] = {"seconds": await until_quiet([supervisor, runner]), "cpu": cpu_seconds(runner)}
    found["idle"] = await _used(supervisor, runner, asyncio.sleep(IDLE))
    found["mib"] = memory_bytes(runner) / MIB
    waiting = dict(zip((job.name for job in jobs), range(len(jobs)), strict=True))
    single, rest = jobs[:SINGLE_ENDS], jobs[SINGLE_ENDS:]
    found["single"] = await _ended(airflow, waiting, single, one_by_one(single, partial(end_jobs, manager)))
    size = min(BURST, len(rest) // 2)
    burst, rest = rest[:size], rest[size:]
    ending = _ended(airflow, waiting, burst, end_jobs(manager, burst))
    found["burst"] = await _used(supervisor, runner, ending)
    admitted = rest[: QUICK_ADMISSIONS if context.quick else ADMISSIONS]
    context.say(f"  {len(admitted)} admissions")
    placing = _admitted(context, airflow, manager, waiting, admitted)
    found["admissions"] = await _used(supervisor, runner, probe.around(placing))
    return found


class Probing:
    """The other side of `bench.probe`, which measures the lag of the triggers' event loop from inside of it."""

    def __init__(self, folder: Path) -> None:
        self._asked, self._found = folder / "probe-asked", folder / "probe-found.json"
        for path in (self._asked, self._found):
            path.unlink(missing_ok=True)

    @property
    def arguments(self) -> dict[str, str]:
        """Return what the trigger is made with."""
        return {"asked": str(self._asked), "found": str(self._found)}

    async def around(self, work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """Do the work; return its result with the lag meanwhile."""
        self._asked.touch()
        await asyncio.sleep(PROBE_SECONDS)
        result = await work
        self._asked.unlink()
        async with asyncio.timeout(60):
            while not self._found.exists():  # noqa: ASYNC110 - written by another process
                await asyncio.sleep(PROBE_SECONDS)
        await asyncio.sleep(PROBE_SECONDS)  # until it is written whole
        return {**result, **json.loads(self._found.read_text())}


def _stored(context: Context) -> dict[str, Any]:
    """Return the connection as Airflow's REST API takes it: in the database, as most are."""
    fleet = context.sandbox.connection()
    return {"connection_id": "multikueue_default", "conn_type": "multikueue", "extra": json.dumps(fleet["extra"])}


def _defer(airflow: LocalAirflow, run_id: str, jobs: Sequence[Job], probe: Probing) -> None:
    environment = airflow.components["triggerer"].environment
    jobs_asked = [{"name": job.name, "uid": job.uid} for job in jobs]
    asked = {"run": run_id, "jobs": jobs_asked, "probe": probe.arguments}
    command = (sys.executable, "-W", "ignore", "-m", "bench.defer")
    done = subprocess.run(
        command, env=environment, input=json.dumps(asked), text=True, capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the tasks could not be deferred:\n{done.stderr[-2000:]}")


async def _processes(airflow: LocalAirflow) -> tuple[int, int]:
    """Return the triggerer's supervisor and the process in which its triggers run."""
    supervisor = airflow.components["triggerer"].pid or 0
    async with asyncio.timeout(60):
        while not (runners := [pid for pid in children(supervisor) if cpu_seconds(pid) > 0.05]):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    return supervisor, runners[-1]


async def _used(supervisor: int, runner: int, work: Any) -> dict[str, Any]:
    """Do the work, and return its result with what both processes used meanwhile."""
    begun, before = time.monotonic(), (cpu_seconds(supervisor), cpu_seconds(runner))
    result = await work
    passed = time.monotonic() - begun
    shares = [100 * (cpu_seconds(pid) - used) / passed for pid, used in zip((supervisor, runner), before, strict=True)]
    return {**(result or {}), "seconds": passed, "supervisor_percent": shares[0], "runner_percent": shares[1]}


async def _ended(airflow: LocalAirflow, waiting: dict[str, int], jobs: Sequence[Job], ending: Any) -> dict[str, Any]:
    """Return how soon tasks were scheduled again after ``ending`` let their jobs end."""
    ends: dict[str, End] = await ending
    scheduled: dict[int, float] = {}
    wanted = {waiting[job.name] for job in jobs}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            while not wanted <= scheduled.keys():
                await asyncio.sleep(0.25)
                scheduled = await asyncio.to_thread(_scheduled, airflow.layout.database)
    times = {name: scheduled[index] for name, index in waiting.items() if name in ends and index in scheduled}
    delays = [at - ends[name].sent for name, at in times.items()]
    last = max((end.answered for end in ends.values()), default=0.0)
    return {
        "ends": len(ends),
        "scheduled": len(delays),
        "p50_ms": 1000 * quantile(delays, 0.5),
        "p99_ms": 1000 * quantile(delays, 0.99),
        "after_last_seconds": max(times.values(), default=last) - last,
    }


def _scheduled(database: Path) -> dict[int, float]:
    """Return when tasks were scheduled again, epoch seconds by map index."""
    query = "SELECT map_index, scheduled_dttm FROM task_instance WHERE dag_id = 'waiting' AND state = 'scheduled'"
    return {index: _epoch(at) for index, at in _select(database, query) if at}


def _placed(database: Path) -> dict[int, float]:
    """Return when the placements were written, epoch seconds by map index."""
    query = "SELECT map_index, timestamp FROM xcom WHERE dag_id = 'waiting' AND key = 'placement'"
    return {index: _epoch(at) for index, at in _select(database, query)}


def _heartbeat_age(database: Path) -> float:
    """Return how old the triggerer's heartbeat is, in seconds."""
    query = "SELECT max(latest_heartbeat) FROM job WHERE job_type = 'TriggererJob' AND state = 'running'"
    now = time.time()
    return max((now - _epoch(at) for (at,) in _select(database, query) if at), default=0.0)


def _select(database: Path, query: str) -> list[Any]:
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        return connection.execute(query).fetchall()


def _epoch(at: str) -> float:
    return datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()


async def _admitted(
    context: Context, airflow: LocalAirflow, manager: Cluster, waiting: dict[str, int], jobs: Sequence[Job]
) -> dict[str, Any]:
    """Let jobs be admitted as fast as it goes; return how soon each placement was there, and the heartbeat's age."""
    worker = sorted(context.sandbox.connection()["extra"]["workers"])[0]
    admitting = asyncio.create_task(admit_jobs(manager, jobs, worker))
    wanted, placed, ages = {waiting[job.name] for job in jobs}, dict[int, float](), list[float]()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(PLACEMENT_SECONDS):
            while not wanted <= placed.keys():
                await asyncio.sleep(0.5)
                ages.append(await asyncio.to_thread(_heartbeat_age, airflow.layout.database))
                placed = await asyncio.to_thread(_placed, airflow.layout.database)
    ends = await admitting
    delays = [placed[waiting[name]] - end.sent for name, end in ends.items() if waiting[name] in placed]
    return {
        "admissions": len(jobs),
        "admitted_in_seconds": max(end.answered for end in ends.values()) - min(end.sent for end in ends.values()),
        "placements": len(delays),
        "placement_p50_seconds": quantile(delays, 0.5),
        "placement_p99_seconds": quantile(delays, 0.99),
        "placement_last_seconds": max(delays, default=0.0),
        "heartbeat_age_seconds": max(ages, default=0.0),
    }


def _admission_rows(found: dict[str, Any]) -> list[Row]:
    """Return what the admissions cost everyone on the triggerer, and how late the placements were."""
    of = f"{found['admissions']} admissions"
    beat = f"under {HEARTBEAT_SECONDS}, Airflow's threshold"
    return [
        row(f"{of} took", "s", found["admitted_in_seconds"]),
        row(f"{of}: the supervisor's share", "%", found["supervisor_percent"]),
        row(f"{of}: oldest heartbeat of the triggerer", "s", found["heartbeat_age_seconds"], goal=beat),
        row(f"{of}: event-loop lag p99", "ms", found["lag_p99_ms"], goal="under 20 at 2,000"),
        row(f"{of}: event-loop lag, worst", "ms", found["lag_max_ms"]),
        row(f"{of}: placements written", "", found["placements"]),
        row(f"{of}: admission -> placement in XCom p50", "s", found["placement_p50_seconds"]),
        row(f"{of}: admission -> placement in XCom p99", "s", found["placement_p99_seconds"]),
        row(f"{of}: admission -> placement in XCom, last", "s", found["placement_last_seconds"]),
    ]


def _rows(raw: dict[str, Any], count: int) -> list[Any]:
    of = f"{count} waiting"
    burst = raw["burst"]
    return [
        row(f"end -> task scheduled again p50, {of}", "ms", raw["single"]["p50_ms"]),
        row(f"end -> task scheduled again p99, {of}", "ms", raw["single"]["p99_ms"]),
        row(f"ends noticed of {raw['single']['ends']}", "", raw["single"]["scheduled"]),
        row(f"process of the triggers while idle, {of}", "%", raw["idle"]["runner_percent"]),
        row(f"supervisor while idle, {of}", "%", raw["idle"]["supervisor_percent"]),
        row(f"process of the triggers, {of}", "MiB", raw["mib"]),
        row(f"start with {of}: seconds until quiet", "s", raw["start"]["seconds"]),
        row(f"burst of {burst['ends']}: last task scheduled after the last end", "s", burst["after_last_seconds"]),
        row("burst: tasks scheduled", "", burst["scheduled"]),
        row("burst: the supervisor's share", "%", burst["supervisor_percent"]),
        *_admission_rows(raw["admissions"]),
    ]
