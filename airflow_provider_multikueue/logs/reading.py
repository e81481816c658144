"""One run of one container, and what of its log goes where."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider_multikueue.logs.lines import LogCursor, order
from airflow_provider_multikueue.logs.sinks import SETTLED_SECONDS, is_late
from airflow_provider_multikueue.logs.stream import ContainerStream
from airflow_provider_multikueue.logs.text import Levels, blocks, clean

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.client import Cluster
    from airflow_provider_multikueue.decisions.podview import Run
    from airflow_provider_multikueue.logs.lines import Line, Mark
    from airflow_provider_multikueue.logs.sinks import LineSink
    from airflow_provider_multikueue.logs.store import StoredRun

__all__ = ["REPEATED_SECONDS", "Pod", "Reading", "Readings", "read_tail"]

TAIL_LINES: Final = 50
REPEATED_SECONDS: Final = SETTLED_SECONDS
"""How long before the last note of a reader that was lost its lines may be in the log beyond what it noted."""


class Readings(Protocol):
    """What a reading knows of all readings of the job."""

    sink: LineSink
    resumed_at: datetime | None

    @property
    def several(self) -> bool:
        """Whether lines have to bear their pod's name."""

    def tell_once(self, text: str, *, level: int = logging.INFO) -> None:
        """Log ``text``, but never a second time."""

    def read_cloud(self, cluster: str, region: str) -> bool:
        """Show the output of the job's pods on a worker from Cloud Logging, if it has it; return whether it does."""


@dataclass(slots=True)
class Pod:
    """What is shown of a pod."""

    name: str
    label: str
    cluster: str
    region: str
    several_containers: bool
    told: bool = False


class Reading:
    """A run, and what of its log goes where: to the task's log if it is ``shown``, and to ``stored``."""

    def __init__(self, logs: Readings, run: Run, pod: Pod) -> None:
        self.run, self.pod = run, pod
        self.start = LogCursor()
        self.shown = True
        self.repeats = False
        """Whether its first lines may be in the task's log already."""
        self.stored: StoredRun | None = None
        self.stream: ContainerStream | None = None
        self.task: asyncio.Task[None] | None = None
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._logs = logs
        self._levels = Levels()
        self._told = False
        self._skip: Mark | None = None

    def begin(self, cluster: Cluster) -> None:
        """Read from where both the task's log and the store stand, each of which takes what it lacks."""
        first = self.start
        if self.stored is not None:
            places = (self.start, self.stored.start) if self.shown else (self.stored.start,)
            first = min(places, key=lambda cursor: order(cursor.mark))
            self._skip = self.start.mark if self.start.time and first is not self.start else None
        self.stream = ContainerStream(cluster, self.run, self, cursor=first)
        self.task = asyncio.get_running_loop().create_task(self._read(self.stream))

    async def _read(self, stream: ContainerStream) -> None:
        await stream.read()
        if self.stored is not None:
            self.stored.finish()

    def learn(self, run: Run) -> None:
        """Take notice of what the pod's status now says."""
        self.run = run
        if self.stream is not None:
            self.stream.learn(run)

    @property
    def reading(self) -> bool:
        """Whether its task is at work."""
        return self.task is not None and not self.task.done()

    def deliver(self, lines: Sequence[Line]) -> None:
        """Give new lines to whom they are for."""
        if self.stored is not None:
            self.stored.take(lines)
        if self._skip is not None:
            after = order(self._skip)
            lines = [line for line in lines if order(line[2]) > after]
        if not self.shown or not lines:
            return
        self._skip = None
        self._head()
        late = is_late(lines[0][0])
        for block in blocks(lines, self._levels, prefix=self._prefix, late=late):
            self._logs.sink.lines(self.run.key, block)
        self.tail.extend(clean(text) for _, text, _ in lines[-TAIL_LINES:])

    def progress(self, state: str) -> None:
        """Show how far a progress bar is."""
        if not self.shown:
            return
        self._head()
        self._logs.sink.record(logging.INFO, f"{self._prefix}{clean(state)} …")

    def tell(self, level: int, text: str) -> None:
        """Say something about the log."""
        self._logs.sink.record(level, text if self.shown else f"{text.removesuffix(' ──')}; it is only stored ──")

    def refused(self) -> bool:
        """Take another way to the output, or say once which right is missing; return whether there is one."""
        namespace, cluster, region = self.run.namespace, self.pod.cluster, self.pod.region
        if self.shown and self._logs.read_cloud(cluster, region):
            return True
        where = cluster if region == cluster else f"{cluster} ({region})"
        text = (
            f"the logs of pods in namespace {namespace} on worker {where} can't be read: its account in the "
            f"connection may not `get` `pods/log` there. The job itself is not affected. Grant it that, or, for a GKE "
            f"cluster, set `cloud_logging` in the worker's entry of the connection."
        )
        self._logs.tell_once(text, level=logging.WARNING)
        return False

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
        if self._logs.resumed_at is not None and self.repeats:
            since = (self._logs.resumed_at - timedelta(seconds=REPEATED_SECONDS)).astimezone(UTC)
            self._logs.tell_once(
                f"── an earlier reader was lost: lines since about {since:%H:%M:%S} UTC may be here a second time ──"
            )
        if not pod.told:
            pod.told = True
            self.tell(logging.INFO, f"── pod {pod.name} in {pod.region} ──")
        if run.restart:
            self.tell(logging.INFO, f"── {run.container} in pod {pod.name}: restart {run.restart} ──")


async def read_tail(cluster: Cluster, reading: Reading) -> None:
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
