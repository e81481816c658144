"""The zones of nodes: what is asked of a worker at the end of many jobs, and what is made of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from airflow_provider_multikueue.fleets import zones
from airflow_provider_multikueue.fleets.fleet import Fleet, open_fleet
from airflow_provider_multikueue.fleets.zones import NodeZones, zones_of
from tests.unit.apiserver import Answer, ApiServer, fleet_config, hang, obj, status

NODES = "/api/v1/nodes"


def node(name: str, zone: str | None) -> Answer:
    labels = {} if zone is None else {"topology.kubernetes.io/zone": zone}
    return Answer(obj(name, metadata={"labels": labels}))


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as running:
        running.on("GET", f"{NODES}/a", node("a", "us-east4-a"))
        running.on("GET", f"{NODES}/b", node("b", "us-east4-b"))
        running.on("GET", f"{NODES}/bare", node("bare", None))
        yield running


@pytest.fixture
async def fleet(server: ApiServer, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with open_fleet(fleet_config(server, tmp_path, us="us-east4")) as opened:
        yield opened


def asked(server: ApiServer, name: str) -> int:
    return server.count("GET", f"{NODES}/{name}")


async def test_jobs_that_end_together_and_later_ask_once_for_each_node(server: ApiServer, fleet: Fleet) -> None:
    found = await asyncio.gather(*(zones_of(fleet, "us", ["a", "b", "bare"]) for _ in range(200)))
    assert found == [["us-east4-a", "us-east4-b"]] * 200
    assert await zones_of(fleet, "us", ["b", "bare"]) == ["us-east4-b"]
    assert [asked(server, name) for name in ("a", "b", "bare")] == [1, 1, 1]


async def test_a_node_that_is_gone_does_not_hide_the_zones_of_the_others(server: ApiServer, fleet: Fleet) -> None:
    server.on("GET", f"{NODES}/new", status(404, "not there"), node("new", "us-east4-c"))
    assert await zones_of(fleet, "us", ["a", "new"]) == ["us-east4-a"]
    assert await zones_of(fleet, "us", ["a", "new"]) == ["us-east4-a", "us-east4-c"]


async def test_a_worker_that_refuses_is_not_asked_by_each_job(server: ApiServer, fleet: Fleet) -> None:
    server.on("GET", f"{NODES}/a", status(403, "may not"))
    for _ in range(3):
        assert await zones_of(fleet, "us", ["a"]) == []
    assert asked(server, "a") == 1


async def test_a_worker_that_does_not_answer_holds_nobody_up(
    server: ApiServer, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zones, "ANSWER_SECONDS", 0.1)
    server.on("GET", f"{NODES}/slow", hang)
    assert await zones_of(fleet, "us", ["a", "slow"]) == []
    assert await zones_of(fleet, "us", ["a"]) == ["us-east4-a"]


async def test_what_is_kept_is_bounded(server: ApiServer, fleet: Fleet) -> None:
    cluster, kept = await fleet.worker("us"), NodeZones(most=2)
    assert cluster is not None
    for name in ("a", "b", "b", "bare", "b", "a"):
        await kept.zone(cluster, name)
    assert [asked(server, name) for name in ("a", "b", "bare")] == [2, 1, 1]


async def test_a_job_that_was_not_placed_has_no_zones(fleet: Fleet) -> None:
    assert await zones_of(fleet, None, ["a"]) == await zones_of(fleet, "us", []) == []
    assert await zones_of(fleet, "unlisted", ["a"]) == []
