"""The jobs of a namespace at a glance, by what the manager alone says of them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.decisions.conditions import items_at, text_at
from airflow_provider_multikueue.decisions.kinds import Kind, find_kind
from airflow_provider_multikueue.decisions.workload import Observation, View, observe

if TYPE_CHECKING:
    from airflow_provider_multikueue.fleets.fleet import Fleet

__all__ = ["overview"]


async def overview(fleet: Fleet, namespace: str) -> list[tuple[Kind, Observation]]:
    """Return what each job with a Workload in ``namespace`` does, the newest last; no worker is asked.

    Raises ``ApiError``.
    """
    workloads, _ = await fleet.manager.list(await fleet.manager.resource("kueue.x-k8s.io", "workloads"), namespace)
    now = time.time()
    jobs = [(kind, _seen(fleet, kind, workload, now)) for workload in workloads for kind in [_kind(workload)]]
    return sorted(jobs, key=lambda job: (str(job[1].submitted or ""), job[1].name))


def _kind(workload: dict[str, Any]) -> Kind:
    owner = next((each for each in items_at(workload, "metadata", "ownerReferences") if each.get("controller")), {})
    return find_kind(text_at(owner, "apiVersion"), text_at(owner, "kind"))


def _seen(fleet: Fleet, kind: Kind, workload: dict[str, Any], now: float) -> Observation:
    view = View(
        kind=kind,
        job=None,
        job_seen=False,
        workload=workload,
        workload_seen=True,
        workers={},
        now=now,
    )
    seen = observe(view)
    return replace(seen, region=fleet.region(seen.cluster))
