"""Tasks that wait: what they ask of the API server, of the processor and of memory, and how soon they notice an end."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.clusters.client import Cluster
from bench.context import MANAGER_CONTEXT, Chart, Context, Results, Row, row
from bench.metrics import counted, difference, of_jobs
from bench.waiter import quantile
from bench.waiting_jobs import End, Job, end_jobs, make_jobs, remove_jobs, without_kueue

__all__ = [
    "BURST",
    "MEASURES",
    "SINGLE_ENDS",
    "Process",
    "burst",
    "idle",
    "one_by_one",
    "run",
    "single",
    "single_jobs",
    "start",
    "started",
    "value",
]

KIB, MIB = 1024, 1024 * 1024
START_SECONDS = 240.0
SETTLED = 40.0
"""Seconds after the last first look: by then what the triggers said at their start is out, and each has looked again at
what is odd half a minute after a submission."""
IDLE = 20.0
"""Seconds for what is used, and as many for the loop's lag."""
SINGLE_ENDS = 200
"""So many that the 99th percentile is not the worst of them alone."""
SINGLE_PAUSE = 0.1
BURST = 1000
Ending = Callable[[Sequence[Job]], Awaitable[dict[str, End]]]
"""Writes what ends the waits for these jobs, and returns when it did."""
POLL = 10.0
"""Seconds between two looks of the peer's."""


def run(context: Context) -> Results:
    """Measure both providers at each size."""
    return asyncio.run(_run(context))


@dataclass(slots=True)
class Process:
    """A process in which tasks wait."""

    process: asyncio.subprocess.Process
    log: Path

    @property
    def records(self) -> int:
        """How many records the triggers have logged: in a triggerer, each would pass through the supervisor."""
        return self.log.read_bytes().count(b"\n")

    async def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Have it do one of its commands, and return the answer."""
        if self.process.stdin is None or self.process.stdout is None:
            raise ValueError("the process has no pipes")
        self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
        await self.process.stdin.drain()
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the waiting process ended with {await self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@asynccontextmanager
async def started(context: Context, who: str) -> AsyncIterator[Process]:
    """Give a new process for triggers of ours or of the peer's."""
    log = context.folder / f"waiter-{who}.log"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-W", "ignore", "-m", "bench.waiter", who),
        env={**context.environment()},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=log.open("wb"),
        limit=64 * MIB,
    )
    try:
        yield Process(process, log)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@dataclass(slots=True)
class Jobs:
    """The jobs that wait; those that ended are replaced before the next measurement."""

    manager: Cluster
    living: list[Job] = field(default_factory=list)
    made: int = 0

    async def ready(self, count: int) -> list[Job]:
        """Return that many waiting jobs."""
        missing = count - len(self.living)
        if missing > 0:
            names = [f"bench-{self.made + number:06}" for number in range(missing)]
            self.made += missing
            self.living += await make_jobs(self.manager, names)
        return self.living[:count]

    async def end(self, jobs: Sequence[Job]) -> dict[str, End]:
        """Let them end."""
        gone = set(jobs)
        self.living = [job for job in self.living if job not in gone]
        return await end_jobs(self.manager, jobs)


async def _run(context: Context) -> Results:
    raw: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
    async with without_kueue(context), context.cluster() as manager:
        jobs = Jobs(manager)
        try:
            for size in sorted({*context.sizes, *context.peer_sizes}):
                context.say(f"{size} waiting jobs")
                await jobs.ready(size)
                for who, sizes in (("ours", context.sizes), ("peer", context.peer_sizes)):
                    if size in sizes:
                        raw[who].append(await _measure(context, who, size, jobs))
                        (context.folder / "waiting.json").write_text(json.dumps(raw))  # what is known is not lost
        finally:
            if context.attached:
                await remove_jobs(manager)
    return {"rows": _rows(raw), "charts": _charts(raw), "notes": NOTES, "raw": raw}


NOTES = [
    "Ends are written to the Jobs on the manager's API server by hand, Kueue stopped; delays count from the moment the "
    "request was sent, so they hold the API server's own share.",
    "Lag: a timer of 5 ms, missed ticks counted. Memory: the process' own (private) pages; a task's is what is there "
    "above the same process before the first trigger.",
]


async def _measure(context: Context, who: str, size: int, jobs: Jobs) -> dict[str, Any]:
    """Return all that is measured of one provider at one size, in a new process."""
    waiting = await jobs.ready(size)
    context.say(f"  {who}: {size} waiting")
    async with started(context, who) as process:
        found: dict[str, Any] = {"size": size, "start": await start(context, process, waiting)}
        found["idle"] = await idle(context, process)
        chosen = single_jobs(waiting)
        found["single"] = await single(process, chosen, jobs.end, 5 + (3 * POLL if who == "peer" else 0.0))
        rest = waiting[len(chosen) :]
        at_once, flood = rest[: 2 * len(rest) // 3][:BURST], rest[2 * len(rest) // 3 :][:BURST]
        found["burst"] = await burst(process, at_once, jobs.end, 2.5 * POLL)
        found["flood"] = await _flood(process, jobs, flood, 2.5 * POLL)
    return found


async def start(
    context: Context, process: Process, waiting: Sequence[Job], clusters: Sequence[str] = (MANAGER_CONTEXT,)
) -> dict[str, Any]:
    """Begin all waits at once; return the requests to ``clusters`` that it took until the process was quiet."""
    before = await counted(context.sandbox.kubeconfig, *clusters)
    begun = time.monotonic()
    await process.ask("watch_lag")
    await process.ask("start", jobs=[{"name": job.name, "uid": job.uid} for job in waiting])
    cpu, quiet, records = 0.0, 0, 0
    while quiet < 2 and time.monotonic() - begun < START_SECONDS:
        seen = await process.ask("measure", seconds=0.5)
        busy = seen["cpu_percent"] >= max(20.0, 0.5 * cpu) or process.records > records
        quiet = 0 if busy else quiet + 1
        cpu, records = max(cpu, seen["cpu_percent"]), process.records
    after = await counted(context.sandbox.kubeconfig, *clusters)
    counts = difference(after, before)
    seconds = time.monotonic() - begun
    await asyncio.sleep(SETTLED)
    return {
        "seconds": seconds,
        "requests": of_jobs(counts),
        "lists": sum(count for kind, count in counts.items() if kind.verb == "LIST" and kind.resource == "jobs"),
        "records": process.records,
    }


async def idle(context: Context, process: Process, clusters: Sequence[str] = (MANAGER_CONTEXT,)) -> dict[str, Any]:
    """Return what the process uses, and asks of ``clusters``, while nothing happens."""
    seconds = IDLE / 2 if context.quick else IDLE
    before = await counted(context.sandbox.kubeconfig, *clusters)
    seen = await process.ask("measure", seconds=seconds)
    counts = difference(await counted(context.sandbox.kubeconfig, *clusters), before)
    return {
        **seen,
        "seconds": 2 * seconds,
        "requests": of_jobs(counts),
        "requests_per_minute_and_task": of_jobs(counts) * 60 / (2 * seconds) / max(seen["waiting"], 1),
        "kib_per_task": (seen["memory_bytes"] - seen["empty_bytes"]) / KIB / max(seen["waiting"], 1),
        "mib": seen["memory_bytes"] / MIB,
    }


def single_jobs(waiting: Sequence[Job]) -> Sequence[Job]:
    """Return the jobs whose waits end one by one."""
    return waiting[: min(SINGLE_ENDS, len(waiting) // 2)]


async def single(process: Process, chosen: Sequence[Job], end: Ending, patience: float) -> dict[str, Any]:
    """End the waits for single jobs now and then; return how soon that was noticed."""
    await process.ask("watch_lag")
    ends = await one_by_one(chosen, end)
    return _delays(ends, await process.ask("events", count=len(ends), seconds=patience))


async def one_by_one(chosen: Sequence[Job], end: Ending) -> dict[str, End]:
    """End the waits for the jobs with a pause after each; return when each ended."""
    ends: dict[str, End] = {}
    for job in chosen:
        ends |= await end([job])
        await asyncio.sleep(SINGLE_PAUSE * random.uniform(0.5, 1.5))
    return ends


async def burst(process: Process, ending: Sequence[Job], end: Ending, patience: float) -> dict[str, Any]:
    """End the waits for many jobs as fast as the API server takes it."""
    used = await process.ask("watch_lag")
    begun = time.monotonic()
    ends = await end(ending)
    written = time.monotonic() - begun
    found = _delays(ends, await process.ask("events", count=len(ends), seconds=patience))
    cpu = (await process.ask("cpu"))["cpu"] - used["cpu"]
    return {**found, "written_seconds": written, "cpu_seconds": cpu}


async def _flood(process: Process, jobs: Jobs, ending: Sequence[Job], patience: float) -> dict[str, Any]:
    """Let many jobs end while the process is stopped, so that all arrive at once; return how long it takes them in."""
    process.process.send_signal(signal.SIGSTOP)
    ends = await jobs.end(ending)
    process.process.send_signal(signal.SIGCONT)
    woken = time.time()
    used = await process.ask("watch_lag")
    answer = await process.ask("events", count=len(ends), seconds=patience)
    times = [at for at, _ in answer["events"].values()]
    cpu = (await process.ask("cpu"))["cpu"] - used["cpu"]
    return {
        "ends": len(ends),
        "noticed": len(times),
        "last_seconds": max(times, default=woken) - woken,
        "lag": answer["lag"],
        "cpu_seconds": cpu,
    }


def _delays(ends: dict[str, End], answer: dict[str, Any]) -> dict[str, Any]:
    events = {name: at for name, (at, _) in answer["events"].items() if name in ends}
    sent = [events[name] - ends[name].sent for name in events]
    answered = [events[name] - ends[name].answered for name in events]
    last = max((end.answered for end in ends.values()), default=0.0)
    return {
        "ends": len(ends),
        "noticed": len(events),
        "p50_ms": 1000 * quantile(sent, 0.5),
        "p99_ms": 1000 * quantile(sent, 0.99),
        "max_ms": 1000 * max(sent, default=0.0),
        "after_answer_p50_ms": 1000 * quantile(answered, 0.5),
        "after_answer_p99_ms": 1000 * quantile(answered, 0.99),
        "after_last_seconds": max(events.values(), default=last) - last,
        "outcomes": sorted({state for _, state in answer["events"].values()}),
        "lag": answer["lag"],
    }


# -- for the reader

MEASURES: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("requests per minute and task", "", ("idle", "requests_per_minute_and_task"), "< 0.01 at 2,000"),
    ("processor while idle", "%", ("idle", "cpu_percent"), "<= 1/20 of the peer at 2,000"),
    ("memory per task", "KiB", ("idle", "kib_per_task"), "<= 20"),
    ("memory of the process", "MiB", ("idle", "mib"), "< 600 at 10,000"),
    ("loop lag p99 while idle", "ms", ("idle", "lag", "p99_ms"), "< 20 at 2,000"),
    ("end -> event p50", "ms", ("single", "p50_ms"), "20 at 2,000"),
    ("end -> event p99", "ms", ("single", "p99_ms"), "100 at 2,000"),
    ("loop lag p99 while single jobs end", "ms", ("single", "lag", "p99_ms"), "< 20 at 2,000"),
    ("burst: ends", "", ("burst", "ends"), ""),
    ("burst: written within", "s", ("burst", "written_seconds"), ""),
    ("burst: last event after the last end", "s", ("burst", "after_last_seconds"), "< 2"),
    ("burst: loop lag p99", "ms", ("burst", "lag", "p99_ms"), ""),
    ("flood: ends", "", ("flood", "ends"), ""),
    ("flood: last event after", "s", ("flood", "last_seconds"), "< 2"),
    ("start: seconds until quiet", "s", ("start", "seconds"), ""),
    ("start: requests", "", ("start", "requests"), ""),
    ("start: lists of jobs", "", ("start", "lists"), "1 to 10,000 / 100 pages"),
    ("start: log records", "", ("start", "records"), ""),
    ("open files", "", ("idle", "open_files"), ""),
)


def value(found: dict[str, Any], path: tuple[str, ...]) -> float:
    """Return the figure at ``path``."""
    value: Any = found
    for name in path:
        value = value[name]
    return float(value)


def _rows(raw: dict[str, list[dict[str, Any]]]) -> list[Row]:
    by_size = {who: {found["size"]: found for found in each} for who, each in raw.items()}
    rows = []
    for measure, unit, path, goal in MEASURES:
        for size in sorted({*by_size["ours"], *by_size["peer"]}):
            values = {who: value(found[size], path) if size in found else None for who, found in by_size.items()}
            rows.append(row(f"{measure}, {size} waiting", unit, values["ours"], values["peer"], goal))
    return rows


CHARTS = {
    "requests": ("Requests to the API server", "requests a minute and task", ("idle", "requests_per_minute_and_task")),
    "cpu": ("Processor while nothing happens", "% of a core", ("idle", "cpu_percent")),
    "memory": ("Memory of the process", "MiB", ("idle", "mib")),
    "lag": ("Event-loop lag, p99", "ms", ("idle", "lag", "p99_ms")),
    "delay": ("From the end of a job to its event, p50", "ms", ("single", "p50_ms")),
}


def _charts(raw: dict[str, list[dict[str, Any]]]) -> dict[str, Chart]:
    return {
        name: {
            "title": title,
            "x": "waiting tasks",
            "y": unit,
            "lines": {who: [(found["size"], value(found, path)) for found in each] for who, each in raw.items()},
            "log": True,
        }
        for name, (title, unit, path) in CHARTS.items()
    }
