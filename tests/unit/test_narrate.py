"""The lines that a reader of the task's log gets: one a change, in words."""

from __future__ import annotations

import pytest

from airflow_provider_multikueue.decisions.names import JOINED
from airflow_provider_multikueue.decisions.narrate import describe_waiting, duration, narrate, next_heartbeat
from airflow_provider_multikueue.decisions.workload import Observation, Phase
from tests.unit.stories import ASIA, EU, US, Story, Worker, moment, stamp


def test_a_clean_life_is_told_in_seven_lines() -> None:
    story = Story()
    story.look()
    story.queued("Pending", "insufficient unused quota for nvidia.com/gpu").look()
    story.now = 1
    story.reserved().look()
    story.nominated().look()
    story.now = 5.4
    story.granted(US).chosen(US).look()
    story.running(US, pods=3).look(1)
    story.now = 12
    story.job_condition("Complete", "CompletionsReached").finished().look()
    assert story.lines == [
        "Waiting for Kueue on the manager.",
        "Waiting for quota in dws-local-queue: insufficient unused quota for nvidia.com/gpu.",
        "Quota reserved in dws-local-queue after 1 s.",
        "Asking 3 regions: asia-southeast1, europe-west4, us-east4.",
        "Admitted in us-east4 (multikueue-dws-worker-us) after 5 s.",
        "Running in us-east4: 3 pods.",
        "Succeeded after 7 s in us-east4 (multikueue-dws-worker-us).",
    ]


def test_nothing_is_told_twice() -> None:
    story = Story().placed(US)
    story.look()
    told = len(story.lines)
    for _ in range(5):
        story.look(10)
    assert len(story.lines) == told


def test_a_move_is_told_with_both_places_and_the_reason() -> None:
    story = Story().placed(US)
    story.look()
    story.now = 30
    story.request(US, "Failed", message="node pool lost").check(US, "Retry", "node pool lost")
    story.worker(US, "Evicted", reason="AdmissionCheck", message="...").look()
    story.workers[US] = Worker(US)
    story.evicted().look(1)
    story.requeued().look(1)
    story.nominated().look(2)
    story.lines.clear()
    story.granted(EU).chosen(EU).running(EU).look(20)
    assert story.lines[0] == (
        "Moved from us-east4 (multikueue-dws-worker-us) to europe-west4 (multikueue-dws-worker-eu): node pool lost."
    )
    assert len([line for line in story.lines if line.startswith("Moved")]) == 1


def test_a_return_to_the_same_region_is_no_move() -> None:
    story = Story().placed(US)
    story.look()
    story.evicted(message="Preempted to accommodate a workload").look(30)
    story.requeued().nominated().granted(US).chosen(US).look(30)
    assert "Back in us-east4 (multikueue-dws-worker-us): Preempted to accommodate a workload." in story.lines


def test_a_round_that_the_manager_calls_off_during_an_eviction_is_no_news() -> None:
    story = Story().placed(US)
    story.look()
    story.evicted().look(20)
    story.lines.clear()
    for name in (ASIA, EU, US):
        story.copied(name)
        story.requested(name)
    story.request(EU, "Accepted", message="queued there").look(1)
    story.granted(US).look(5)
    copy = story.workers[US].workload
    assert copy is not None
    copy["spec"]["active"] = False
    story.worker(US, "Evicted", reason="DeactivatedDueToEvictedOnManagerCluster").look(1)
    assert story.lines == []
    story.requeued().nominated().look(5)
    assert story.lines[:2] == [
        "Quota reserved in dws-local-queue again.",
        "Asking 3 regions: asia-southeast1, europe-west4, us-east4.",
    ]


def test_what_a_region_says_is_told_once_a_change() -> None:
    story = Story().nominated()
    story.look()
    story.lines.clear()
    story.request(EU, "Accepted").request(EU, "Provisioned", "False", "No capacity yet. ETA: 12:40").look(1)
    story.look(1)
    story.request(EU, "Provisioned", "False", "No capacity yet. ETA: 13:10").look(1)
    story.change(ASIA, trouble="connection refused").look(1)
    assert story.lines == [
        "europe-west4: request accepted, waits for capacity (No capacity yet. ETA: 12:40).",
        "europe-west4: request accepted, waits for capacity (No capacity yet. ETA: 13:10).",
        "asia-southeast1: cannot be reached (connection refused).",
    ]


def test_a_grant_is_told_once_and_that_the_others_are_called_off_is_no_news() -> None:
    story = Story().nominated()
    story.look()
    story.lines.clear()
    story.request(US, "Provisioned", message="provisioned for you").look(1)
    story.granted(US).look(1)
    assert story.workload is not None
    story.workload["status"]["nominatedClusterNames"] = [US]
    story.look()
    assert story.lines == ["us-east4: capacity granted (provisioned for you)."]


def test_a_dead_region_and_then_all_of_them_are_told() -> None:
    story = Story().nominated()
    story.look()
    story.lines.clear()
    story.failed_once(US, "no capacity in us-east4").look(1)
    assert len(story.lines) == 1
    assert story.lines[0].startswith("us-east4 will not grant capacity any more: ")
    assert "no capacity in us-east4" in story.lines[0]
    for cluster in (ASIA, EU):
        story.failed_once(cluster)
    story.look(1)
    assert story.lines[-1].startswith("It has quota, but no region can run it: ")


def test_two_copies_at_once_are_both_shown() -> None:
    story = Story().placed(EU)
    story.look()
    story.workers[US].job = story.copy_of_job("older")
    story.workers[US].job["status"] = {"active": 1}
    story.lines.clear()
    story.look(5)
    story.look(5)
    assert story.lines == [
        "It runs in us-east4 (multikueue-dws-worker-us) too: a copy that the manager had given up. The one that "
        "finishes first counts."
    ]


def test_a_worker_without_a_region_is_told_with_what_to_set() -> None:
    story = Story().placed(US).without_worker(US)
    story.look()
    assert any("no region in the connection" in line for line in story.lines)


def test_a_worker_that_goes_away_and_comes_back_is_told() -> None:
    story = Story().placed(US)
    story.look()
    story.lines.clear()
    story.change(US, trouble="connection refused", trouble_since=moment(5).timestamp()).look(5)
    story.look(60)
    story.change(US, trouble=None).look(60)
    assert len(story.lines) == 2
    assert story.lines[0].startswith("Worker us-east4 cannot be reached since 12:00:05 UTC: connection refused")
    assert story.lines[1] == "It can be reached again."


def test_an_end_believed_from_the_worker_says_so() -> None:
    story = Story().placed(US)
    story.look()
    story.worker_job_ends(US).look(5)
    story.look(11)
    assert story.lines[-2:] == [
        "Succeeded after 0 s in us-east4 (multikueue-dws-worker-us).",
        "The manager has not followed its worker's end; believing multikueue-dws-worker-us.",
    ]


def test_an_image_that_cannot_be_pulled_is_told_once_though_the_kubelet_tries_again() -> None:
    story = Story().placed(US)
    for reason in ("ContainerCreating", "ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        waiting = {"waiting": {"reason": reason, "message": "no img"}}
        story.workers[US].pods = [story.pod("p", state=waiting, phase="Pending")]
        story.look(1)
    assert story.lines[1:] == [
        "Admitted in us-east4, but pod p cannot get its image 'img' (container main, ErrImagePull: no img)."
    ]


def test_a_second_pod_that_cannot_start_is_told_once_though_the_job_runs() -> None:
    story = Story().placed(US)
    story.look()
    known = len(story.lines)
    runs = story.workers[US].pods[0]
    for reason in ("ErrImagePull", "ImagePullBackOff", "ErrImagePull"):
        waiting = {"waiting": {"reason": reason, "message": "no img"}}
        story.workers[US].pods = [runs, story.pod("p-2", state=waiting, phase="Pending")]
        seen = story.look(30)
    assert seen.phase is Phase.RUNNING
    assert story.lines[known:] == [
        "Runs in us-east4, but pod p-2 cannot get its image 'img' (container main, ErrImagePull: no img)."
    ]
    assert "but pod p-2 cannot get its image" in describe_waiting(seen, now=moment(90).timestamp())


def test_a_pod_that_is_still_without_a_node_when_another_runs_is_not_told_again() -> None:
    story = Story().placed(US)
    late = story.pod("p-2", state={"waiting": {}}, phase="Pending")
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    late["status"] |= {"conditions": [condition], "containerStatuses": []}
    first = story.workers[US].pods
    story.workers[US].pods = [late]
    story.look()
    story.workers[US].pods = [*first, late]
    story.look(1)
    assert [line for line in story.lines if "fits on no node" in line] == [
        "Admitted in us-east4, but pod p-2 fits on no node (Unschedulable: 0/3 nodes)."
    ]
    late["metadata"]["deletionTimestamp"] = stamp(2)
    assert story.look(1).waiting == ""


def test_a_pod_that_failed_is_told_when_the_job_goes_on_without_it() -> None:
    story = Story().placed(US)
    first = story.pod("p-1", state={"terminated": {"exitCode": 1, "reason": "Error"}}, phase="Failed")
    first["status"]["containerStatuses"][0]["state"]["terminated"]["startedAt"] = stamp(0)
    story.workers[US].pods = [first]
    story.look()
    told = len(story.lines)
    story.look(1)
    assert len(story.lines) == told  # it may be the job's end
    story.workers[US].pods = [first, story.pod("p-2")]
    story.look(9)
    story.look(1)
    assert story.lines[told:] == ["A pod failed in us-east4, and the job goes on: p-1 (exit code 1)."]


def test_a_pod_that_failed_is_told_at_the_latest_with_the_job_s_success() -> None:
    story = Story().placed(US)
    first = story.pod("p-1", state={"terminated": {"exitCode": 1, "startedAt": stamp(0)}}, phase="Failed")
    story.workers[US].pods = [first]
    story.look()
    story.now = 10
    done = story.pod("p-2", state={"terminated": {"exitCode": 0, "startedAt": stamp(10)}}, phase="Succeeded")
    story.workers[US].pods = [first, done]
    story.job_condition("Complete", "CompletionsReached").finished().look()
    assert story.lines[-2] == "A pod failed in us-east4, and the job goes on: p-1 (exit code 1)."


def test_a_job_that_was_gone_before_it_was_first_seen_is_nobody_s_deletion() -> None:
    story = Story()
    story.job = None
    story.look()
    assert story.lines == ["It is no longer on the manager: it ended and was removed, or was deleted."]


def test_a_worker_that_the_job_has_left_is_not_said_to_be_in_reach_again() -> None:
    story = Story().placed(US)
    story.look()
    story.change(US, trouble="timed out", trouble_since=moment(5).timestamp()).look(30)
    story.evicted(message="Admitting remote lost").look(30)
    story.look(1)
    assert story.lines[-2:] == [
        "Worker us-east4 cannot be reached since 12:00:05 UTC: timed out; only Kueue places it again.",
        "Evicted from us-east4 (multikueue-dws-worker-us): the worker was lost: the manager has not reached it for "
        "longer than it waits. It will start again from zero.",
    ]


MUTE = "At least one admission check is false"


def test_where_kueue_gives_no_cause_a_copy_that_is_gone_is_one() -> None:
    story = Story().placed(US)
    story.look()
    story.workers[US].workload = story.workers[US].job = None
    story.look(15)
    story.evicted(message=MUTE).look(5)
    assert story.lines[-1].startswith("Evicted from us-east4 (multikueue-dws-worker-us): the job's copy on the worker")


def test_where_kueue_gives_no_cause_the_request_s_own_words_are_kept() -> None:
    story = Story().placed(US)
    story.look()
    story.request(US, "Failed", message="node pool lost").look(5)
    story.workers[US].requests = []
    story.worker(US, "Evicted", reason="AdmissionCheck", message=MUTE).look(1)
    story.evicted(message=MUTE).look(1)
    story.workers[US].workload = None
    story.look(1)
    story.requeued().nominated().granted(EU).chosen(EU).look(10)
    assert [line for line in story.lines if "node pool lost" in line] == [
        "Evicted from us-east4 (multikueue-dws-worker-us): node pool lost. It will start again from zero.",
        "Moved from us-east4 (multikueue-dws-worker-us) to europe-west4 (multikueue-dws-worker-eu): node pool lost.",
    ]


def test_the_cause_of_an_earlier_eviction_is_not_that_of_the_next() -> None:
    story = Story().placed(US)
    story.look()
    story.request(US, "CapacityRevoked", message="revoked").rejected(US, "revoked").look(5)
    story.evicted().look(1)
    story.requeued().nominated().granted(US).chosen(US).running(US).look(20)
    story.evicted("Preempted", "Preempted to accommodate a workload").look(20)
    assert story.lines[-1].startswith("Evicted from us-east4 (multikueue-dws-worker-us): Preempted")


def test_a_deactivation_promises_no_new_start() -> None:
    story = Story().placed(US)
    story.look()
    assert story.workload is not None
    story.workload["spec"]["active"] = False
    story.evicted("Deactivated", "The workload is deactivated").look(5)
    assert story.lines[-1] == (
        "Evicted from us-east4 (multikueue-dws-worker-us): The workload is deactivated. It goes on only if someone "
        "activates it again."
    )


def test_the_time_before_a_job_joined_its_queue_is_no_wait() -> None:
    story = Story()
    assert story.job is not None
    joined = (moment(40)).isoformat()
    story.job["metadata"]["annotations"][JOINED] = joined
    story.now = 42
    story.reserved().look()
    assert "Quota reserved in dws-local-queue after 2 s." in story.lines


def test_a_dead_region_that_may_not_be_mended_says_what_would_mend_it() -> None:
    story = Story().nominated()
    story.look()
    story.failed_once(US).change(US, can_heal=False)
    story.failed_once(EU).look(5)
    assert [line for line in story.lines if "any more" in line] == [
        "europe-west4 will not grant capacity any more: no capacity. It does not ask again by itself.",
        "us-east4 will not grant capacity any more: no capacity. It does not ask again by itself. Deleting the job's "
        "Workload there would make it: heal=True, with the right to do so, does that.",
    ]


@pytest.mark.parametrize(("phase", "seconds"), [(Phase.PLACING, 600), (Phase.QUEUED, 600), (Phase.RUNNING, 3600)])
def test_silence_is_broken_from_time_to_time(phase: Phase, seconds: float) -> None:
    assert next_heartbeat(Observation(phase=phase), 1000) == 1000 + seconds


def test_a_deletion_is_told_with_where_it_ran() -> None:
    story = Story().placed(US)
    story.look()
    story.now = 9
    story.job = story.workload = None
    story.look()
    story.look(2)
    assert story.lines[-1] == "Deleted by someone else after 9 s in us-east4 (multikueue-dws-worker-us)."


@pytest.mark.parametrize(
    ("reason", "message", "line"),
    [
        (
            "BackoffLimitExceeded",
            "Job has reached the specified backoff limit",
            "Failed after 4 s in us-east4 (multikueue-dws-worker-us): BackoffLimitExceeded: Job has reached the "
            "specified backoff limit.",
        ),
        (
            "DeadlineExceeded",
            "Job was active longer than specified deadline",
            "Stopped at its deadline after 4 s in us-east4 (multikueue-dws-worker-us): DeadlineExceeded: Job was "
            "active longer than specified deadline.",
        ),
    ],
)
def test_a_failure_is_told_with_its_reason(reason: str, message: str, line: str) -> None:
    story = Story().placed(US)
    story.look()
    story.now = 4
    story.job_condition("Failed", reason, message).look()
    assert story.lines[-1] == line


def test_the_heartbeat_says_for_how_long_and_what_each_region_says() -> None:
    story = Story().nominated()
    story.request(EU, "Accepted", message="queued there")
    seen = story.look(720)
    assert describe_waiting(seen, now=moment(720).timestamp()) == (
        "Waiting for 12 min: it has quota; waiting for a region to grant capacity. "
        "asia-southeast1: asked for capacity; "
        "europe-west4: request accepted, waits for capacity (queued there); us-east4: asked for capacity."
    )


def test_the_heartbeat_of_a_running_job_says_where_and_since_when() -> None:
    seen = Story().placed(US, pods=2).look(60)
    assert describe_waiting(seen, now=moment(60).timestamp()) == (
        "Still running in us-east4 (multikueue-dws-worker-us): 2 pods, 1 min so far."
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0, "0 s"),
        (4.4, "4.4 s"),
        (59.96, "1 min"),
        (60, "1 min"),
        (725, "12 min 5 s"),
        (12_000, "3 h 20 min"),
        (7200, "2 h"),
        (259_200, "3 d"),
        (270_000, "3 d 3 h"),
    ],
)
def test_lengths_of_time_are_for_readers(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_first_look_at_a_job_that_runs_already_tells_where() -> None:
    seen = Story().placed(US).look(30)
    lines = [text for _, text in narrate(None, seen)]
    assert lines == ["Admitted in us-east4 (multikueue-dws-worker-us) after 0 s.", "Running in us-east4: 1 pod."]


def test_an_empty_observation_tells_nothing() -> None:
    assert narrate(None, Observation(phase=Phase.SUBMITTED)) == []
