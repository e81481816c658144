"""Objects that are missing, in the way, or taken away under a job: said within moments, and ended by name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_multikueue.clusters.client import JOBS, PODS
from airflow_provider_multikueue.exceptions import (
    AdmissionRejectedError,
    FleetConfigurationError,
    JobDeadlineError,
    JobDeletedError,
    JobEvictedError,
    JobFailedError,
    JobOutOfMemoryError,
    ManifestError,
    StartupError,
)
from tests.sandbox.faults import ASIA, EU, REGIONS, US, Site, eventually, get, gpu_job, kueue, shell
from tests.sandbox.overlap import BOTH, overlapping

pytestmark = [pytest.mark.sandbox, pytest.mark.fleet, pytest.mark.asyncio(loop_scope="module")]

Object = dict[str, Any]
TICKING = "for i in {1..25}; do echo tick $i; sleep 1; done; echo it ran"


def cluster_queue(covers: dict[str, int], *, check: str | None = "sample-dws-multikueue", **spec: Any) -> Object:
    """Return what a ClusterQueue of the manager is, with quota for these resources."""
    resources = [{"name": name, "nominalQuota": quota} for name, quota in covers.items()]
    flavors = [{"name": "default-dws-flavor", "resources": resources}]
    checks = {"admissionChecksStrategy": {"admissionChecks": [{"name": check}]}} if check else {}
    groups = [{"coveredResources": list(covers), "flavors": flavors}]
    return {"namespaceSelector": {}, "resourceGroups": groups, **checks, **spec}


PLENTY = {"cpu": 1000, "memory": 1000, "nvidia.com/gpu": 1000}


# -- queues


@overlapping
async def test_a_queue_that_is_missing_on_one_worker_is_named_and_the_job_runs_elsewhere(site: Site) -> None:
    site.only(EU, after=3)
    for on in (site.fleet.manager, await site.worker(US), await site.worker(EU)):
        await site.local_queue("not-everywhere", on=on)
    job = await site.start(shell("echo it runs"), queue="not-everywhere")
    await job.log.says(ASIA, "LocalQueue not-everywhere doesn't exist")
    outcome = await job.outcome()
    assert outcome.report is not None
    assert outcome.report["placement"]["region"] == EU


@overlapping
async def test_a_queue_that_is_missing_on_all_workers_is_named_and_ends_the_wait(site: Site) -> None:
    await site.local_queue("nowhere", on=site.fleet.manager)
    job = await site.start(shell("echo it runs"), queue="nowhere")
    await job.log.says("no region can run it", "LocalQueue nowhere doesn't exist")
    await job.turn_clock(610)
    outcome = await job.outcome()
    assert isinstance(outcome.error, AdmissionRejectedError)
    assert "LocalQueue nowhere doesn't exist" in str(outcome.error)
    assert await job.on_manager() is None


@overlapping
async def test_a_queue_that_is_gone_when_the_job_joins_it_is_an_error_after_a_while(site: Site) -> None:
    await site.local_queue("short-lived", on=site.fleet.manager)
    part = await site.submit(shell("echo it runs"), queue="short-lived")
    queues = await site.fleet.manager.resource("kueue.x-k8s.io", "localqueues")
    await site.fleet.manager.delete(queues, "short-lived", site.namespace)
    job = site.follow(part)
    await job.log.says("annot be admitted", "LocalQueue short-lived doesn't exist")
    await job.turn_clock(61)
    outcome = await job.outcome()
    assert isinstance(outcome.error, AdmissionRejectedError)
    assert await job.on_manager() is None


@overlapping
async def test_a_cluster_queue_that_is_gone_is_an_error_after_a_while(site: Site) -> None:
    name = f"gone-{site.namespace}"
    await site.make(site.fleet.manager, kueue("ClusterQueue", name, cluster_queue(PLENTY)))
    await site.local_queue("leads-nowhere", on=site.fleet.manager, leads_to=name)
    part = await site.submit(shell("echo it runs"), queue="leads-nowhere")
    queues = await site.fleet.manager.resource("kueue.x-k8s.io", "clusterqueues")
    await site.fleet.manager.delete(queues, name)
    await eventually(lambda: gone(site, "clusterqueues", name), f"end of ClusterQueue {name}")
    job = site.follow(part)
    await job.log.says("annot be admitted", name)
    await job.turn_clock(61)
    assert isinstance((await job.outcome()).error, AdmissionRejectedError)


async def gone(site: Site, plural: str, name: str) -> bool:
    return await get(site.fleet.manager, await site.fleet.manager.resource("kueue.x-k8s.io", plural), name) is None


@overlapping
async def test_a_stopped_queue_is_a_wait_that_is_told_and_goes_on_when_it_is_resumed(site: Site) -> None:
    name = f"held-{site.namespace}"
    await site.make(site.fleet.manager, kueue("ClusterQueue", name, cluster_queue(PLENTY, stopPolicy="Hold")))
    for region in REGIONS:
        await site.local_queue("held", on=await site.worker(region))
    await site.local_queue("held", on=site.fleet.manager, leads_to=name)
    job = await site.start(shell("echo it runs"), queue="held")
    await job.log.says("is stopped (ClusterQueue stopPolicy Hold)")
    await job.log.says("takes no jobs now")
    await job.turn_clock(120)
    queues = await site.fleet.manager.resource("kueue.x-k8s.io", "clusterqueues")
    await site.fleet.manager.patch(queues, name, {"spec": {"stopPolicy": "None"}})
    outcome = await job.outcome()
    assert outcome.error is None


@overlapping
async def test_a_resource_that_the_queue_does_not_cover_is_an_error_after_a_while(site: Site) -> None:
    name = f"gpu-only-{site.namespace}"
    await site.make(site.fleet.manager, kueue("ClusterQueue", name, cluster_queue({"nvidia.com/gpu": 8})))
    await site.local_queue("gpu-only", on=site.fleet.manager, leads_to=name)
    job = await site.start(shell("echo it runs"), queue="gpu-only")
    await job.log.says("annot be admitted", "resource cpu unavailable in ClusterQueue")
    await job.turn_clock(61)
    outcome = await job.outcome()
    assert isinstance(outcome.error, AdmissionRejectedError)
    assert "cpu" in str(outcome.error)


@overlapping
async def test_a_queue_without_a_multikueue_check_is_refused_before_anything_exists(site: Site) -> None:
    name = f"local-{site.namespace}"
    await site.make(site.fleet.manager, kueue("ClusterQueue", name, cluster_queue(PLENTY, check=None)))
    await site.local_queue("local", on=site.fleet.manager, leads_to=name)
    with pytest.raises(FleetConfigurationError, match="no MultiKueue admission check"):
        await site.submit(shell("echo it runs"), queue="local")
    assert (await site.fleet.manager.list(JOBS, site.namespace))[0] == []


@overlapping
async def test_a_job_that_was_admitted_to_the_manager_itself_is_no_silent_wait(site: Site) -> None:
    name = f"local-{site.namespace}"
    await site.make(site.fleet.manager, kueue("ClusterQueue", name, cluster_queue(PLENTY, check=None)))
    await site.local_queue("local", on=site.fleet.manager, leads_to=name)
    job = site.follow(await site.plant(shell("echo it runs", suspend=True), queue="local"), may_delete=False)
    outcome = await job.outcome()
    assert isinstance(outcome.error, FleetConfigurationError)
    assert "not given to any worker" in str(outcome.error)


@overlapping
async def test_a_job_whose_check_rejects_it_is_ended(site: Site) -> None:
    planted = await site.plant(
        shell("echo it runs", suspend=True, managedBy="example.com/other"), queue="dws-local-queue"
    )
    job = site.follow(planted, may_delete=False)
    outcome = await job.outcome()
    assert isinstance(outcome.error, AdmissionRejectedError)
    assert "example.com/other" in str(outcome.error)


# -- in the way


@overlapping
async def test_another_job_of_the_same_name_on_a_worker_is_named_and_ends_the_wait(site: Site) -> None:
    site.only(US, after=2)
    part = await site.submit(shell("echo it runs"))
    foreign = shell("sleep 600", suspend=True)
    foreign["metadata"] = {"name": part["name"]}
    await site.plant(foreign, on=await site.worker(US))
    job = site.follow(part)
    await job.log.says(US, "another job of the same name is in the way")
    await job.turn_clock(610)
    outcome = await job.outcome()
    assert isinstance(outcome.error, AdmissionRejectedError)
    assert "same name" in str(outcome.error)
    assert await get(await site.worker(US), JOBS, part["name"], site.namespace) is not None


# -- taken away


@overlapping(kueue=BOTH)
async def test_a_workload_that_is_deleted_on_the_manager_ends_the_job(site: Site) -> None:
    site.only(US)
    job = await site.start(shell("echo begun; sleep 100"))
    await job.log.says("begun")

    async def resumed() -> bool:
        return bool(((await job.on_manager()) or {}).get("status", {}).get("active"))

    await eventually(resumed, "the manager's Job to show the pod: before, Kueue makes another Workload")
    await job.delete_workload()
    outcome = await job.outcome()
    assert isinstance(outcome.error, JobDeletedError)
    assert "Workload" in str(outcome.error)
    assert await job.on_manager() is None


@overlapping(kueue=BOTH)
async def test_a_deactivated_job_is_ended_instead_of_hanging_suspended(site: Site) -> None:
    site.only(US)
    job = await site.start(shell("echo begun; sleep 100"))
    await job.log.says("begun")
    await job.change_workload({"spec": {"active": False}})
    await job.log.says("Evicted from us-east4")
    outcome = await job.outcome()
    assert isinstance(outcome.error, JobEvictedError)
    assert await job.on_manager() is None


@overlapping(kueue=BOTH)
async def test_a_workload_that_is_deleted_on_the_worker_moves_the_job(site: Site) -> None:
    site.only(US)
    job = await site.start(shell(TICKING))
    await job.log.says("tick 2")
    site.only(EU)
    await job.delete_workload(await site.worker(US))
    outcome = await job.outcome(200)
    assert outcome.error is None
    assert outcome.report is not None
    assert [each["region"] for each in outcome.report["dispatches"]] == [US, EU]


@overlapping(kueue=BOTH)
async def test_a_job_that_is_deleted_on_the_worker_moves(site: Site) -> None:
    site.only(US)
    job = await site.start(shell(TICKING))
    await job.log.says("tick 2")
    site.only(EU)
    await (await site.worker(US)).delete(JOBS, job.name, site.namespace)
    outcome = await job.outcome(200)
    assert outcome.error is None
    assert outcome.report is not None
    assert [each["region"] for each in outcome.report["dispatches"]] == [US, EU]


@overlapping(kueue=BOTH)
async def test_a_workload_that_a_worker_deactivates_moves_the_job(site: Site) -> None:
    site.only(US)
    job = await site.start(shell(TICKING))
    await job.log.says("tick 2")
    site.only(EU)
    await job.change_workload({"spec": {"active": False}}, await site.worker(US))
    outcome = await job.outcome(200)
    assert outcome.error is None
    assert outcome.report is not None
    assert [each["region"] for each in outcome.report["dispatches"]] == [US, EU]


@overlapping
async def test_a_job_that_someone_deletes_is_an_error_that_says_so(site: Site) -> None:
    site.only(US)
    job = await site.start(shell("echo begun; sleep 100"))
    await job.log.says("begun")
    await site.fleet.manager.delete(JOBS, job.name, site.namespace)
    outcome = await job.outcome()
    assert isinstance(outcome.error, JobDeletedError)
    assert "someone else" in str(outcome.error)


@overlapping
async def test_a_pod_that_is_deleted_fails_a_job_without_retries(site: Site) -> None:
    site.only(US)
    job = await site.start(shell("echo begun; sleep 100"))
    await job.log.says("begun")
    worker = await site.worker(US)
    (pod,), _ = await worker.list(PODS, site.namespace)
    await worker.delete(PODS, pod["metadata"]["name"], site.namespace)
    outcome = await job.outcome()
    assert isinstance(outcome.error, JobFailedError)
    assert outcome.report is not None
    assert len(outcome.report["dispatches"]) == 1


# -- preempted


@overlapping
async def test_a_preempted_job_waits_and_runs_again(site: Site) -> None:
    site.only(US)
    name, classes = f"small-{site.namespace}", {"low": 1, "high": 100}
    preemption = {"withinClusterQueue": "LowerPriority"}
    small = cluster_queue({**PLENTY, "nvidia.com/gpu": 1}, preemption=preemption)
    await site.make(site.fleet.manager, kueue("ClusterQueue", name, small))
    for on in (site.fleet.manager, *[await site.worker(region) for region in REGIONS]):
        for each, value in classes.items():
            priority = kueue("WorkloadPriorityClass", f"{each}-{site.namespace}", {})
            del priority["spec"]
            await site.make(on, {**priority, "value": value})
        await site.local_queue("small", on=on, leads_to=name if on is site.fleet.manager else "dws-cluster-queue")
    low = await site.start(shell(TICKING), queue="small", priority_class=f"low-{site.namespace}")
    await low.log.says("tick 2")
    high = await site.start(shell("sleep 3"), queue="small", priority_class=f"high-{site.namespace}")
    await low.log.says("Evicted from us-east4", "Preempted")
    assert (await high.outcome()).error is None
    outcome = await low.outcome(200)
    assert outcome.error is None
    assert outcome.report is not None
    assert [each["region"] for each in outcome.report["dispatches"]] == [US, US]
    assert "Preempted" in str(outcome.report["dispatches"][0]["reason"])


# -- a limit of Kueue's own


@overlapping
async def test_kueue_s_own_limit_of_the_run_time_is_refused(site: Site) -> None:
    manifest = shell("echo it runs")
    manifest["metadata"]["labels"] = {"kueue.x-k8s.io/max-exec-time-seconds": "5"}
    with pytest.raises(ManifestError, match="max-exec-time-seconds"):
        await site.submit(manifest)


@overlapping
async def test_a_job_that_kueue_s_own_limit_ended_is_no_endless_wait(site: Site) -> None:
    manifest = shell("sleep 60", suspend=True)
    manifest["metadata"]["labels"] = {"kueue.x-k8s.io/max-exec-time-seconds": "5"}
    planted = await site.plant(manifest, queue="dws-local-queue")
    outcome = await site.follow(planted, may_delete=False).outcome(200)
    assert isinstance(outcome.error, JobDeadlineError)


# -- pods that cannot start


@overlapping
async def test_a_pod_that_fits_on_no_node_is_told_and_ended_by_its_startup_timeout(site: Site) -> None:
    site.only(US)
    manifest = shell("echo it runs")
    manifest["spec"]["template"]["spec"]["nodeSelector"] = {"example.com/none": "such"}
    job = await site.start(manifest, startup_seconds=300.0)
    await job.log.says("fits on no node")
    await job.turn_clock(300)
    outcome = await job.outcome()
    assert isinstance(outcome.error, StartupError)
    assert "fits on no node" in str(outcome.error)
    assert await job.on_manager() is None


@overlapping
async def test_an_image_that_cannot_be_had_is_told_and_ended_by_its_startup_timeout(site: Site) -> None:
    site.only(US)
    job = await site.start(gpu_job({"image": "registry.example.com/no/such:1"}), startup_seconds=300.0)
    await job.log.says("cannot get its image", "registry.example.com/no/such:1")
    await job.turn_clock(300)
    outcome = await job.outcome()
    assert isinstance(outcome.error, StartupError)
    assert await job.on_manager() is None


# -- endings


@overlapping
async def test_a_second_pod_that_succeeds_after_a_first_that_failed_is_a_success(site: Site) -> None:
    site.only(US)
    mark = site.path.with_suffix(".mark")
    mark.parent.mkdir(parents=True, exist_ok=True)
    script = f"if [ -e {mark} ]; then echo second; else touch {mark}; echo first; exit 1; fi"
    job = await site.start(shell(script, backoffLimit=3))
    outcome = await job.outcome()
    assert outcome.error is None
    assert [line for line in job.log.output if line in ("first", "second")] == ["first", "second"]
    assert job.log.count("exit code 1") == 1


@overlapping
async def test_a_job_that_ends_at_once_is_complete(site: Site) -> None:
    site.only(US)
    instant = await site.start(shell("echo one; echo two"))
    many = await site.start(shell("for i in {1..5000}; do echo $i; done; exit 3"))
    first, second = await asyncio.gather(instant.outcome(), many.outcome())
    assert first.error is None
    assert [line for line in instant.log.output if line in ("one", "two")] == ["one", "two"]
    assert isinstance(second.error, JobFailedError)
    assert "exit code 3" in str(second.error)
    assert [line for line in many.log.output if line.isdigit()] == [str(number) for number in range(1, 5001)]


@overlapping
async def test_code_memory_and_deadline_are_three_failures_with_region_exit_code_and_last_lines(site: Site) -> None:
    site.only(US)
    allocate = "print('allocating', flush=True); x = bytearray(200 << 20); import time; time.sleep(60)"
    limits = {"requests": {"cpu": "10m", "nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1, "memory": "50Mi"}}
    greedy = {"command": ["python", "-c", allocate], "image": "python:3.12", "resources": limits}
    cases = {
        JobFailedError: (shell("echo no gradient; sleep 3; exit 7"), ["exit code 7", "no gradient"]),
        JobOutOfMemoryError: (gpu_job(greedy), ["137", "OOMKilled", "allocating"]),
        JobDeadlineError: (shell("echo too slow; sleep 60", activeDeadlineSeconds=4), ["DeadlineExceeded", "too slow"]),
    }
    jobs = [await site.start(manifest) for manifest, _ in cases.values()]
    outcomes = await asyncio.gather(*(job.outcome() for job in jobs))
    for (kind, (_, says)), outcome in zip(cases.items(), outcomes, strict=True):
        assert type(outcome.error) is kind, outcome.error
        for part in (US, *says):
            assert part in str(outcome.error)
