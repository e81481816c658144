"""What the doctor makes of a manager that is slow, or refuses: findings, and an exit code."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from airflow_provider_multikueue.commands.doctor import lines
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.fleets import doctor
from tests.unit.apiserver import Answer, ApiServer, hang, kubeconfig, status
from tests.unit.test_credential_report import token
from tests.unit.test_hostile import KUEUE, REVIEWS, WORLD


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """A manager in order, without workers."""
    async with ApiServer().running() as running:
        for path, answer in WORLD.items():
            running.on("GET", path, Answer(answer))
        running.on("POST", REVIEWS, {"status": {"allowed": True}})
        yield running


async def examined(server: ApiServer, **user: str) -> dict[str, Any]:
    config = json.dumps(kubeconfig(server.url, **(user or {"token": "some-token"})))
    extra = {"manager_kube_config": config, "namespace": "default"}
    return await doctor.examine(FleetConfig.from_extra(extra, conn_id="fleet"))


async def test_a_manager_in_order_is_healthy(server):
    found = await examined(server)
    assert found["healthy"], found
    assert found["queues"][0]["clusters"] == ["us"]


@pytest.mark.parametrize(
    ("path", "known"),
    [
        (f"{KUEUE}/v1beta2/multikueueclusters", "v1.35.4"),
        (f"{KUEUE}/v1beta2/namespaces/default/localqueues", "v1.35.4"),
        (KUEUE, "v1.35.4"),
        ("/version", None),
    ],
    ids=["workers", "queues", "Kueue", "version"],
)
async def test_what_is_not_answered_in_time_is_a_finding_beside_what_was_answered(server, monkeypatch, path, known):
    monkeypatch.setattr(doctor, "PATIENCE", 1.0)
    server.on("GET", path, hang)
    found = await examined(server)
    (manager,) = found["clusters"]
    assert not found["healthy"]
    assert any("did not answer everything within 1 s" in finding["text"] for finding in manager["findings"])
    assert manager["kubernetes"] == known
    assert manager["credentials"]["sort"] == "fixed token"
    assert list(lines(found))[-1].startswith("NOT healthy")


async def test_who_is_refused_is_told_what_of_the_credentials_has_ended(server):
    server.on("GET", "/version", status(401, "Unauthorized"))
    found = await examined(server, token=token(exp=time.time() - 7210))
    (manager,) = found["clusters"]
    texts = [finding["text"] for finding in manager["findings"]]
    assert any("(401)" in text for text in texts)
    assert any("its token ended 2 h ago" in text for text in texts)


async def test_a_kind_that_the_account_may_not_use_is_one_note(server):
    server.on("GET", "/apis/jobset.x-k8s.io", Answer({"versions": [{"version": "v1alpha2"}]}))
    jobsets = {"resources": [{"name": "jobsets", "namespaced": True}]}
    server.on("GET", "/apis/jobset.x-k8s.io/v1alpha2", Answer(jobsets))

    async def review(request: web.Request) -> web.Response:
        asked = (await request.json())["spec"]["resourceAttributes"]
        return web.json_response({"status": {"allowed": asked["group"] != "jobset.x-k8s.io" or asked["verb"] == "get"}})

    server.on("POST", REVIEWS, review)
    found = await examined(server)
    (manager,) = found["clusters"]
    assert found["healthy"]
    (finding,) = [each for each in manager["findings"] if "jobsets" in each["text"]]
    assert finding["level"] == "note"
    assert "may not list, watch, create, patch, delete jobsets.jobset.x-k8s.io in namespace default" in finding["text"]
    assert "a JobSet can't be submitted, followed and deleted" in finding["text"]
    assert [each["allowed"] for each in manager["rights"] if "jobsets" in each["resource"]] == [True] + [False] * 5
