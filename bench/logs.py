"""Logs: what a line costs from its bytes to Airflow's task log, through a real triggerer, and how late it is there."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.paths import SandboxError
from bench.context import Context, Results, Row, row
from bench.log_server import FAST_LINES
from bench.log_trigger import STREAMS
from bench.waiter import quantile

__all__ = ["run"]

HERE = Path(__file__).parent
LOOK = 0.004
SETTLED = 3.0
"""Seconds at the beginning of a measurement of delays that are left out: connections are made then."""

MEASUREMENTS: Mapping[str, float] = {
    "pure": 0,
    "cost": 0,
    "peer": 0,
    "idle": 10,
    "ticking": 30,
    "fast": 20,
    "flooded": 45,
    "peer_ticking": 20,
}
"""What is measured, in this order, and for how many seconds."""


def run(context: Context) -> Results:
    """Measure in one Airflow, one measurement after the other."""
    return asyncio.run(_run(context))


async def _run(context: Context) -> Results:
    folder = context.folder / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    raw: dict[str, Any] = {}
    variables = {"PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])}
    with _log_server() as server:
        async with LocalAirflow(dags=HERE / "log_dags", variables=variables) as airflow:
            await airflow.wait_dag("log_streams")
            for what, seconds in MEASUREMENTS.items():
                context.say(f"logs: {what}")
                try:
                    raw[what] = await _measure(airflow, folder, what, server, seconds / (2 if context.quick else 1))
                except (OSError, SandboxError) as error:  # a machine that is too busy: the others still count
                    raw[what] = {"broken": repr(error)}
                context.say(f"  {json.dumps(raw[what])}")
    return {"rows": list(_rows(raw)), "notes": NOTES, "raw": raw}


@contextmanager
def _log_server() -> Iterator[str]:
    process = subprocess.Popen(
        (sys.executable, "-m", "bench.log_server"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=HERE.parent
    )
    with process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()


async def _measure(airflow: LocalAirflow, folder: Path, what: str, server: str, seconds: float) -> dict[str, Any]:
    out = folder / f"{what}.json"
    out.unlink(missing_ok=True)
    run_id = f"bench-{what}"
    with FileLog(airflow.layout.home / "logs", run_id) as log:
        await airflow.trigger(
            "log_streams",
            conf={"what": what, "server": server, "out": str(out), "seconds": seconds},
            run_id=run_id,
        )
        await airflow.wait_run("log_streams", run_id, within=150)
    found: dict[str, Any] = json.loads(out.read_text())
    return {**found, **log.result()}


class FileLog:
    """Watches the file of a task's log, in a thread, and notes when each record was in it."""

    def __init__(self, folder: Path, run_id: str) -> None:
        self._folder, self._run = folder, run_id
        self._pieces: list[tuple[float, bytes]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> FileLog:
        """Begin to watch."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Watch no more."""
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        file = None
        while not self._ended.wait(LOOK if file else 0.1):
            if file is None:
                found = list(self._folder.glob(f"**/run_id={self._run}/**/*.trigger.*.log"))
                file = found[0].open("rb") if found else None
            elif data := file.read():
                self._pieces.append((time.time(), data))
        if file is not None:
            self._pieces.append((time.time(), file.read()))
            file.close()

    def result(self) -> dict[str, Any]:
        """Return the delays of the lines that say when they were written, and what else is in the file."""
        delays: list[tuple[float, float]] = []
        records = skipped = 0
        for at, event in self._records():
            records += 1
            for line in event.split("\n"):
                kind, *rest = line.split(" ", 3)
                if kind in ("tick", "fast"):
                    delays.append((float(rest[1]), at - float(rest[1])))
                skipped += "lines skipped" in line
        return {"file_records": records, "thinned": skipped, **_delays(delays)}

    def _records(self) -> Iterator[tuple[float, str]]:
        rest = b""
        for at, data in self._pieces:
            *whole, rest = (rest + data).split(b"\n")
            for each in whole:
                event = json.loads(each).get("event") if each else None
                yield at, _bare(str(event or ""))


def _bare(event: str) -> str:
    """Return a record's text without the container's name that the peer puts before it."""
    return event.removeprefix("[main] ")


def _delays(found: list[tuple[float, float]]) -> dict[str, Any]:
    first = min((written for written, _ in found), default=0.0)
    delays = [delay for written, delay in found if written > first + SETTLED]
    return {
        "lines_in_file": len(found),
        "delay_p50_ms": 1000 * quantile(delays, 0.5),
        "delay_p99_ms": 1000 * quantile(delays, 0.99),
        "delay_max_ms": 1000 * max(delays, default=0.0),
    }


NOTES = [
    "One triggerer of a real Airflow with SQLite; the streams come from a log server of the benchmark's own. Processor "
    "time is that of the process in which triggers run.",
    "Cost: the records of one log of 10,000 lines, from its bytes through all of ours, against bare log calls with the "
    "same records; the better of two. The delay ends when the line is in the task log's file.",
    "The peer reads with the function that its trigger calls, of 200,000 lines once, and of 200 pods every 2 s.",
]


def _rows(raw: Mapping[str, Any]) -> Iterator[Row]:
    """Yield what was measured; what was not is left out."""
    good = {what: found for what, found in raw.items() if "broken" not in found}
    if pure := good.get("pure"):
        yield row("lines a second and core, decode to record", "", pure["lines"] / pure["seconds"])
    if cost := good.get("cost"):
        peer = good.get("peer")
        theirs = peer["lines"] / peer["seconds"] if peer else None
        yield row("lines a second through a triggerer", "", cost["lines"] / cost["ours"], theirs)
        yield row("time of the same records, of bare log calls'", "x", cost["ours"] / cost["bare"], goal="<= 1.3")
        yield row("processor time of the same, of bare log calls'", "x", cost["ours_cpu"] / cost["bare_cpu"])
    for what, title, goals in STREAMED:
        theirs_too = good.get("peer_ticking", {}) if what == "ticking" else {}
        for (measure, unit, key), goal in zip(MEASURES, goals, strict=True):
            if what in good:
                yield row(f"{title}: {measure}", unit, good[what][key], theirs_too.get(key), goal)
    if "fast" in good:
        yield row(f"{FAST} lines a second: lines left out", "", good["fast"]["thinned"], goal="0")
    if "idle" in good:
        yield row("loop lag p99 of the same triggerer without streams", "ms", good["idle"]["lag_p99_ms"])


FAST = f"{STREAMS * FAST_LINES:,}"
STREAMED = (
    ("ticking", f"{STREAMS} streams, a line a second", ("< 250", "< 1,000", "< 50", "< 64")),
    ("fast", f"{STREAMS} streams, {FAST} lines a second", ("", "", "", "")),
    ("flooded", f"{STREAMS} streams, one more floods 200 MB", ("", "< 1,000", "< 50", "< 64")),
)
MEASURES = (
    ("write to file p50", "ms", "delay_p50_ms"),
    ("write to file p99", "ms", "delay_p99_ms"),
    ("loop lag p99", "ms", "lag_p99_ms"),
    ("memory grows by", "MiB", "grown_mib"),
)
