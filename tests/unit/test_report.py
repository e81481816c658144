"""The report: the same keys from every path, plain JSON; stays on workers; what names a job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_multikueue.decisions.report import (
    Dispatches,
    build_report,
    job_part,
    parse_job_reference,
    placement_part,
    validate_report,
)
from airflow_provider_multikueue.decisions.workload import Observation, Phase
from airflow_provider_multikueue.exceptions import ManifestError
from tests.unit.stories import EU, JOB_NAME, US, Story, Worker

PART = {"api_version": "batch/v1", "kind": "Job", "namespace": "default", "name": JOB_NAME, "uid": "manager-uid"}


class Followed(Story):
    """A story whose dispatches are folded at every look."""

    dispatches = Dispatches()

    def look(self, after: float = 0.0) -> Observation:
        seen = super().look(after)
        self.dispatches = Dispatches.from_json(self.dispatches.update(seen).to_json())
        return seen

    def report(self) -> dict[str, Any]:
        assert self.seen is not None
        job = self.job or {"metadata": {"name": JOB_NAME, "namespace": "default", "uid": "manager-uid"}}
        report = build_report(self.seen, job=job_part(job), dispatches=self.dispatches, zones=["b", "a", "a"])
        assert json.loads(json.dumps(report)) == report
        assert validate_report(report) == report
        return dict(report)


def test_the_report_of_a_clean_life_has_exactly_its_shape() -> None:
    story = Followed()
    story.look()
    story.nominated().look(0.1)
    story.now = 4.4
    story.granted(US).chosen(US).look()
    story.now = 5
    story.running(US).look()
    story.now = 11
    story.job_condition("Complete", "CompletionsReached").finished().look()
    assert story.report() == {
        "job": PART,
        "queue": "dws-local-queue",
        "cluster_queue": "dws-cluster-queue",
        "priority_class": None,
        "phase": "SUCCEEDED",
        "placement": {
            "cluster": US,
            "region": "us-east4",
            "zones": ["a", "b"],
            "nodes": [],
            "flavors": {"main": {"nvidia.com/gpu": "default-dws-flavor"}},
        },
        "times": {
            "submitted": "2026-03-01T12:00:00+00:00",
            "quota_reserved": "2026-03-01T12:00:00+00:00",
            "admitted": "2026-03-01T12:00:04+00:00",
            "started": "2026-03-01T12:00:05+00:00",
            "finished": "2026-03-01T12:00:11+00:00",
        },
        "waited_seconds": 4.0,
        "ran_seconds": 6.0,
        "dispatches": [
            {
                "cluster": US,
                "region": "us-east4",
                "admitted": "2026-03-01T12:00:04+00:00",
                "ended": "2026-03-01T12:00:11+00:00",
                "reason": "CompletionsReached",
            }
        ],
        "result": None,
    }


def test_before_admission_there_is_no_placement() -> None:
    story = Followed().nominated()
    story.look()
    report = story.report()
    assert (report["placement"], report["dispatches"], report["waited_seconds"]) == (None, [], None)
    assert (report["phase"], report["ran_seconds"], report["times"]["admitted"]) == ("PLACING", None, None)


def move(story: Followed, *, reason: str = "capacity revoked") -> None:
    story.placed(US).look()
    story.now = 20
    story.rejected(US, reason).look()
    story.workers[US] = Worker(US)
    story.evicted().look(1)
    story.requeued().look(1)
    story.nominated().look(3)
    story.now = 60
    story.granted(EU).chosen(EU).running(EU).look()


def test_a_move_is_two_stays_oldest_first() -> None:
    story = Followed()
    move(story)
    first, second = story.report()["dispatches"]
    assert first == {
        "cluster": US,
        "region": "us-east4",
        "admitted": "2026-03-01T12:00:00+00:00",
        "ended": "2026-03-01T12:00:20+00:00",
        "reason": "capacity revoked",
    }
    assert (second["cluster"], second["ended"], second["reason"]) == (EU, None, None)
    assert story.report()["waited_seconds"] == 0.0
    assert story.dispatches.open == second


def test_a_return_to_the_same_worker_is_a_stay_of_its_own() -> None:
    story = Followed()
    story.placed(US).look()
    story.evicted(message="Preempted").look(20)
    story.requeued().nominated().granted(US).chosen(US).running(US).look(20)
    assert [(stay["cluster"], stay["reason"]) for stay in story.dispatches.items] == [(US, "Preempted"), (US, None)]


def test_a_move_that_was_not_watched_is_still_two_stays() -> None:
    story = Followed()
    story.placed(US).look()
    story.evicted().requeued()
    story.now = 50
    story.nominated().granted(EU).chosen(EU).look()
    first, second = story.dispatches.items
    assert (first["cluster"], first["ended"], first["reason"]) == (US, "2026-03-01T12:00:50+00:00", "placed again")
    assert second["cluster"] == EU


def test_nothing_new_gives_the_same_dispatches() -> None:
    story = Followed().placed(US)
    seen = story.look()
    dispatches = Dispatches().update(seen)
    assert dispatches.update(seen) is dispatches


def test_an_admission_time_that_comes_late_is_taken_up() -> None:
    placed = Observation(phase=Phase.ADMITTED, cluster=US)
    dispatches = Dispatches().update(placed)
    assert dispatches.items[0]["admitted"] is None
    story = Story().placed(US)
    assert [stay["admitted"] for stay in dispatches.update(story.look()).items] == ["2026-03-01T12:00:00+00:00"]


def test_a_deleted_job_closes_its_stay_when_it_was_seen_gone() -> None:
    story = Followed().placed(US)
    story.look()
    story.now = 30
    story.job = None
    story.look()
    story.look(2)
    report = story.report()
    assert report["phase"] == "LOST"
    assert [(stay["ended"], stay["reason"]) for stay in report["dispatches"]] == [
        ("2026-03-01T12:00:30+00:00", "Deleted")
    ]


def test_an_end_on_a_worker_that_the_manager_left_is_placed_there() -> None:
    story = Followed()
    move(story)
    story.workers[US].job = story.copy_of_job("older")
    story.worker_job_ends(US).look(5)
    story.look(11)
    report = story.report()
    assert (report["phase"], report["placement"]["cluster"]) == ("SUCCEEDED", US)
    assert [stay["cluster"] for stay in report["dispatches"]] == [US, EU]
    assert all(stay["ended"] for stay in report["dispatches"])


@pytest.mark.parametrize(
    "text", [None, "", "{", "{}", "[1]", '[{"cluster": 5}]', '[{"cluster": "a", "region": 1}]', 5, "null"]
)
def test_an_annotation_that_cannot_be_read_is_no_dispatch(text: object) -> None:
    assert Dispatches.from_json(text) == Dispatches()


def test_an_evicted_job_is_placed_nowhere() -> None:
    assert placement_part(Observation(phase=Phase.EVICTED, cluster=US)) is None


# -- references


def report_of_a_run() -> dict[str, Any]:
    story = Followed().placed(US)
    story.look()
    return story.report()


@pytest.mark.parametrize("form", ["report", "part", "report text", "part text"])
def test_a_job_is_named_by_a_report_its_part_or_their_text(form: str) -> None:
    value: Any = report_of_a_run() if form.startswith("report") else dict(PART)
    assert parse_job_reference(json.dumps(value) if form.endswith("text") else value) == PART


def test_a_job_is_named_by_namespace_and_name() -> None:
    assert parse_job_reference(" team/train ") == {
        "api_version": "batch/v1",
        "kind": "Job",
        "namespace": "team",
        "name": "train",
        "uid": None,
    }


@pytest.mark.parametrize(
    "value", [None, "", "train", "a/b/c", "/train", "team/", "a b/c", "{", "{}", 5, [], {}, {"job": {"kind": "Job"}}]
)
def test_what_names_no_job_is_refused_with_what_is_wanted(value: object) -> None:
    with pytest.raises(ManifestError, match="namespace/name"):
        parse_job_reference(value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda report: report.pop("queue"), "no queue"),
        (lambda report: report["job"].pop("uid"), r"no job\.uid"),
        (lambda report: report.update(times=None), r"times\.submitted"),
        (lambda report: report.update(phase="DONE"), "'DONE'"),
        (lambda report: report.update(dispatches=None), "dispatches"),
    ],
)
def test_a_report_that_is_none_is_refused_with_what_is_wrong(change: Any, says: str) -> None:
    report = report_of_a_run()
    change(report)
    with pytest.raises(ValueError, match=says):
        validate_report(report)


def test_a_report_is_an_object() -> None:
    with pytest.raises(ValueError, match="not str"):
        validate_report("text")
