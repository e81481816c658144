"""The task log against the fleet's own copy, byte for byte, over many jobs and a network that misbehaves all the time.

``MULTIKUEUE_TEST_LOG_JOBS`` is how many jobs are run, ``MULTIKUEUE_TEST_LOG_SEED`` chooses the faults.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.fleets.fleet import Fleet, open_fleet
from airflow_provider_multikueue.logs.lines import CONTINUED, CONTINUES
from airflow_provider_multikueue.logs.text import Block
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.sandbox.faults import REGIONS, Site, TaskLog, shell

pytestmark = [pytest.mark.sandbox, pytest.mark.fleet, pytest.mark.timeout(1500)]

Object = dict[str, Any]

JOBS = int(os.environ.get("MULTIKUEUE_TEST_LOG_JOBS", "100"))
SEED = int(os.environ.get("MULTIKUEUE_TEST_LOG_SEED", "1"))
AT_ONCE = 12
GAP = ("may be missing", "was not read to its end", "no output of the pods")

SCRIPTS = {
    "instant": "echo one; echo two",
    "many lines at once": "for i in {1..5000}; do echo line $i; done; exit 3",
    "slow": "for i in {1..60}; do echo tick $i äöü; sleep 0.05; done",
    "fast, then slow": "for i in {1..2000}; do echo line $i; done; for i in {1..40}; do echo tick $i; sleep 0.1; done",
    "both outputs": "for i in {1..300}; do echo out $i; echo err $i >&2; done; sleep 1; echo end >&2",
    "a long line": "echo before; head -c 300000 /dev/zero | tr '\\0' x; echo; echo after; sleep 0.5; echo end",
    "any bytes": "for i in {1..200}; do printf '\\xe4\\xff line %d\\n' $i; done; printf 'no newline'",
    "empty lines": "for i in {1..50}; do echo; echo $i; echo; sleep 0.02; done",
    "two pods": "for i in {1..100}; do echo pod $JOB_COMPLETION_INDEX line $i; sleep 0.02; done",
}
TWO = {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}


class OutputLog(TaskLog):
    """A task's log, with what came of each container beside the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.containers: dict[str, list[str]] = {}
        self._positions: dict[str, Any] = {}

    def lines(self, source: str, block: Block) -> None:  # type: ignore[override]
        self.containers.setdefault(source, []).extend(block.text.split("\n"))
        self._positions[source] = block.mark

    def position(self, source: str) -> Any:
        return self._positions.get(source)

    settled, lost = position, False

    def discard(self) -> None:
        pass

    async def settle(self, seconds: float) -> bool:
        return True

    async def flush(self, seconds: float) -> bool:
        return True

    @property
    def remarks(self) -> list[str]:
        return [text for _, level, text in self.records if level >= logging.WARNING]

    @property
    def stated_gaps(self) -> list[str]:
        return [text for text in self.remarks if any(part in text for part in GAP)]


def whole(lines: Sequence[str]) -> list[str]:
    """Return the lines as the container wrote them: long ones in one piece, without the pod's number."""
    out: list[str] = []
    inside = False
    for line in lines:
        bare = line[4:] if line.startswith(("[0] ", "[1] ")) else line
        text = bare.removeprefix(CONTINUED) if inside else bare
        out = [*out[:-1], out[-1] + text.removesuffix(CONTINUES)] if inside else [*out, text.removesuffix(CONTINUES)]
        inside = text.endswith(CONTINUES)
    return out


def kept(fleet: Sandbox, namespace: str, name: str) -> list[list[str]]:
    """Return what the containers of a job wrote: the fleet's own copy."""
    files = sorted(fleet.folder.glob(f"**/kept-logs/{namespace}/{name}-*/*.log"))
    texts = [file.read_bytes().decode("utf-8", "backslashreplace").removesuffix("\n") for file in files]
    return [text.split("\n") for text in texts if text]


def is_part_of(found: Sequence[str], lines: Sequence[str]) -> bool:
    """Return whether ``found`` has lines of ``lines`` alone, in their order, none more often."""
    rest = iter(lines)
    return all(line in rest for line in found)


def fault(choice: random.Random) -> Object:
    """Return something that goes wrong on the way to a worker."""
    return choice.choice(
        [
            {"cut_after": choice.randrange(300, 30_000)},
            {"cut_after": 0},
            {"mode": "blackhole"},
            {"mode": "refuse"},
            {"delay": choice.uniform(0.05, 0.3)},
            {"rate": choice.randrange(20_000, 200_000)},
            {"status": choice.choice([401, 429, 500, 502, 503]), "share": choice.choice([0.3, 1.0])},
            {"status": choice.choice([401, 429, 500, 503]), "path": "/log$"},
            {"status": 429, "retry_after": 1, "times": 3},
            {"buffer": True, "path": "/log$"},
            {"end_after": choice.uniform(0.05, 0.5), "path": choice.choice(["/log$", "/pods", ""])},
        ]
    )


async def misbehave(fleet: Sandbox, region: str, choice: random.Random) -> None:
    """Let one thing after the other go wrong on the way to a worker, each for less than a second."""
    while True:
        await asyncio.to_thread(fleet.network, region, **fault(choice))
        await asyncio.sleep(choice.uniform(0.1, 0.8))
        if choice.random() < 0.3:
            await asyncio.to_thread(fleet.cut, region)
        await asyncio.to_thread(fleet.network, region)
        await asyncio.sleep(choice.uniform(0.2, 1.2))


@asynccontextmanager
async def bad_network(fleet: Sandbox) -> AsyncIterator[Fleet]:
    """Give the fleet as somebody sees it who comes over a bad network."""
    config = FleetConfig.from_extra(fleet.connection(network=True)["extra"], conn_id="faults")
    async with open_fleet(config) as seen:
        bad = [asyncio.create_task(misbehave(fleet, region, random.Random(f"{SEED} {region}"))) for region in REGIONS]
        try:
            yield seen
        finally:
            for task in bad:
                task.cancel()
            await asyncio.gather(*bad, return_exceptions=True)
            fleet.network()


async def test_every_line_once_or_a_gap_that_is_stated(fleet: Sandbox, tmp_path: Path) -> None:
    places = asyncio.Semaphore(AT_ONCE)
    kinds = list(SCRIPTS)
    found: Counter[str] = Counter()
    wrong: list[str] = []

    async def one(site: Site, seen: Fleet, number: int) -> None:
        kind = kinds[number % len(kinds)]
        async with places:
            log = OutputLog()
            part = await site.submit(shell(SCRIPTS[kind], **(TWO if kind == "two pods" else {})))
            job = site.follow(part, log=log, fleet=seen)
            outcome = await job.outcome(300)
        lines = sorted(whole(lines) for lines in log.containers.values())
        written = sorted(kept(fleet, site.namespace, job.name))
        states = "exact" if lines == written else "gap" if log.stated_gaps else "wrong"
        found[states] += 1
        failed = bool(outcome.error) != (kind == "many lines at once")
        repeated = not all(any(is_part_of(each, copy) for copy in written) for each in lines)
        if states == "wrong" or repeated or failed:
            wrong.append(f"{kind}: {states}, {repeated=}, {outcome.error!r}\n{_difference(lines, written)}\n{log.text}")
        elif states == "gap":
            print(f"{kind}: {log.stated_gaps}, {_difference(lines, written)}\n{log.text}")

    async with Site.open(fleet, tmp_path / "logs") as site, bad_network(fleet) as seen:
        site.capacity(after=0.2)
        await asyncio.gather(*(one(site, seen, number) for number in range(JOBS)))
    print(dict(found))
    assert not wrong, "\n\n".join(wrong)
    assert found["exact"] >= 0.95 * JOBS


def _difference(lines: Sequence[Sequence[str]], written: Sequence[Sequence[str]]) -> str:
    return f"lines {[len(each) for each in lines]} of {[len(each) for each in written]}"
