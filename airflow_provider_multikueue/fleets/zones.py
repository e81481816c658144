"""The zones of the nodes on which jobs ran: each node is asked for once, however many jobs end there at once."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_multikueue.clusters.client import NODES, ApiError
from airflow_provider_multikueue.decisions.conditions import text_at
from airflow_provider_multikueue.exceptions import MultiKueueError

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.client import Cluster
    from airflow_provider_multikueue.fleets.fleet import Fleet

__all__ = ["NodeZones", "zones_of"]

ZONE_LABEL = "topology.kubernetes.io/zone"
MOST_NODES = 16
MOST_KNOWN = 10_000
ANSWER_SECONDS = 5.0
REFUSED_SECONDS = 600.0
"""How long a worker that lets nobody read its nodes is not asked again."""


class NodeZones:
    """The zones of a fleet's nodes as far as somebody has asked: a node's name stays in its zone."""

    def __init__(self, most: int = MOST_KNOWN) -> None:
        self._most = most
        self._known: dict[tuple[str, str], str] = {}
        self._asked: dict[tuple[str, str], asyncio.Task[str]] = {}
        self._refused: dict[str, float] = {}

    async def zone(self, cluster: Cluster, node: str) -> str:
        """Return the zone of a node; empty where it has none, is gone, or may not be read."""
        key = (cluster.name, node)
        if key in self._known:
            return self._known[key]
        if time.monotonic() < self._refused.get(cluster.name, 0.0):
            return ""
        if key not in self._asked:
            self._asked[key] = asking = asyncio.get_running_loop().create_task(
                self._ask(cluster, node), context=contextvars.Context()
            )
            asking.add_done_callback(lambda task: task.cancelled() or task.exception())  # who asked may have gone
        return await asyncio.shield(self._asked[key])

    async def _ask(self, cluster: Cluster, node: str) -> str:
        try:
            found = await cluster.get(NODES, node)
        except ApiError as error:
            if error.status == 403:
                self._refused[cluster.name] = time.monotonic() + REFUSED_SECONDS
            if error.status not in (403, 404):
                raise
            return ""
        finally:
            del self._asked[cluster.name, node]
        return self._keep((cluster.name, node), text_at(found, "metadata", "labels", ZONE_LABEL))

    def _keep(self, key: tuple[str, str], zone: str) -> str:
        if len(self._known) >= self._most:
            del self._known[next(iter(self._known))]
        self._known[key] = zone
        return zone


async def zones_of(fleet: Fleet, worker: str | None, nodes: Sequence[str]) -> list[str]:
    """Return the zones of the nodes, sorted; empty where they may not be read."""
    if worker is None or not nodes:
        return []
    try:
        cluster = await fleet.worker(worker)
        if cluster is None:
            return []
        async with asyncio.timeout(ANSWER_SECONDS):
            found = await asyncio.gather(*(fleet.zones.zone(cluster, node) for node in nodes[:MOST_NODES]))
    except (ApiError, MultiKueueError, TimeoutError):
        return []
    return sorted({zone for zone in found if zone})
