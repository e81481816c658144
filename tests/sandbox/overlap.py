"""Tests of one module that run side by side on one fleet: each waits far more than it works.

::

    @overlapping
    async def test_a_sentence(site: Site) -> None: ...

The first of them starts all that were selected, each at a `Site` of its own; every test then is the end of its run.
``@overlapping(kueue=BOTH)`` runs one with each version of Kueue. ``AT_ONCE = 1`` in a module runs them one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, overload

from airflow_provider_multikueue.sandbox.api import Sandbox
from airflow_provider_multikueue.sandbox.components import DEFAULT_KUEUE, KUEUE_VERSIONS
from tests.sandbox.faults import Site

__all__ = ["BOTH", "Race", "overlapping", "race"]

Scenario = Callable[[Site], Awaitable[None]]
Test = Callable[["Race"], Awaitable[None]]

BOTH: tuple[str, ...] = tuple(KUEUE_VERSIONS)

AT_ONCE = 8
"""More of them would wait for the processors instead of for each other's fleet."""


class Race:
    """The runs of one module's scenarios."""

    def __init__(self, sandbox: Sandbox, logs: Path, scenarios: Iterable[Scenario], *, at_once: int = AT_ONCE) -> None:
        self._sandbox, self._logs = sandbox, logs
        self._places = asyncio.Semaphore(at_once)
        self._runs = {scenario: asyncio.create_task(self._run(scenario)) for scenario in scenarios}

    async def result(self, scenario: Scenario) -> None:
        """Return when the scenario has ended; raise what it raised."""
        await self._runs[scenario]

    async def close(self) -> None:
        """End the runs that nobody waited for."""
        for run in self._runs.values():
            run.cancel()
        await asyncio.gather(*self._runs.values(), return_exceptions=True)

    async def _run(self, scenario: Scenario) -> None:
        async with self._places, Site.open(self._sandbox, self._logs / f"{scenario.__name__}.log") as site:
            await scenario(site)


@asynccontextmanager
async def race(sandbox: Sandbox, logs: Path, items: Sequence[Any], module: Any, kueue: str) -> AsyncIterator[Race]:
    """Run the scenarios of ``module`` among the selected tests ``items``."""
    mine = [item for item in items if item.module is module and item.callspec.params.get("kueue") == kueue]
    at_once = getattr(module, "AT_ONCE", AT_ONCE)
    running = Race(sandbox, logs, dict.fromkeys(item.function.scenario for item in mine), at_once=at_once)
    try:
        yield running
    finally:
        await running.close()


@overload
def overlapping(scenario: Scenario) -> Test: ...
@overload
def overlapping(*, kueue: Sequence[str]) -> Callable[[Scenario], Test]: ...
def overlapping(
    scenario: Scenario | None = None, *, kueue: Sequence[str] = (DEFAULT_KUEUE,)
) -> Test | Callable[[Scenario], Test]:
    """Make a scenario the test of its name."""
    return _test_of(scenario, kueue) if scenario is not None else lambda each: _test_of(each, kueue)


def _test_of(scenario: Scenario, kueue: Sequence[str]) -> Test:

    async def test(race: Race) -> None:
        await race.result(scenario)

    test.__name__, test.__doc__, test.__module__ = scenario.__name__, scenario.__doc__, scenario.__module__
    test.__qualname__ = scenario.__qualname__
    test.scenario, test.versions = scenario, tuple(kueue)  # type: ignore[attr-defined]
    return test
