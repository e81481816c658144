"""Tasks whose jobs hold quota while every region is asked for capacity: what waiting for DWS costs.

Of each job there are then a copy and a ProvisioningRequest on every worker, which the task watches too. They are
written by hand, all Kueues stopped. The waits end with the admission in one region.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from typing import Any

from airflow_provider_multikueue.clusters.client import Cluster
from bench.context import MANAGER_CONTEXT, Context, Results, Row, row
from bench.waiting import BURST, MEASURES, burst, idle, single, single_jobs, start, started, value
from bench.waiting_jobs import (
    End,
    Job,
    admit_jobs,
    ask_everywhere,
    make_jobs,
    remove_jobs,
    without_kueue,
)

__all__ = ["run"]

SIZES = (500, 2_000)
QUICK_SIZES = (100,)
NAMES = {"end -> event": "admission -> event", "burst: ends": "burst: admissions", "last end": "last admission"}
"""What ends these waits is another thing than in the other table."""
PARTS = ("start", "idle", "single", "burst")


def run(context: Context) -> Results:
    """Measure at each size, with all regions of the sandbox asked."""
    return asyncio.run(_run(context))


async def _run(context: Context) -> Results:
    sizes = QUICK_SIZES if context.quick else tuple(size for size in SIZES if size <= max(context.sizes))
    raw: list[dict[str, Any]] = []
    async with without_kueue(context, context.sandbox.regions), contextlib.AsyncExitStack() as opened:
        manager = await opened.enter_async_context(context.cluster())
        workers = {
            worker.cluster: await opened.enter_async_context(context.cluster(worker.context))
            for worker in context.sandbox.spec.workers
        }
        for size in sizes:
            try:
                context.say(f"{size} jobs that {len(workers)} regions are asked for")
                raw.append(await _measure(context, manager, workers, size))
                (context.folder / "asked.json").write_text(json.dumps(raw))
            finally:
                for cluster in (manager, *workers.values()):
                    await remove_jobs(cluster)
    return {"rows": _rows(raw, len(workers)), "notes": NOTES, "raw": raw}


NOTES = ["Requests are counted at the API servers of the manager and of all workers."]


async def _measure(context: Context, manager: Cluster, workers: dict[str, Cluster], size: int) -> dict[str, Any]:
    jobs = await make_jobs(manager, [f"asked-{size}-{number:06}" for number in range(size)])
    await ask_everywhere(manager, workers, jobs)
    clusters = (MANAGER_CONTEXT, *(worker.context for worker in context.sandbox.spec.workers))
    winner = sorted(workers)[-1]

    async def admit(some: Sequence[Job]) -> dict[str, End]:
        return await admit_jobs(manager, some, winner)

    async with started(context, "placing") as process:
        found: dict[str, Any] = {"size": size, "start": await start(context, process, jobs, clusters)}
        found["idle"] = await idle(context, process, clusters)
        chosen = single_jobs(jobs)
        found["single"] = await single(process, chosen, admit, 10)
        found["burst"] = await burst(process, jobs[len(chosen) :][:BURST], admit, 30)
    return found


def _rows(raw: list[dict[str, Any]], regions: int) -> list[Row]:
    rows = []
    for measure, unit, path, goal in MEASURES:
        if path[0] not in PARTS:
            continue
        for known, name in NAMES.items():
            measure = measure.replace(known, name)
        for found in raw:
            said = f"{measure}, {found['size']} asked in {regions} regions"
            rows.append(row(said, unit, value(found, path), None, goal if "KiB" not in unit else ""))
    return rows
