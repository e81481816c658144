"""Residency when the fleet is changed after the submission: a job that lands elsewhere is never a success."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_multikueue.decisions.names import Lifetime, Owner
from airflow_provider_multikueue.decisions.outcome import Outcome
from airflow_provider_multikueue.exceptions import RegionUnavailableError
from airflow_provider_multikueue.fleets.submit import Request, submit
from tests.sandbox.faults import EU, REGIONS, US, Followed, Site, TaskLog, kueue, shell
from tests.sandbox.overlap import overlapping
from tests.sandbox.test_faults_objects import PLENTY, cluster_queue

pytestmark = [pytest.mark.sandbox, pytest.mark.fleet, pytest.mark.asyncio(loop_scope="module")]


async def bound_to(site: Site, region: str, *, queue: str = "resident") -> str:
    """Make a queue that reaches one region only, and return the name of the MultiKueueConfig that says so."""
    manager, name = site.fleet.manager, f"{queue}-{site.namespace}"
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "MultiKueueConfig", "name": name}
    check = {"controllerName": "kueue.x-k8s.io/multikueue", "parameters": parameters}
    await site.make(
        manager,
        kueue("MultiKueueConfig", name, {"clusters": [REGIONS[region]]}),
        kueue("AdmissionCheck", name, check),
        kueue("ClusterQueue", name, cluster_queue(PLENTY, check=name)),
    )
    await site.local_queue(queue, on=manager, leads_to=name)
    for each in REGIONS:
        await site.local_queue(queue, on=await site.worker(each))
    return name


async def change(site: Site, config: str, region: str) -> None:
    """Let someone send the jobs of a queue to another region."""
    configs = await site.fleet.manager.resource("kueue.x-k8s.io", "multikueueconfigs")
    await site.fleet.manager.patch(configs, config, {"spec": {"clusters": [REGIONS[region]]}})


async def led_astray(site: Site, script: str) -> dict[str, Any]:
    """Submit a job that only EU may run, and have it go to US."""
    site.only(US, after=1)
    config = await bound_to(site, EU)
    part = await site.submit(shell(script), queue="resident", regions=[EU])
    await change(site, config, US)
    return part


def is_violation(outcome: Outcome) -> bool:
    return isinstance(outcome.error, RegionUnavailableError) and f"{REGIONS[US]} ({US})" in str(outcome.error)


async def is_told_and_deleted(job: Followed) -> bool:
    outcome = await job.outcome()
    return is_violation(outcome) and outcome.deleted and await job.on_manager() is None


@overlapping
async def test_a_job_that_lands_outside_its_regions_is_deleted_at_once(site: Site) -> None:
    job = site.follow(await led_astray(site, "sleep 300"), regions=(EU,))
    assert await is_told_and_deleted(job)


@overlapping
async def test_a_task_that_waits_for_admission_only_does_not_take_a_violation_for_it(site: Site) -> None:
    job = site.follow(await led_astray(site, "sleep 300"), regions=(EU,), until="admitted")
    assert await is_told_and_deleted(job)


@overlapping
async def test_a_job_that_has_ended_outside_its_regions_before_anybody_looked_is_no_success(site: Site) -> None:
    part = await led_astray(site, "echo it ran")
    assert (await site.follow(part).outcome()).error is None
    for until in ("finished", "admitted", "now"):
        job = site.follow(part, regions=(EU,), until=until, may_delete=False)
        assert is_violation(await job.outcome())
    assert await is_told_and_deleted(site.follow(part, regions=(EU,)))


@overlapping
async def test_an_unset_queue_is_the_one_that_stays_within_the_regions(site: Site) -> None:
    """Neither the task, the manifest nor the connection names one."""
    site.only(EU, after=1)
    await bound_to(site, EU)
    await bound_to(site, US, queue="elsewhere")
    log = TaskLog()
    request = Request(
        manifest=shell("echo it runs"),
        identity=site.identity(),
        owner=Owner(ti="", attempt=1),
        lifetime=Lifetime(kind="task"),
        namespace=site.namespace,
        regions=[EU],
    )
    submitted = await submit(site.fleet, request, log)
    assert submitted.job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "resident"
    assert log.count("queue resident keeps the job within europe-west4") == 1
