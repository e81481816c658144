"""What a wait does with a manager that does not answer, and what it leaves for whoever follows the job next."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.decisions.names import DISPATCHES, HELD, JOINED
from airflow_provider_multikueue.decisions.orders import Orders
from airflow_provider_multikueue.decisions.views import Observation, Phase
from airflow_provider_multikueue.exceptions import AdmissionTimeoutError, JobDeadlineError
from airflow_provider_multikueue.fleets import follow
from airflow_provider_multikueue.fleets.fleet import Fleet, open_fleet
from airflow_provider_multikueue.fleets.follow import Following
from airflow_provider_multikueue.fleets.notes import Notes
from tests.unit.apiserver import ApiServer, kubeconfig, listed, obj, status, until

JOBS = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
PART = {"api_version": "batch/v1", "kind": "Job", "namespace": "default", "name": "train", "uid": "uid-train"}
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
AWAY = status(503, "the manager is away")


class Records(list[str]):
    """What the task logs."""

    def record(self, level: int, text: str) -> None:
        self.append(text)


# -- a manager that does not answer


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "GRACE_SECONDS", 0.2)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as running:
        for group, version, plural in (("batch", "v1", "jobs"), ("kueue.x-k8s.io", "v1beta2", "workloads")):
            running.on("GET", f"/apis/{group}", {"versions": [{"version": version}], "preferredVersion": {}})
            running.on("GET", f"/apis/{group}/{version}", {"resources": [{"name": plural, "namespaced": True}]})
        running.on("GET", JOBS, listed())
        running.on("GET", WORKLOADS, listed())
        running.on("GET", f"{JOBS}/train", AWAY)
        running.on("PATCH", f"{JOBS}/train", AWAY)
        running.on("DELETE", f"{JOBS}/train", {})
        yield running


@pytest.fixture
async def fleet(server: ApiServer, tmp_path: Path) -> AsyncIterator[Fleet]:
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig(server.url, token="some-token")))
    config = FleetConfig.from_extra({"manager_kube_config_path": str(tmp_path / "config")}, conn_id="fleet")
    async with open_fleet(config) as opened:
        yield opened


def soon(seconds: float = 0.3) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


@pytest.mark.parametrize(
    ("limit", "error"), [("deadline", JobDeadlineError), ("admission_deadline", AdmissionTimeoutError)]
)
async def test_a_timeout_ends_a_task_whose_job_can_not_be_looked_for(
    server: ApiServer, fleet: Fleet, limit: str, error: type[Exception]
) -> None:
    """The watch does not have it, and nobody answers whether it exists."""
    following = Following(fleet, PART, Orders(**{limit: soon()}), Records())
    outcome = await asyncio.wait_for(following.run(), 20)
    assert isinstance(outcome.error, error)
    assert server.count("GET", f"{JOBS}/train") > 0
    assert outcome.deleted
    await following.close()


async def test_a_job_that_can_not_be_put_into_its_queue_was_not_admitted_in_time(
    server: ApiServer, fleet: Fleet
) -> None:
    held = {"annotations": {HELD: "here"}, "creationTimestamp": NOW.isoformat()}
    server.on("GET", JOBS, listed(obj("train", metadata=held)))
    following = Following(fleet, PART, Orders(admission_deadline=soon()), Records())
    outcome = await asyncio.wait_for(following.run(), 20)
    assert isinstance(outcome.error, AdmissionTimeoutError)
    assert server.count("PATCH", f"{JOBS}/train") > 0
    await following.close()


@pytest.mark.parametrize("unseen", [JOBS, WORKLOADS])
async def test_a_task_that_goes_on_during_an_outage_is_not_late_for_an_admission_that_it_can_not_see(
    server: ApiServer, fleet: Fleet, unseen: str
) -> None:
    """Its time was over long ago: an earlier reader saw the job admitted, or would have ended it."""
    joined = {"annotations": {JOINED: NOW.isoformat()}, "creationTimestamp": NOW.isoformat()}
    server.on("GET", JOBS, listed(obj("train", metadata=joined)))
    server.on("GET", unseen, AWAY)
    following = Following(fleet, PART, Orders(admission_deadline=NOW.isoformat()), Records())
    running = asyncio.create_task(following.run())
    await until(lambda: following._seen is not None)
    await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await following.close()


async def test_a_job_that_ended_in_time_is_seen_before_the_deadline_is_held_against_it(
    server: ApiServer, fleet: Fleet
) -> None:
    """As when no triggerer ran meanwhile."""
    server.on("GET", JOBS, listed(obj("train", status={"conditions": [{"type": "Complete", "status": "True"}]})))
    following = Following(fleet, PART, Orders(deadline=NOW.isoformat()), Records())
    outcome = await asyncio.wait_for(following.run(), 20)
    assert outcome.error is None
    assert outcome.ended
    await following.close()


# -- stays on workers


class Reader:
    """Somebody who follows a job whose annotations are these."""

    def __init__(self, annotations: dict[str, str], **orders: Any) -> None:
        self.annotations = annotations
        self.time = 1000.0
        nowhere: Any = None
        self.following = Following(nowhere, PART, Orders(**orders), Records(), clock=lambda: self.time)
        self.following._notes = Notes(self._write)
        self.following._attention.job = obj("train", metadata={"annotations": annotations})

    async def _write(self, notes: dict[str, str]) -> None:
        self.annotations.update(notes)

    async def sees(self, cluster: str, after: float) -> list[str]:
        """See the job placed, and return the stays so far."""
        at = NOW + timedelta(seconds=after)
        seen = Observation(phase=Phase.RUNNING, name="train", cluster=cluster, region=f"{cluster}-region", admitted=at)
        self.following._follow_moves(seen)
        self.following._save()
        await self.following._notes.flush(1)
        return [stay["cluster"] for stay in self.following._stays.items]

    @property
    def noted(self) -> list[str]:
        return [stay["cluster"] for stay in json.loads(self.annotations.get(DISPATCHES, "[]"))]


async def test_a_move_while_nobody_looked_is_counted() -> None:
    annotations: dict[str, str] = {}
    first = Reader(annotations)
    assert await first.sees("us", 4) == ["us"]
    await first.following.hand_over()
    assert first.noted == ["us"]
    second = Reader(annotations)
    assert await second.sees("eu", 60) == ["us", "eu"]
    assert second.noted == ["us", "eu"]


async def test_a_stay_that_lasts_is_noted_in_case_that_its_reader_is_lost_and_a_short_one_is_not() -> None:
    reader = Reader({})
    await reader.sees("us", 4)
    assert reader.noted == []
    reader.time += 6
    await reader.sees("us", 4)
    assert reader.noted == ["us"]


async def test_who_only_looks_on_notes_nothing() -> None:
    reader = Reader({}, may_delete=False)
    await reader.sees("us", 4)
    reader.time += 60
    await reader.sees("eu", 60)
    await reader.following.hand_over()
    assert reader.annotations == {}


async def test_what_was_noted_before_an_outage_is_not_overwritten_by_what_is_seen_in_it() -> None:
    annotations: dict[str, str] = {}
    await (first := Reader(annotations)).sees("us", 4)
    await first.following.hand_over()
    second = Reader(annotations)
    known, second.following._attention.job = second.following._attention.job, None
    await second.sees("eu", 60)
    assert second.noted == ["us"]
    second.following._attention.job = known
    assert await second.sees("eu", 60) == ["us", "eu"]
