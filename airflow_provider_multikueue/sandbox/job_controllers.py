"""Runs, in one worker, the jobs whose controllers have a stand-in: looks, lets it decide, and writes its status.

What a stand-in makes belongs to its job, so that Kubernetes removes it with the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from airflow_provider_multikueue.clusters.client import PODS, ApiError, Cluster, Resource
from airflow_provider_multikueue.decisions.kinds import find_kind
from airflow_provider_multikueue.sandbox.stand_ins import STAND_INS, Children, is_over, is_suspended

__all__ = ["run_stand_ins"]

log = logging.getLogger(__name__)

Object = dict[str, Any]
StandIn = Callable[[Object, Children], Awaitable[Object]]

RETRY_SECONDS = 0.5
LOOK_SECONDS = 0.3
"""How often the parts of a running job are looked at."""


async def run_stand_ins(cluster: Cluster, kinds: Collection[str]) -> None:
    """Run the jobs of these kinds until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for kind in kinds:
            for (group, plural), stand_in in STAND_INS.get(kind, {}).items():
                tasks.create_task(_Controller(cluster, group, plural, stand_in).run(), name=plural)


class _Controller:
    def __init__(self, cluster: Cluster, group: str, plural: str, stand_in: StandIn) -> None:
        self._cluster = cluster
        self._names = (group, plural)
        self._stand_in = stand_in
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self._watch()
                except ApiError as error:
                    log.info("%s are watched again in %s s: %s", self._names[1], RETRY_SECONDS, error)
                await asyncio.sleep(RETRY_SECONDS)
        finally:
            for task in self._running.values():
                task.cancel()

    async def _watch(self) -> None:
        resource = await self._cluster.resource(*self._names)
        jobs, version = await self._cluster.list(resource)
        for job in jobs:
            self._see(resource, job)
        async with contextlib.aclosing(self._cluster.watch(resource, resource_version=version)) as changes:
            async for change, job in changes:
                if change in ("ADDED", "MODIFIED"):
                    self._see(resource, job)

    def _see(self, resource: Resource, job: Object) -> None:
        """Begin to run a job that may run and that nobody runs yet."""
        uid = job["metadata"]["uid"]
        if is_suspended(job) or is_over(job) or uid in self._running:
            return
        task = asyncio.create_task(self._keep_running(resource, job), name=job["metadata"]["name"])
        self._running[uid] = task
        task.add_done_callback(lambda _: self._running.pop(uid, None))

    async def _keep_running(self, resource: Resource, job: Object) -> None:
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        goes_on = True
        while goes_on:
            try:
                goes_on = await self._step(resource, job)
            except ApiError as error:
                goes_on = error.status != 404
                log.info("%s %s/%s is looked at again: %s", self._names[1], namespace, name, error)
            except Exception:
                # A manifest that this stand-in does not bear must not end those of others.
                log.exception("%s %s/%s can't be run.", self._names[1], namespace, name)
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _step(self, resource: Resource, job: Object) -> bool:
        """Look at a job once; return whether there is more to do for it."""
        name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
        now = await self._cluster.get(resource, name, namespace)
        metadata = now["metadata"]
        if metadata["uid"] != job["metadata"]["uid"] or metadata.get("deletionTimestamp") or is_over(now):
            return False
        children = _Children(self._cluster, now)
        if is_suspended(now):
            await children.clear()
            return True
        status = await self._stand_in(now, children)
        if status != now.get("status"):
            await self._cluster.replace(resource, name, {**now, "status": status}, namespace, subresource="status")
        return True


class _Children:
    """The objects of one job, by owner reference."""

    def __init__(self, cluster: Cluster, job: Object) -> None:
        self._cluster = cluster
        self._namespace = job["metadata"]["namespace"]
        self._uid = job["metadata"]["uid"]
        self._owner = {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "name": job["metadata"]["name"],
            "uid": self._uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }

    async def ensure(self, wanted: Object) -> Object:
        kind = find_kind(wanted["apiVersion"], wanted["kind"])
        resource = await self._cluster.resource(kind.group, kind.plural)
        found = await self.find(wanted["apiVersion"], wanted["kind"], wanted["metadata"]["name"])
        if found is None:
            metadata = {**wanted["metadata"], "namespace": self._namespace, "ownerReferences": [self._owner]}
            found = await self._cluster.create(resource, {**wanted, "metadata": metadata}, self._namespace)
        return {"apiVersion": wanted["apiVersion"], "kind": wanted["kind"], **found}

    async def find(self, api_version: str, kind: str, name: str) -> Object | None:
        row = find_kind(api_version, kind)
        try:
            resource = await self._cluster.resource(row.group, row.plural)
            return await self._cluster.get(resource, name, None if kind.startswith("Cluster") else self._namespace)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    async def pods(self, selector: Mapping[str, str]) -> list[Object]:
        labels = ",".join(f"{key}={value}" for key, value in selector.items())
        return (await self._cluster.list(PODS, self._namespace, labels=labels))[0]

    async def clear(self) -> None:
        for group, plural in (("batch", "jobs"), ("jobset.x-k8s.io", "jobsets"), ("", "pods")):
            with contextlib.suppress(ApiError):  # a kind that this cluster does not have
                resource = await self._cluster.resource(group, plural)
                for each in (await self._cluster.list(resource, self._namespace))[0]:
                    if self._uid in [owner["uid"] for owner in each["metadata"].get("ownerReferences") or ()]:
                        await self._cluster.delete(resource, each["metadata"]["name"], self._namespace)
