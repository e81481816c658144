"""The logs of a job's pods, from whichever cluster runs them, as one readable text in the task's log."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_provider_multikueue.decisions import podview
from airflow_provider_multikueue.logs.cloud import CloudPlace, CloudReader
from airflow_provider_multikueue.logs.lines import LogCursor
from airflow_provider_multikueue.logs.reading import Pod, Reading, read_tail
from airflow_provider_multikueue.logs.sinks import line_sink

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.client import Cluster
    from airflow_provider_multikueue.decisions.podview import Run
    from airflow_provider_multikueue.logs.cloud import CloudSource
    from airflow_provider_multikueue.logs.lines import Mark
    from airflow_provider_multikueue.logs.sinks import Sink
    from airflow_provider_multikueue.logs.store import LogStore, StoredRun

__all__ = ["LogPolicy", "PodLogs"]

LogPolicy = Literal["all", "first", "failed", "none"]

STATUS_SECONDS: Final = 3.0
"""How long a drain waits for a pod's status to say that its containers have ended."""
CLOUD_SECONDS: Final = 40.0
"""How long the end of a job waits for lines that come by way of Cloud Logging."""
DONE: Final = "done"
STORED: Final = "@stored"
"""Ends the key of a cursor that says how far a run's output is in the object store."""
CLOUD: Final = "cloud/"
"""Begins the key of a cursor that says how far a worker's output was shown from Cloud Logging."""
SAME: Final = "="
"""Such a cursor that is no other than that of the task's log."""


class PodLogs:
    """Reads the logs of the pods that `update` names and gives them to ``sink``.

    ``policy`` is which pods are shown: "all", the "first" of each role, "failed" ones only, "none". ``cursors`` is what
    `cursors` of an earlier reader returned; ``resumed_at`` is when it noted them, if it was lost some time after that.
    ``several`` says that more than one pod is to come, so that the lines of the first bear its name from the start.
    ``store`` gets the output of all containers, whatever ``policy`` shows. ``cloud`` says where Cloud Logging has the
    job's output on a worker whose pods can't be read, ``since`` from when.
    """

    def __init__(
        self,
        *,
        sink: Sink,
        policy: LogPolicy = "all",
        cursors: Mapping[str, Any] | None = None,
        resumed_at: datetime | None = None,
        several: bool = False,
        store: LogStore | None = None,
        cloud: Callable[[str], CloudSource | None] = lambda _: None,
        since: str = "",
    ) -> None:
        self.sink = line_sink(sink)
        self.resumed_at = resumed_at
        self._policy = policy
        self._cursors = dict(cursors or {})
        self._opened_at = datetime.now(UTC)
        self._several = several
        self._store = store
        self._storing: dict[str, Reading] = {}
        self._cloud, self._since = cloud, since
        self._clouds: dict[str, CloudReader] = {}
        self._looked: dict[str, Mapping[str, Any]] = {}
        self._pods: dict[str, Pod] = {}
        self._labels: set[str] = set()
        self._readings: dict[str, Reading] = {}
        self._at_work = 0
        self._shown_now: Counter[str] = Counter()
        self._firsts: dict[tuple[str, str], str] = {}
        self._told: set[str] = set()
        self._closed = False

    @property
    def several(self) -> bool:
        """Whether lines have to bear their pod's name: more pods than one are to come, or are read at a time."""
        return self._several or len(self._shown_now) > 1

    def tell_once(self, text: str, *, level: int = logging.INFO) -> None:
        """Log ``text``, but never a second time."""
        if text not in self._told:
            self._told.add(text)
            self.sink.record(level, text)

    # -- what the pods do

    def update(self, cluster: Cluster, region: str | None, pods: Collection[Mapping[str, Any]]) -> None:
        """Read what can be read of these pods, which are all that ``cluster`` has or had of the job."""
        if self._closed or cluster.name in self._clouds:
            return
        for pod in sorted(self._changed(pods), key=lambda pod: (podview.ordinal(pod), str(pod["metadata"]["name"]))):
            for run in podview.runs(pod):
                self._notice(cluster, region, pod, run)

    def _changed(self, pods: Collection[Mapping[str, Any]]) -> Collection[Mapping[str, Any]]:
        """Return the pods that are not as they were when they were looked at last: few of a thousand at each event."""
        changed = [pod for pod in pods if self._looked.get(pod["metadata"]["uid"]) is not pod]
        self._looked.update({pod["metadata"]["uid"]: pod for pod in changed})
        # who is shown as the first depends on what the others do
        return pods if changed and self._policy == "first" else changed

    def _notice(self, cluster: Cluster, region: str | None, pod: Mapping[str, Any], run: Run) -> None:
        for known in (self._readings.get(run.key), self._storing.get(run.key)):
            if known is not None:
                known.learn(run)
        if run.key in self._readings:
            return
        shown = self._shows(cluster.name, pod, run)
        wanted = self._cursors.get(run.key) != DONE
        if shown or run.failed:
            reading = self._readings[run.key] = Reading(self, run, self._pod(cluster, region, pod))
            if shown and wanted:
                reading.start, reading.repeats = self._start(run), self._repeats(run)
                reading.stored = self._stored(reading)
                reading.begin(cluster)
            elif wanted:
                reading.task = asyncio.get_running_loop().create_task(read_tail(cluster, reading))
            self._count(reading)
        if not (shown and wanted):
            self._only_store(cluster, region, pod, run)

    def _only_store(self, cluster: Cluster, region: str | None, pod: Mapping[str, Any], run: Run) -> None:
        """Store what the task's log does not show, or has shown already."""
        if self._store is None or run.key in self._storing:
            return
        reading = Reading(self, run, self._pod(cluster, region, pod))
        reading.shown, reading.stored = False, self._stored(reading)
        if reading.stored is not None:
            self._storing[run.key] = reading
            reading.begin(cluster)
            self._count(reading)

    def _count(self, reading: Reading) -> None:
        """Count the reading while it is at work."""
        if reading.task is None:
            return
        self._at_work += 1
        if reading.shown:
            self._shown_now[reading.run.uid] += 1
        reading.task.add_done_callback(lambda _: self._uncount(reading))

    def _uncount(self, reading: Reading) -> None:
        self._at_work -= 1
        if reading.shown:
            self._shown_now[reading.run.uid] -= 1
            if not self._shown_now[reading.run.uid]:
                del self._shown_now[reading.run.uid]

    def _stored(self, reading: Reading) -> StoredRun | None:
        """Return where a run's output is to be stored; None when it is, or need not be."""
        run, pod = reading.run, reading.pod
        place = self._cursors.get(run.key + STORED)
        place = self._cursors.get(run.key) if place == SAME else place
        if self._store is None or place == DONE or run.key in self._storing:
            return None
        start = self._after_earlier(run) or LogCursor.from_json(place)
        return self._store.run(
            region=pod.region, pod=pod.name, container=run.container, restart=run.restart, start=start
        )

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
        uid, key = str(pod["metadata"].get("uid") or pod["metadata"]["name"]), (cluster, podview.role(pod))
        chosen = self._firsts.setdefault(key, uid)
        if chosen != uid and self._has_failed(chosen):
            self._firsts[key] = uid
        return self._firsts[key] == uid

    def _has_failed(self, uid: str) -> bool:
        return any(reading.run.uid == uid and reading.run.failed for reading in self._readings.values())

    def _pod(self, cluster: Cluster, region: str | None, pod: Mapping[str, Any]) -> Pod:
        uid, name = str(pod["metadata"]["uid"]), str(pod["metadata"]["name"])
        if uid not in self._pods:
            label = podview.short_name(pod)
            if label in self._labels:
                label = f"{label}/{name.rsplit('-', 1)[-1]}"
            self._labels.add(label)
            containers = (pod.get("spec") or {}).get("containers") or ()
            self._pods[uid] = Pod(name, label, cluster.name, region or cluster.name, len(containers) > 1)
        return self._pods[uid]

    def _start(self, run: Run) -> LogCursor:
        if (after := self._after_earlier(run)) is not None:
            return after
        return LogCursor.from_json(self._cursors.get(run.key))

    def _repeats(self, run: Run) -> bool:
        """Return whether a reader that was lost may have shown more of it than it noted."""
        if self.resumed_at is None:
            return False
        return not run.started or datetime.fromisoformat(run.started) <= self._opened_at

    def _after_earlier(self, run: Run) -> LogCursor | None:
        """Return where the run before stands if its stream may have read the beginning of this one already."""
        key = f"{run.uid}/{run.container}/{run.restart - 1}"
        earlier = self._readings.get(key) or self._storing.get(key)
        # times only grow from run to run
        return earlier.stream.cursor if earlier and earlier.stream and earlier.stream.reopened else None

    # -- another way to the output

    def read_cloud(self, cluster: str, region: str) -> bool:
        """Show the output of the job's pods on a worker from Cloud Logging, if it has it; return whether it does."""
        if cluster in self._clouds:
            return True
        source = self._cloud(cluster)
        if source is None or self._policy == "none" or self._closed:
            return False
        if self._policy == "failed":
            self.tell_once(f"── the output of pods that fail is in Cloud Logging: {source.url} ──")
            return True
        before = CloudPlace.from_json(self._cursors.get(CLOUD + cluster))
        self.tell_once(
            f"── pods in {region} can't be read, or not any more: their lines come from Cloud Logging, some seconds "
            f"late: {source.url} ──"
        )
        self._clouds[cluster] = CloudReader(
            source,
            self,
            region=region,
            since=self._since or datetime.now(UTC).isoformat(),
            before=before,
            known=self._known,
            shows=lambda pod: self._policy == "all" or self._is_first(cluster, pod),
        )
        return True

    def _known(self, pod: str, container: str) -> str:
        """Return the time of the last line that was read from the pod's container itself."""
        times = [
            reading.stream.cursor.time
            for reading in self._readings.values()
            if reading.stream is not None and (reading.run.pod, reading.run.container) == (pod, container)
        ]
        return max(times, default="")

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
        await asyncio.gather(*(reader.drain(CLOUD_SECONDS) for reader in self._clouds.values()))
        await self._stop_all()
        if self._store is not None:
            await self._store.finish()
            self._store.close()

    async def _wait(self, seconds: float) -> None:
        tasks = [reading.task for reading in self._open() if reading.task is not None]
        if tasks and seconds > 0:
            await asyncio.wait(tasks, timeout=seconds)

    def _open(self) -> list[Reading]:
        return [reading for reading in (*self._readings.values(), *self._storing.values()) if reading.reading]

    def cursors(self) -> dict[str, Any]:
        """Stop, and return where a later reader has to begin, as JSON values: after the last line that is out."""
        self._stop()
        self.sink.discard()
        return self._places(self.sink.position)

    def settled(self) -> dict[str, Any]:
        """Return where a reader that took over would have to begin if we were killed now, as `cursors` does."""
        return self._places(self.sink.settled)

    def _places(self, out: Callable[[str], Mark | None]) -> dict[str, Any]:
        places = {key: place for key, reading in self._readings.items() if (place := _place(reading, out(key)))}
        for key, reading in (*self._readings.items(), *self._storing.items()):
            if reading.stored is not None:
                place = DONE if reading.stored.complete else list(reading.stored.position)
                places[key + STORED] = SAME if place == places.get(key) else place
            elif self._store is not None:
                places[key + STORED] = self._cursors.get(key + STORED, DONE)
        places |= {CLOUD + cluster: reader.place(out) for cluster, reader in self._clouds.items()}
        return places

    @property
    def lost(self) -> bool:
        """Whether the task's log is gone, and perhaps the last that was written to it: no stop in order any more."""
        return self.sink.lost

    @property
    def reading(self) -> bool:
        """Whether a stream is open, so that positions change."""
        return self._at_work > 0 or bool(self._clouds)

    async def hand_over(self, seconds: float = 2.0) -> dict[str, Any]:
        """Stop, let what was read come out for at most that long, and return `cursors`; `settled` if that is lost."""
        self._stop()
        if self._store is not None:
            await asyncio.gather(self.sink.settle(seconds), self._store.settle(seconds))
        else:
            await self.sink.settle(seconds)
        return self.settled() if self.lost else self.cursors()

    async def close(self) -> None:
        """Stop reading, and let go of all."""
        await self._stop_all()
        if self._store is not None:
            self._store.close()

    async def _stop_all(self) -> None:
        await asyncio.gather(*self._stop(), return_exceptions=True)
        await asyncio.gather(*(reader.close() for reader in self._clouds.values()))

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


def _place(reading: Reading, out: Mark | None) -> list[str | int] | str:
    """Return from where a run has to be read on if its lines are out up to that."""
    if reading.stream is None:
        return DONE
    place = out or reading.start.mark
    if reading.stream.complete and place == reading.stream.cursor.mark:
        return DONE
    return list(place) if place[0] else ""
