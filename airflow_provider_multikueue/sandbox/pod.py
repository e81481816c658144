"""One pod on its node: its containers in order, and its ends from inside and from outside."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.sandbox.container import Container
from airflow_provider_multikueue.sandbox.podapi import PodApi
from airflow_provider_multikueue.sandbox.podenv import ConfigError, Place, Sources
from airflow_provider_multikueue.sandbox.podstatus import Verdict, is_sidecar, pod_status, rfc3339
from airflow_provider_multikueue.sandbox.volumes import PodFolder, address

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.client import Cluster
    from airflow_provider_multikueue.sandbox.containerlog import ContainerLog
    from airflow_provider_multikueue.sandbox.process import Processes

__all__ = ["Host", "Pod"]

log = logging.getLogger(__name__)

Object = Mapping[str, Any]

HOST_IP = "127.0.0.1"
MOUNT_RETRY_SECONDS = 2.0
TERMINAL = {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True)
class Host:
    """What the pods of one agent share."""

    cluster: Cluster
    processes: Processes
    state_dir: Path
    path: str
    allocatable: Mapping[str, str]
    turns: asyncio.Semaphore


class Pod:
    """Runs one pod from when it is bound to the node until its object is gone."""

    def __init__(self, host: Host, pod: dict[str, Any]) -> None:
        meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
        self.pod = pod
        self.uid: str = meta["uid"]
        self.stopping = asyncio.Event()
        self.place = Place(ip=address(self.uid), host_ip=HOST_IP, allocatable=host.allocatable)
        self.folder = PodFolder(host.state_dir / "pods" / self.uid)
        self.log_folder = host.state_dir / "kept-logs" / meta["namespace"] / f"{meta['name']}_{self.uid}"
        self.processes = host.processes
        self.path = host.path
        self._policy: str = spec.get("restartPolicy", "Always")
        self.init, self.main, self._sidecars = self._make_containers(spec)
        self._api = PodApi(host.cluster, host.turns, pod, self._status)
        self._started: str = status.get("startTime") or rfc3339()
        self._conditions = {entry["type"]: entry for entry in status.get("conditions", ())}
        self._verdict: Verdict | None = None
        self._over = status.get("phase") in TERMINAL
        self._lost = self._take_over(status)
        self._kill_at = float("inf")
        self._deleted = asyncio.Event()
        self._ended = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[None]] = set()
        self.update(pod)

    def _make_containers(self, spec: Object) -> tuple[list[Container], list[Container], list[Container]]:
        """Return the init containers, the main ones, and which of the former are sidecars."""
        entries = spec.get("initContainers", ())
        init_policy = "Never" if self._policy == "Never" else "OnFailure"
        init = [Container(self, entry, entry.get("restartPolicy", init_policy)) for entry in entries]
        main = [Container(self, entry, entry.get("restartPolicy", self._policy)) for entry in spec["containers"]]
        if init:
            for container in main:
                container.record.state = {"waiting": {"reason": "PodInitializing"}}
        return init, main, [each for each, entry in zip(init, entries, strict=True) if is_sidecar(entry)]

    def _take_over(self, status: Object) -> bool:
        """Take over what an earlier agent told; return whether it had started a container, whose process is lost."""
        told = {
            entry["name"]: entry
            for key in ("initContainerStatuses", "containerStatuses")
            for entry in status.get(key, ())
            if entry.get("containerID")
        }
        for container in self.containers:
            if container.name in told:
                container.lose(told[container.name])
        return bool(told)

    # -- what others see and ask for

    @property
    def node(self) -> str:
        """The name of its node."""
        return str(self.pod["spec"]["nodeName"])

    @property
    def phase(self) -> str:
        """The phase that its status has now."""
        return str(self._status()["phase"])

    @property
    def containers(self) -> list[Container]:
        """All containers, init containers first."""
        return [*self.init, *self.main]

    def container_log(self, name: str, *, previous: bool) -> ContainerLog:
        """Return a container's log; KeyError when there is no such container, LogUnavailable when it has none."""
        return {each.name: each for each in self.containers}[name].log(previous=previous)

    def update(self, pod: dict[str, Any]) -> None:
        """Take over a newer version of the object: its deadline, and its deletion above all."""
        self.pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._stop_within(float(pod["metadata"].get("deletionGracePeriodSeconds") or 0))
            self._deleted.set()
        seconds = pod["spec"].get("activeDeadlineSeconds")
        if seconds is not None and self._deadline is None:
            verdict = Verdict("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
            self._deadline = asyncio.get_running_loop().call_later(seconds, self.end, verdict)

    def end(self, verdict: Verdict, grace: float = float("inf")) -> None:
        """Stop the pod within its own grace period, or ``grace`` if shorter, and tell ``verdict`` as the reason."""
        if self._over:
            return
        if not self.stopping.is_set():
            self._verdict = verdict
        self._stop_within(min(self._grace, grace))
        self.changed()

    @property
    def _grace(self) -> float:
        return float(self.pod["spec"].get("terminationGracePeriodSeconds", 30))

    async def ended(self) -> None:
        """Return when no container runs any more and the server knows it, or the pod is gone."""
        await self._ended.wait()

    def _stop_within(self, grace: float) -> None:
        self._kill_at = min(self._kill_at, time.monotonic() + grace)
        self.stopping.set()

    # -- its life

    async def run(self) -> None:
        """Run the pod, tell how it ended, and remove its object when that is asked for. Ends by cancellation alone."""
        teller = asyncio.create_task(self._api.tell())
        try:
            if not self._over:
                await self._live_or_fail()
            await self._api.told()
            self._ended.set()
            await self._deleted.wait()
            await self._api.told()
            await self._api.remove()
            await asyncio.Event().wait()
        finally:
            self._close(teller)

    def _close(self, teller: asyncio.Task[None]) -> None:
        self._ended.set()
        for container in self.containers:
            if container.process is not None:
                container.process.kill()
        if self._deadline is not None:
            self._deadline.cancel()
        for task in [teller, *self._background]:
            task.cancel()
        self.folder.remove()

    async def _live_or_fail(self) -> None:
        try:
            await self._live()
        except Exception as error:
            # Such as a full disk. A pod that stayed as it was last told would be waited for without end.
            log.exception("Pod %s failed on its node.", self.pod["metadata"]["name"])
            self.end(Verdict("NodeAgentError", f"{type(error).__name__}: {error}"), 0)
            self._over = True
            await asyncio.gather(*self._background, return_exceptions=True)
            self.changed()

    async def _live(self) -> None:
        stopper = asyncio.create_task(self._stop_when_asked())
        self._background.add(stopper)
        if not (self._lost and self._policy == "Never") and await self._mount() and await self._initialize():
            await asyncio.gather(*(container.run() for container in self.main))
        self._over = True
        self._stop_within(self._grace)
        await asyncio.gather(*self._background)
        self.changed()

    async def _mount(self) -> bool:
        """Make the volumes; False when the pod is stopping before it could be done."""
        while not self.stopping.is_set():
            try:
                self.folder.prepare(self.pod, await self.sources(), self.place)
            except ConfigError as error:
                self.warn("FailedMount", f"MountVolume.SetUp failed for volume: {error}")
                self.changed()
            else:
                return True
            await self.pause(MOUNT_RETRY_SECONDS)
        return False

    async def _initialize(self) -> bool:
        """Run the init containers in their order; False when the main containers may not start."""
        for container in self.init:
            if container in self._sidecars:
                self._background.add(asyncio.create_task(container.run()))
                await self._either(container.running)
            else:
                await container.run()
                if container.record.exit_code != 0:
                    return False
            if self.stopping.is_set():
                return False
        return True

    async def _either(self, event: asyncio.Event) -> None:
        """Return when ``event`` comes, or the pod is stopping."""
        tasks = [asyncio.create_task(each.wait()) for each in (event, self.stopping)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

    async def _stop_when_asked(self) -> None:
        """Once the pod is stopping, end its containers, and after them the sidecars, last one first."""
        await self.stopping.wait()
        self.changed()

        def until() -> float:
            return self._kill_at

        await asyncio.gather(*(each.stop(until) for each in self.containers if each not in self._sidecars))
        for sidecar in reversed(self._sidecars):
            await sidecar.stop(until)

    # -- what its containers need

    def changed(self) -> None:
        """Have the pod's status told."""
        self._api.changed()

    def warn(self, reason: str, message: str) -> None:
        """Record a warning event about the pod."""
        self._api.warn(self.node, reason, message)

    async def sources(self) -> Sources:
        """Return the ConfigMaps and Secrets that the pod reads."""
        return await self._api.sources(self.pod)

    async def pause(self, seconds: float) -> None:
        """Return after this time, or when the pod is stopping."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)

    def _status(self) -> dict[str, Any]:
        status = pod_status(
            self.pod,
            [container.record for container in self.init],
            [container.record for container in self.main],
            now=rfc3339(),
            started=self._started,
            place=self.place,
            ending=self._over or self.stopping.is_set(),
            verdict=self._verdict,
            previous=self._conditions,
        )
        self._conditions |= {entry["type"]: entry for entry in status["conditions"]}
        return status
