"""The same task many times: by a backfill, in two Airflows on one fleet, and in two regions one after the other."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_multikueue.decisions.names import DEPLOYMENT_LABEL
from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.airflow_rest import AirflowApiError
from airflow_provider_multikueue.sandbox.airflow_runs import poll
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import HERE, LONG, Watcher, job, prefix, started, until_gone, until_shown

pytestmark = [pytest.mark.airflow, pytest.mark.fleet, pytest.mark.timeout(600)]


def test_each_run_of_a_backfill_has_a_job_of_its_own(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher
) -> None:
    manifest = job("print('a day')")
    airflow.sync(airflow.wait_dag("daily"))
    wanted = {
        "dag_id": "daily",
        "from_date": "2026-01-01T00:00:00Z",
        "to_date": "2026-01-03T00:00:00Z",
        "dag_run_conf": {"job": manifest},
    }
    airflow.sync(
        poll(lambda: ask_for_backfill(airflow, wanted), lambda made: made is not None, within=60, what="a backfill")
    )
    listed = airflow.sync(
        poll(
            lambda: airflow.api.get("/dags/daily/dagRuns"),
            lambda answer: len(answer["dag_runs"]) == 3,
            within=60,
            what="three runs",
        )
    )
    runs = [each["dag_run_id"] for each in listed["dag_runs"]]
    assert [airflow.sync(airflow.wait_run("daily", run, within=200)) for run in runs] == ["success"] * 3
    reports = [airflow.sync(airflow.xcom("daily", run, "train")) for run in runs]
    assert len({report["job"]["name"] for report in reports}) == 3
    assert list(watcher.output("us-east4", prefix(manifest)).values()) == [b"a day\n"] * 3


async def ask_for_backfill(airflow: LocalAirflow, wanted: dict[str, Any]) -> Any:
    """Return the backfill; None while SQLite is locked, for which Airflow answers 503."""
    try:
        return await airflow.api.post("/backfills", wanted)
    except AirflowApiError as error:
        if error.status != 503:
            raise
        return None


def test_two_airflows_share_a_fleet_without_touching_each_others_jobs(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher
) -> None:
    connection = granting.connection()
    connection["extra"]["deployment"] = "another"
    manifest = job(LONG)
    with LocalAirflow(dags=HERE / "dags", connections={"multikueue_default": connection}) as other:
        for each in (airflow, other):
            each.sync(each.wait_dag("deferred"))
            each.sync(each.trigger("deferred", conf={"job": manifest}, run_id="the-same"))
        for each in (airflow, other):
            until_shown(each, "deferred", "the-same", "tick 0")
        ours, theirs = sorted(watcher.jobs(prefix(manifest)), key=lambda each: deployment(each) == "another")
        assert deployment(ours) != deployment(theirs)
        airflow.sync(airflow.mark("deferred", "the-same", "train", "failed"))
        until_gone(airflow, watcher, ours["metadata"]["name"])
        (left,) = watcher.jobs(prefix(manifest))
        assert left["metadata"]["uid"] == theirs["metadata"]["uid"]
        assert other.sync(other.task_state("deferred", "the-same", "train")) == "deferred"
        other.sync(other.mark("deferred", "the-same", "train", "failed"))
        until_gone(other, watcher, prefix(manifest))


def deployment(found: dict[str, Any]) -> str:
    labels: dict[str, str] = found["metadata"]["labels"]
    return labels[DEPLOYMENT_LABEL]


def test_the_placement_follows_a_job_that_moves_while_its_task_is_deferred(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher
) -> None:
    granting.capacity("europe-west4", mode="starve")
    granting.capacity("asia-southeast1", mode="starve")
    run, name = started(airflow, "deferred")

    def region() -> Any:
        return airflow.xcom("deferred", run, "train", key="placement")

    assert airflow.sync(region())["region"] == "us-east4"
    granting.capacity("us-east4", mode="starve")
    granting.capacity("europe-west4", mode="grant", after=0.5)
    granting.revoke("us-east4", text="someone paid more")
    moved = airflow.sync(
        poll(region, lambda placement: placement["region"] == "europe-west4", within=120, what="the move to be known")
    )
    assert moved["cluster"] == "multikueue-dws-worker-eu"
    until_shown(airflow, "deferred", run, "Moved from us-east4")
    assert "someone paid more" in airflow.sync(airflow.task_text("deferred", run, "train"))
    airflow.sync(airflow.mark("deferred", run, "train", "failed"))
    until_gone(airflow, watcher, name)
