"""A process in which tasks wait, as in a triggerer: one event loop, one running trigger each; told what to do by lines.

Each line on standard input is a JSON object, each answer one on standard output. ``python -m bench.waiter ours`` (or
``placing``, ``peer``) then understands: ``start`` (begin to wait for ``jobs``), ``measure`` (for ``seconds``),
``events`` (wait for ``count`` of them, at most ``seconds``) and what else `Waiter` can do. What the triggers log goes
to standard error.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.waiting_jobs import NAMESPACE, reference

__all__ = ["Lag", "memory_bytes", "quantile"]

TICK = 0.005
MIB = 1024 * 1024


class Lag:
    """How late the event loop is: a timer that should fire every 5 ms, each missed tick counted as late too."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._due: float | None = None

    def start(self) -> None:
        """Begin to measure, forgetting what was measured before."""
        self.seconds.clear()
        loop = asyncio.get_running_loop()
        begun, self._due = self._due is None, loop.time() + TICK
        if begun:
            loop.call_at(self._due, self._tick)

    def stop(self) -> None:
        """Measure no more: the timer itself takes some percent of a processor."""
        self._due = None

    def _tick(self) -> None:
        if self._due is None:
            return
        loop = asyncio.get_running_loop()
        late = max(0.0, loop.time() - self._due)
        while late >= 0:
            self.seconds.append(late)
            late -= TICK
        self._due = loop.time() + TICK
        loop.call_at(self._due, self._tick)


def quantile(values: list[float], share: float) -> float:
    """Return the value below which that share of ``values`` lies; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def memory_bytes(process: int | None = None) -> int:
    """Return the memory that is this process' own."""
    text = Path(f"/proc/{process or os.getpid()}/smaps_rollup").read_text()
    sizes = dict(line.split(":", 1) for line in text.splitlines()[1:])
    return sum(int(sizes[name].split()[0]) for name in ("Private_Clean", "Private_Dirty")) * 1024


class Waiter:
    """The triggers and what is known of them."""

    def __init__(self, make: Callable[[dict[str, str]], Any]) -> None:
        self.lag = Lag()
        self._make = make
        self._tasks: set[asyncio.Task[None]] = set()
        self._events: dict[str, tuple[float, Any]] = {}
        self._news = asyncio.Event()
        self._empty = memory_bytes()

    async def start(self, *, jobs: list[dict[str, str]]) -> dict[str, Any]:
        """Let a trigger wait for each of the jobs."""
        for job in jobs:
            waiting = self._wait(job["name"], self._make(job))
            task = asyncio.get_running_loop().create_task(waiting, context=contextvars.copy_context())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.sleep(0)
        return {"waiting": self.waiting}

    @property
    def waiting(self) -> int:
        """How many triggers have not fired."""
        return len(self._tasks)

    async def _wait(self, name: str, trigger: Any) -> None:
        try:
            async for event in trigger.run():
                self._events[name] = (time.time(), event.payload)
                self._news.set()
                return
        except Exception as error:  # noqa: BLE001 - told to who asks
            self._events[name] = (time.time(), {"broken": repr(error)})
            self._news.set()

    async def measure(self, *, seconds: float) -> dict[str, Any]:
        """Look at the process for a while: first at what it uses, then as long at the loop's lag."""
        gc.collect()
        self.lag.stop()
        cpu, begun = time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        used, passed = time.process_time() - cpu, time.monotonic() - begun
        self.lag.start()
        await asyncio.sleep(seconds)
        return {
            "waiting": self.waiting,
            "cpu_percent": 100 * used / passed,
            "memory_bytes": memory_bytes(),
            "empty_bytes": self._empty,
            "lag": self._lags(),
            "open_files": _open_files(),
        }

    async def events(self, *, count: int, seconds: float) -> dict[str, Any]:
        """Return the times and states of all events, once there are that many or the time is over."""
        until = time.monotonic() + seconds
        while len(self._events) < count and time.monotonic() < until:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), max(0.0, until - time.monotonic()))
            except TimeoutError:
                break
        events, self._events = self._events, {}
        return {
            "events": {name: [at, _outcome(payload)] for name, (at, payload) in events.items()},
            "lag": self._lags(),
        }

    async def watch_lag(self) -> dict[str, Any]:
        """Begin to measure the loop's lag anew."""
        self.lag.start()
        return {"cpu": time.process_time()}

    async def cpu(self) -> dict[str, Any]:
        """Return the processor time used so far."""
        return {"cpu": time.process_time()}

    def _lags(self) -> dict[str, float]:
        values = self.lag.seconds
        return {
            "p50_ms": 1000 * quantile(values, 0.5),
            "p99_ms": 1000 * quantile(values, 0.99),
            "max_ms": 1000 * max(values, default=0.0),
        }


def _outcome(payload: Any) -> str:
    """Return in a word how our trigger's or the peer's event says that it went."""
    if not isinstance(payload, dict):
        return repr(payload)
    if "broken" in payload:
        return str(payload["broken"])
    report = payload.get("report")
    return str((report or {}).get("phase") or payload.get("status") or payload.get("error"))


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# -- the two


def ours(job: dict[str, str], until: str = "finished") -> Any:
    """Return the trigger of a task of ours."""
    from airflow_provider_multikueue.decisions.orders import Orders
    from airflow_provider_multikueue.triggers import MultiKueueJobTrigger

    trigger = MultiKueueJobTrigger(
        job=reference(job), orders=Orders(until=until).to_json(), multikueue_conn_id="multikueue_default"
    )
    ti: Any = SimpleNamespace(
        id=job["uid"], dag_id="bench", run_id="bench", task_id=job["name"], map_index=-1, try_number=1
    )
    trigger.task_instance = ti
    return trigger


def placing(job: dict[str, str]) -> Any:
    """Return the trigger of a task of ours whose wait ends with the job's admission."""
    return ours(job, until="admitted")


def peer(job: dict[str, str]) -> Any:
    """Return the trigger of a task of Airflow's Kubernetes provider, with its defaults."""
    from airflow.providers.cncf.kubernetes.triggers.job import KubernetesJobTrigger

    return KubernetesJobTrigger(
        job_name=job["name"],
        job_namespace=NAMESPACE,
        pod_names=[],
        pod_namespace=NAMESPACE,
        base_container_name="main",
        kubernetes_conn_id="kubernetes_default",
    )


def _imported(who: str) -> Callable[[dict[str, str]], Any]:
    """Return what makes a trigger, with all that it needs imported: that is no cost of a waiting task."""
    import aiohttp  # noqa: F401
    import kubernetes_asyncio.client  # noqa: F401

    make = {"ours": ours, "placing": placing, "peer": peer}[who]
    make({"name": "warm", "uid": "warm"})
    if who != "peer":
        import airflow_provider_multikueue.fleets.follow
        import airflow_provider_multikueue.hooks
        import airflow_provider_multikueue.pushes  # noqa: F401
    return make


async def _serve(who: str) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader(limit=64 * MIB)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    make = _imported(who)
    gc.collect()
    waiter = Waiter(make)
    while line := await lines.readline():
        asked = json.loads(line)
        answer = await getattr(waiter, asked.pop("do"))(**asked)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    os._exit(0)  # there is nothing to finish, and thousands of tasks to cancel


answers = sys.stdout
"""Kept apart: whatever else is printed goes to standard error."""


if __name__ == "__main__":
    sys.stdout = sys.stderr
    asyncio.run(_serve(sys.argv[1]))
