"""``make soak``: thousands of tasks wait for an hour, jobs end at random, API server and Kueue come and go.

Looked for: an end that nobody noticed, memory that grows, connections that pile up. A line a minute says how it is; the
exit code is 1 if anything was found. Each API server that starts anew has forgotten the versions that watches go on
from, and every watch ends after five minutes anyway. The jobs' queue has no quota, so that they wait; their ends are
written by hand, and a job whose end was noticed is deleted, as the operator does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.clusters.client import ApiError, Cluster
from bench.__main__ import fleet
from bench.context import Context
from bench.machine import describe
from bench.waiting import Process, started
from bench.waiting_jobs import JOBS, NAMESPACE, QUEUE, Job, end_job, make_job, make_jobs, remove_jobs

__all__ = ["main"]

END_PAUSE = 1.0
"""Seconds between two ends, on average; each job that ended is replaced by a new one that waits."""
SAMPLE = 60.0
OUTAGE_EVERY = 240.0
OUTAGES = ("manager-apiserver", "manager-kueue")
"""What comes and goes, in turn."""
AWAY = (0.0, 20.0)
NOTICED_WITHIN = 300.0
"""Seconds after all of it after which an end that nobody noticed counts as missed."""
WARM = 600.0
"""Seconds after which memory has to be flat."""
GROWTH = 0.05
FLAVOR = "default-dws-flavor"
RESOURCES = ("cpu", "memory", "nvidia.com/gpu")
MIB = 1024 * 1024


@dataclass(slots=True)
class Soak:
    """What was seen so far."""

    context: Context
    manager: Cluster
    waiting: list[Job]
    process: Process
    until: float
    ended: dict[str, float] = field(default_factory=dict)
    past: list[str] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    noticed: int = 0
    slowest: float = 0.0
    outages: int = 0
    made: int = 0
    wrong: list[str] = field(default_factory=list)
    begun: float = field(default_factory=time.time)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Do all side by side until the time is over; then wait for what has to be noticed yet."""
        await asyncio.gather(self._endings(), self._outages(), self._look())
        until = time.time() + NOTICED_WITHIN
        while self.ended and time.time() < until:
            await asyncio.sleep(1)
            await self._take_events()

    def over(self) -> bool:
        """Whether the time is over."""
        return time.time() >= self.until

    async def _endings(self) -> None:
        while not self.over():
            job = random.choice(self.waiting)
            if await self._end(job):
                self.waiting.remove(job)
                self.waiting.append(new := await self._replacement())
                async with self.lock:
                    await self.process.ask("start", jobs=[{"name": new.name, "uid": new.uid}])
            await self._clean_up()
            await asyncio.sleep(random.uniform(0, 2 * END_PAUSE))

    async def _end(self, job: Job) -> bool:
        """End the job; False while the API server is away. What it refuses (422) has ended, the answer was lost."""
        try:
            await end_job(self.manager, job)
        except ApiError as error:
            if error.status != 422:
                await asyncio.sleep(END_PAUSE)
                return False
        self.ended[job.name] = time.time()
        return True

    async def _replacement(self) -> Job:
        while True:
            self.made += 1
            try:
                return await make_job(self.manager, f"soak-{self.made:06}", kueue=True)
            except ApiError:
                await asyncio.sleep(END_PAUSE)

    async def _clean_up(self) -> None:
        while self.past:
            try:
                await self.manager.delete(JOBS, self.past[0], NAMESPACE)
            except ApiError as error:
                if error.status != 404:
                    return  # the API server is away: later
            del self.past[0]

    async def _outages(self) -> None:
        sandbox = self.context.sandbox
        while not self.over():
            await asyncio.sleep(min(OUTAGE_EVERY, max(self.until - time.time(), 0)))
            if self.over():
                return
            component = OUTAGES[self.outages % len(OUTAGES)]
            self.outages += 1
            await asyncio.to_thread(sandbox.stop, component)
            await asyncio.sleep(random.uniform(*AWAY))
            await asyncio.to_thread(sandbox.start, component)

    async def _look(self) -> None:
        while not self.over():
            await asyncio.sleep(SAMPLE)
            await self._take_events()
            async with self.lock:
                seen = await self.process.ask("measure", seconds=1.0)
            self.samples.append({"at": time.time() - self.begun, **seen})
            (self.context.folder / "soak-wrong.json").write_text(json.dumps(self.wrong))
            self.context.say(
                f"{(time.time() - self.begun) / 60:5.1f} min: {seen['waiting']} wait, {self.noticed} ends noticed "
                f"(slowest {self.slowest:.1f} s), {len(self.ended)} under way, {len(self.wrong)} wrong, "
                f"{self.outages} outages, {seen['memory_bytes'] / MIB:.1f} MiB, {seen['open_files']} files"
            )

    async def _take_events(self) -> None:
        async with self.lock:
            events = (await self.process.ask("events", count=0, seconds=0))["events"]
        for name, (at, outcome) in events.items():
            if outcome != "SUCCEEDED":
                self.wrong.append(f"{name}: {outcome}")
            if name in self.ended:
                self.noticed += 1
                self.slowest = max(self.slowest, at - self.ended.pop(name))
                self.past.append(name)

    def judgement(self) -> list[str]:
        """Return what is wrong."""
        found = [*self.wrong, *(f"the end of {name} was not noticed" for name in self.ended)]
        warm = [sample for sample in self.samples if sample["at"] > min(WARM, (self.until - self.begun) / 3)]
        if len(warm) > 1:
            first, last = (sum(s["memory_bytes"] for s in part) / len(part) for part in (warm[:3], warm[-3:]))
            if last > first * (1 + GROWTH):
                found.append(f"memory grew from {first / MIB:.1f} to {last / MIB:.1f} MiB")
            if warm[-1]["open_files"] > warm[0]["open_files"] + 5:
                found.append(f"open files grew from {warm[0]['open_files']} to {warm[-1]['open_files']}")
        return found


async def make_queue(manager: Cluster) -> None:
    """Make the jobs' queue: the first waits for quota that there is not, and the others for the first."""
    await make_jobs(manager, [])  # the namespace
    quotas = [{"name": name, "nominalQuota": "0"} for name in RESOURCES]
    group = {"coveredResources": list(RESOURCES), "flavors": [{"name": FLAVOR, "resources": quotas}]}
    spec = {"namespaceSelector": {}, "queueingStrategy": "StrictFIFO", "resourceGroups": [group]}
    for plural, kind, spec_, namespace in (
        ("clusterqueues", "ClusterQueue", spec, None),
        ("localqueues", "LocalQueue", {"clusterQueue": QUEUE}, NAMESPACE),
    ):
        resource = await manager.resource("kueue.x-k8s.io", plural)
        body = {"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": QUEUE}, "spec": spec_}
        with contextlib.suppress(ApiError):  # it is there from an earlier soak on the same fleet
            await manager.create(resource, body, namespace)


async def _soak(context: Context, size: int, minutes: float) -> int:
    async with context.cluster() as manager, started(context, "ours") as process:
        context.say(f"making {size} jobs")
        await make_queue(manager)
        waiting = await make_jobs(manager, [f"bench-{number:06}" for number in range(size)], kueue=True)
        await process.ask("start", jobs=[{"name": job.name, "uid": job.uid} for job in waiting])
        soak = Soak(context, manager, waiting, process, time.time() + 60 * minutes)
        try:
            await soak.run()
        finally:
            wrong = soak.judgement()
            result = {"size": size, "minutes": (time.time() - soak.begun) / 60, "ends": soak.noticed, "wrong": wrong}
            result |= {"slowest_seconds": soak.slowest, "outages": soak.outages, "samples": soak.samples}
            result |= {"machine": describe()}
            (context.folder / "soak.json").write_text(json.dumps(result, indent=1) + "\n")
            if context.attached:
                await remove_jobs(manager)
    context.say("\n".join(wrong) or f"{soak.noticed} ends noticed, nothing missed, memory and connections are flat")
    return 1 if wrong else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--size", type=int, default=2_000, help="waiting tasks")
    parser.add_argument("--fleet", help="soak on this running sandbox instead of one of its own")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for soak.json")
    asked = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with fleet(asked.fleet) as sandbox:
        folder = asked.out.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        context = Context(sandbox=sandbox, folder=folder, sizes=(), peer_sizes=(), attached=asked.fleet is not None)
        return asyncio.run(_soak(context, asked.size, asked.minutes))


if __name__ == "__main__":
    sys.exit(main())
