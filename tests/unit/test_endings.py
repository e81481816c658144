"""How a job ended, as an error that says what, where, how and what next."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_multikueue import exceptions
from airflow_provider_multikueue.decisions.endings import (
    admission_timed_out,
    container_ends,
    error_for,
    startup_problem,
    startup_timed_out,
    too_many_dispatches,
)
from airflow_provider_multikueue.decisions.workload import Observation
from airflow_provider_multikueue.exceptions import (
    JobDeadlineError,
    JobFailedError,
    JobOutOfMemoryError,
    MultiKueueError,
    StartupError,
    WorkerLostError,
)
from tests.unit.stories import EU, US, Story


def pod(name: str = "p-1", *, phase: str = "Failed", **state: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "creationTimestamp": "2026-03-01T12:00:00Z"},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": phase, "containerStatuses": [{"name": "main", "image": "img:1", "state": state}]},
    }


def ended(code: int, reason: str = "Error", message: str = "", at: str = "2026-03-01T12:00:09Z") -> dict[str, Any]:
    return {"exitCode": code, "reason": reason, "message": message, "finishedAt": at}


def failed(reason: str = "BackoffLimitExceeded") -> Observation:
    story = Story().placed(US).job_condition("Failed", reason, "Job has reached the specified backoff limit")
    return story.look()


def test_a_job_that_runs_or_succeeded_has_no_error() -> None:
    story = Story().placed(US)
    assert error_for(story.look()) is None
    assert error_for(story.job_condition("Complete").look()) is None


def test_a_failure_has_exit_code_reason_region_and_last_lines() -> None:
    error = error_for(failed(), [pod(terminated=ended(3))], ["epoch 1", "ValueError: bad batch"])
    assert type(error) is JobFailedError
    assert str(error) == (
        "Job default/dws-job-train-abc-1 failed: Job has reached the specified backoff limit (BackoffLimitExceeded) in "
        "us-east4 (multikueue-dws-worker-us). Container main of pod p-1: exit code 3. The job's own code ended so."
        "\nLast lines:\n  epoch 1\n  ValueError: bad batch"
    )


def test_without_pods_the_failure_still_has_its_reason() -> None:
    error = error_for(failed())
    assert type(error) is JobFailedError
    assert "BackoffLimitExceeded" in str(error)


def test_a_container_that_was_killed_for_its_memory_is_told_apart() -> None:
    pods = [pod("a", terminated=ended(1)), pod("b", terminated=ended(137, "OOMKilled"))]
    error = error_for(failed(), pods)
    assert type(error) is JobOutOfMemoryError
    assert "Container main of pod b: exit code 137, killed (SIGKILL), OOMKilled" in str(error)
    assert str(error).index("pod b") < str(error).index("pod a")
    assert "memory limit" in str(error)


def test_an_earlier_memory_kill_before_a_restart_is_found() -> None:
    crash = pod(phase="Running", waiting={"reason": "CrashLoopBackOff"})
    crash["status"]["containerStatuses"][0]["lastState"] = {"terminated": ended(137, "OOMKilled")}
    assert type(error_for(failed(), [crash])) is JobOutOfMemoryError


def test_a_memory_kill_that_a_retry_survived_does_not_explain_a_later_failure() -> None:
    pods = [
        pod("a", terminated=ended(137, "OOMKilled", at="2026-03-01T12:00:01Z")),
        pod("b", terminated=ended(2, at="2026-03-01T12:05:00Z")),
    ]
    pods[1]["metadata"]["creationTimestamp"] = "2026-03-01T12:00:11Z"
    error = error_for(failed(), pods)
    assert type(error) is JobFailedError
    assert "pod b: exit code 2" in str(error)


def test_pods_of_an_earlier_stay_on_the_same_worker_explain_nothing() -> None:
    story = Story().placed(US)
    story.evicted().requeued()
    story.now = 60
    story.nominated().granted(US).chosen(US)
    seen = story.job_condition("Failed", "BackoffLimitExceeded").look()
    old, new = pod("old", terminated=ended(137, "OOMKilled")), pod("new", terminated=ended(3))
    new["metadata"]["creationTimestamp"] = "2026-03-01T12:01:00Z"
    error = error_for(seen, [old, new])
    assert type(error) is JobFailedError
    assert "pod new: exit code 3" in str(error)


def test_a_deadline_is_told_apart() -> None:
    error = error_for(failed("DeadlineExceeded"), [pod(terminated=ended(143))])
    assert type(error) is JobDeadlineError
    assert "activeDeadlineSeconds" in str(error)
    assert "told to stop (SIGTERM)" in str(error)


@pytest.mark.parametrize("reason", ["NodeLost", "Terminated", "NodeShutdown"])
def test_a_pod_that_went_down_with_its_node_is_no_fault_of_the_code(reason: str) -> None:
    lost = pod(terminated=ended(137))
    lost["status"]["reason"] = reason
    error = error_for(failed(), [lost])
    assert type(error) is WorkerLostError
    assert "node-1" in str(error)
    assert "a retry can help" in str(error)


def test_a_disrupted_pod_went_down_with_its_node() -> None:
    lost = pod(phase="Running", running={})
    lost["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]
    assert type(error_for(failed(), [lost])) is WorkerLostError


@pytest.mark.parametrize(
    ("created", "class_"),
    [("2026-03-01T12:00:00Z", WorkerLostError), ("2026-03-01T12:00:08Z", JobFailedError)],
    ids=["beside it", "after it"],
)
@pytest.mark.parametrize("told", ["disruption", "reason"])
def test_a_lost_node_explains_no_failure_of_a_pod_that_was_made_after_it(created: str, class_: type, told: str) -> None:
    lost, last = pod("lost", terminated=ended(137, at="2026-03-01T12:00:08Z")), pod("last", terminated=ended(1))
    if told == "reason":
        lost["status"]["reason"] = "NodeLost"
    else:  # its replacement is made before it is over
        lost["status"]["containerStatuses"][0]["state"] = {"terminated": ended(137, at="2026-03-01T12:00:30Z")}
        lost["status"]["conditions"] = [
            {
                **{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"},
                "lastTransitionTime": "2026-03-01T12:00:07Z",
            }
        ]
    last["metadata"]["creationTimestamp"] = created
    assert type(error_for(failed(), [lost, last])) is class_


def test_a_node_that_is_lost_last_explains_the_failure_though_another_was_lost_before() -> None:
    pods = [pod(name, terminated=ended(137, at=f"2026-03-01T12:00:{at}Z")) for name, at in (("a", "05"), ("b", "50"))]
    pods.append(pod("c", terminated=ended(1)))
    for each, made in zip(pods, ("00", "30", "10"), strict=True):
        each["metadata"]["creationTimestamp"] = f"2026-03-01T12:00:{made}Z"
    for each in pods[:2]:
        each["status"]["reason"] = "NodeLost"
    error = error_for(failed(), pods)
    assert type(error) is WorkerLostError
    assert "pod b went down" in str(error)


def test_a_job_that_failed_without_ever_starting_is_a_startup_error() -> None:
    waiting = pod(phase="Pending", waiting={"reason": "ImagePullBackOff", "message": "manifest unknown"})
    error = error_for(failed("DeadlineExceededX"), [waiting])
    assert type(error) is StartupError
    assert "manifest unknown" in str(error)


def test_the_last_words_of_a_container_are_shown() -> None:
    error = error_for(failed(), [pod(terminated=ended(4, message="starting\nCUDA driver too old\n"))])
    assert "(CUDA driver too old)" in str(error)


def test_many_failed_pods_are_counted() -> None:
    error = error_for(failed(), [pod(f"p-{i}", terminated=ended(1)) for i in range(5)])
    assert "; and 2 more" in str(error)


def story_of(kind: str) -> Observation:
    story = Story(run_duration="30")
    if kind == "inadmissible":
        story.queued("Inadmissible", "LocalQueue x doesn't exist").look()
        return story.look(61)
    if kind == "not_dispatched":
        story.reserved()
        assert story.job is not None
        story.job["spec"] = {"suspend": False}
        story.manager("Admitted")
        return story.look()
    story.placed(US).look()
    if kind == "run_duration":
        story.now = 30
        return story.request(US, "CapacityRevoked").look()
    if kind in ("deactivated", "max_exec"):
        assert story.workload is not None
        story.workload["spec"]["active"] = False
        reason = "DueToRequeuingLimitExceeded" if kind == "deactivated" else "DueToMaximumExecutionTimeExceeded"
        return story.evicted(f"Deactivated{reason}", "why").look()
    if kind == "deleted":
        story.job = None
        story.look()
        return story.look(2)
    if kind == "workload_deleted":
        story.workload = None
        story.look()
        return story.look(11)
    assert kind == "rejected"
    story = Story().nominated(US).failed_once(US).change(US, can_heal=False)
    story.look()
    return story.look(601)


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("run_duration", "RunDurationExceededError", "max_run_duration"),
        ("rejected", "AdmissionRejectedError", "capacity, not your code"),
        ("inadmissible", "AdmissionRejectedError", "LocalQueue x doesn't exist"),
        ("deactivated", "JobEvictedError", "DeactivatedDueToRequeuingLimitExceeded"),
        ("max_exec", "JobDeadlineError", "DeactivatedDueToMaximumExecutionTimeExceeded"),
        ("deleted", "JobDeletedError", "by someone else"),
        ("workload_deleted", "JobDeletedError", "Workload"),
        ("not_dispatched", "FleetConfigurationError", "MultiKueue admission check"),
    ],
)
def test_each_ending_has_its_class_and_its_next_step(kind: str, name: str, says: str) -> None:
    error = error_for(story_of(kind))
    assert type(error) is getattr(exceptions, name)
    assert says in str(error)
    assert kind not in ("deleted", "workload_deleted", "deactivated", "max_exec") or "us-east4" in str(error)
    assert kind == "rejected" or "default/dws-job-train-abc-1" in str(error)
    assert exceptions.from_event(exceptions.to_event(error)).args == error.args


def test_admission_that_never_came_says_what_each_region_said() -> None:
    story = Story().nominated().failed_once(US, "no capacity in us-east4")
    story.request(EU, "Accepted", message="queued there")
    error = admission_timed_out(story.look(), timedelta(minutes=30))
    assert "admitted nowhere within 30 min" in str(error)
    assert "no capacity in us-east4" in str(error)
    assert "queued there" in str(error)
    assert "capacity, not your code" in str(error)


def test_a_start_that_never_came_says_why() -> None:
    waiting = pod(phase="Pending", waiting={"reason": "CreateContainerConfigError", "message": 'secret "x" not found'})
    error = startup_timed_out(Story().placed(US).look(), timedelta(minutes=5), [waiting])
    assert 'secret "x" not found' in str(error)
    assert "us-east4" in str(error)
    assert "give no reason" in str(startup_timed_out(Story().placed(US).look(), timedelta(minutes=5)))


def test_too_many_moves_lists_the_stays() -> None:
    stays = [{"cluster": US, "region": "us-east4", "reason": "preempted"}, {"cluster": EU, "reason": None}]
    error: MultiKueueError = too_many_dispatches(Story().look(), stays, 2)
    assert "placed 2 times, and max_dispatches is 2" in str(error)
    assert "us-east4: preempted; multikueue-dws-worker-eu: left" in str(error)


def unschedulable(reason: str) -> dict[str, Any]:
    waiting = pod(phase="Pending")
    waiting["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": reason, "message": "0/3 nodes are available"}
    ]
    return waiting


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (pod(phase="Pending", waiting={"reason": "ErrImagePull", "message": "denied"}), "image 'img:1'"),
        (pod(phase="Pending", waiting={"reason": "InvalidImageName"}), "InvalidImageName"),
        (pod(phase="Pending", waiting={"reason": "CreateContainerConfigError"}), "cannot be started"),
        (unschedulable("Unschedulable"), "fits on no node (Unschedulable: 0/3 nodes are available)"),
        (unschedulable("SchedulingGated"), None),
        (pod(phase="Pending", waiting={"reason": "ContainerCreating"}), None),
        (pod(phase="Running", running={"startedAt": "2026-03-01T12:00:00Z"}), None),
        (pod(phase="Succeeded", waiting={"reason": "ErrImagePull"}), None),
        ({}, None),
    ],
)
def test_what_keeps_a_pod_from_starting_is_named(found: dict[str, Any], says: str | None) -> None:
    problem = startup_problem([found])
    assert (problem is None) if says is None else (problem is not None and says in problem)


def test_failed_containers_come_first_and_the_earliest_first_among_them() -> None:
    pods = [
        pod("ok", terminated=ended(0, "Completed", at="2026-03-01T12:00:01Z")),
        pod("late", terminated=ended(1, at="2026-03-01T12:00:09Z")),
        pod("early", terminated=ended(2, at="2026-03-01T12:00:03Z")),
    ]
    assert [(end.pod, end.exit_code) for end in container_ends(pods)] == [("early", 2), ("late", 1), ("ok", 0)]
