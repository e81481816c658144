"""The task's own deadlines and limits: what ends a wait although the job goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_multikueue.decisions.orders import Orders, Verdict, next_deadline, outside_regions, verdict
from airflow_provider_multikueue.decisions.workload import Observation, Phase, observe
from airflow_provider_multikueue.exceptions import (
    AdmissionTimeoutError,
    JobDeadlineError,
    JobEvictedError,
    MultiKueueError,
    RegionUnavailableError,
    StartupError,
)
from tests.unit.stories import Story, stamp

BEGIN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
US = "multikueue-dws-worker-us"


def at(seconds: float) -> float:
    return (BEGIN + timedelta(seconds=seconds)).timestamp()


def iso(seconds: float) -> str:
    return (BEGIN + timedelta(seconds=seconds)).isoformat()


def waiting(**known: Any) -> Observation:
    return Observation(phase=Phase.PLACING, namespace="default", name="train", submitted=BEGIN, **known)


def placed(**known: Any) -> Observation:
    admitted = known.pop("admitted", BEGIN + timedelta(seconds=4))
    return Observation(
        phase=Phase.ADMITTED,
        namespace="default",
        name="train",
        submitted=BEGIN,
        cluster=US,
        region=known.pop("region", "us-east4"),
        admitted=admitted,
        **known,
    )


def judge(seen: Observation, orders: Orders, *, now: float, dispatches: Any = ()) -> Verdict | None:
    """Decide as the follower does."""
    return outside_regions(seen, orders, dispatches) or verdict(
        seen, orders, dispatches=dispatches, pods=(), tried="us-east4 was asked", now=at(now)
    )


@pytest.mark.parametrize(
    ("seen", "orders", "before", "after", "error"),
    [
        (waiting(), Orders(admission_deadline=iso(60)), 59, 61, AdmissionTimeoutError),
        (waiting(), Orders(deadline=iso(60)), 59, 61, JobDeadlineError),
        (placed(), Orders(deadline=iso(60)), 59, 61, JobDeadlineError),
        (placed(), Orders(startup_seconds=30), 33, 35, StartupError),
    ],
)
def test_a_deadline_ends_the_wait_when_it_has_passed_and_not_before(
    seen: Observation, orders: Orders, before: float, after: float, error: type[MultiKueueError]
) -> None:
    assert judge(seen, orders, now=before) is None
    ended = judge(seen, orders, now=after)
    assert ended is not None
    assert type(ended.error) is error
    assert ended.delete


def test_an_admitted_job_has_no_admission_deadline() -> None:
    assert judge(placed(), Orders(admission_deadline=iso(60)), now=1000) is None


def test_a_job_that_is_placed_again_still_has_been_admitted_in_time() -> None:
    moved, orders = waiting(was_admitted=True), Orders(admission_deadline=iso(60))
    assert judge(moved, orders, now=1000) is None
    assert next_deadline(moved, orders) is None


def test_a_started_job_has_no_startup_deadline() -> None:
    assert judge(placed(started=BEGIN + timedelta(seconds=9)), Orders(startup_seconds=30), now=1000) is None


@pytest.mark.parametrize("known", [{"phase": Phase.RUNNING}, {"pods_seen": False}, {"phase": Phase.EVICTED}])
def test_a_job_that_runs_or_whose_pods_are_not_seen_is_not_said_to_have_never_started(known: dict[str, Any]) -> None:
    seen, orders = replace(placed(), **known), Orders(startup_seconds=30)
    assert judge(seen, orders, now=1000) is None
    assert next_deadline(seen, orders) is None


def blind(story: Story) -> Observation:
    """Look without a sight of the pods, as when they are forbidden."""
    view = story.view()
    workers = {name: replace(worker, pods=(), pods_seen=False) for name, worker in view.workers.items()}
    return observe(replace(view, workers=workers))


def test_a_job_whose_pods_are_forbidden_outlives_its_startup_timeout_and_is_judged_once_they_are_seen() -> None:
    story, orders = Story().nominated().granted(US).chosen(US), Orders(startup_seconds=30)
    story.now = 100
    assert judge(blind(story), orders, now=100) is None
    ended = judge(story.look(), orders, now=100)
    assert ended is not None
    assert isinstance(ended.error, StartupError)


def test_a_job_that_the_manager_counts_as_ready_has_started_though_its_pods_are_forbidden() -> None:
    story, orders = Story().nominated().granted(US).chosen(US), Orders(startup_seconds=30)
    assert story.job is not None
    story.job["status"] = {"startTime": stamp(0), "active": 1, "ready": 1}
    story.now = 100
    seen = blind(story)
    assert seen.phase is Phase.RUNNING
    assert judge(seen, orders, now=100) is None


@pytest.mark.parametrize("region", ["us-east4", None])
def test_a_placement_outside_the_regions_ends_the_wait_at_once(region: str | None) -> None:
    ended = judge(placed(region=region), Orders(regions=("europe-west4",)), now=5)
    assert ended is not None
    assert isinstance(ended.error, RegionUnavailableError)
    assert "europe-west4" in str(ended.error)


def test_a_stay_outside_the_regions_is_not_forgotten_when_the_job_has_moved_on() -> None:
    stay = {"cluster": "elsewhere", "region": None, "admitted": iso(4), "ended": iso(9), "reason": "capacity revoked"}
    for seen in (waiting(was_admitted=True), placed()):
        ended = judge(seen, Orders(regions=("us-east4",)), now=20, dispatches=[stay])
        assert ended is not None
        assert "elsewhere (region unknown)" in str(ended.error)


def test_a_region_that_was_known_of_a_stay_is_still_that_of_its_worker() -> None:
    """A reader that begins anew may not reach the worker whose nodes say where it is."""
    stay = {"cluster": US, "region": "us-east4", "admitted": iso(4), "ended": None, "reason": None}
    assert judge(placed(region=None), Orders(regions=("us-east4",)), now=5, dispatches=[stay]) is None


def test_a_placement_inside_the_regions_goes_on() -> None:
    assert judge(placed(), Orders(regions=("europe-west4", "us-east4")), now=5) is None


def test_max_dispatches_counts_stays_that_are_over() -> None:
    stay = {"cluster": US, "region": "us-east4", "admitted": iso(4), "ended": iso(9), "reason": "capacity revoked"}
    orders = Orders(max_dispatches=1)
    here = {**stay, "ended": None, "reason": None}
    assert judge(placed(), orders, now=5, dispatches=[here]) is None
    ended = judge(waiting(admitted=BEGIN), orders, now=10, dispatches=[stay])
    assert ended is not None
    assert isinstance(ended.error, JobEvictedError)


def test_a_job_that_was_placed_once_more_between_two_looks_has_been_moved_too_often() -> None:
    stay = {"cluster": US, "region": "us-east4", "admitted": iso(4), "ended": iso(9), "reason": "capacity revoked"}
    here = {**stay, "admitted": iso(12), "ended": None, "reason": None}
    assert judge(placed(), Orders(max_dispatches=2), now=20, dispatches=[stay, here]) is None
    ended = judge(placed(), Orders(max_dispatches=1), now=20, dispatches=[stay, here])
    assert ended is not None
    assert isinstance(ended.error, JobEvictedError)


def test_a_looker_on_never_deletes() -> None:
    ended = judge(waiting(), Orders(deadline=iso(60), may_delete=False), now=61)
    assert ended is not None
    assert not ended.delete


def test_the_clock_is_looked_at_when_the_next_deadline_passes() -> None:
    orders = Orders(deadline=iso(600), admission_deadline=iso(60), startup_seconds=30)
    assert next_deadline(waiting(), orders) == at(60)
    assert next_deadline(placed(), orders) == at(34)
    assert next_deadline(placed(started=BEGIN), orders) == at(600)
    assert next_deadline(waiting(), Orders()) is None


def test_orders_survive_being_stored_and_store_only_what_was_asked() -> None:
    orders = Orders(admission_deadline=iso(60), regions=("us-east4",), logs="failed", heal=False)
    stored = json.loads(json.dumps(orders.to_json()))
    assert Orders.from_json(stored) == orders
    assert Orders().to_json() == {}


def test_orders_of_a_later_version_are_understood_as_far_as_they_are_known() -> None:
    assert Orders.from_json({"logs": "none", "new_in_2027": 1}) == Orders(logs="none")


def test_time_out_of_the_queue_does_not_count_towards_admission() -> None:
    orders = Orders(admission_deadline=iso(60), deadline=iso(600)).after_holding(timedelta(seconds=30))
    assert judge(waiting(), orders, now=89) is None
    assert judge(waiting(), orders, now=91) is not None
    assert orders.deadline == iso(600)
