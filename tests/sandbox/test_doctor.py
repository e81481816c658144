"""The doctor on a real fleet: with an administrator's account, with the shipped rights, with less, with troubles."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_multikueue.cli import main
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.decisions.rights import RIGHTS, Right
from airflow_provider_multikueue.fleets.doctor import examine
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.sandbox.accounts import Accounts

pytestmark = [pytest.mark.sandbox, pytest.mark.broad]


@pytest.fixture
async def accounts(fleet: Sandbox, multikueue_namespace: str, tmp_path: Path) -> AsyncIterator[Accounts]:
    made = Accounts(fleet, multikueue_namespace, tmp_path, lifetime=2 * 86400)
    await made.make()
    yield made
    await made.remove()


async def found(extra: dict[str, Any]) -> dict[str, Any]:
    return await examine(FleetConfig.from_extra(extra, conn_id="fleet"))


def texts(report: dict[str, Any], level: str) -> list[str]:
    return [each["text"] for cluster in report["clusters"] for each in cluster["findings"] if each["level"] == level]


async def test_a_fleet_is_healthy_with_the_shipped_rights(accounts):
    report = await found(accounts.extra())
    assert report["healthy"], report
    assert (texts(report, "error"), texts(report, "warning")) == ([], [])
    missing = {
        (right["verb"], right["resource"])
        for cluster in report["clusters"]
        for right in cluster["rights"]
        if not right["allowed"]
    }
    assert missing == {("delete", "workloads.kueue.x-k8s.io"), ("list", "jobs.batch")}
    for cluster in report["clusters"]:
        assert cluster["kubernetes"].startswith("v1.")
        assert cluster["kueue"] in ("0.18 or newer", "0.17 or older")
        assert cluster["apis"]["kueue.x-k8s.io"][0].startswith("v1beta")
        assert cluster["active"] is (None if cluster["role"] == "manager" else True)
    (queue,) = report["queues"]
    assert (queue["name"], queue["multikueue"]) == ("dws-local-queue", True)
    assert set(queue["regions"]) == set(accounts.sandbox.regions)


async def test_the_rights_to_mend_and_to_find_jobs_everywhere_are_seen(accounts):
    accounts.heal = True
    await accounts.make()
    report = await found(accounts.extra())
    assert all(right["allowed"] for cluster in report["clusters"] for right in cluster["rights"])


@pytest.mark.parametrize(("plural", "role", "level"), [("jobs", "manager", "error"), ("pods/log", "worker", "warning")])
async def test_a_missing_right_is_named_with_what_is_lost(accounts, plural, role, level):
    right: Right = next(right for right in RIGHTS if (right.resource, right.role) == (plural, role))
    async with accounts.without(right):
        report = await found(accounts.extra())
    assert report["healthy"] is (level != "error")
    assert any(right.shown in text and right.without in text for text in texts(report, level))


async def test_a_token_that_ends_before_a_long_job_does_is_a_warning(accounts):
    accounts.lifetime = 3600
    await accounts.make()
    report = await found(accounts.extra())
    assert report["healthy"]
    assert all("nothing renews it" in text for text in texts(report, "warning"))
    assert len(texts(report, "warning")) == len(report["clusters"])


async def test_a_worker_that_does_not_answer_or_is_unknown_to_the_manager_is_an_error(accounts, tmp_path):
    extra = accounts.extra()
    away = (tmp_path / "kubeconfig").read_text()
    (tmp_path / "away").write_text(away.replace("127.0.0.1", "127.0.0.9"))
    name, worker = next(iter(extra["workers"].items()))
    extra["workers"] = {name: {**worker, "kube_config_path": str(tmp_path / "away")}, "stranger": worker}
    report = await found(extra)
    assert not report["healthy"]
    errors = texts(report, "error")
    assert any("No answer" in text for text in errors)
    assert any("no MultiKueueCluster stranger" in text for text in errors)


def test_the_command_tells_people_and_programs_and_exits_by_it(fleet, tmp_path, capsys, monkeypatch):
    file = tmp_path / "connection.json"
    file.write_text(json.dumps(fleet.connection()))
    assert main(["doctor", "--file", str(file)]) == 0
    text = capsys.readouterr().out
    assert all(region in text for region in fleet.regions)
    assert "dws-local-queue -> dws-cluster-queue" in text
    monkeypatch.setenv("AIRFLOW_CONN_FLEET", json.dumps(fleet.connection()))
    assert main(["doctor", "fleet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["healthy"]
    main(["doctor", "fleet", "--namespace", "kube-system"])
    assert "has no LocalQueue" in capsys.readouterr().out
