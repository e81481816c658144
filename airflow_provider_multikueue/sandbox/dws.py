"""Stand-in for Dynamic Workload Scheduler in one worker cluster.

It answers the real ProvisioningRequests that Kueue makes there, by a :class:`~.capacity.Script` that can change while
it runs. What to answer is decided in :mod:`.capacity`; this module watches, remembers and writes.

Requests are kept by uid: after a redispatch Kueue makes a new one with the name of the old, which must start from
nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from airflow_provider_multikueue.clusters.client import ApiError, Resource
from airflow_provider_multikueue.sandbox.capacity import (
    ACCEPTED,
    PROVISIONED,
    Answer,
    Ask,
    Plan,
    Script,
    command_answer,
    gpus_of_pod,
    merge_conditions,
    plan,
    true_conditions,
)

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.client import Cluster

__all__ = ["PROVISIONING_CLASS", "Dws"]

log = logging.getLogger(__name__)

PROVISIONING_CLASS = "queued-provisioning.gke.io"
POD_TEMPLATES = Resource("", "v1", "podtemplates")
RUN_DURATION_PARAMETER = "maxRunDurationSeconds"
RETRY_SECONDS = 0.5
TEMPLATE_WAIT_SECONDS = 10.0
"""Kueue makes the pod templates just after the request; after this time we stop waiting and count no GPUs."""


class Dws:
    """Answers the ProvisioningRequests of all namespaces of one worker cluster.

    Run :meth:`run` as a task for as long as the cluster lives; it outlives connection errors and ends only by
    cancellation. The other methods may be called at any time on the same event loop.
    """

    def __init__(self, cluster: Cluster, region: str, *, script: Script | None = None) -> None:
        self.cluster = cluster
        self.region = region
        self._scripts: dict[str | None, tuple[Script, float]] = {None: (script or Script(), time.time())}
        self._asks: dict[str, Ask] = {}
        self._requests: dict[str, dict[str, Any]] = {}
        self._counting: dict[str, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        # A write replaces all conditions of a request, so nobody may decide while another one writes.
        self._writing = asyncio.Lock()

    @property
    def script(self) -> Script:
        """The script in force where a namespace has none of its own."""
        return self._scripts[None][0]

    def set_script(self, script: Script, *, namespace: str | None = None) -> None:
        """Answer by ``script`` from now on; requests that wait already are answered by it too, counted from now.

        With a ``namespace``: its requests alone, which from then on have its GPUs to themselves.
        """
        self._scripts[namespace] = script, time.time()
        self._changed.set()

    async def act(
        self, act: Literal["revoke", "fail", "expire"], *, request: str | None = None, text: str | None = None
    ) -> list[str]:
        """Revoke, fail or expire one request (``namespace/name``), or all of the region that it applies to.

        Returns the requests that were answered so. What happens to later requests is the script's matter.
        """
        async with self._writing:
            asks = [ask for ask in self._asks.values() if request in {None, _label(ask)}]
            answers = [answer for ask in asks if (answer := command_answer(ask, act, text)) is not None]
            done = await self._write_all(answers)
        return sorted(_label(ask) for ask in asks if ask.uid in done)

    def requests(self) -> list[dict[str, Any]]:
        """Return what is known of each request as plain JSON types: for a status display and for tests."""
        return [
            {"request": _label(ask), "uid": ask.uid, "gpus": ask.gpus, "conditions": sorted(ask.conditions)}
            for ask in self._asks.values()
        ]

    async def run(self) -> None:
        """Answer requests until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch_forever(), name=f"dws-watch-{self.region}")
                tasks.create_task(self._answer_forever(), name=f"dws-answer-{self.region}")
        finally:
            for counting in self._counting.values():
                counting.cancel()

    # Watching

    async def _watch_forever(self) -> None:
        while True:
            try:
                await self._watch_once()
            except ApiError as error:
                log.info("DWS of %s watches again in %s s: %s", self.region, RETRY_SECONDS, error)
            except Exception:
                log.exception("DWS of %s watches again in %s s.", self.region, RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS)

    async def _watch_once(self) -> None:
        resource = await self.cluster.resource("autoscaling.x-k8s.io", "provisioningrequests")
        items, version = await self.cluster.list(resource)
        for uid in set(self._asks) - {item["metadata"]["uid"] for item in items}:
            self._forget(uid)
        for item in items:
            self._see(item)
        while True:
            # A watch ends by itself every few minutes and goes on where it stopped.
            async with contextlib.aclosing(self.cluster.watch(resource, resource_version=version)) as changes:
                async for kind, item in changes:
                    version = item["metadata"]["resourceVersion"]
                    if kind == "DELETED":
                        self._forget(item["metadata"]["uid"])
                    elif kind != "BOOKMARK":
                        self._see(item)
            await asyncio.sleep(RETRY_SECONDS / 10)

    def _see(self, request: dict[str, Any]) -> None:
        if request["spec"].get("provisioningClassName") != PROVISIONING_CLASS:
            return
        uid = request["metadata"]["uid"]
        known = self._requests.get(uid)
        if known is not None and _version(known) > _version(request):
            return  # an echo of a state that our own later write has replaced
        self._requests[uid] = request
        self._asks[uid] = _ask(request, self._asks.get(uid))
        if known is None:
            self._counting[uid] = asyncio.create_task(self._count(uid), name=f"dws-count-{uid}")
        self._changed.set()

    def _forget(self, uid: str) -> None:
        self._requests.pop(uid, None)
        self._asks.pop(uid, None)
        counting = self._counting.pop(uid, None)
        if counting is not None:
            counting.cancel()
        self._changed.set()

    async def _count(self, uid: str) -> None:
        """Read the request's pod templates and note how many GPUs it asks for."""
        request = self._requests[uid]
        deadline = time.monotonic() + TEMPLATE_WAIT_SECONDS
        gpus: int | None = None
        while gpus is None:
            try:
                gpus = await self._gpus(request)
            except ApiError as error:
                if error.status == 404 and time.monotonic() > deadline:
                    log.warning("DWS of %s counts no GPUs: %s", self.region, error)
                    gpus = 0
                else:
                    await asyncio.sleep(RETRY_SECONDS / 5)
        if uid in self._asks:
            self._asks[uid] = replace(self._asks[uid], gpus=gpus)
            self._changed.set()

    async def _gpus(self, request: Mapping[str, Any]) -> int:
        namespace = request["metadata"]["namespace"]
        total = 0
        for pods in request["spec"].get("podSets") or ():
            template = await self.cluster.get(POD_TEMPLATES, pods["podTemplateRef"]["name"], namespace)
            total += int(pods.get("count", 1)) * gpus_of_pod(template["template"]["spec"])
        return total

    # Answering

    async def _answer_forever(self) -> None:
        while True:
            self._changed.clear()
            async with self._writing:
                plans = self._plans(time.time())
                answers = [answer for step in plans for answer in step.answers]
                done = await self._write_all(answers)
            if not answers:
                await self._until(min((step.wake for step in plans if step.wake is not None), default=None))
            elif not done:
                await asyncio.sleep(RETRY_SECONDS)

    def _plans(self, now: float) -> list[Plan]:
        """Return what each script says to the requests that it is for."""
        asks: dict[str | None, list[Ask]] = {}
        for ask in self._asks.values():
            asks.setdefault(ask.namespace if ask.namespace in self._scripts else None, []).append(ask)
        scripts = ((self._scripts[namespace], mine) for namespace, mine in asks.items())
        return [plan(mine, script, since=since, now=now) for (script, since), mine in scripts]

    async def _until(self, wake: float | None) -> None:
        timeout = None if wake is None else max(0.01, wake - time.time())
        try:
            await asyncio.wait_for(self._changed.wait(), timeout)
        except TimeoutError:
            return

    async def _write_all(self, answers: Iterable[Answer]) -> set[str]:
        """Write the answers side by side; return the uids of those that were written."""
        slots = asyncio.Semaphore(16)

        async def write(answer: Answer) -> str | None:
            async with slots:
                return answer.uid if await self._write(answer) else None

        return {uid for uid in await asyncio.gather(*(write(answer) for answer in answers)) if uid is not None}

    async def _write(self, answer: Answer) -> bool:
        request = self._requests.get(answer.uid)
        if request is None:
            return False
        try:
            written = await self._patch(request, answer)
        except ApiError as error:
            if error.status in {404, 409}:
                # Gone, or another one by now has its name: the watch will say so, but do not ask again until then.
                self._forget(answer.uid)
            else:
                log.info("DWS of %s could not answer %s: %s", self.region, request["metadata"]["name"], error)
            return False
        self._note(answer, written)
        return True

    async def _patch(self, request: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
        meta = request["metadata"]
        conditions = merge_conditions(
            request.get("status", {}).get("conditions") or (),
            answer,
            now=time.time(),
            generation=meta.get("generation", 1),
        )
        resource = await self.cluster.resource("autoscaling.x-k8s.io", "provisioningrequests")
        body = {"metadata": {"uid": meta["uid"]}, "status": {"conditions": conditions}}
        return await self.cluster.patch(resource, meta["name"], body, meta["namespace"], subresource="status")

    def _note(self, answer: Answer, written: dict[str, Any]) -> None:
        if answer.uid not in self._asks:
            return  # deleted while we wrote
        self._see(written)
        if answer.eta is not None:
            self._asks[answer.uid] = replace(self._asks[answer.uid], eta=answer.eta)
        told = [kind for kind, status, *_ in answer.conditions if status == "True"]
        if told:
            log.info("DWS of %s: %s is %s.", self.region, _label(self._asks[answer.uid]), " and ".join(told))


def _ask(request: Mapping[str, Any], before: Ask | None) -> Ask:
    """Return what matters of a request; times that we noted ourselves are finer than the conditions' whole seconds."""
    meta, now = request["metadata"], time.time()
    conditions = true_conditions(request)
    run_duration = (request["spec"].get("parameters") or {}).get(RUN_DURATION_PARAMETER)
    current = Ask(
        uid=meta["uid"],
        namespace=meta["namespace"],
        name=meta["name"],
        gpus=before.gpus if before else None,
        run_duration=float(run_duration) if run_duration else None,
        accepted=before.accepted if before else _condition_time(request, ACCEPTED),
        granted=before.granted if before else _condition_time(request, PROVISIONED),
        eta=before.eta if before else None,
        conditions=conditions,
    )
    if ACCEPTED in conditions and current.accepted is None:
        current = replace(current, accepted=now)
    if PROVISIONED in conditions and current.granted is None:
        current = replace(current, granted=now)
    return current


def _condition_time(request: Mapping[str, Any], kind: str) -> float | None:
    for each in request.get("status", {}).get("conditions") or ():
        if each["type"] == kind and each.get("status") == "True":
            return datetime.fromisoformat(each["lastTransitionTime"]).timestamp()
    return None


def _label(ask: Ask) -> str:
    return f"{ask.namespace}/{ask.name}"


def _version(request: Mapping[str, Any]) -> int:
    return int(request["metadata"].get("resourceVersion") or 0)
