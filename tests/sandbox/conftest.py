"""The fleet that the tests here share, and the fleets that are hurt on purpose."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from airflow_provider_multikueue.fleets import remembered
from airflow_provider_multikueue.hooks import MultiKueueHook
from airflow_provider_multikueue.sandbox.api import Sandbox
from airflow_provider_multikueue.sandbox.job_kinds import JOB_KINDS
from tests.sandbox.kind_trials import Trial
from tests.sandbox.overlap import Race
from tests.sandbox.overlap import race as run_race
from tests.shipped_accounts import as_asked_for


@pytest.fixture(scope="session")
def fleet(multikueue_sandbox: Sandbox) -> Sandbox:
    """The session's fleet."""
    return multikueue_sandbox


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test learns from another where a queue leads, or what its account may read of it."""
    monkeypatch.setattr(remembered, "SECONDS", 0.0)


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


@pytest.fixture(scope="session")
def kinds_fleet(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A fleet with all kinds of jobs: the one that the session uses anyway if it has them, else one of its own."""
    name = os.environ.get("MULTIKUEUE_TEST_SANDBOX")
    if name and set(Sandbox.attach(name).spec.kinds) >= set(JOB_KINDS):
        yield Sandbox.attach(name)
        return
    with Sandbox.start_local(regions=["us-east4", "europe-west4"], kinds=tuple(JOB_KINDS)) as sandbox:
        yield sandbox


@pytest.fixture
def trial(kinds_fleet: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trial]:
    """What runs one job of any kind in a namespace of the test's own; us-east4 is the first to grant."""
    kinds_fleet.capacity("us-east4", after=0.3)
    kinds_fleet.capacity("europe-west4", mode="starve")
    namespace = kinds_fleet.make_namespace()
    connection = kinds_fleet.connection()
    connection["extra"]["namespace"] = namespace
    monkeypatch.setenv("AIRFLOW_CONN_OF_KINDS", json.dumps(connection))
    yield Trial(MultiKueueHook("of_kinds"), kinds_fleet, namespace)
    kinds_fleet.delete_namespace(namespace)
