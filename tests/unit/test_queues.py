"""A queue that can never run the job is refused before anything exists."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_multikueue.exceptions import FleetConfigurationError, RegionUnavailableError
from airflow_provider_multikueue.fleets.queues import QueueFacts, check_names, judge_queue

EU, US, ASIA = (f"multikueue-dws-worker-{region}" for region in ("eu", "us", "asia"))
REGION_OF = {EU: "europe-west4", US: "us-east4", ASIA: None}


def facts(**known: Any) -> QueueFacts:
    values = {"exists": True, "cluster_queue": "cq", "cluster_queue_exists": True, "multikueue": True} | known
    return QueueFacts(name="lq", namespace="team", **values)


def test_a_typo_names_the_queues_that_there_are() -> None:
    wrong = QueueFacts(name="dws-local-qeue", namespace="default", exists=False, siblings=("dws-local-queue",))
    with pytest.raises(FleetConfigurationError, match=r"dws-local-qeue.*dws-local-queue"):
        judge_queue(wrong, regions=None, region_of=REGION_OF)


def test_a_queue_without_a_multikueue_check_is_refused() -> None:
    with pytest.raises(FleetConfigurationError, match="no MultiKueue admission check"):
        judge_queue(facts(multikueue=False), regions=None, region_of=REGION_OF)


def test_a_queue_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(FleetConfigurationError, match="ClusterQueue cq, which does not exist"):
        judge_queue(facts(cluster_queue_exists=False), regions=None, region_of=REGION_OF)


def test_a_stopped_queue_is_said_and_not_refused() -> None:
    (note,) = judge_queue(facts(stopped="ClusterQueue stopPolicy Hold"), regions=None, region_of=REGION_OF)
    assert "stopPolicy Hold" in note


def test_what_may_not_be_read_is_not_refused() -> None:
    assert judge_queue(QueueFacts(name="lq", namespace="team"), regions=None, region_of=REGION_OF) == []


@pytest.mark.parametrize(
    ("clusters", "says"),
    [
        ((EU, US), r"multikueue-dws-worker-us \(us-east4\)"),
        ((EU, ASIA), r"multikueue-dws-worker-asia \(region unknown\)"),
        (None, "cannot be read"),
    ],
)
def test_a_queue_that_may_leave_the_regions_is_refused(clusters: tuple[str, ...] | None, says: str) -> None:
    with pytest.raises(RegionUnavailableError, match=says):
        judge_queue(facts(clusters=clusters), regions=["europe-west4"], region_of=REGION_OF)


def test_a_queue_within_the_regions_is_taken() -> None:
    assert judge_queue(facts(clusters=(EU, US)), regions=["europe-west4", "us-east4"], region_of=REGION_OF) == []


@pytest.mark.parametrize(
    "spec",
    [
        {"admissionChecks": ["sample-dws-multikueue"]},
        {"admissionChecksStrategy": {"admissionChecks": [{"name": "sample-dws-multikueue"}]}},
    ],
)
def test_admission_checks_are_found_in_both_forms(spec: dict[str, Any]) -> None:
    assert check_names({"spec": spec}) == ["sample-dws-multikueue"]
