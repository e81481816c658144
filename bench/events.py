"""What one event of a watch costs: to decode it, which nobody can avoid, to take it in, and to decide what it means."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from airflow_provider_multikueue.clusters import trim
from airflow_provider_multikueue.clusters.store import Store
from airflow_provider_multikueue.decisions import narrate
from airflow_provider_multikueue.decisions.kinds import find_kind
from airflow_provider_multikueue.decisions.orders import Orders, verdict
from airflow_provider_multikueue.decisions.workload import View, observe, remember
from bench.context import Context, Results, row
from bench.waiting_jobs import plain_job, plain_workload

__all__ = ["run"]

COUNT = 5_000
MEMORY = 1_000
"""Different objects in turn, so that nothing is in the processor's cache by chance."""


def run(context: Context) -> Results:
    """Measure processor time a piece, of events of Workloads as Kueue makes them."""
    lines = [_line(number) for number in range(MEMORY)]
    events = [json.loads(line) for line in lines]
    store = Store(index=trim.workload_keys, trim=trim.trim_workload)
    for event in events:
        store.claim(event["object"]["metadata"]["labels"]["kueue.x-k8s.io/job-uid"])
    decode = _microseconds(lambda number: json.loads(lines[number % MEMORY]))
    take_in = _microseconds(lambda number: _put(store, events[number % MEMORY]["object"], number))
    views = [_view(number, event["object"]) for number, event in enumerate(events)]
    decide = _microseconds(lambda number: _decide(views[number % MEMORY]))
    return {
        "rows": [
            row("an event: decoding alone", "µs", decode),
            row("an event: trimming and storing", "µs", take_in),
            row("an event: deciding what it means for the task", "µs", decide),
            row("events per second of a core, decoding alone", "", 1e6 / decode),
            row("events per second of a core, all of it", "", 1e6 / (decode + take_in + decide)),
        ],
        "notes": [
            f"Workloads of {len(lines[0])} bytes; processor time, without the event loop's and the network's part."
        ],
        "raw": {"decode_us": decode, "take_in_us": take_in, "decide_us": decide, "bytes": len(lines[0])},
    }


def _microseconds(work: Callable[[int], Any]) -> float:
    begun = time.process_time()
    for number in range(COUNT):
        work(number)
    return 1e6 * (time.process_time() - begun) / COUNT


def _uid(number: int) -> str:
    return f"{number:08x}-0000-4000-8000-000000000000"


def _line(number: int) -> bytes:
    workload = plain_workload(f"bench-{number}", _uid(number))
    workload["metadata"]["uid"] = f"workload-{number}"
    return json.dumps({"type": "MODIFIED", "object": workload}).encode()


def _put(store: Store, workload: dict[str, Any], version: int) -> None:
    workload["metadata"]["resourceVersion"] = str(version + 1)
    store.put(workload, 0.0)


def _view(number: int, workload: dict[str, Any]) -> View:
    job = {**plain_job(f"bench-{number}"), "status": {}}
    job["metadata"] |= {"uid": _uid(number), "creationTimestamp": "2026-01-01T00:00:00Z"}
    return View(
        kind=find_kind("batch/v1", "Job"),
        job=job,
        job_seen=True,
        workload=workload,
        workload_seen=True,
        workers={},
        now=time.time(),
    )


def _decide(view: View) -> None:
    remember(view.memory, view)
    seen = observe(view)
    narrate.narrate(None, seen)
    tried = narrate.describe_waiting(seen, now=view.now)
    verdict(seen, Orders(), dispatches=(), pods=(), tried=tried, now=view.now)
