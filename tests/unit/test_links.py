"""Links to a job, as XComs: written at submission and placement, following a move, read back by Airflow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_multikueue._compat import AIRFLOW_2
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.fleets.fleet import Fleet
from airflow_provider_multikueue.fleets.rotation import Rotation
from airflow_provider_multikueue.links import (
    LINKS,
    ManagerJobLink,
    PlacementPush,
    WorkerPodsLink,
    manager_link,
    pods_link,
)
from airflow_provider_multikueue.operators import MultiKueueJobOperator
from airflow_provider_multikueue.sensors import MultiKueueAdmissionSensor, MultiKueueJobSensor

JOB = {"api_version": "batch/v1", "kind": "Job", "namespace": "default", "name": "train-1", "uid": "u"}
GKE = {
    "manager_gke_cluster": "projects/p/locations/europe-west4/clusters/manager",
    "workers": {
        "us": {"gke_cluster": "projects/p/locations/us-east4/clusters/worker"},
        "asia": {"gke_cluster": "projects/p/locations/asia-southeast1/clusters/worker"},
        "here": {"kube_config_path": "/kubeconfig"},
    },
}
PATHS = {"manager_kube_config_path": "/kubeconfig", "workers": {"us": {"kube_config_path": "/kubeconfig"}}}


def fleet(extra: dict[str, Any]) -> Fleet:
    rotation = Rotation(FleetConfig.from_extra(extra, conn_id="fleet"), None)
    return Fleet(rotation, SimpleNamespace(), None)  # type: ignore[arg-type]


def at(cluster: str) -> dict[str, Any]:
    return {"cluster": cluster, "region": None, "zones": [], "nodes": [], "flavors": {}}


def test_before_admission_there_is_the_managers_link_alone():
    assert pods_link(fleet(GKE), JOB, None) == {}
    assert manager_link(fleet(GKE), JOB) == {
        "_link_ManagerJobLink": "https://console.cloud.google.com/kubernetes/job/europe-west4/manager/default/train-1"
        "/details?project=p"
    }


def test_an_admitted_job_is_linked_where_its_pods_are():
    assert "/job/us-east4/worker/" in pods_link(fleet(GKE), JOB, at("us"))["_link_WorkerPodsLink"]


@pytest.mark.parametrize("cluster", ["here", "unlisted"])
def test_a_worker_that_is_no_gke_cluster_takes_the_link_away(cluster: str):
    assert pods_link(fleet(GKE), JOB, at(cluster))["_link_WorkerPodsLink"] == ""


def test_a_fleet_without_gke_has_no_links_to_write():
    assert manager_link(fleet(PATHS), JOB) == pods_link(fleet(PATHS), JOB, at("us")) == {}


def test_what_follows_a_job_writes_its_placement_and_the_link_to_its_pods_when_they_change():
    written: list[tuple[str, Any]] = []

    @asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Fleet, object]]:
        yield fleet(GKE), None

    async def follow() -> None:
        push = PlacementPush(JOB, lambda key, value: written.append((key, value)), opened=opened())
        async with push:
            push.place(at("us"))
            push.place(at("us"))
            push.place(at("asia"))
            push.place({**at("asia"), "flavors": {"main": {"nvidia.com/gpu": "other"}}})

    asyncio.run(follow())
    assert [key for key, _ in written] == [*["placement", "_link_WorkerPodsLink"] * 2, "placement"]
    assert [value["cluster"] for key, value in written if key == "placement"] == ["us", "asia", "asia"]
    pods = [value for key, value in written if key == "_link_WorkerPodsLink"]
    assert ["us-east4" in pods[0], "asia-southeast1" in pods[1]] == [True, True]


@pytest.mark.parametrize("cls", [MultiKueueJobOperator, MultiKueueJobSensor, MultiKueueAdmissionSensor])
def test_operators_and_sensors_have_them(cls: Any):
    assert cls(task_id="t", job="x/y").operator_extra_links == LINKS


@pytest.mark.skipif(AIRFLOW_2, reason="2.11 asks in the web server")
@pytest.mark.parametrize("link", [ManagerJobLink(), WorkerPodsLink()])
@pytest.mark.parametrize("stored", ["https://somewhere", None])
def test_a_link_is_what_was_written(link: Any, stored: str | None):
    class Instance:
        task_id, map_index = "t", 2

        def xcom_pull(self, *, task_ids: str, key: str, map_indexes: int) -> str | None:
            assert (task_ids, key, map_indexes) == ("t", link.xcom_key, 2)
            return stored

    assert link.get_link(None, ti_key=Instance()) == (stored or "")


def test_the_key_is_the_one_that_airflow_looks_for():
    for link in LINKS:
        assert link.xcom_key == f"_link_{type(link).__name__}"
