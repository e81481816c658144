"""Mapped tasks through a real Airflow and a real fleet: how long a run takes, and how much of it is ours."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.sandbox.airflow import RUN_ENDS, LocalAirflow
from airflow_provider_multikueue.sandbox.airflow_runs import poll
from bench.context import Context, Results, row
from bench.processes import children, cpu_seconds

__all__ = ["run"]

TASKS = 200
WITHIN = 1_500.0


def run(context: Context) -> Results:
    """Measure 200 mapped tasks whose jobs run for a second each."""
    return asyncio.run(_run(context, 20 if context.quick else TASKS))


async def _run(context: Context, count: int) -> Results:
    context.sandbox.capacity(mode="grant", after=0.5, gpus=None)
    notes = context.folder / "end-to-end-notes.jsonl"
    notes.write_text("")
    airflow = LocalAirflow(
        dags=Path(__file__).parent / "dags",
        connections={"multikueue_default": context.sandbox.connection()},
        settings={"core.max_map_length": 2 * count, "core.parallelism": 2 * (os.cpu_count() or 1)},
        variables={"BENCH_TASKS": str(count), "BENCH_NOTES": str(notes)},
    )
    async with airflow:
        raw = await _measure(airflow, count)
    raw["notes"] = [json.loads(line) for line in notes.read_text().splitlines()]
    return {"rows": _rows(raw, count), "notes": NOTES, "raw": raw}


NOTES = [
    "A task's process: from Airflow's start of the task to its end, twice a task, before and after it waits; ours is "
    "the time inside of the operator's `execute` and `execute_complete`.",
    "Fleet and Airflow share this machine's cores, so the length of the run is that of the machine, not of a fleet.",
]


async def _measure(airflow: LocalAirflow, count: int) -> dict[str, Any]:
    await airflow.wait_dag("training")
    before, begun = _used(airflow), time.monotonic()
    run_id = await airflow.trigger("training")
    state = await poll(
        lambda: airflow.run_state("training", run_id),
        lambda state: state in RUN_ENDS,
        within=WITHIN,
        what="the run of mapped tasks to end",
        every=1.0,
    )
    passed, after = time.monotonic() - begun, _used(airflow)
    instances = await airflow.task_instances("training", run_id)
    states = [str(each["state"]) for each in instances]
    return {
        "tasks": count,
        "state": state,
        "seconds": passed,
        "states": {name: states.count(name) for name in sorted(set(states))},
        "cpu": {name: after[name] - before[name] for name in after},
    }


def _used(airflow: LocalAirflow) -> dict[str, float]:
    """Return the processor time of each component so far, its children's included."""
    used = {}
    for name, component in airflow.components.items():
        pids = [component.pid or 0, *children(component.pid or 0)]
        used[name] = sum(cpu_seconds(pid, ended_children=True) for pid in pids)
    return used


def _rows(raw: dict[str, Any], count: int) -> list[Any]:
    notes, total = raw["notes"], sum(raw["cpu"].values())
    ours = sum(each["cpu"] for each in notes)
    submits = [each["wall"] for each in notes if each["what"] == "submit"]
    completes = [each["wall"] for each in notes if each["what"] == "complete"]
    return [
        row(f"{count} mapped tasks, start of the run to its end", "s", raw["seconds"]),
        row("tasks that succeeded", "", raw["states"].get("success", 0)),
        row("a task, all of it: processor of the whole Airflow", "s", total / count),
        row("a task, ours in its processes: processor", "s", ours / count),
        row("a task, ours in its processes: share of the Airflow's processor", "%", 100 * ours / total),
        row("a task, submission (`execute`): mean", "s", _mean(submits)),
        row("a task, report (`execute_complete`): mean", "s", _mean(completes)),
        row(
            "the triggerer, Airflow's part included: share of the processor", "%", 100 * raw["cpu"]["triggerer"] / total
        ),
    ]


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.0
