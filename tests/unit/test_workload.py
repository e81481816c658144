"""What a job is doing, decided from timelines that real managers and workers were seen to write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_multikueue.decisions.kinds import find_kind
from airflow_provider_multikueue.decisions.workload import Memory, Phase, Stage, View, observe
from tests.unit.stories import ASIA, BEGIN, EU, JOB_NAME, US, Story, Worker, moment, set_condition


def test_a_job_without_a_workload_is_submitted() -> None:
    seen = Story().look()
    assert (seen.phase, seen.submitted, seen.queue) == (Phase.SUBMITTED, moment(0), "dws-local-queue")


def test_a_workload_without_conditions_is_queued() -> None:
    assert Story().queued().look().phase is Phase.QUEUED


def test_a_clean_life_goes_through_its_phases_with_the_clusters_own_times() -> None:
    story = Story()
    phases = [story.look().phase, story.queued().look().phase, story.reserved().look().phase]
    story.nominated()
    phases.append(story.look(0.06).phase)
    story.now = 1.2
    story.granted(US)
    phases.append(story.look().phase)
    story.now = 2.3
    story.chosen(US)
    phases.append(story.look().phase)
    story.now = 3.4
    story.running(US, pods=3)
    seen = story.look()
    phases.append(seen.phase)
    assert seen.pods_running == 3
    story.now = 9.5
    story.job_condition("Complete", "CompletionsReached").finished()
    seen = story.look()
    assert [*phases, seen.phase] == [
        Phase.SUBMITTED,
        Phase.QUEUED,
        Phase.PLACING,
        Phase.PLACING,
        Phase.PLACING,
        Phase.ADMITTED,
        Phase.RUNNING,
        Phase.SUCCEEDED,
    ]
    assert (seen.cluster, seen.region) == (US, "us-east4")
    assert (seen.quota_reserved, seen.admitted, seen.started, seen.finished) == (
        moment(0),
        moment(2),
        moment(3),
        moment(9),
    )
    assert seen.flavors == {"main": {"nvidia.com/gpu": "default-dws-flavor"}}
    assert (seen.queue, seen.cluster_queue, seen.override) == ("dws-local-queue", "dws-cluster-queue", None)


def test_a_workers_admission_is_no_placement() -> None:
    seen = Story().nominated().granted(US).look()
    assert (seen.phase, seen.cluster) == (Phase.PLACING, None)
    assert [check.stage for check in seen.checks] == [Stage.ASKED, Stage.ASKED, Stage.GRANTED]


def test_a_clusters_name_without_admission_is_no_placement_yet() -> None:
    story = Story().nominated()
    assert story.workload is not None
    story.workload["status"]["clusterName"] = US
    assert story.look().cluster is None


@pytest.mark.parametrize("status", [True, "true", 1, None, "Unknown", "False"])
def test_only_the_text_true_is_true(status: Any) -> None:
    story = Story().queued()
    story.manager("QuotaReserved", status)
    assert story.look().phase is Phase.QUEUED


def test_an_instant_pod_that_is_gone_already_has_run() -> None:
    story = Story().placed(US)
    ended = {"terminated": {"exitCode": 0, "startedAt": "2026-03-01T12:00:02Z", "finishedAt": "2026-03-01T12:00:02Z"}}
    story.workers[US].pods = [story.pod("p", state=ended, phase="Succeeded")]
    seen = story.look()
    assert (seen.phase, seen.started, seen.pods_running) == (Phase.RUNNING, moment(2), 0)


def test_a_pod_that_only_pulls_its_image_does_not_run() -> None:
    story = Story().placed(US)
    story.workers[US].pods = [
        story.pod("p", state={"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}, phase="Pending")
    ]
    assert story.job is not None
    story.job["status"] = {"active": 1, "ready": 0}
    seen = story.look()
    assert (seen.phase, seen.started) == (Phase.ADMITTED, None)
    assert "cannot get its image" in seen.waiting
    assert "no such image" in seen.waiting


def test_a_worker_that_cannot_be_read_runs_by_the_managers_count() -> None:
    story = Story().placed(US).without_worker(US)
    assert story.job is not None
    assert story.look().phase is Phase.ADMITTED
    story.job["status"] = {"active": 1, "startTime": "2026-03-01T12:00:03Z"}
    seen = story.look()
    assert (seen.phase, seen.cluster, seen.region, seen.started) == (Phase.RUNNING, US, None, moment(3))


def test_pods_of_an_earlier_stay_on_the_same_worker_do_not_count() -> None:
    story = Story().placed(US)
    story.now = 40
    story.evicted().requeued()
    story.now = 60
    story.nominated().granted(US).chosen(US)
    seen = story.look()
    assert (seen.phase, seen.started) == (Phase.ADMITTED, None)


# -- endings by the manager


@pytest.mark.parametrize(
    ("condition", "reason", "finished", "kind"),
    [
        ("Complete", "CompletionsReached", "Succeeded", "succeeded"),
        ("Failed", "BackoffLimitExceeded", "Failed", "failed"),
        ("Failed", "PodFailurePolicy", "Failed", "failed"),
        ("Failed", "DeadlineExceeded", "Failed", "deadline"),
    ],
)
def test_the_end_has_the_jobs_own_reason(condition: str, reason: str, finished: str, kind: str) -> None:
    story = Story().placed(US).job_condition(condition, reason, "text")
    assert story.look().ending is not None  # the job's condition comes before the Workload's
    seen = story.finished(finished, "text").look()
    assert seen.ending is not None
    assert (seen.ending.kind, seen.ending.reason, seen.ending.source) == (kind, reason, "manager")
    assert seen.phase is (Phase.SUCCEEDED if kind == "succeeded" else Phase.FAILED)


@pytest.mark.parametrize("by", ["job", "workload"])
def test_a_training_job_that_was_stopped_at_its_deadline_says_so_in_its_message_only(by: str) -> None:
    story = Story(kind=find_kind("kubeflow.org/v1", "PyTorchJob")).placed(US)
    message = "PyTorchJob train has failed because it was active longer than specified deadline"
    if by == "job":
        story.job_condition("Failed", "PyTorchJobFailed", message)
    else:
        story.finished("Failed", message)
    ending = story.look().ending
    assert ending is not None
    assert ending.kind == "deadline"


def test_a_failed_first_pod_with_retries_left_is_no_end() -> None:
    story = Story().placed(US)
    assert story.job is not None
    story.job["status"] = {"failed": 1, "startTime": "2026-03-01T12:00:03Z"}
    assert story.look().phase is Phase.RUNNING


def test_failure_target_alone_is_no_end() -> None:
    assert Story().placed(US).job_condition("FailureTarget", "BackoffLimitExceeded").look().ending is None


def test_a_kind_without_a_row_ends_by_its_workload_alone() -> None:
    story = Story(kind=find_kind("example.com/v1", "Training")).placed(US)
    assert story.look().phase is Phase.RUNNING
    seen = story.finished("Failed", "it broke").look()
    assert (seen.phase, seen.ending and seen.ending.message) == (Phase.FAILED, "it broke")


# -- moves


def test_an_eviction_is_waiting_with_the_workers_own_words() -> None:
    story = Story(run_duration="600").placed(US)
    story.look()
    story.now = 20
    story.request(US, "CapacityRevoked", message="capacity revoked (maintenance)").rejected(US, "capacity revoked")
    seen = story.look()
    assert (seen.phase, seen.cluster) == (Phase.RUNNING, US)
    assert seen.evicted_reason == "capacity revoked (maintenance)"
    story.workers[US] = Worker(US)
    seen = story.evicted(message="At least one admission check is false").look(0.9)
    assert (seen.phase, seen.cluster, seen.ending) == (Phase.EVICTED, None, None)
    assert seen.evicted_reason == "capacity revoked (maintenance)"
    story.requeued()
    assert story.look(2).phase is Phase.EVICTED
    seen = story.nominated().look(2)
    assert (seen.phase, seen.admitted) == (Phase.PLACING, None)
    story.granted(EU).chosen(EU).running(EU)
    seen = story.look(20)
    assert (seen.phase, seen.cluster, seen.region) == (Phase.RUNNING, EU, "europe-west4")
    assert (seen.came_from, seen.moved_because) == (
        "us-east4 (multikueue-dws-worker-us)",
        "capacity revoked (maintenance)",
    )


def test_booking_expired_on_a_running_job_means_nothing() -> None:
    story = Story().placed(US)
    before = story.look()
    after = story.request(US, "BookingExpired").look()
    assert (after.phase, after.evicted_reason, after.ending) == (before.phase, None, None)


def test_preemption_on_the_manager_is_a_move() -> None:
    story = Story().placed(US)
    story.look()
    seen = story.evicted("Preempted", "Preempted to accommodate a workload").look(5)
    assert (seen.phase, seen.evicted_reason) == (Phase.EVICTED, "Preempted to accommodate a workload")


@pytest.mark.parametrize(("after", "ends"), [(30.0, True), (29.0, True), (15.0, False)])
def test_capacity_revoked_at_the_end_of_the_run_time_is_the_end(after: float, ends: bool) -> None:
    story = Story(run_duration="30").placed(US)
    story.look()
    story.now = after
    seen = story.request(US, "CapacityRevoked", message="revoked").rejected(US, "revoked").look()
    assert (seen.ending is not None) is ends
    if seen.ending is not None:
        assert (seen.ending.kind, seen.ending.leaves_job, seen.override) == ("run_duration", True, "run-time-used-up")


def test_a_run_time_that_is_used_up_is_known_by_the_manager_alone_too() -> None:
    story = Story(run_duration="30").placed(US)
    story.look()
    story.workers[US] = Worker(US)
    story.now = 31
    seen = story.evicted().look()
    assert seen.ending is not None
    assert seen.ending.kind == "run_duration"


# -- where the manager is wrong or mute


def test_a_worker_that_ended_ten_seconds_ago_is_believed() -> None:
    story = Story().placed(US)
    story.now = 100
    story.worker_job_ends(US)
    assert story.look().ending is None
    assert story.look(9).ending is None
    seen = story.look(2)
    assert (seen.phase, seen.override) == (Phase.SUCCEEDED, "worker-ended")
    assert seen.ending is not None
    assert (seen.ending.source, seen.ending.leaves_job) == (f"worker:{US}", True)
    assert (seen.finished, seen.cluster) == (moment(100), US)


def test_a_manager_that_cannot_be_reached_is_waited_for_though_the_worker_ended() -> None:
    story = Story().placed(US)
    story.worker_job_ends(US)
    story.manager_trouble = "connection refused"
    story.look()
    assert story.look(60).phase is Phase.RUNNING
    story.manager_trouble = None
    assert story.look(1).phase is Phase.RUNNING
    assert story.look(11).phase is Phase.SUCCEEDED


def test_the_next_look_is_when_the_worker_will_be_believed() -> None:
    story = Story().placed(US)
    story.now = 5000
    story.worker_job_ends(US)
    seen = story.look()
    assert seen.recheck == moment(5010).timestamp()


def test_a_success_on_a_returned_worker_counts_though_the_manager_chose_another() -> None:
    story = Story().placed(EU)
    story.workers[US].job = story.copy_of_job("older")
    story.now = 60
    story.worker_job_ends(US)
    story.look()
    seen = story.look(11)
    assert (seen.phase, seen.cluster, seen.override) == (Phase.SUCCEEDED, US, "worker-ended")


def test_a_failure_of_a_copy_that_the_manager_gave_up_does_not_count() -> None:
    story = Story().placed(EU)
    story.workers[US].job = story.copy_of_job("older")
    story.worker_job_ends(US, "Failed", "BackoffLimitExceeded")
    story.look()
    assert story.look(60).phase is Phase.RUNNING


def test_a_foreign_job_of_the_same_name_that_ended_is_not_believed() -> None:
    story = Story().nominated().granted(US)
    foreign: dict[str, Any] = {"metadata": {"name": JOB_NAME, "uid": "f"}, "status": {}}
    set_condition(foreign, "Complete", "True", 0)
    story.workers[US].job = foreign
    story.look()
    seen = story.look(60)
    assert seen.ending is None
    assert [(d.cluster, d.healable) for d in seen.dead] == [(US, False)]
    assert "same name" in seen.dead[0].reason


def test_a_copy_made_for_another_workload_is_not_believed() -> None:
    story = Story().placed(US)
    job = story.workers[US].job
    assert job is not None
    job["metadata"]["annotations"]["kueue.x-k8s.io/prebuilt-workload-name"] = "job-of-another-generation"
    story.worker_job_ends(US)
    story.look()
    assert story.look(60).ending is None


def test_a_missing_cluster_name_is_looked_up_only_while_the_manager_says_admitted() -> None:
    story = Story().placed(US)
    assert story.workload is not None
    del story.workload["status"]["clusterName"]
    seen = story.look()
    assert (seen.cluster, seen.override, seen.phase) == (US, "placement-lookup", Phase.RUNNING)
    story.manager("Admitted", "False")
    assert story.look().cluster is None


def test_a_deleted_workload_ends_the_wait_after_ten_seconds() -> None:
    story = Story().placed(US)
    story.look()
    story.workload = None
    assert story.look().ending is None
    seen = story.look(11)
    assert seen.ending is not None
    assert (seen.ending.kind, seen.phase, seen.ending.leaves_job) == ("workload_deleted", Phase.LOST, True)


def test_a_job_that_is_gone_was_deleted_by_someone() -> None:
    story = Story().nominated()
    story.look()
    story.job = None
    seen = story.look()
    assert seen.ending is not None
    assert (seen.ending.kind, seen.phase, seen.ending.leaves_job) == ("deleted", Phase.LOST, False)


def test_a_job_that_is_gone_while_the_manager_cannot_be_reached_is_not_over() -> None:
    story = Story().placed(US)
    story.look()
    story.job, story.manager_trouble = None, "connection refused"
    seen = story.look(60)
    assert seen.ending is None
    assert "manager cannot be reached" in seen.trouble


def test_a_job_that_was_removed_after_it_ended_on_its_worker_succeeded() -> None:
    story = Story().placed(US)
    story.worker_job_ends(US)
    story.job = None
    assert story.look().phase is Phase.SUCCEEDED


def test_an_owner_that_is_gone_is_not_a_failure_of_the_job() -> None:
    story = Story().placed(US).finished("OwnerNotFound", "The workload's owner no longer exists")
    story.job = None
    story.look()
    seen = story.look(2)
    assert seen.ending is not None
    assert seen.ending.kind == "deleted"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("DeactivatedDueToMaximumExecutionTimeExceeded", "deadline"),
        ("DeactivatedDueToRequeuingLimitExceeded", "deactivated"),
        ("Deactivated", "deactivated"),
    ],
)
def test_a_deactivated_job_stays_suspended_for_ever(reason: str, kind: str) -> None:
    story = Story().placed(US)
    story.look()
    assert story.workload is not None
    story.workload["spec"]["active"] = False
    story.evicted(reason, "why")
    story.look()
    seen = story.look(11)
    assert seen.ending is not None
    assert (seen.ending.kind, seen.phase, seen.ending.leaves_job) == (kind, Phase.FAILED, True)


def test_a_deactivation_that_is_undone_at_once_is_only_an_eviction() -> None:
    story = Story().placed(US)
    assert story.workload is not None
    story.workload["spec"]["active"] = False
    assert story.evicted("Deactivated", "The workload is deactivated").look().ending is None
    story.workload["spec"]["active"] = True
    assert story.look(30).ending is None


def test_a_check_that_rejects_on_the_manager_is_the_end() -> None:
    story = Story().reserved()
    assert story.workload is not None
    check = {"name": "mk", "state": "Rejected", "message": "The owner is not managed by Kueue"}
    story.workload["status"]["admissionChecks"] = [check]
    seen = story.look()
    assert seen.ending is not None
    assert (seen.ending.kind, seen.ending.message) == ("rejected", "check mk: The owner is not managed by Kueue")


@pytest.mark.parametrize(
    ("reason", "message", "after", "ends"),
    [
        ("Inadmissible", "LocalQueue dws-local-qeue doesn't exist", 30, False),
        ("Inadmissible", "LocalQueue dws-local-qeue doesn't exist", 61, True),
        ("Inadmissible", "ClusterQueue no-such-cq doesn't exist", 61, True),
        ("Inadmissible", "ClusterQueue hold-cq is inactive", 900, False),
        ("Pending", "couldn't assign flavors to pod set main: resource cpu unavailable in ClusterQueue", 61, True),
        (
            "Pending",
            "insufficient unused quota for nvidia.com/gpu in flavor default-dws-flavor, 1 more needed",
            9e5,
            False,
        ),
    ],
)
def test_no_quota_is_a_wait_unless_it_can_never_come(reason: str, message: str, after: float, ends: bool) -> None:
    story = Story().queued(reason, message)
    story.look()
    seen = story.look(after)
    assert (seen.ending is not None) is ends
    assert ends or message in seen.waiting


WAITS = ("Pending", "insufficient unused quota for nvidia.com/gpu in flavor default-dws-flavor, 1 more needed")
STOPPED = ("Inadmissible", "ClusterQueue dws-cluster-queue is inactive")
MISSING = ("Inadmissible", "LocalQueue dws-local-queue doesn't exist")


@pytest.mark.parametrize(
    ("reason", "message", "grace"),
    [
        (*STOPPED, 3600),
        ("Inadmissible", "LocalQueue dws-local-queue is stopped", 3600),
        ("Suspended", "ClusterQueue dws-cluster-queue is inactive", 3600),
        (*MISSING, 60),
        ("Misconfigured", "LocalQueue dws-local-queue doesn't exist", 60),
    ],
)
def test_a_job_that_waited_for_hours_has_the_whole_grace_when_its_queue_goes(
    reason: str, message: str, grace: float
) -> None:
    story = Story().queued(*WAITS)
    story.look()
    assert story.look(7200).ending is None
    story.manager("QuotaReserved", "False", reason, message)
    assert story.look(1).ending is None
    seen = story.look(grace - 1)
    assert seen.ending is None
    assert seen.recheck is not None
    story.now = seen.recheck - BEGIN.timestamp()
    ending = story.look(0.1).ending
    assert ending is not None
    assert (ending.kind, ending.message) == ("inadmissible", message)


def test_a_queue_that_comes_back_ends_the_grace() -> None:
    story = Story().queued(*WAITS)
    for _ in range(3):
        for reason, message in (MISSING, WAITS):
            story.manager("QuotaReserved", "False", reason, message)
            story.look()
            assert story.look(50).ending is None


def test_a_stopped_queue_that_is_then_deleted_is_missing_only_since_then() -> None:
    story = Story().queued(*STOPPED)
    story.look()
    assert story.look(3000).ending is None
    story.manager("QuotaReserved", "False", *MISSING)
    story.look()
    assert story.look(59).ending is None
    assert story.look(2).ending is not None


def test_a_queue_is_not_judged_while_the_manager_cannot_be_reached() -> None:
    story = Story().queued(*MISSING)
    story.look()
    story.manager_trouble = "refused"
    assert story.look(600).ending is None


def test_a_deactivation_after_a_long_eviction_may_be_undone_too() -> None:
    story = Story().placed(US)
    story.look()
    story.evicted("Preempted", "Preempted to accommodate a workload").look()
    story.now += 3600
    assert story.workload is not None
    story.workload["spec"]["active"] = False
    story.manager("Evicted", reason="Deactivated", message="The workload is deactivated")
    assert story.look().ending is None
    ending = story.look(11).ending
    assert ending is not None
    assert ending.kind == "deactivated"


def test_a_job_that_runs_on_the_manager_itself_is_told() -> None:
    story = Story().reserved()
    assert story.job is not None
    story.job["spec"] = {"suspend": False}
    story.manager("Admitted")
    seen = story.look()
    assert seen.ending is not None
    assert seen.ending.kind == "not_dispatched"


# -- regions that will not answer


def test_the_texts_of_each_region_are_shown() -> None:
    story = Story().nominated()
    story.request(EU, "Accepted").request(EU, "Provisioned", "False", "Waiting for resources. ETA: 12:40")
    story.change(US, trouble="connect: connection refused", trouble_since=1.0)
    seen = story.look()
    assert [(check.region, check.stage, check.text) for check in seen.checks] == [
        ("asia-southeast1", Stage.ASKED, ""),
        ("europe-west4", Stage.ACCEPTED, "Waiting for resources. ETA: 12:40"),
        ("us-east4", Stage.UNREACHABLE, "connect: connection refused"),
    ]


def test_a_region_whose_request_failed_once_is_dead_and_can_be_healed() -> None:
    story = Story().nominated()
    story.now = 15.8
    story.request(US, "Failed", message="no capacity in us-east4").look()
    story.failed_once(US, "no capacity in us-east4")
    seen = story.look(0.1)
    assert [(d.cluster, d.healable, d.namespace, d.uid) for d in seen.dead] == [(US, True, "default", "copy-4")]
    assert seen.dead[0].reason == "no capacity in us-east4"
    assert seen.hopeless_since is None


def test_a_region_that_asks_anew_is_alive_again() -> None:
    story = Story().nominated()
    story.failed_once(US).look()
    story.copied(US)
    story.requested(US)
    assert story.look(60).dead == ()


def test_without_the_right_to_delete_there_a_dead_region_cannot_be_healed() -> None:
    story = Story().nominated().failed_once(US).change(US, can_heal=False)
    assert [d.healable for d in story.look().dead] == [False]


def test_a_worker_that_retries_by_itself_after_admission_is_not_dead() -> None:
    story = Story().placed(US)
    story.failed_once(US)
    assert story.look().dead == ()


def test_all_regions_dead_is_told_and_ends_after_ten_minutes_when_nothing_can_heal_it() -> None:
    story = Story().nominated()
    for cluster in (ASIA, EU, US):
        story.failed_once(cluster).change(cluster, can_heal=False)
    seen = story.look()
    assert seen.hopeless_since == moment(0).timestamp()
    assert "no region can run it" in seen.waiting
    assert story.look(599).ending is None
    seen = story.look(2)
    assert seen.ending is not None
    assert (seen.ending.kind, seen.override, seen.ending.leaves_job) == ("rejected", "all-regions-dead", True)


def test_all_regions_dead_goes_on_while_one_can_be_made_to_ask_again() -> None:
    story = Story().nominated()
    for cluster in (ASIA, EU, US):
        story.failed_once(cluster)
    story.look()
    assert story.look(3600).ending is None


def test_a_region_that_was_chosen_while_someone_else_s_job_has_the_name_leaves_no_hope() -> None:
    story = Story().nominated().granted(US)
    for cluster in (ASIA, EU):
        story.workers[cluster].workload = None
    story.workers[US].job = {"metadata": {"name": "dws-job-train-abc-1", "uid": "foreign", "labels": {}}}
    seen = story.look()
    assert [(d.reason, d.healable) for d in seen.dead] == [("another job of the same name is in the way", False)]
    assert "another job of the same name is in the way" in seen.waiting
    ending = story.look(601).ending
    assert ending is not None
    assert (ending.kind, "same name" in ending.message) == ("rejected", True)


def test_a_region_that_grants_and_to_which_the_manager_brings_no_job_leaves_no_hope() -> None:
    story = Story().nominated().granted(US)
    for cluster in (ASIA, EU):
        story.workers[cluster].workload = None
    assert story.look(29).dead == ()
    seen = story.look(2)
    assert [(d.cluster, d.healable, d.final) for d in seen.dead] == [(US, False, True)]
    assert "the manager brings no job there" in seen.waiting
    ending = story.look(600).ending
    assert ending is not None
    assert (ending.kind, "brings no job" in ending.message) == ("rejected", True)


def test_a_manager_that_brings_no_job_while_another_worker_hangs_is_waited_for() -> None:
    story = Story().nominated().granted(US)
    story.workers[EU].trouble = "timed out"
    assert story.look(60).dead == ()


def test_a_rejection_by_a_check_is_one_also_when_its_state_is_taken_back() -> None:
    story = Story().reserved()
    assert story.workload is not None
    story.workload["spec"]["active"] = False
    text = 'The workload is deactivated due to AdmissionCheck in Rejected state: "sample-dws-multikueue" (not managed)'
    ending = story.evicted("DeactivatedDueToAdmissionCheck", text).look().ending
    assert ending is not None
    assert (ending.kind, ending.message) == ("rejected", "not managed")


def test_a_copy_that_an_earlier_round_left_is_not_asked() -> None:
    story = Story().placed(US)
    story.look()
    story.evicted().look(1)
    story.worker(US, "Evicted", reason="AdmissionCheck").look(1)
    assert story.look(1).asked == ()


def test_a_dead_copy_that_is_never_cleared_away_is_healable_although_no_region_is_asked() -> None:
    story = Story().placed(US)
    story.look()
    story.worker(US, "Evicted", reason="DeactivatedDueToEvictedOnManagerCluster")
    assert story.workload is not None
    story.workload["status"].pop("clusterName")
    story.manager("Admitted", "False")
    story.manager("QuotaReserved")
    seen = story.look(5)
    assert (seen.phase, seen.dead) == (Phase.PLACING, ())
    assert [(d.cluster, d.healable) for d in story.look(16).dead] == [(US, True)]


def test_a_region_is_silent_only_since_it_is_asked() -> None:
    story = Story().reserved()
    story.look(0)
    story.look(40)
    story.nominated()
    for cluster in (ASIA, EU, US):
        story.workers[cluster].workload = None
    assert "no region has answered" not in story.look(1).waiting
    assert "no region has answered" in story.look(31).waiting


def test_a_worker_that_was_not_seen_yet_is_not_called_unreadable() -> None:
    story = Story().nominated()
    view = story.view()
    unseen = replace(view.workers[US], readable=False, looking=True, workload=None)
    checks = {c.cluster: c.stage for c in observe(replace(view, workers={**view.workers, US: unseen})).checks}
    assert checks[US] is Stage.SILENT


def test_one_region_that_only_waits_keeps_hope() -> None:
    story = Story().nominated().failed_once(US).failed_once(EU)
    assert story.look().hopeless_since is None


def test_a_loop_of_rejections_is_a_dead_region() -> None:
    story = Story().nominated()
    for _ in range(3):
        story.rejected(US, "no capacity in us-east4").look(1.0)
        story.copied(US)
        story.requested(US)
        story.look(1.3)
    seen = story.look()
    assert [(d.cluster, d.healable) for d in seen.dead] == [(US, False)]
    assert "each time that it is asked: no capacity" in seen.dead[0].reason
    assert story.look(60).dead == ()  # the last copy waits: the loop is broken


def test_a_queue_that_is_missing_on_a_worker_is_named() -> None:
    story = Story().nominated()
    story.worker(US, "QuotaReserved", "False", "Inadmissible", "LocalQueue miss1-lq doesn't exist")
    seen = story.look()
    assert [(d.region, d.reason, d.healable) for d in seen.dead] == [
        ("us-east4", "LocalQueue miss1-lq doesn't exist", False)
    ]


def test_a_queue_that_goes_on_the_only_worker_leaves_ten_minutes_since_then() -> None:
    story = Story().nominated(US)
    story.worker(US, "QuotaReserved", "False", *WAITS)
    story.look()
    assert story.look(7200).hopeless_since is None
    story.worker(US, "QuotaReserved", "False", *MISSING)
    assert story.look(1).ending is None
    assert story.look(590).ending is None
    ending = story.look(20).ending
    assert ending is not None
    assert ending.kind == "rejected"


def test_a_queue_that_is_stopped_on_a_worker_is_no_dead_region() -> None:
    story = Story().nominated(US)
    story.worker(US, "QuotaReserved", "False", "Suspended", "ClusterQueue dws-cluster-queue is inactive")
    seen = story.look()
    assert (seen.dead, seen.checks[0].stage) == ((), Stage.INADMISSIBLE)


def test_a_dead_copy_that_a_wasted_round_left_is_healable_once_it_is_old() -> None:
    story = Story().nominated(US)
    copy = story.workers[US].workload
    assert copy is not None
    copy["spec"]["active"] = False
    story.worker(US, "Evicted", reason="DeactivatedDueToEvictedOnManagerCluster", message="Evicted on manager: ...")
    assert story.look(12).dead == ()
    assert [d.healable for d in story.look(9).dead] == [True]


def test_a_manager_that_asks_no_region_names_the_worker_that_hangs() -> None:
    story = Story().reserved().change(EU, trouble="timed out")
    story.look()
    assert "europe-west4 cannot be reached" in story.look(11).waiting


def test_regions_that_do_not_answer_are_named_after_half_a_minute() -> None:
    story = Story().nominated()
    story.workers[US].workload = None
    for cluster in (ASIA, EU):
        copy = story.workers[cluster].workload
        assert copy is not None
        copy["status"] = {}
    story.look()
    story.workers[US].workload = None  # taken away and not made again
    story.look()
    assert "waiting for a region" in story.look(20).waiting
    waiting = story.look(11).waiting
    assert "us-east4: no copy of the job has arrived there" in waiting
    assert "asia-southeast1, europe-west4: its Kueue has not looked at the job" in waiting


def test_a_manager_without_a_working_kueue_is_told_after_half_a_minute() -> None:
    story = Story()
    story.look()
    assert "has made no Workload for more than 30 s" in story.look(31).waiting


def test_a_worker_that_is_away_is_told_while_the_job_runs() -> None:
    story = Story().placed(US)
    story.look()
    seen = story.change(US, trouble="connection refused", trouble_since=moment(70).timestamp()).look(80)
    assert (seen.phase, seen.ending) == (Phase.RUNNING, None)
    assert seen.trouble.startswith("worker us-east4 cannot be reached since 12:01:10 UTC: connection refused")


def test_a_view_of_nothing_is_a_submitted_job() -> None:
    view = View(
        kind=find_kind("batch/v1", "Job"),
        job=None,
        job_seen=False,
        workload=None,
        workload_seen=False,
        workers={},
        now=0.0,
        memory=Memory(),
    )
    assert observe(view).phase is Phase.SUBMITTED
