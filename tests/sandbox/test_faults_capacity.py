"""Regions that refuse, fall silent, or take capacity back: said, mended where that is allowed, or ended by name."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_multikueue.clusters.client import JOBS
from airflow_provider_multikueue.decisions.names import DISPATCHES
from airflow_provider_multikueue.exceptions import (
    AdmissionRejectedError,
    AdmissionTimeoutError,
    RunDurationExceededError,
)
from tests.sandbox.faults import ASIA, EU, REGIONS, US, Clock, Followed, Site, eventually, get, kueue, shell
from tests.sandbox.overlap import BOTH, overlapping

pytestmark = [pytest.mark.sandbox, pytest.mark.fleet, pytest.mark.asyncio(loop_scope="module")]


@overlapping(kueue=BOTH)
async def test_a_region_that_failed_once_is_made_to_ask_again(site: Site) -> None:
    site.only(US, mode="fail", after=1, text="no capacity in us-east4")
    job = await site.start(shell("echo it runs"))
    await job.log.says(US, "made to ask for capacity again")
    site.only(US, mode="grant", after=2)
    outcome = await job.outcome()
    assert outcome.report is not None
    assert outcome.report["phase"] == "SUCCEEDED"
    assert outcome.report["placement"]["region"] == US
    assert "it runs" in job.log.output


@overlapping(kueue=BOTH)
async def test_with_quota_in_all_regions_only_the_one_with_capacity_is_ever_claimed(site: Site) -> None:
    site.only(ASIA, after=8)
    job = await site.start(shell("echo it runs"))
    outcome = await job.outcome()
    assert outcome.error is None
    assert outcome.report is not None
    assert [each["region"] for each in outcome.report["dispatches"]] == [ASIA]
    assert [each["region"] for each in job.placements] == [ASIA]
    assert [line for line in job.log.lines if line.startswith("Admitted") and ASIA not in line] == []
    assert job.log.count("Moved") == 0


@overlapping
async def test_a_dead_region_is_named_and_the_others_are_waited_for(site: Site) -> None:
    site.only(US, mode="fail", after=1, text="no capacity in us-east4")
    job = await site.start(shell("echo it runs"), heal=False)
    await job.log.says(US, "will not grant capacity any more", "no capacity in us-east4")
    site.capacity(EU)
    outcome = await job.outcome()
    assert outcome.report is not None
    assert outcome.report["placement"]["region"] == EU
    assert job.log.count("will not grant capacity any more") == 1


@overlapping
async def test_a_job_that_no_region_can_run_is_ended_after_ten_minutes(site: Site) -> None:
    site.capacity(mode="fail", after=1, text="no capacity here")
    job = await site.start(shell("echo it runs"), heal=False)
    await job.log.says("no region can run it", "no capacity here")
    await job.turn_clock(590)
    assert await job.on_manager() is not None
    await job.turn_clock(20)
    outcome = await job.outcome()
    assert isinstance(outcome.error, AdmissionRejectedError)
    assert "capacity, not your code" in str(outcome.error)
    assert await job.on_manager() is None


@overlapping
async def test_a_job_that_waits_too_long_is_deleted_and_its_regions_are_named(site: Site) -> None:
    site.capacity(mode="starve")
    clock = Clock()
    job = await site.start(shell("echo it runs"), clock=clock, admission_deadline=clock.after(60))
    await job.log.says("request accepted", "ETA")
    await job.turn_clock(60)
    outcome = await job.outcome()
    assert isinstance(outcome.error, AdmissionTimeoutError)
    assert "capacity, not your code" in str(outcome.error)
    assert "ETA" in str(outcome.error)
    assert await job.on_manager() is None


@overlapping
async def test_what_a_region_says_of_its_capacity_is_told_once(site: Site) -> None:
    site.only(ASIA, after=15)
    job = await site.start(shell("echo it runs"))
    outcome = await job.outcome()
    assert outcome.report is not None
    assert [each["region"] for each in outcome.report["dispatches"]] == [ASIA]
    assert [each["region"] for each in job.placements] == [ASIA]
    assert [job.log.count(f"{region}: request accepted") for region in REGIONS] == [1, 1, 1]


async def without_retries(site: Site, name: str) -> None:
    """Make a queue on whose workers a refused request is final."""
    config, check, queue = (f"{each}-{site.namespace}" for each in ("config", "check", "queue"))
    resources = [{"name": each, "nominalQuota": 1000} for each in ("cpu", "memory", "nvidia.com/gpu")]
    flavors = [{"name": "default-dws-flavor", "resources": resources}]
    group = {"coveredResources": [each["name"] for each in resources], "flavors": flavors}
    strategy = {"admissionChecks": [{"name": check}]}
    retries = {"backoffLimitCount": 0, "backoffBaseSeconds": 1, "backoffMaxSeconds": 60}
    asks = {"provisioningClassName": "queued-provisioning.gke.io", "managedResources": ["nvidia.com/gpu"]}
    reference = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": config}
    controller = {"controllerName": "kueue.x-k8s.io/provisioning-request", "parameters": reference}
    whole = {"namespaceSelector": {}, "resourceGroups": [group], "admissionChecksStrategy": strategy}
    for region in REGIONS:
        worker = await site.worker(region)
        await site.make(
            worker,
            kueue("ProvisioningRequestConfig", config, {**asks, "retryStrategy": retries}),
            kueue("AdmissionCheck", check, controller),
            kueue("ClusterQueue", queue, whole),
        )
        await site.local_queue(name, on=worker, leads_to=queue)
    await site.local_queue(name, on=site.fleet.manager)


@overlapping
async def test_a_region_that_refuses_again_and_again_is_named_and_another_wins(site: Site) -> None:
    await without_retries(site, "no-retries")
    site.only(US, mode="fail", after=0.5, text="no capacity in us-east4")
    job = await site.start(shell("echo it runs"), queue="no-retries")
    await job.log.says(US, "refuses each time that it is asked", "no capacity in us-east4")
    site.capacity(EU)
    outcome = await job.outcome()
    assert outcome.report is not None
    assert outcome.report["placement"]["region"] == EU
    assert job.log.count("refuses each time") == 1


@overlapping
async def test_regions_that_all_refuse_again_and_again_end_the_wait(site: Site) -> None:
    await without_retries(site, "no-retries")
    site.capacity(mode="fail", after=0.5, text="no capacity here")
    job = await site.start(shell("echo it runs"), queue="no-retries")
    await job.log.says("no region can run it", "no capacity here")
    await job.turn_clock(610)
    outcome = await job.outcome()
    assert isinstance(outcome.error, AdmissionRejectedError)
    assert await job.on_manager() is None


TICKING = "for i in {1..20}; do echo tick $i; sleep 1; done; echo it ran"


@overlapping(kueue=BOTH)
async def test_capacity_that_is_revoked_early_moves_the_job(site: Site) -> None:
    site.only(US)
    job = await site.start(shell(TICKING), max_run_duration=timedelta(hours=1))
    await job.log.says("tick 3")
    site.only(EU)
    site.act("revoke", US)
    await job.log.says("Evicted", US, "revoked")
    outcome = await job.outcome(200)
    assert outcome.error is None
    assert outcome.report is not None
    assert outcome.report["placement"]["region"] == EU
    assert [each["region"] for each in outcome.report["dispatches"]] == [US, EU]
    assert "revoked" in str(outcome.report["dispatches"][0]["reason"])
    assert [each["region"] for each in job.placements] == [US, EU]
    headings = [line for line in job.log.lines if line.startswith("── pod ")]
    assert [US in headings[0], EU in headings[1]] == [True, True]
    assert job.log.output.index(headings[1]) < job.log.output.index("it ran")


@overlapping
async def test_a_move_while_a_stopped_reader_is_away_is_in_the_report(site: Site) -> None:
    await moves_unseen(site, lost=False)


@overlapping
async def test_a_move_after_a_reader_was_lost_is_in_the_report(site: Site) -> None:
    await moves_unseen(site, lost=True)


async def moves_unseen(site: Site, *, lost: bool) -> None:
    site.only(US)
    job = await site.start(shell(TICKING))
    await job.log.says("tick 3")
    if lost:
        await eventually(lambda: noted(job), "note of the stay")
    else:
        await job.following.hand_over()
    assert job.task is not None
    job.task.cancel()
    site.only(EU)
    site.act("fail", US)
    worker = await site.worker(EU)
    await eventually(lambda: get(worker, JOBS, job.name, site.namespace), "copy in the other region", within=200)
    outcome = await site.follow(job.part).outcome(200)
    assert outcome.error is None
    assert outcome.report is not None
    assert [each["region"] for each in outcome.report["dispatches"]] == [US, EU]


async def noted(job: Followed) -> bool:
    found = await job.on_manager()
    return found is not None and DISPATCHES in found["metadata"]["annotations"]


@overlapping(kueue=BOTH)
async def test_a_request_that_fails_after_admission_moves_the_job(site: Site) -> None:
    site.only(US)
    job = await site.start(shell(TICKING))
    await job.log.says("tick 3")
    site.only(EU)
    site.act("fail", US)
    await job.log.says("Moved from us-east4", "to europe-west4")
    outcome = await job.outcome(200)
    assert outcome.error is None
    assert outcome.report is not None
    assert [each["region"] for each in outcome.report["dispatches"]] == [US, EU]


@overlapping(kueue=BOTH)
async def test_a_worker_that_started_the_job_again_by_itself_is_believed(site: Site) -> None:
    site.only(US)
    job = await site.start(shell(TICKING))
    await job.log.says("tick 3")
    site.act("fail", US)
    outcome = await job.outcome(200)
    assert outcome.error is None
    assert outcome.report is not None
    assert outcome.report["phase"] == "SUCCEEDED"
    assert outcome.report["placement"]["region"] == US
    assert "it ran" in job.log.output


@overlapping
async def test_a_booking_that_expires_while_the_job_runs_is_nothing(site: Site) -> None:
    site.only(US)
    job = await site.start(shell("for i in {1..8}; do echo tick $i; sleep 1; done"))
    await job.log.says("tick 2")
    site.act("expire", US)
    outcome = await job.outcome()
    assert outcome.error is None
    assert outcome.report is not None
    assert len(outcome.report["dispatches"]) == 1
    assert job.log.count("expired") == 0


@overlapping(kueue=BOTH)
async def test_a_run_time_that_is_used_up_ends_the_job_instead_of_starting_it_again(site: Site) -> None:
    site.only(US)
    job = await site.start(shell("echo begun; sleep 100; echo it ran"), max_run_duration=timedelta(seconds=30))
    outcome = await job.outcome()
    assert isinstance(outcome.error, RunDurationExceededError)
    assert "30 s" in str(outcome.error)
    assert job.log.count("begun") == 1
    assert await job.on_manager() is None
