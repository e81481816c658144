"""Which jobs the reaper deletes: a table of lifetimes and of what Airflow says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_multikueue.decisions.names import (
    HELD,
    IDENTITY,
    LIFETIME,
    OWNER,
    REPORTED,
    Identity,
    Lifetime,
    Owner,
    Reported,
)
from airflow_provider_multikueue.decisions.reap import GONE, AirflowState, ReapDecision, decide, needs_run

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
UNKNOWN = AirflowState(known=False, why="403")
RUNNING = AirflowState(state="running")


def job(
    kind: Any = "task", *, deployment: str = "prod", deadline: datetime | None = None, attempt: int = 1, **more: Any
):
    annotations = {
        IDENTITY: Identity(deployment=deployment, dag_id="d", run_id="r", task_id="t").to_json(),
        OWNER: Owner(ti="uuid-1", attempt=attempt).to_json(),
        LIFETIME: Lifetime(kind=kind, deadline=deadline).to_json(),
        **more,
    }
    annotations = {key: value for key, value in annotations.items() if value is not None}
    return {"metadata": {"name": "j", "creationTimestamp": "2026-03-01T10:00:00Z", "annotations": annotations}}


def verdict(
    job: dict[str, Any], task: AirflowState = RUNNING, run: AirflowState = RUNNING, **more: Any
) -> ReapDecision:
    return decide(job, task, run, NOW, deployment="prod", **more)


@pytest.mark.parametrize("state", ["success", "failed", "skipped", "upstream_failed", "removed"])
def test_the_job_of_a_task_that_is_over_is_deleted(state: str):
    assert verdict(job(), AirflowState(state=state)) == ReapDecision(True, f"its task is over ({state})")


@pytest.mark.parametrize(
    "state",
    ["running", "deferred", "queued", "scheduled", "up_for_retry", "up_for_reschedule", "restarting", "new_one"],
)
def test_the_job_of_a_task_that_goes_on_is_kept(state: str):
    assert not verdict(job(), AirflowState(state=state), AirflowState(state="failed")).delete


def test_the_job_of_a_task_that_is_gone_is_deleted():
    assert verdict(job(), GONE).delete


def test_a_job_that_waits_outside_its_queue_is_deleted_with_its_task():
    assert verdict(job(**{HELD: "some-queue"}), AirflowState(state="failed")).delete


@pytest.mark.parametrize(
    ("run", "deleted"),
    [(RUNNING, False), (AirflowState(state="queued"), False), (UNKNOWN, False), (AirflowState(state="failed"), True)],
)
def test_a_cleared_task_goes_on_unless_its_run_is_over(run: AirflowState, deleted: bool):
    assert needs_run(job(), AirflowState())
    assert verdict(job(), AirflowState(), run).delete is deleted


@pytest.mark.parametrize(
    ("run", "deleted"),
    [
        (AirflowState(state="success"), True),
        (AirflowState(state="failed"), True),
        (GONE, True),
        (RUNNING, False),
        (AirflowState(state="queued"), False),
        (UNKNOWN, False),
    ],
)
def test_a_job_that_lives_with_its_run_is_deleted_when_the_run_is_over(run: AirflowState, deleted: bool):
    assert needs_run(job("run"), AirflowState(state="success"))
    assert verdict(job("run"), AirflowState(state="success"), run).delete is deleted


def test_a_detached_job_is_kept_whatever_became_of_its_task():
    assert not verdict(job("detached"), GONE, GONE).delete


@pytest.mark.parametrize("kind", ["task", "run", "detached"])
def test_past_its_deadline_a_job_is_deleted_whatever_it_is(kind: str):
    assert verdict(job(kind, deadline=NOW - HOUR), UNKNOWN, UNKNOWN).delete
    assert not verdict(job(kind, deadline=NOW + HOUR)).delete


@pytest.mark.parametrize("kind", ["task", "run"])
def test_the_unknown_keeps_a_job(kind: str):
    decision = verdict(job(kind), UNKNOWN, UNKNOWN)
    assert not decision.delete
    assert "403" in decision.reason


@pytest.mark.parametrize("kind", ["task", "run", "detached"])
def test_jobs_of_another_deployment_are_kept(kind: str):
    assert not verdict(job(kind, deployment="other", deadline=NOW - HOUR), GONE, GONE).delete


@pytest.mark.parametrize("annotation", [IDENTITY, LIFETIME])
@pytest.mark.parametrize("text", [None, "", "{", '{"kind": "forever"}'])
def test_what_is_not_ours_is_kept(annotation: str, text: str | None):
    assert not verdict(job(**{annotation: text}), GONE, GONE).delete


def test_an_ended_job_that_its_task_keeps_is_kept():
    assert not verdict(job(**{REPORTED: "2026-03-01T11:00:00Z"}), AirflowState(state="success")).delete


@pytest.mark.parametrize(("task", "deleted"), [("success", True), ("running", False), ("up_for_retry", False)])
def test_an_ended_job_that_its_task_did_not_come_to_remove_goes_with_its_task(task: str, deleted: bool):
    report = Reported(at="2026-03-01T11:00:00Z", succeeded=True, kept=False)
    assert verdict(job(**{REPORTED: report.to_json()}), AirflowState(state=task)).delete is deleted


def test_a_job_that_is_being_deleted_is_left_alone():
    ending = job()
    ending["metadata"]["deletionTimestamp"] = "2026-03-01T11:00:00Z"
    assert not verdict(ending, GONE).delete


@pytest.mark.parametrize(("older_than", "deleted"), [(HOUR, True), (3 * HOUR, False)])
def test_a_young_job_is_kept(older_than: timedelta, deleted: bool):
    assert verdict(job(), GONE, older_than=older_than).delete is deleted


@pytest.mark.parametrize(
    ("task", "deleted"),
    [
        (AirflowState(state="failed", ti="uuid-1", attempt=2), True),
        (AirflowState(state="failed", ti="uuid-1", attempt=1), False),
        (AirflowState(state="failed", attempt=1), False),
        (AirflowState(state="failed", ti="uuid-9", attempt=1), True),
        (AirflowState(state="failed", ti="uuid-9", attempt=3), True),
    ],
)
def test_a_try_that_airflow_has_not_told_of_keeps_its_job(task: AirflowState, deleted: bool):
    assert verdict(job(attempt=2), task).delete is deleted
