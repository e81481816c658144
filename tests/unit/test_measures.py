"""What is counted of a submission and of an outcome."""

from __future__ import annotations

from typing import Any

from airflow_provider_multikueue.decisions.jobs import HELD, QUEUE_LABEL
from airflow_provider_multikueue.decisions.measures import measures_of_outcome, measures_of_submission
from airflow_provider_multikueue.decisions.outcome import Outcome
from airflow_provider_multikueue.exceptions import FleetConfigurationError, JobFailedError
from airflow_provider_multikueue.tally import Measure, Tally

JOB = {"api_version": "batch/v1", "kind": "Job", "namespace": "team-a", "name": "train-1", "uid": "u"}
QUEUE = {"namespace": "team-a", "queue": "dws-local-queue"}


def stay(region: str | None, *, ended: str | None = None, reason: str | None = None) -> dict[str, Any]:
    at = "2026-01-02T03:04:05+00:00"
    return {"cluster": f"worker-{region}", "region": region, "admitted": at, "ended": ended, "reason": reason}


def report(*stays: dict[str, Any], phase: str = "SUCCEEDED", ran: float | None = 60.0) -> dict[str, Any]:
    return {
        "job": JOB,
        "queue": "dws-local-queue",
        "phase": phase,
        "waited_seconds": 12.5 if stays else None,
        "ran_seconds": ran,
        "dispatches": list(stays),
    }


def by_name(measures: list[Measure]) -> dict[str, list[Measure]]:
    found: dict[str, list[Measure]] = {}
    for each in measures:
        found.setdefault(each.name, []).append(each)
    return found


def test_a_job_that_ran_once_counts_once_in_its_region() -> None:
    outcome = Outcome(report=report(stay("us-east4", ended="2026-01-02T03:05:05+00:00", reason="Succeeded")))
    found = by_name(measures_of_outcome(outcome, JOB))
    where = {**QUEUE, "region": "us-east4"}
    assert found["multikueue.admissions"] == [Measure("multikueue.admissions", 1, where)]
    assert found["multikueue.admission_wait"] == [Measure("multikueue.admission_wait", 12.5, where, unit="seconds")]
    assert found["multikueue.dispatches"] == [Measure("multikueue.dispatches", 1, where)]
    assert found["multikueue.run_duration"] == [Measure("multikueue.run_duration", 60.0, where, unit="seconds")]
    assert [each.tags for each in found["multikueue.outcomes"]] == [{**where, "phase": "SUCCEEDED", "error": "none"}]
    assert "multikueue.evictions" not in found, "the end of a job is no eviction"


def test_a_job_that_was_moved_is_one_admission_two_dispatches_and_one_eviction() -> None:
    moved = stay("europe-west4", ended="2026-01-02T03:05:05+00:00", reason="placed again")
    outcome = Outcome(report=report(moved, stay("us-east4", ended="2026-01-02T04:05:05+00:00")))
    found = by_name(measures_of_outcome(outcome, JOB))
    assert [each.tags["region"] for each in found["multikueue.admissions"]] == ["europe-west4"]
    assert [each.tags["region"] for each in found["multikueue.dispatches"]] == ["europe-west4", "us-east4"]
    (eviction,) = found["multikueue.evictions"]
    assert eviction.tags == {**QUEUE, "region": "europe-west4", "reason": "placed_again"}
    assert found["multikueue.outcomes"][0].tags["region"] == "us-east4"


def test_a_job_given_up_after_its_eviction_has_that_eviction_counted() -> None:
    evicted = stay("us-east4", ended="2026-01-02T03:05:05+00:00", reason="Preempted")
    found = by_name(measures_of_outcome(Outcome(report=report(evicted, phase="QUEUED", ran=None)), JOB))
    assert [each.tags["reason"] for each in found["multikueue.evictions"]] == ["Preempted"]


def test_a_failure_is_counted_by_the_class_of_its_error() -> None:
    outcome = Outcome(report=report(stay("us-east4"), phase="FAILED"), error=JobFailedError("exit code 3"))
    tags = by_name(measures_of_outcome(outcome, JOB))["multikueue.outcomes"][0].tags
    assert (tags["phase"], tags["error"]) == ("FAILED", "JobFailedError")


def test_an_admission_that_the_task_waited_for_has_no_outcome_yet() -> None:
    outcome = Outcome(report=report(stay("us-east4"), phase="RUNNING", ran=None), ended=False)
    found = by_name(measures_of_outcome(outcome, JOB))
    assert set(found) == {"multikueue.admissions", "multikueue.admission_wait", "multikueue.dispatches"}


def test_a_wait_that_saw_nothing_of_the_job_is_an_outcome_of_unknown_phase() -> None:
    outcome = Outcome(report=None, error=FleetConfigurationError("no such context"), ended=False)
    (only,) = measures_of_outcome(outcome, JOB)
    assert only.name == "multikueue.outcomes"
    assert only.tags == {
        "namespace": "team-a",
        "queue": "unknown",
        "region": "unknown",
        "phase": "unknown",
        "error": "FleetConfigurationError",
    }


def test_a_worker_whose_region_is_not_known_counts_as_unknown() -> None:
    found = by_name(measures_of_outcome(Outcome(report=report(stay(None))), JOB))
    assert found["multikueue.dispatches"][0].tags["region"] == "unknown"


def test_a_submission_is_counted_by_its_queue_also_while_it_is_held_out_of_it() -> None:
    queued = {"metadata": {"namespace": "team-a", "labels": {QUEUE_LABEL: "dws-local-queue"}, "annotations": {}}}
    held = {"metadata": {"namespace": "team-a", "labels": {}, "annotations": {HELD: "dws-local-queue"}}}
    assert measures_of_submission(queued) == measures_of_submission(held)
    assert measures_of_submission(held) == [Measure("multikueue.submissions", 1, QUEUE)]


def test_a_tally_adds_up_what_has_the_same_tags_and_forgets_what_was_taken() -> None:
    tally = Tally()
    tally.add("lines", 3)
    tally.add("lines", 4)
    tally.add("breaks", cluster="manager")
    tally.add("breaks", 0, cluster="worker-us")
    assert tally.take() == [Measure("lines", 7, {}), Measure("breaks", 1, {"cluster": "manager"})]
    assert tally.take() == []
