"""A real triggerer in which thousands of tasks wait: from a job's end to its task being scheduled again.

Between the two lie our trigger, Airflow's pipe from the triggers to their supervisor, and the supervisor's write into
the database. All other parts of the Airflow are stopped meanwhile, since tasks that go on would take the processor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.clusters.client import Cluster
from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from bench.context import Context, Results, row
from bench.processes import children, cpu_seconds, until_quiet
from bench.waiter import memory_bytes, quantile
from bench.waiting_jobs import End, Job, admit_jobs, end_jobs, make_jobs, remove_jobs, without_kueue

__all__ = ["run"]

WAITING = 2_000
SINGLE_ENDS = 60
SINGLE_PAUSE = 0.25
BURST = 1_000
ADMISSIONS = 500
IDLE = 20.0
MIB = 1024 * 1024


def run(context: Context) -> Results:
    """Measure a triggerer with 2,000 waiting tasks."""
    return asyncio.run(_run(context, 500 if context.quick else WAITING))


async def _run(context: Context, count: int) -> Results:
    async with without_kueue(context), context.cluster() as manager:
        jobs = await make_jobs(manager, [f"bench-t-{number:06}" for number in range(count)])
        try:
            async with _airflow(context, count) as airflow:
                raw = await _measure(context, airflow, manager, jobs)
        finally:
            if context.attached:
                await remove_jobs(manager)
    return {"rows": _rows(raw, count), "notes": NOTES, "raw": raw}


NOTES = [
    "From the moment that the end was sent to the manager's API server to `scheduled_dttm` of the task instance, "
    "SQLite. The tasks' rows are written by hand; triggerer, supervisor and database are Airflow's own.",
    "The supervisor is the one thread of a triggerer that serves all triggers; its share is its processor time.",
]


def _airflow(context: Context, count: int) -> LocalAirflow:
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
    await asyncio.to_thread(_defer, airflow, run_id, jobs)
    await airflow.stop_component("api-server")
    airflow.components["triggerer"].start()
    supervisor, runner = await _processes(airflow)
    found: dict[str, Any] = {"waiting": len(jobs)}
    found["start"] = {"seconds": await until_quiet([supervisor, runner]), "cpu": cpu_seconds(runner)}
    found["idle"] = await _used(supervisor, runner, asyncio.sleep(IDLE))
    found["mib"] = memory_bytes(runner) / MIB
    waiting = dict(zip((job.name for job in jobs), range(len(jobs)), strict=True))
    single, rest = jobs[:SINGLE_ENDS], jobs[SINGLE_ENDS:]
    found["single"] = await _ended(airflow, waiting, single, _one_by_one(manager, single))
    burst, rest = rest[: min(BURST, len(rest) // 2)], rest[min(BURST, len(rest) // 2) :]
    ending = _ended(airflow, waiting, burst, end_jobs(manager, burst))
    found["burst"] = await _used(supervisor, runner, ending)
    found["admissions"] = await _admitted(context, manager, supervisor, runner, rest[:ADMISSIONS])
    return found


def _stored(context: Context) -> dict[str, Any]:
    """Return the connection as Airflow's REST API takes it: in the database, as most are."""
    fleet = context.sandbox.connection()
    return {"connection_id": "multikueue_default", "conn_type": "multikueue", "extra": json.dumps(fleet["extra"])}


def _defer(airflow: LocalAirflow, run_id: str, jobs: Sequence[Job]) -> None:
    environment = airflow.components["triggerer"].environment
    asked = {"run": run_id, "jobs": [{"name": job.name, "uid": job.uid} for job in jobs]}
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


async def _one_by_one(manager: Cluster, jobs: Sequence[Job]) -> dict[str, End]:
    ends: dict[str, End] = {}
    for job in jobs:
        ends |= await end_jobs(manager, [job])
        await asyncio.sleep(SINGLE_PAUSE * random.uniform(0.5, 1.5))
    return ends


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
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as connection:
        rows = connection.execute(query).fetchall()
    return {index: datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp() for index, at in rows if at}


async def _admitted(
    context: Context, manager: Cluster, supervisor: int, runner: int, jobs: Sequence[Job]
) -> dict[str, Any]:
    """Let jobs be admitted as fast as it goes; return what writing their placements takes of the supervisor."""
    worker = sorted(context.sandbox.connection()["extra"]["workers"])[0]

    async def admit() -> dict[str, Any]:
        await admit_jobs(manager, jobs, worker)
        await asyncio.sleep(IDLE)
        return {"admissions": len(jobs)}

    return await _used(supervisor, runner, admit())


def _rows(raw: dict[str, Any], count: int) -> list[Any]:
    of = f"{count} waiting"
    burst, admissions = raw["burst"], raw["admissions"]
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
        row(f"{admissions['admissions']} admissions: the supervisor's share", "%", admissions["supervisor_percent"]),
    ]
