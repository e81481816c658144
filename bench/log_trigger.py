"""A trigger that measures what logs cost from inside of a real triggerer, in ways that its argument names.

All streams of a measurement belong to this one trigger, whose task log is the file that is looked at from outside.
"""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_multikueue.clusters.client import Cluster
from airflow_provider_multikueue.logs.emit import Emitter, log_pipe
from airflow_provider_multikueue.logs.lines import LineDecoder
from airflow_provider_multikueue.logs.reader import PodLogs
from airflow_provider_multikueue.logs.text import Levels, blocks
from bench.log_server import BLOCK_LINES, block
from bench.waiter import Lag, memory_bytes, quantile

__all__ = ["STREAMS", "LogTrigger"]

STREAMS = 200
LINES = 10_000
ROUNDS = 2
CHUNK = 16 * 1024
PEER_INTERVAL = 2.0


class LogTrigger(BaseTrigger):
    """Measures ``what`` with the log server at ``server``, for ``seconds``, and leaves the result in ``out``."""

    def __init__(self, *, what: str, server: str, out: str, seconds: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.what, self.server, self.out, self.seconds = what, server, out, seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the import path and the arguments."""
        return "bench.log_trigger.LogTrigger", {
            "what": self.what,
            "server": self.server,
            "out": self.out,
            "seconds": self.seconds,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Measure, and fire."""
        await asyncio.sleep(3)  # until the triggerer has taken notice of the start
        gc.collect()
        try:
            found = await MEASUREMENTS[self.what](self)
        except Exception as error:  # noqa: BLE001 - told to who asks
            found = {"broken": repr(error)}
        await asyncio.to_thread(Path(self.out).write_text, json.dumps(found))
        yield TriggerEvent(True)  # type: ignore[no-untyped-call]


class Kept:
    """A log that counts what passes through it to another, and keeps the texts if there is none."""

    def __init__(self, log: Any = None) -> None:
        self.texts: list[tuple[int, str]] = []
        self.records = self.bytes = 0
        self._log = log

    def log(self, level: int, form: str, text: str) -> None:
        """Take a record."""
        self.records, self.bytes = self.records + 1, self.bytes + len(text)
        if self._log is None:
            self.texts.append((level, text))
        else:
            self._log.log(level, form, text)


def pod(name: str, *, ended: bool = False) -> dict[str, Any]:
    """Return a pod that runs, or has ended."""
    state = {"terminated": {"exitCode": 0, "containerID": name}} if ended else {"running": {"startedAt": None}}
    status = {"name": "main", "restartCount": 0, "containerID": name, "state": state}
    return {
        "metadata": {"name": name, "namespace": "bench", "uid": name},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"containerStatuses": [status]},
    }


def access(server: str) -> dict[str, Any]:
    """Return a kubeconfig for the log server."""
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
    }


# -- what a record costs, above the bare log call


async def cost(trigger: LogTrigger) -> dict[str, Any]:
    """Return seconds for the same records: from bytes through all of ours, and by bare log calls."""
    data = block(LINES)
    ours: list[Spent] = []
    bare: list[Spent] = []
    records: Kept = Kept()
    for _ in range(ROUNDS):
        records = Kept()
        await _emit(data, records)  # without the pipe, to know the records
        ours.append(await _spent(lambda: _emit(data, trigger.log)))
        bare.append(await _spent(lambda: _log(records.texts, trigger.log)))  # noqa: B023 - called at once
    return {
        "lines": LINES,
        "records": len(records.texts),
        "ours": min(spent.passed for spent in ours),
        "bare": min(spent.passed for spent in bare),
        "ours_cpu": min(spent.cpu for spent in ours),
        "bare_cpu": min(spent.cpu for spent in bare),
    }


class Spent(NamedTuple):
    """Seconds of a processor, and on the clock."""

    cpu: float
    passed: float


async def _emit(data: bytes, log: Any) -> None:
    emitter = Emitter(records_per_second=1e9, bytes_per_second=1e12)
    decoder, levels = LineDecoder(), Levels()
    async with emitter.sink(log) as sink:
        for start in range(0, len(data), CHUNK):
            for each in blocks(decoder.feed(data[start : start + CHUNK]), levels):
                sink.lines("bench", each)
            if start % (32 * CHUNK) == 0:
                await sink.settle(60)


async def _log(texts: Sequence[tuple[int, str]], log: Any) -> None:
    for level, text in texts:
        log.log(level, "%s", text)
        await asyncio.sleep(0)


async def _spent(work: Callable[[], Awaitable[None]]) -> Spent:
    await asyncio.sleep(2)  # the supervisor has written what came before
    cpu, begun = time.process_time(), time.monotonic()
    await work()
    return Spent(time.process_time() - cpu, time.monotonic() - begun)


async def pure(_: LogTrigger) -> dict[str, Any]:
    """Return processor seconds from bytes to the text of records, without the pipe."""
    data = block(BLOCK_LINES)
    spent = [await _spent(lambda: _emit(data, Kept())) for _ in range(3)]
    return {"lines": BLOCK_LINES, "bytes": len(data), "seconds": min(each.cpu for each in spent)}


# -- many streams at a time


async def ticking(trigger: LogTrigger) -> dict[str, Any]:
    """Read streams of one line a second."""
    return await _follow(trigger, [f"tick-{number}" for number in range(STREAMS)])


async def fast(trigger: LogTrigger) -> dict[str, Any]:
    """Read streams of 5,000 lines a second in all."""
    return await _follow(trigger, [f"fast-{number}" for number in range(STREAMS)])


async def flooded(trigger: LogTrigger) -> dict[str, Any]:
    """Read streams of one line a second, beside one of 200 MB."""
    return await _follow(trigger, [*(f"tick-{number}" for number in range(STREAMS)), "flood"])


async def idle(trigger: LogTrigger) -> dict[str, Any]:
    """Read nothing: what the loop's lag is by itself on this machine."""
    return await _follow(trigger, [])


async def _follow(trigger: LogTrigger, names: Sequence[str]) -> dict[str, Any]:
    log, emitter, lag = Kept(trigger.log), Emitter(pipe=log_pipe()), Lag()
    async with AsyncExitStack() as stack:
        cluster = await Cluster.from_kubeconfig("bench", config=access(trigger.server))
        await stack.enter_async_context(cluster)
        readers = []
        for name in names:
            sink = await stack.enter_async_context(emitter.sink(log))
            readers.append((name, PodLogs(sink=sink)))
        memory, cpu = memory_bytes(), time.process_time()
        lag.start()
        for name, reader in readers:
            reader.update(cluster, "bench", [pod(name)])
        grown = await _grown(memory, trigger.seconds)
        spent = time.process_time() - cpu
        lag.stop()
        await asyncio.gather(*(reader.close() for _, reader in readers))
    return {
        "streams": len(names),
        "seconds": trigger.seconds,
        "cpu_percent": 100 * spent / trigger.seconds,
        "lag_p50_ms": 1000 * quantile(lag.seconds, 0.5),
        "lag_p99_ms": 1000 * quantile(lag.seconds, 0.99),
        "lag_max_ms": 1000 * max(lag.seconds, default=0.0),
        "grown_mib": grown / 1024 / 1024,
        "records": log.records,
        "bytes": log.bytes,
    }


async def _grown(memory: int, seconds: float) -> int:
    """Return by how much memory grew at most."""
    most, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        await asyncio.sleep(1)
        most = max(most, memory_bytes() - memory)
    return most


# -- the peer


async def peer(trigger: LogTrigger) -> dict[str, Any]:
    """Read the block as Airflow's Kubernetes provider does in its trigger."""
    manager = _peer(trigger.server)
    spent = await _spent(lambda: _fetch(manager, "block"))
    return {"lines": BLOCK_LINES, "seconds": spent.passed, "seconds_cpu": spent.cpu}


async def peer_ticking(trigger: LogTrigger) -> dict[str, Any]:
    """Read streams of one line a second as it does, at its default interval."""
    manager, lag = _peer(trigger.server), Lag()
    memory, cpu = memory_bytes(), time.process_time()
    lag.start()
    polls = [asyncio.create_task(_poll(manager, f"tick-{number}")) for number in range(STREAMS)]
    grown = await _grown(memory, trigger.seconds)
    spent = time.process_time() - cpu
    lag.stop()
    for task in polls:
        task.cancel()
    broken = [
        repr(each) for each in await asyncio.gather(*polls, return_exceptions=True) if isinstance(each, Exception)
    ]
    return {
        "streams": STREAMS,
        "cpu_percent": 100 * spent / trigger.seconds,
        "lag_p99_ms": 1000 * quantile(lag.seconds, 0.99),
        "grown_mib": grown / 1024 / 1024,
        "broken": broken[:1],
    }


def _peer(server: str) -> Any:
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import AsyncKubernetesHook
    from airflow.providers.cncf.kubernetes.utils.pod_manager import AsyncPodManager

    return AsyncPodManager(AsyncKubernetesHook(conn_id=None, config_dict=access(server), connection_extras={}))


async def _fetch(manager: Any, name: str, since: Any = None) -> Any:
    asked: Any = SimpleNamespace(metadata=SimpleNamespace(name=name, namespace="bench"))
    return await manager.fetch_container_logs_before_current_sec(asked, "main", since_time=since)


async def _poll(manager: Any, name: str) -> None:
    since = None
    while True:
        since = await _fetch(manager, name, since)
        await asyncio.sleep(PEER_INTERVAL)


MEASUREMENTS: Mapping[str, Callable[[LogTrigger], Awaitable[dict[str, Any]]]] = {
    "cost": cost,
    "fast": fast,
    "flooded": flooded,
    "idle": idle,
    "peer": peer,
    "peer_ticking": peer_ticking,
    "pure": pure,
    "ticking": ticking,
}
