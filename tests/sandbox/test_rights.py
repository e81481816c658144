"""The shipped rights suffice, each of them is needed, and what lacks one says so by verb, resource and cluster."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_multikueue import hooks
from airflow_provider_multikueue.clusters import sending
from airflow_provider_multikueue.clusters.client import Resource
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.decisions.names import Identity, Lifetime
from airflow_provider_multikueue.decisions.orders import Orders
from airflow_provider_multikueue.decisions.report import job_part
from airflow_provider_multikueue.decisions.rights import RIGHTS, Right, rights_of
from airflow_provider_multikueue.exceptions import MultiKueueError
from airflow_provider_multikueue.fleets.doctor import examine
from airflow_provider_multikueue.fleets.fleet import open_fleet
from airflow_provider_multikueue.fleets.follow import follow
from airflow_provider_multikueue.fleets.stop import delete_job
from airflow_provider_multikueue.fleets.submit import submit
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.sandbox.accounts import Accounts
from tests.sandbox.test_hook import manifest

pytestmark = [pytest.mark.sandbox, pytest.mark.fleet]

CLASSES = Resource("kueue.x-k8s.io", "v1beta2", "workloadpriorityclasses", namespaced=False)
NO_MESSAGE = {
    ("multikueueclusters", "manager"),  # nothing of a job needs it: discovery and the doctor do
    ("nodes", "worker"),  # the report has no zones
}


@dataclass
class Lines:
    """A task's log."""

    records: list[str] = field(default_factory=list)

    def record(self, level: int, text: str) -> None:
        self.records.append(text)

    @property
    def text(self) -> str:
        return "\n".join(self.records)


@pytest.fixture(scope="module")
def namespace(fleet: Sandbox) -> Iterator[str]:
    name = fleet.make_namespace()
    yield name
    fleet.delete_namespace(name)


@pytest.fixture
async def accounts(fleet: Sandbox, namespace: str, tmp_path: Path) -> AsyncIterator[Accounts]:
    made = Accounts(fleet, namespace, tmp_path)
    await made.make()
    async with made.admin() as clusters:
        for cluster in clusters.values():
            body = {"metadata": {"name": namespace}, "value": 100, "description": "tests", "kind": CLASSES.plural}
            body |= {"apiVersion": CLASSES.api_version, "kind": "WorkloadPriorityClass"}
            await cluster.create(CLASSES, body)
    yield made
    async with made.admin() as clusters:
        for cluster in clusters.values():
            await cluster.delete(CLASSES, namespace)
    await made.remove()


async def run(accounts: Accounts, *, regions: list[str] | None = None) -> tuple[dict[str, Any] | None, str]:
    """Run a job from its submission to its deletion; the report, and the log with the error at its end."""
    lines = Lines()
    config = FleetConfig.from_extra(accounts.extra(), conn_id="rights")
    who = Identity(deployment="rights", dag_id="d", run_id=uuid.uuid4().hex, task_id="t", map_index=-1)
    try:
        async with open_fleet(config) as fleet:
            wishes: dict[str, Any] = {"priority_class": accounts.namespace, "regions": regions}
            lifetime = Lifetime(kind="detached", deadline=None)
            job = manifest("echo hello from the pod; sleep 1")
            request = hooks.prepare(
                job, fleet=fleet, config=config, sink=lines, identity=who, lifetime=lifetime, **wishes
            )
            part = job_part((await submit(fleet, request, lines)).job)
            assert (await submit(fleet, request, lines)).adopted
            outcome = await follow(nullcontext((fleet, config)), part, Orders(), lines)
            if outcome.error is not None:
                raise outcome.error
            await delete_job(fleet, part, lines)
    except MultiKueueError as error:
        lines.record(0, f"{type(error).__name__}: {error}")
        return None, lines.text
    return outcome.report, lines.text


def missing(text: str, right: Right) -> bool:
    """Return whether a line names the resource, one of its verbs, and the cluster where it is missing."""
    verb, resource = rf"\b({'|'.join(right.verbs)})\b", re.escape(right.resource)
    cluster = r"\bmanager\b" if right.role.startswith("manager") else r"\bmultikueue-dws-worker-"
    return any(all(re.search(part, line) for part in (verb, resource, cluster)) for line in text.splitlines())


async def test_a_job_runs_with_the_shipped_rights_and_no_others_are_used(accounts, monkeypatch):
    used: set[tuple[str, str, str]] = set()
    send = sending.Sender._send

    async def noted(self, call, *args, **kwargs):
        if call.resource is not None and call.resource.version:  # without: discovery, which is everyone's
            role = "manager" if self.transport.name == "manager" else "worker"
            used.add((role, call.verb, str(call.resource)))
        return await send(self, call, *args, **kwargs)

    monkeypatch.setattr(sending.Sender, "_send", noted)
    report, log = await run(accounts, regions=list(accounts.sandbox.regions))
    assert report is not None, log
    assert report["phase"] == "SUCCEEDED"
    assert report["placement"]["zones"]
    assert "hello from the pod" in log
    assert "403" not in log
    assert used <= {(right.role, verb, right.shown) for right in RIGHTS for verb in right.verbs}


@pytest.mark.parametrize("right", rights_of("manager", "worker"), ids=lambda right: f"{right.role}-{right.shown}")
async def test_without_a_right_the_job_fails_or_goes_on_with_a_line_that_names_it(accounts, right):
    async with accounts.without(right):
        report, log = await run(accounts)
    if right.need == "required":
        assert report is None, log
    else:
        assert report is not None, log
        assert report["phase"] == "SUCCEEDED"
    if (right.plural, right.role) not in NO_MESSAGE:
        assert missing(log, right), log
    if right.resource == "nodes":
        assert report["placement"]["zones"] == []


async def test_workers_by_the_secrets_of_kueue_need_a_role_of_their_own(accounts):
    accounts.workers_from = "manager_secrets"
    await accounts.make()
    (right,) = rights_of("manager-secrets")
    name = next(iter(Sandbox.connection(accounts.sandbox)["extra"]["workers"]))

    def config(name: str) -> FleetConfig:
        """Return a connection like no other: an open fleet is shared, with the workers that it has found."""
        path = accounts.folder / name
        path.write_text((accounts.folder / "kubeconfig").read_text())
        return FleetConfig.from_extra(accounts.extra() | {"manager_kube_config_path": str(path)}, conn_id="rights")

    async def version(seen: FleetConfig) -> str:
        async with open_fleet(seen) as fleet:
            worker = await fleet.worker(name)
            assert worker is not None
            return str((await worker.version())["gitVersion"])

    assert (await version(config("with"))).startswith("v1.")
    assert "secrets" not in await _findings(config("with"))
    async with accounts.without(right):
        with pytest.raises(Exception, match=r"get secrets.*kueue-system.*manager"):
            await version(config("without"))
        assert "may not get secrets in namespace kueue-system on manager" in await _findings(config("without"))


async def _findings(config: FleetConfig) -> str:
    found = await examine(config)
    return "\n".join(finding["text"] for finding in found["clusters"][0]["findings"])


@pytest.mark.parametrize("heal", [True, False], ids=["may", "may-not"])
async def test_mending_is_a_right_of_its_own_and_without_it_the_log_explains(accounts, heal):
    accounts.heal = heal
    await accounts.make()
    (right,) = rights_of("worker-heal")
    accounts.sandbox.capacity(mode="fail", text="out of stock")
    lines = Lines()
    config = FleetConfig.from_extra(accounts.extra(), conn_id="rights")
    who = Identity(deployment="rights", dag_id="d", run_id=uuid.uuid4().hex, task_id="t", map_index=-1)
    try:
        async with open_fleet(config) as fleet:
            lifetime = Lifetime(kind="detached", deadline=None)
            request = hooks.prepare(
                manifest("true"), fleet=fleet, config=config, sink=lines, identity=who, lifetime=lifetime
            )
            part = job_part((await submit(fleet, request, lines)).job)
            following = asyncio.create_task(follow(nullcontext((fleet, config)), part, Orders(), lines))
            await until(lambda: "ask again" in lines.text if heal else missing(lines.text, right))
            accounts.sandbox.capacity(mode="grant")
            if heal:
                assert (await following).report["phase"] == "SUCCEEDED"
            else:
                following.cancel()
            await delete_job(fleet, part, lines)
    finally:
        accounts.sandbox.capacity()
    assert missing(lines.text, right) is not heal, lines.text


async def until(true: Callable[[], bool], seconds: float = 180.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0.1)
