"""The node agent: stands for all nodes of one worker cluster, against its real control plane.

It registers the nodes and keeps them ready, and runs the pods that the scheduler binds to them as local processes. It
outlives trouble with the API server: pods go on running, and what happened meanwhile is told when the server is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_multikueue.clusters.client import LEASES, NODES, PODS, ApiError
from airflow_provider_multikueue.sandbox.container import BASE_PATH, LogUnavailable
from airflow_provider_multikueue.sandbox.kubelet import Endpoint
from airflow_provider_multikueue.sandbox.nodeobject import allocatable, is_ready, lease, lease_renewal, node_object
from airflow_provider_multikueue.sandbox.paths import SandboxError
from airflow_provider_multikueue.sandbox.pod import Host, Pod
from airflow_provider_multikueue.sandbox.podstatus import Verdict
from airflow_provider_multikueue.sandbox.process import Processes

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.client import Cluster
    from airflow_provider_multikueue.sandbox.pki import ServerTls

__all__ = ["NodeAgent"]

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 10.0
RETRY_SECONDS = 1.0
RECLAIM_GRACE = 15.0
"""Seconds that a pod gets on a node that the cloud takes away."""
TURNS = 8
"""How many pods speak to the API server at once."""
LEASE_NAMESPACE = "kube-node-lease"


class NodeAgent:
    """Runs ``nodes`` nodes that share ``gpus`` GPUs and are spread over ``zones``, in the region's cluster.

    ``tls`` is for the kubelet endpoint on 127.0.0.1:``port``, which answers the API server alone. Below ``state_dir``
    are the pods' private files, and in ``kept-logs`` a copy of each container's output that stays when the pod is gone.
    `COMMANDS` are the methods that the sandbox's control channel may call, with plain types in and out.
    """

    COMMANDS: ClassVar[frozenset[str]] = frozenset(
        {"node_names", "pods", "reclaim_node", "restore_node", "rotate_logs"}
    )

    def __init__(
        self,
        *,
        cluster: Cluster,
        region: str,
        zones: Sequence[str],
        nodes: int,
        gpus: int,
        tls: ServerTls,
        port: int,
        state_dir: Path,
    ) -> None:
        self.cluster = cluster
        self.region = region
        names = [f"gke-{region}-dws-pool-{index}" for index in range(nodes)]
        self._zones = {name: zones[index % len(zones)] for index, name in enumerate(names)}
        self._gpus = {name: gpus // nodes + (index < gpus % nodes) for index, name in enumerate(names)}
        self._port = port
        self._state_dir = state_dir
        self._endpoint = Endpoint(self._find, tls=tls, port=port)
        self._version = ""
        self._host: Host | None = None
        self._pods: dict[str, Pod] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._reclaimed: set[str] = set()
        self._beats = {name: asyncio.Event() for name in names}

    # -- for the control channel

    def node_names(self) -> list[str]:
        """Return the names of all nodes, also of those that were taken away."""
        return list(self._zones)

    def pods(self) -> list[dict[str, Any]]:
        """Return what is known of each pod on these nodes; ``kept_logs`` is the folder that outlives the pod."""
        return [_summary(pod) for pod in self._pods.values()]

    def rotate_logs(self, namespace: str, pod: str) -> None:
        """Rotate the logs of a pod's containers away: what they have written so far is served no more."""
        found = self._find(namespace, pod)
        if found is None:
            raise SandboxError(f"No pod {namespace}/{pod} runs on these nodes.")
        for container in found.containers:
            with contextlib.suppress(LogUnavailable):
                found.container_log(container.name, previous=False).rotate()

    async def reclaim_node(self, name: str) -> None:
        """Take a node away as a cloud does: its pods fail within 15 s, then its Node is deleted and stays away."""
        self._check(name)
        self._reclaimed.add(name)
        verdict = Verdict(
            "Terminated",
            "Pod was terminated in response to imminent node shutdown.",
            disruption="TerminationByKubelet",
        )
        pods = [pod for pod in self._pods.values() if pod.node == name]
        for pod in pods:
            pod.end(verdict, RECLAIM_GRACE)
        await asyncio.gather(*(pod.ended() for pod in pods))
        with contextlib.suppress(ApiError):
            await self.cluster.delete(NODES, name)

    async def restore_node(self, name: str) -> None:
        """Let a node that was taken away come back."""
        self._check(name)
        self._reclaimed.discard(name)
        self._beats[name].set()

    def _check(self, name: str) -> None:
        if name not in self._zones:
            raise KeyError(f"there is no node {name!r} here, only {', '.join(self._zones)}")

    # -- running

    async def run(self) -> None:
        """Run until cancelled; no process of a pod outlives this."""
        _allow_many_files()
        processes = Processes()
        path = ":".join(dict.fromkeys([*os.environ.get("PATH", "").split(":"), *BASE_PATH.split(":")])).strip(":")
        self._host = Host(
            cluster=self.cluster,
            processes=processes,
            state_dir=self._state_dir,
            path=path,
            allocatable=allocatable(max(self._gpus.values())),
            turns=asyncio.Semaphore(TURNS),
        )
        try:
            await self._endpoint.start()
            async with asyncio.TaskGroup() as group:
                group.create_task(processes.watch_memory())
                group.create_task(self._follow_pods())
                for name in self._zones:
                    group.create_task(self._keep_alive(name))
        finally:
            await self._stop_pods()
            processes.close()
            await self._endpoint.close()

    async def _stop_pods(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- nodes

    async def _keep_alive(self, name: str) -> None:
        while True:
            settled = True
            try:
                if name not in self._reclaimed:
                    settled = await self._beat(name)
            except ApiError as error:
                log.warning("Node %s: %s", name, error)
                settled = False
            pause = HEARTBEAT_SECONDS if settled else RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._beats[name].wait(), pause)
            self._beats[name].clear()

    async def _beat(self, name: str) -> bool:
        """Renew the node's lease, and its registration where that is needed; return whether pods can be bound to it."""
        node = await self._registered(name)
        try:
            await self.cluster.patch(LEASES, name, lease_renewal(), LEASE_NAMESPACE)
        except ApiError as error:
            if error.status != 404:
                raise
            await self.cluster.create(LEASES, lease(name, node["metadata"]["uid"]), LEASE_NAMESPACE)
        return is_ready(node)

    async def _registered(self, name: str) -> dict[str, Any]:
        """Return the Node, made or told to be ready again if need be.

        The latter also when only its taint says otherwise: the control plane takes that off at a change of the node,
        and does not try again when this fails, as it does in the first moments of a cluster.
        """
        self._version = self._version or str((await self.cluster.version())["gitVersion"])
        wanted = node_object(
            name,
            region=self.region,
            zone=self._zones[name],
            gpus=self._gpus[name],
            port=self._port,
            version=self._version,
        )
        try:
            node = await self.cluster.get(NODES, name)
        except ApiError as error:
            if error.status != 404:
                raise
            return await self.cluster.create(NODES, wanted)
        port = node.get("status", {}).get("daemonEndpoints", {}).get("kubeletEndpoint", {}).get("Port")
        if is_ready(node) and port == self._port:
            return node
        await self.cluster.patch(NODES, name, {"metadata": {"labels": wanted["metadata"]["labels"]}})
        return await self.cluster.patch(
            NODES, name, {"status": wanted["status"]}, kind="strategic", subresource="status"
        )

    # -- pods

    def _find(self, namespace: str, name: str) -> Pod | None:
        wanted = (namespace, name)
        found = (pod for pod in self._pods.values() if _key(pod.pod) == wanted)
        return next(found, None)

    async def _follow_pods(self) -> None:
        while True:
            try:
                items, version = await self.cluster.list(PODS, fields="spec.nodeName!=")
                self._relist(items)
                while True:
                    version = await self._watch(version)
            except ApiError as error:
                if error.status != 410:
                    log.warning("Pods: %s", error)
                    await asyncio.sleep(RETRY_SECONDS)

    async def _watch(self, version: str) -> str:
        """Handle one watch's events; return the resourceVersion to go on from."""
        async for kind, obj in self.cluster.watch(PODS, resource_version=version, fields="spec.nodeName!="):
            version = obj["metadata"]["resourceVersion"]
            if kind == "DELETED":
                self._drop(obj["metadata"]["uid"])
            elif kind != "BOOKMARK":
                self._take(obj)
        return version

    def _relist(self, items: list[dict[str, Any]]) -> None:
        present = {item["metadata"]["uid"] for item in items}
        for uid in self._pods.keys() - present:
            self._drop(uid)
        for item in items:
            self._take(item)
        for event in self._beats.values():  # after an outage the nodes may be held for dead: say now that they are not
            event.set()

    def _take(self, obj: dict[str, Any]) -> None:
        uid = obj["metadata"]["uid"]
        if uid in self._pods:
            self._pods[uid].update(obj)
        elif obj["spec"].get("nodeName") in self._zones and self._host is not None:
            pod = self._pods[uid] = Pod(self._host, obj)
            task = self._tasks[uid] = asyncio.create_task(pod.run())
            task.add_done_callback(_report)

    def _drop(self, uid: str) -> None:
        """Forget a pod whose object is gone, with its processes and its log."""
        if self._pods.pop(uid, None) is not None:
            self._tasks.pop(uid).cancel()


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("A pod's task failed; the pod stays as it was last told.", exc_info=task.exception())


def _key(obj: dict[str, Any]) -> tuple[str, str]:
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


def _summary(pod: Pod) -> dict[str, Any]:
    namespace, name = _key(pod.pod)
    return {
        "namespace": namespace,
        "name": name,
        "uid": pod.uid,
        "node": pod.node,
        "phase": pod.phase,
        "kept_logs": str(pod.log_folder),
        "containers": [
            {
                "name": container.name,
                "state": next(iter(container.record.state), "waiting"),
                "restarts": container.record.restarts,
                "pid": container.process.pid if container.process else None,
            }
            for container in pod.containers
        ],
    }


def _allow_many_files() -> None:
    """Raise the limit of open files as far as it goes: each running container takes three."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
