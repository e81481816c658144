"""The fleet that the tests here share, and the fleets that are hurt on purpose."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.sandbox.overlap import Race
from tests.sandbox.overlap import race as run_race
from tests.shipped_accounts import as_asked_for


@pytest.fixture(scope="session")
def fleet(multikueue_sandbox: Sandbox) -> Sandbox:
    """The session's fleet."""
    return multikueue_sandbox


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that is hurt side by side with others with each version of Kueue that it names."""
    if "race" in metafunc.fixturenames:
        metafunc.parametrize("kueue", metafunc.function.versions, scope="session")


@pytest.fixture(scope="session")
def hurt_fleet(kueue: str) -> Iterator[Sandbox]:
    """A fleet that gives a lost worker up after 20 s.

    ``MULTIKUEUE_TEST_HURT_SANDBOX`` names one that is up already, for its own version of Kueue.
    """
    if name := os.environ.get("MULTIKUEUE_TEST_HURT_SANDBOX"):
        sandbox = Sandbox.attach(name)
        if sandbox.spec.kueue == kueue:
            yield as_asked_for(sandbox)
            return
    with Sandbox.start_local(kueue=kueue, worker_lost_timeout=20.0) as sandbox:
        yield as_asked_for(sandbox)


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="race")
async def _race(
    request: pytest.FixtureRequest, hurt_fleet: Sandbox, kueue: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Race]:
    """The module's tests, run side by side."""
    logs = tmp_path_factory.getbasetemp() / f"faults-{kueue}"
    async with run_race(hurt_fleet, logs, request.session.items, request.module, kueue) as running:
        yield running
