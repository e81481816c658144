"""What a submission costs: requests to the manager, and how many a process makes in a second."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.decisions.names import Identity, Lifetime, Owner
from airflow_provider_multikueue.fleets.fleet import open_fleet
from airflow_provider_multikueue.fleets.submit import Request, submit
from bench.context import MANAGER_CONTEXT, Context, Results, row
from bench.metrics import Counted, counted, difference
from bench.waiting_jobs import POD

__all__ = ["run"]

COUNT = 40
AT_ONCE = 8
OURS = frozenset(
    {
        ("GET", "localqueues"),
        ("GET", "clusterqueues"),
        ("GET", "admissionchecks"),
        ("GET", "multikueueconfigs"),
        ("LIST", "jobs"),
        ("POST", "jobs"),
    }
)
"""What Kueue itself never asks: it watches its queues."""


class Silent:
    """A task's log that nobody reads."""

    def record(self, level: int, text: str) -> None:
        """Drop it."""


def run(context: Context) -> Results:
    """Submit jobs, each on an event loop of its own, as worker processes do; then many on one."""
    count = COUNT // 4 if context.quick else COUNT
    config = FleetConfig.from_extra(context.sandbox.connection()["extra"], conn_id="multikueue_default")
    namespace = context.sandbox.make_namespace()
    try:
        return _measure(context, config, namespace, count)
    finally:
        context.sandbox.delete_namespace(namespace)


def _measure(context: Context, config: FleetConfig, namespace: str, count: int) -> Results:
    before = asyncio.run(counted(context.sandbox.kubeconfig, MANAGER_CONTEXT))
    begun, cpu = time.monotonic(), time.process_time()
    for number in range(count):
        asyncio.run(_submit(config, namespace, [f"alone-{number}"]))
    alone, alone_cpu = (time.monotonic() - begun) / count, (time.process_time() - cpu) / count
    after = asyncio.run(counted(context.sandbox.kubeconfig, MANAGER_CONTEXT))
    asked = {kind: number for kind, number in difference(after, before).items() if _is_ours(kind)}
    begun = time.monotonic()
    asyncio.run(_submit(config, namespace, [f"together-{number}" for number in range(count)]))
    together = (time.monotonic() - begun) / count
    requests = sum(asked.values()) / count
    return {
        "rows": [
            row("requests per submission", "", round(requests, 1), None, "<= 5"),
            row("submission alone, a fleet opened each time", "ms", 1000 * alone),
            row("submission alone, processor", "ms", 1000 * alone_cpu),
            row(f"submissions per second, {AT_ONCE} at once in a process", "", 1 / together),
        ],
        "notes": ["Requests are the manager's own count; two of them are discovery, four read the queue."],
        "raw": {"requests": {" ".join(kind): number / count for kind, number in asked.items()}, "count": count},
    }


def _is_ours(kind: Counted) -> bool:
    discovery = kind.verb == "GET" and not kind.resource and not kind.subresource
    return discovery or (kind.verb, kind.resource) in OURS


async def _submit(config: FleetConfig, namespace: str, names: list[str]) -> None:
    turns = asyncio.Semaphore(AT_ONCE)
    async with open_fleet(config) as fleet:

        async def one(name: str) -> None:
            async with turns:
                await submit(fleet, _request(config, namespace, name), Silent())

        await asyncio.gather(*(one(name) for name in names))


def _request(config: FleetConfig, namespace: str, name: str) -> Request:
    manifest: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": "bench-"},
        "spec": {"template": {"spec": POD}},
    }
    return Request(
        manifest=manifest,
        identity=Identity(deployment="bench", dag_id="bench", run_id=namespace, task_id=name),
        owner=Owner(ti="bench", attempt=1),
        lifetime=Lifetime(kind="run"),
        namespace=namespace,
        default_queue_name=config.queue_name,
    )
