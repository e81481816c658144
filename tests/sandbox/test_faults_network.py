"""What stands between Airflow and the clusters: connections that break, rights that lack, names that are odd."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from airflow_provider_multikueue.clusters.client import JOBS
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.decisions.names import Identity
from airflow_provider_multikueue.exceptions import AdmissionRejectedError
from airflow_provider_multikueue.fleets.fleet import Fleet, open_fleet
from airflow_provider_multikueue.sandbox.proxy import Fault, FaultProxy
from tests.sandbox.accounts import Accounts
from tests.sandbox.faults import US, Site, eventually, get, shell
from tests.sandbox.overlap import overlapping

pytestmark = [pytest.mark.sandbox, pytest.mark.fleet, pytest.mark.asyncio(loop_scope="module")]

Object = dict[str, Any]


@asynccontextmanager
async def through_a_proxy(site: Site, context: str) -> AsyncIterator[tuple[Fleet, FaultProxy]]:
    """Give the fleet as an Airflow sees it that comes to one cluster over a network of the test's own."""
    config = json.loads(site.sandbox.kubeconfig.read_text())
    names = {each["name"]: each["context"]["cluster"] for each in config["contexts"]}
    entry = next(each["cluster"] for each in config["clusters"] if each["name"] == names[context])
    async with FaultProxy("127.0.0.1", urlsplit(entry["server"]).port or 443) as proxy:
        entry["server"] = f"https://127.0.0.1:{proxy.port}"
        path = site.path.with_suffix(".kubeconfig")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(config))
        extra = json.dumps(site.sandbox.connection()["extra"])
        extra = extra.replace(json.dumps(str(site.sandbox.kubeconfig)), json.dumps(str(path)))
        async with open_fleet(FleetConfig.from_extra(json.loads(extra), conn_id="proxied")) as fleet:
            yield fleet, proxy


@overlapping
async def test_the_log_goes_on_without_gap_or_repeat_after_a_worker_was_out_of_reach(site: Site) -> None:
    site.only(US)
    async with through_a_proxy(site, f"worker-{US}") as (fleet, proxy):
        job = await site.start(shell("for i in {1..50}; do echo tick $i; sleep 1; done"), fleet=fleet)
        await job.log.says("tick 3")
        await proxy.set_fault(Fault(mode="blackhole"))
        await job.log.says("Worker us-east4 cannot be reached since", "only Kueue places it again")
        await asyncio.sleep(10)  # some more of the log is written meanwhile
        await proxy.set_fault(Fault())
        await job.log.says("It can be reached again")
        outcome = await job.outcome(200)
    assert outcome.error is None
    assert [line for line in job.log.output if line.startswith("tick ")] == [f"tick {n}" for n in range(1, 51)]
    assert job.log.count("cannot be reached since") == 1


@pytest.mark.timeout(900)
@overlapping
async def test_a_worker_that_is_out_of_reach_for_five_minutes_is_waited_for(site: Site) -> None:
    site.only(US)
    async with through_a_proxy(site, f"worker-{US}") as (fleet, proxy):
        job = await site.start(shell("for i in {1..420}; do echo tick $i; sleep 1; done"), fleet=fleet)
        await job.log.says("tick 3")
        await proxy.set_fault(Fault(mode="blackhole"))
        await job.log.says("Worker us-east4 cannot be reached since", "only Kueue places it again")
        await asyncio.sleep(300)  # the outage itself
        await proxy.set_fault(Fault())
        await job.log.says("It can be reached again", within=150)
        outcome = await job.outcome(200)
    assert outcome.error is None
    assert outcome.report is not None
    assert len(outcome.report["dispatches"]) == 1
    assert [line for line in job.log.output if line.startswith("tick ")] == [f"tick {n}" for n in range(1, 421)]
    assert job.log.count("cannot be reached since") == 1


@overlapping
async def test_a_job_whose_creation_was_never_answered_is_taken_over(site: Site) -> None:
    site.capacity(mode="starve")
    identity = site.identity()
    async with through_a_proxy(site, "manager-europe-west4") as (fleet, proxy):
        await fleet.manager.list(JOBS, site.namespace)
        await proxy.set_fault(Fault(delay=0.5))
        submitting = asyncio.create_task(site.submit(shell("echo it runs"), identity=identity, fleet=fleet))

        async def arrived() -> list[Object] | None:
            return (await site.fleet.manager.list(JOBS, site.namespace))[0] or None

        (job,) = await eventually(arrived, "job")
        proxy.cut()
        await proxy.set_fault(Fault())
        part = await submitting
        assert part["uid"] == job["metadata"]["uid"]
    again = await site.submit(shell("echo it runs"), identity=identity)
    assert again["uid"] == part["uid"]
    assert len((await site.fleet.manager.list(JOBS, site.namespace))[0]) == 1


@overlapping
async def test_without_the_right_to_mend_a_dead_region_is_named_and_ends_the_wait(site: Site) -> None:
    site.capacity(mode="fail", after=1, text="no capacity here")
    folder = Path(site.path.with_suffix(".accounts"))
    folder.mkdir(parents=True, exist_ok=True)
    accounts = Accounts(site.sandbox, site.namespace, folder)
    await accounts.make()
    try:
        config = FleetConfig.from_extra(accounts.extra(), conn_id="without-heal")
        async with open_fleet(config) as fleet:
            job = await site.start(shell("echo it runs"), fleet=fleet)
            await job.log.says(US, "can't be made to ask again", "delete")
            await job.log.says("no region can")
            await asyncio.gather(*(job.log.says(where, "can't be made to ask again") for where in ("asia", "europe")))
            await job.turn_clock(610)
            outcome = await job.outcome()
    finally:
        await accounts.remove()
    assert isinstance(outcome.error, AdmissionRejectedError)
    assert job.log.count("can't be made to ask again") == 3


@overlapping
async def test_odd_and_long_ids_give_valid_names_that_differ(site: Site) -> None:
    odd = {
        "dag_id": "Entrenamiento.Campaña_ÑÑ",
        "task_id": "grp.Train__Model.",
        "run_id": "manual__2026-03-01T00:00:00+00:00",
    }
    long = {"dag_id": "d" * 59, "task_id": "t" * 59, "run_id": "scheduled__2026-03-01T00:00:00+00:00"}
    identities = [Identity(deployment="faults", map_index=index, **odd) for index in range(3)]
    for end in "ab":
        ids = {**long, "dag_id": long["dag_id"] + end, "task_id": long["task_id"] + end}
        identities.append(Identity(deployment="faults", map_index=-1, **ids))
    site.only(US)
    parts = await asyncio.gather(*(site.submit(shell("echo it runs"), identity=each) for each in identities))
    assert len({part["name"] for part in parts}) == len(identities)
    jobs = [site.follow(part) for part in parts]
    outcomes = await asyncio.gather(*(job.outcome(200) for job in jobs))
    assert [outcome.error for outcome in outcomes] == [None] * len(identities)
    first = await get(site.fleet.manager, JOBS, parts[0]["name"], site.namespace)
    assert first is not None
    assert odd["dag_id"] in json.dumps(first["metadata"]["annotations"], ensure_ascii=False)
