"""What a node tells the API server about one pod, and what it asks: status, events, removal, ConfigMaps and Secrets."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.clusters.client import CONFIGMAPS, EVENTS, PODS, SECRETS, ApiError, Resource
from airflow_provider_multikueue.sandbox.podenv import ConfigError, Sources, references
from airflow_provider_multikueue.sandbox.podstatus import rfc3339

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.client import Cluster

__all__ = ["PodApi"]

log = logging.getLogger(__name__)

Object = Mapping[str, Any]

RETRY_SECONDS = 0.5
GONE = {404, 409}
"""No such pod, or another one of its name by now."""


class PodApi:
    """Speaks for one pod. ``build`` gives the status whenever it is to be told.

    ``turns`` bounds how many statuses are on their way at once: in a burst of pods each then tells what it is by the
    time that its turn comes, and few connections do.
    """

    def __init__(
        self, cluster: Cluster, turns: asyncio.Semaphore, pod: Object, build: Callable[[], dict[str, Any]]
    ) -> None:
        meta = pod["metadata"]
        self.cluster = cluster
        self.name: str = meta["name"]
        self.namespace: str = meta["namespace"]
        self.uid: str = meta["uid"]
        self._turns = turns
        self._build = build
        self._dirty = asyncio.Event()
        self._all_told = asyncio.Event()
        self._all_told.set()
        self._warned: set[tuple[str, str]] = set()
        self._warnings: set[asyncio.Task[None]] = set()

    # -- status

    def changed(self) -> None:
        """Have the status told: soon, and until the server has it."""
        self._all_told.clear()
        self._dirty.set()

    async def told(self) -> None:
        """Return when the server knows the newest status."""
        await self._all_told.wait()

    async def tell(self) -> None:
        """Tell each change of the status; those that come while one is on its way are told together. Never returns."""
        told: dict[str, Any] | None = None
        while True:
            await self._dirty.wait()
            async with self._turns:
                self._dirty.clear()
                status = self._build()
                done = status == told or await self._patch(status)
            if not done:
                self._dirty.set()
                await asyncio.sleep(RETRY_SECONDS)
                continue
            told = status
            if not self._dirty.is_set():
                self._all_told.set()

    async def _patch(self, status: dict[str, Any]) -> bool:
        """Return whether the status is told, or never can be."""
        body = {"metadata": {"uid": self.uid}, "status": status}
        try:
            await self.cluster.patch(
                PODS, self.name, body, self.namespace, kind="strategic", subresource="status", field_manager="kubelet"
            )
        except ApiError as error:
            if error.status not in GONE:
                log.warning("%s", error)
            return 400 <= error.status < 500 and error.status != 429
        return True

    # -- its object

    async def remove(self) -> None:
        """Delete the pod's object for good, as the last act on a pod whose deletion was asked for."""
        while True:
            try:
                async with self._turns:
                    await self.cluster.delete(PODS, self.name, self.namespace, uid=self.uid, grace=0)
            except ApiError as error:
                if error.status in GONE:
                    return
                log.warning("%s", error)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return

    # -- what it reads

    async def sources(self, pod: Object) -> Sources:
        """Return the ConfigMaps and Secrets that the pod reads. Raises ConfigError when the server can't be asked."""
        configmaps, secrets = references(pod)
        return Sources(
            configmaps=await self._fetch(CONFIGMAPS, configmaps, _plain_data),
            secrets=await self._fetch(SECRETS, secrets, _secret_data),
        )

    async def _fetch(
        self, resource: Resource, names: set[str], decode: Callable[[Object], dict[str, bytes]]
    ) -> dict[str, dict[str, bytes]]:
        found = {}
        for name in sorted(names):
            try:
                found[name] = decode(await self.cluster.get(resource, name, self.namespace))
            except ApiError as error:
                if error.status != 404:
                    raise ConfigError(f"failed to get {resource} {name}: {error.message}") from error
        return found

    # -- events

    def warn(self, node: str, reason: str, message: str) -> None:
        """Record a warning event about the pod; the same one only once."""
        if (reason, message) in self._warned:
            return
        self._warned.add((reason, message))
        task = asyncio.create_task(self._record(node, reason, message))
        self._warnings.add(task)
        task.add_done_callback(self._warnings.discard)

    async def _record(self, node: str, reason: str, message: str) -> None:
        now = rfc3339()
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{self.name}.{uuid.uuid4().hex[:16]}", "namespace": self.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": self.name,
                "namespace": self.namespace,
                "uid": self.uid,
            },
            "type": "Warning",
            "reason": reason,
            "message": message[:1024],
            "source": {"component": "kubelet", "host": node},
            "reportingComponent": "kubelet",
            "reportingInstance": node,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        with contextlib.suppress(ApiError):
            await self.cluster.create(EVENTS, event, self.namespace)


def _plain_data(obj: Object) -> dict[str, bytes]:
    binary = {key: base64.b64decode(value) for key, value in (obj.get("binaryData") or {}).items()}
    return {key: value.encode() for key, value in (obj.get("data") or {}).items()} | binary


def _secret_data(obj: Object) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in (obj.get("data") or {}).items()}
