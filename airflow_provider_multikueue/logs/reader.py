"""The logs of a job's pods, from whichever cluster runs them, as one readable text in the task's log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_provider_multikueue.decisions import podview
from airflow_provider_multikueue.logs.lines import LogCursor
from airflow_provider_multikueue.logs.sinks import is_late, line_sink
from airflow_provider_multikueue.logs.stream import ContainerStream
from airflow_provider_multikueue.logs.text import Levels, blocks, clean

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.client import Cluster
    from airflow_provider_multikueue.decisions.podview import Run
    from airflow_provider_multikueue.logs.lines import Line
    from airflow_provider_multikueue.logs.sinks import Sink

__all__ = ["LogPolicy", "PodLogs"]

LogPolicy = Literal["all", "first", "failed", "none"]

TAIL_LINES: Final = 50
REPEATED_SECONDS: Final = 5
"""How far before the loss of an earlier reader a new one begins."""
STATUS_SECONDS: Final = 3.0
"""How long a drain waits for a pod's status to say that its containers have ended."""
DONE: Final = "done"


@dataclass(slots=True)
class _Pod:
    """What is shown of a pod."""

    name: str
    label: str
    cluster: str
    region: str
    several_containers: bool
    told: bool = False


class _Reading:
    """A run, and what of its log goes where."""

    def __init__(self, logs: PodLogs, run: Run, pod: _Pod) -> None:
        self.run, self.pod = run, pod
        self.start = LogCursor()
        self.stream: ContainerStream | None = None
        self.task: asyncio.Task[None] | None = None
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._logs = logs
        self._levels = Levels()
        self._told = False

    @property
    def reading(self) -> bool:
        """Whether its task is at work."""
        return self.task is not None and not self.task.done()

    def deliver(self, lines: Sequence[Line]) -> None:
        """Give new lines to the task's log."""
        self._head()
        late = is_late(lines[0][0])
        for block in blocks(lines, self._levels, prefix=self._prefix, late=late):
            self._logs.sink.lines(self.run.key, block)
        self.tail.extend(clean(text) for _, text, _ in lines[-TAIL_LINES:])

    def progress(self, state: str) -> None:
        """Show how far a progress bar is."""
        self._head()
        self._logs.sink.record(logging.INFO, f"{self._prefix}{clean(state)} …")

    def tell(self, level: int, text: str) -> None:
        """Say something about the log."""
        self._logs.sink.record(level, text)

    def refused(self) -> None:
        """Say which right is missing, once for each cluster and namespace."""
        namespace, cluster, region = self.run.namespace, self.pod.cluster, self.pod.region
        where = cluster if region == cluster else f"{cluster} ({region})"
        text = (
            f"the logs of pods in namespace {namespace} on worker {where} can't be read: its account in the "
            f"connection may not `get` `pods/log` there. The job itself is not affected."
        )
        self._logs.tell_once(text, level=logging.WARNING)

    @property
    def _prefix(self) -> str:
        parts = [self.pod.label] if self._logs.several else []
        if self.pod.several_containers or self.run.init:
            parts.append(self.run.container)
        return f"[{' '.join(parts)}] " if parts else ""

    def _head(self) -> None:
        """Head the first lines of each pod, and of each later run of a container."""
        if self._told:
            return
        self._told = True
        run, pod = self.run, self.pod
        if self._logs.resumed_at is not None and self.start.time:
            self._logs.tell_once(
                f"── an earlier reader was lost: up to {REPEATED_SECONDS} s of lines may repeat from here on ──"
            )
        if not pod.told:
            pod.told = True
            self.tell(logging.INFO, f"── pod {pod.name} in {pod.region} ──")
        if run.restart:
            self.tell(logging.INFO, f"── {run.container} in pod {pod.name}: restart {run.restart} ──")


class PodLogs:
    """Reads the logs of the pods that `update` names and gives them to ``sink``.

    ``policy`` is which pods are shown: "all", the "first" of each role, "failed" ones only, "none". ``cursors`` is what
    `cursors` of an earlier reader returned. ``resumed_at`` is when an earlier reader that left none was surely still at
    work: reading begins a little before. ``several`` says that more than one pod is to come, so that the lines of the
    first bear its name from the start.
    """

    def __init__(
        self,
        *,
        sink: Sink,
        policy: LogPolicy = "all",
        cursors: Mapping[str, Any] | None = None,
        resumed_at: datetime | None = None,
        several: bool = False,
    ) -> None:
        self.sink = line_sink(sink)
        self.resumed_at = resumed_at
        self._policy = policy
        self._cursors = dict(cursors or {})
        self._several = several
        self._pods: dict[str, _Pod] = {}
        self._readings: dict[str, _Reading] = {}
        self._firsts: dict[tuple[str, str], str] = {}
        self._told: set[str] = set()
        self._closed = False

    @property
    def several(self) -> bool:
        """Whether lines have to bear their pod's name."""
        return self._several or len(self._pods) > 1

    def tell_once(self, text: str, *, level: int = logging.INFO) -> None:
        """Log ``text``, but never a second time."""
        if text not in self._told:
            self._told.add(text)
            self.sink.record(level, text)

    # -- what the pods do

    def update(self, cluster: Cluster, region: str | None, pods: Collection[Mapping[str, Any]]) -> None:
        """Read what can be read of these pods, which are all that ``cluster`` has or had of the job."""
        if self._closed:
            return
        for pod in sorted(pods, key=lambda pod: (podview.ordinal(pod), str(pod["metadata"]["name"]))):
            for run in podview.runs(pod):
                self._notice(cluster, region, pod, run)

    def _notice(self, cluster: Cluster, region: str | None, pod: Mapping[str, Any], run: Run) -> None:
        reading = self._readings.get(run.key)
        if reading is not None:
            reading.run = run
            if reading.stream is not None:
                reading.stream.learn(run)
            return
        shown = self._shows(cluster.name, pod, run)
        if not shown and not run.failed:
            return
        reading = self._readings[run.key] = _Reading(self, run, self._pod(cluster, region, pod))
        if self._cursors.get(run.key) == DONE:
            return
        if shown:
            reading.start = self._start(run)
            reading.stream = ContainerStream(cluster, run, reading, cursor=reading.start)
            work = reading.stream.read()
        else:
            work = _read_tail(cluster, reading)
        reading.task = asyncio.get_running_loop().create_task(work)

    def _shows(self, cluster: str, pod: Mapping[str, Any], run: Run) -> bool:
        if self._policy == "none":
            return False
        if self._policy == "failed" or run.init:
            return run.failed
        return self._policy == "all" or self._is_first(cluster, pod)

    def _is_first(self, cluster: str, pod: Mapping[str, Any]) -> bool:
        number = podview.ordinal(pod)
        if number:
            return not any(number)
        # pods without a number: the one that started first, and who takes its place when it has failed
        uid, key = str(pod["metadata"]["uid"]), (cluster, podview.role(pod))
        chosen = self._firsts.setdefault(key, uid)
        if chosen != uid and self._has_failed(chosen):
            self._firsts[key] = uid
        return self._firsts[key] == uid

    def _has_failed(self, uid: str) -> bool:
        return any(reading.run.uid == uid and reading.run.failed for reading in self._readings.values())

    def _pod(self, cluster: Cluster, region: str | None, pod: Mapping[str, Any]) -> _Pod:
        uid, name = str(pod["metadata"]["uid"]), str(pod["metadata"]["name"])
        if uid not in self._pods:
            label = podview.short_name(pod)
            if any(other.label == label for other in self._pods.values()):
                label = f"{label}/{name.rsplit('-', 1)[-1]}"
            containers = (pod.get("spec") or {}).get("containers") or ()
            self._pods[uid] = _Pod(name, label, cluster.name, region or cluster.name, len(containers) > 1)
        return self._pods[uid]

    def _start(self, run: Run) -> LogCursor:
        earlier = self._readings.get(f"{run.uid}/{run.container}/{run.restart - 1}")
        if earlier is not None and earlier.stream is not None and earlier.stream.reopened:
            # That stream may have read the beginning of this run already; times only grow from run to run.
            return earlier.stream.cursor
        if run.key in self._cursors:
            return LogCursor.from_json(self._cursors[run.key])
        if self.resumed_at is not None and run.started and datetime.fromisoformat(run.started) < self.resumed_at:
            return LogCursor.at(self.resumed_at - timedelta(seconds=REPEATED_SECONDS))
        return LogCursor()

    # -- ends

    async def drain(self, seconds: float) -> None:
        """Wait until all that can be read was read, at most that long; what could not is told."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        await self._wait(min(seconds, STATUS_SECONDS))
        for reading in self._open():
            if reading.stream is not None:
                reading.stream.end()
        await self._wait(until - loop.time())
        for reading in self._open():
            where = f"{reading.run.container} in pod {reading.pod.name}"
            self.sink.record(logging.WARNING, f"── the log of {where} was not read to its end in time ──")
        await self.close()

    async def _wait(self, seconds: float) -> None:
        tasks = [reading.task for reading in self._open() if reading.task is not None]
        if tasks and seconds > 0:
            await asyncio.wait(tasks, timeout=seconds)

    def _open(self) -> list[_Reading]:
        return [reading for reading in self._readings.values() if reading.reading]

    def cursors(self) -> dict[str, Any]:
        """Stop, and return where a later reader has to begin, as JSON values: after the last line that is out."""
        self._stop()
        self.sink.discard()
        return self.positions()

    def positions(self) -> dict[str, Any]:
        """Return where a reader that took over at this moment would have to begin, as `cursors` does, and read on."""
        return {key: place for key, reading in self._readings.items() if (place := self._place(key, reading))}

    @property
    def reading(self) -> bool:
        """Whether a stream is open, so that positions change."""
        return bool(self._open())

    def _place(self, key: str, reading: _Reading) -> list[str | int] | str:
        if reading.stream is None:
            return DONE
        place = self.sink.position(key) or reading.start.mark
        if reading.stream.complete and place == reading.stream.cursor.mark:
            return DONE
        return list(place) if place[0] else ""

    async def hand_over(self, seconds: float = 2.0) -> dict[str, Any]:
        """Stop, let what was read come out for at most that long, and return `cursors`."""
        self._stop()
        await self.sink.settle(seconds)
        return self.cursors()

    async def close(self) -> None:
        """Stop reading."""
        await asyncio.gather(*self._stop(), return_exceptions=True)

    def _stop(self) -> list[asyncio.Task[None]]:
        self._closed = True
        tasks = [reading.task for reading in self._open() if reading.task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    def tail(self, lines: int = 20) -> list[str]:
        """Return the last lines; those of the container that failed last, if one failed."""
        with_lines = [reading for reading in self._readings.values() if reading.tail]
        with_lines.sort(key=lambda reading: (reading.run.failed, reading.run.finished, reading.run.started))
        return list(with_lines[-1].tail)[-lines:] if with_lines else []


async def _read_tail(cluster: Cluster, reading: _Reading) -> None:
    """Read the last lines of a container that failed and is not shown, for the error's text only."""
    run = reading.run
    with contextlib.suppress(Exception):
        async with cluster.log(
            run.namespace,
            run.pod,
            run.container,
            follow=False,
            previous=run.previous,
            timestamps=False,
            tail_lines=TAIL_LINES,
        ) as chunks:
            data = b"".join([chunk async for chunk in chunks])
        lines = data.decode("utf-8", "backslashreplace").removesuffix("\n").split("\n")
        reading.tail.extend(clean(line) for line in lines)
