"""The output of a job's pods from Cloud Logging, where they can't be read themselves: some seconds late, and in order.

Entries arrive there late, and not quite in the order of their times, so each request begins some time before the newest
entry that is known, and what was shown is told by its id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Self

from airflow_provider_multikueue.clusters.cloud_logging import PAGE
from airflow_provider_multikueue.decisions import podview
from airflow_provider_multikueue.exceptions import MultiKueueError
from airflow_provider_multikueue.logs.lines import canonical_time
from airflow_provider_multikueue.logs.sinks import is_late
from airflow_provider_multikueue.logs.text import Block, Levels, blocks

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.cloud_logging import CloudEntry, CloudLogging
    from airflow_provider_multikueue.logs.lines import Line, Mark
    from airflow_provider_multikueue.logs.reading import Readings

__all__ = ["CloudPlace", "CloudReader", "CloudSource"]

PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 60.0
OVERLAP: Final = timedelta(seconds=60)
"""How late an entry may arrive, compared with one that was written after it."""
QUIET_READS: Final = 2
"""After the end, so many reads without news mean that all has come."""
LABELS: Final = "k8s-pod/"
SEVERITIES: Final = {
    "DEBUG": logging.DEBUG,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
    "ALERT": logging.CRITICAL,
    "EMERGENCY": logging.CRITICAL,
}


class CloudSource:
    """Where Cloud Logging has the output of one job on one cluster."""

    def __init__(self, api: CloudLogging, query: str, url: str) -> None:
        self.api, self.query, self.url = api, query, url


@dataclass(frozen=True, slots=True)
class CloudPlace:
    """Where an earlier reader stood: all up to ``since`` was shown, and of some pods' containers up to ``times``."""

    since: str = ""
    times: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return what `CloudReader.place` noted; anything else gives one that has shown nothing."""
        match value:
            case [str(since), dict(times)] if canonical_time(since) == since != "":
                return cls(since, {str(source): str(time) for source, time in times.items()})
        return cls()

    def until(self, source: str) -> str:
        """Return up to when the output of ``POD/CONTAINER`` was shown."""
        return self.times.get(source, "")


class CloudReader:
    """Shows the entries of a source.

    It begins at ``since``, or where an earlier reader stood ``before``. ``known`` says up to when the output of a pod's
    container was shown by other ways, ``shows`` which pods are shown.
    """

    def __init__(
        self,
        source: CloudSource,
        logs: Readings,
        *,
        region: str,
        since: str,
        before: CloudPlace | None = None,
        known: Callable[[str, str], str] = lambda _pod, _container: "",
        shows: Callable[[Mapping[str, Any]], bool] = lambda _: True,
    ) -> None:
        self.done = False
        """Whether no more is to come, or nothing can be read."""
        self._source, self._logs, self._region, self._known = source, logs, region, known
        self._shows = shows
        self._full = ""
        self._before = before or CloudPlace()
        self._overlap = OVERLAP if self._before.since else timedelta(seconds=1)
        self._begun = self._newest = self._before.since or canonical_time(since) or since
        self._given: dict[str, Mark] = {}
        self._seen: dict[str, str] = {}
        self._levels: dict[tuple[str, str], Levels] = {}
        self._told: set[str] = set()
        self._ended = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._work())

    def place(self, out: Callable[[str], Mark | None]) -> list[Any]:
        """Return, as JSON values, where a later reader has to begin if lines are out up to what ``out`` says."""
        marks = {source: out(source) for source in self._given}
        times = {**self._before.times} | {source: mark[0] for source, mark in marks.items() if mark}
        behind = [times.get(source) or self._begun for source, mark in marks.items() if mark != self._given[source]]
        return [min([self._newest, *behind]), times]

    async def drain(self, seconds: float) -> None:
        """Show what still comes, until nothing does, at most that long."""
        self._ended.set()
        await asyncio.wait([self._task], timeout=seconds)
        if not self.done:
            self._logs.tell_once(f"── more lines may still arrive in Cloud Logging: {self._source.url} ──")
        await self.close()

    async def close(self) -> None:
        """Stop."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        failures = quiet = 0
        while True:
            last = self._ended.is_set()
            try:
                news = self._show(await self._read())
            except ConnectionError as error:
                failures, news = failures + 1, 0
                if failures > 3:
                    self._logs.tell_once(f"Cloud Logging can't be read at present: {error}", level=logging.WARNING)
            except MultiKueueError as error:
                self._logs.tell_once(f"── no lines can be shown: {error} ──", level=logging.WARNING)
                self.done = True
                return
            else:
                failures = 0
                quiet = 0 if news or not last else quiet + 1
            if quiet >= QUIET_READS:
                self.done = True
                return
            if not self._full:
                await self._pause(min(PAUSE * 2**failures, LONGEST_PAUSE))

    async def _pause(self, seconds: float) -> None:
        if self._ended.is_set():
            await asyncio.sleep(seconds / 2)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._ended.wait()

    async def _read(self) -> list[CloudEntry]:
        since = datetime.fromisoformat(f"{self._newest[:19]}+00:00") - self._overlap
        text = since.strftime("%Y-%m-%dT%H:%M:%SZ")
        entries = await self._source.api.entries(self._source.query, since=self._full or text)
        self._full = entries[-1].time if len(entries) >= PAGE and entries[-1].time != self._full else ""
        self._overlap = OVERLAP if entries else self._overlap
        self._seen = {key: at for key, at in self._seen.items() if at >= text}
        return entries

    def _show(self, entries: list[CloudEntry]) -> int:
        """Show the entries that are new and return how many they are."""
        new = [entry for entry in entries if entry.id not in self._seen]
        for entry in new:
            self._seen[entry.id] = entry.time
            self._newest = max(self._newest, canonical_time(entry.time))
        unknown = [entry for entry in new if canonical_time(entry.time) > self._known_until(entry)]
        for (pod, container), group in groupby(unknown, key=lambda entry: (entry.pod, entry.container)):
            entries = list(group)
            if self._shows(_pod(entries[0])):
                self._deliver(pod, container, entries)
        return len(new)

    def _known_until(self, entry: CloudEntry) -> str:
        return max(self._before.until(f"{entry.pod}/{entry.container}"), self._known(entry.pod, entry.container))

    def _deliver(self, pod: str, container: str, entries: list[CloudEntry]) -> None:
        if pod not in self._told:
            self._told.add(pod)
            self._logs.sink.record(logging.INFO, f"── pod {pod} in {self._region}, from Cloud Logging ──")
        prefix = f"[{podview.short_name(_pod(entries[0]))}] " if self._logs.several or len(self._told) > 1 else ""
        levels = self._levels.setdefault((pod, container), Levels())
        for severity, group in groupby(entries, key=lambda entry: SEVERITIES.get(entry.severity, 0)):
            lines = [line for entry in group for line in self._lines(entry)]
            for block in blocks(lines, levels, prefix=prefix, late=is_late(lines[0][0])):
                self._logs.sink.lines(f"{pod}/{container}", _at_level(block, severity))

    def _lines(self, entry: CloudEntry) -> list[Line]:
        """Return the entry's lines, with marks that grow also where an entry is older than the one before."""
        source, at, lines = f"{entry.pod}/{entry.container}", canonical_time(entry.time), []
        newest, count, _, _ = self._given.get(source, (at, 0, 0, ""))
        for text in entry.text.removesuffix("\n").split("\n"):
            count += 1
            lines.append((at, text, (max(newest, at), count, 0, "")))
        self._given[source] = lines[-1][2]
        return lines


def _at_level(block: Block, severity: int) -> Block:
    return Block(severity or block.level, block.text, block.lines, block.time, block.mark)


def _pod(entry: CloudEntry) -> Mapping[str, Any]:
    """Return as much of the pod as its labels tell."""
    labels = {}
    for key, value in entry.labels.items():
        domain, slash, name = key.removeprefix(LABELS).partition("/")
        labels[f"{domain.replace('_', '.')}/{name}" if slash else domain] = value
    return {"metadata": {"name": entry.pod, "labels": labels}}
