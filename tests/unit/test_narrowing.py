"""Which workers are watched for a job while it is asked for, placed, moved and lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.decisions.orders import Orders
from airflow_provider_multikueue.fleets.fleet import open_fleet
from airflow_provider_multikueue.fleets.follow import Following
from tests.unit.apiserver import ApiServer, Feed, kubeconfig, listed, obj, status, until

JOBS = "/apis/batch/v1/namespaces/default/jobs"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads"
REQUESTS = "/apis/autoscaling.x-k8s.io/v1/namespaces/default/provisioningrequests"
PODS = "/api/v1/namespaces/default/pods"
PART = {"api_version": "batch/v1", "kind": "Job", "namespace": "default", "name": "train", "uid": "uid-train"}
WHEN = "2026-01-01T00:00:00Z"


class Silence:
    def record(self, level: int, text: str) -> None:
        pass


class Site:
    """One cluster, whose Workloads and jobs a test changes."""

    def __init__(self, server: ApiServer) -> None:
        self.server, self.workloads, self.jobs, self._version = server, Feed(), Feed(), 1
        served = (("batch", "v1", "jobs"), ("kueue.x-k8s.io", "v1beta2", "workloads"))
        for group, version, plural in (*served, ("autoscaling.x-k8s.io", "v1", "provisioningrequests")):
            server.on("GET", f"/apis/{group}", {"versions": [{"version": version}], "preferredVersion": {}})
            server.on("GET", f"/apis/{group}/{version}", {"resources": [{"name": plural, "namespaced": True}]})
        for path in (JOBS, WORKLOADS, REQUESTS, PODS, "/api/v1/nodes"):
            server.on("GET", path, listed())
        server.on_watch(WORKLOADS, self.workloads)
        server.on_watch(JOBS, self.jobs)

    def workload(self, *conditions: str, event: str = "MODIFIED", **more: Any) -> None:
        """Change the Workload; the conditions are those that are true."""
        self._version += 1
        more["conditions"] = [
            {"type": each, "status": "True", "reason": each, "lastTransitionTime": WHEN} for each in conditions
        ]
        meta = {"labels": {"kueue.x-k8s.io/job-uid": "uid-train"}}
        self.workloads.send((event, obj("job-train-1", self._version, metadata=meta, status=more)))


@pytest.fixture
async def sites(tmp_path: Path) -> AsyncIterator[dict[str, Site]]:
    async with AsyncExitStack() as stack:
        found = {}
        for name in ("manager", "eu", "us"):
            found[name] = Site(await stack.enter_async_context(ApiServer().running()))
            (tmp_path / name).write_text(yaml.safe_dump(kubeconfig(found[name].server.url, token="some-token")))
        found["manager"].server.on("GET", JOBS, listed(obj("train", status={})))
        yield found


@pytest.fixture
async def following(sites: dict[str, Site], tmp_path: Path) -> AsyncIterator[Following]:
    """A job that waits for its two workers, both of which hold a copy."""
    workers = {name: {"kube_config_path": str(tmp_path / name), "region": name} for name in ("eu", "us")}
    extra = {"manager_kube_config_path": str(tmp_path / "manager"), "workers": workers}
    async with open_fleet(FleetConfig.from_extra(extra, conn_id="fleet")) as fleet:
        found = Following(fleet, PART, Orders(heal=False), Silence())
        running = asyncio.create_task(found.run())
        sites["manager"].workload("QuotaReserved", nominatedClusterNames=["eu", "us"], event="ADDED")
        for name in ("eu", "us"):
            sites[name].workload("QuotaReserved", event="ADDED")
        await until(lambda: shown(found) == {"eu", "us"})
        yield found
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await found.close()


def watched(following: Following) -> set[str]:
    return set(following._attention.view(0.0).workers)


def shown(following: Following) -> set[str]:
    """Return the workers of which a copy of the Workload is seen."""
    workers = following._attention.view(0.0).workers
    return {name for name, worker in workers.items() if worker.workload is not None}


def place(sites: dict[str, Site], name: str) -> None:
    sites[name].workload("QuotaReserved", "Admitted")
    sites["manager"].workload("QuotaReserved", "Admitted", clusterName=name)


async def test_a_worker_that_lost_is_watched_until_its_copy_is_gone_and_again_when_it_is_asked_again(
    sites: dict[str, Site], following: Following
) -> None:
    place(sites, "us")
    await until(lambda: following._seen is not None and following._seen.cluster == "us")
    assert watched(following) == {"eu", "us"}
    sites["eu"].workload(event="DELETED")
    await until(lambda: watched(following) == {"us"})
    sites["manager"].workload("QuotaReserved", nominatedClusterNames=["eu", "us"])
    await until(lambda: watched(following) == {"eu", "us"})
    sites["eu"].workload("QuotaReserved", event="ADDED")
    await until(lambda: "eu" in shown(following))


async def test_a_worker_that_is_asked_is_watched_before_its_copy_comes(
    sites: dict[str, Site], following: Following
) -> None:
    sites["eu"].workload(event="DELETED")
    await until(lambda: shown(following) == {"us"})
    sites["us"].workload("QuotaReserved", checks="changed")
    await until(lambda: following._attention.view(0.0).workers["us"].workload["status"].get("checks"))  # type: ignore[index]
    assert watched(following) == {"eu", "us"}


async def test_a_copy_that_a_lost_worker_brings_back_is_seen_while_the_job_runs_elsewhere(
    sites: dict[str, Site], following: Following
) -> None:
    place(sites, "us")
    await until(lambda: following._seen is not None and following._seen.cluster == "us")
    await until(lambda: sites["us"].server.count("GET", JOBS, watch=True))
    sites["us"].workload(event="DELETED")
    place(sites, "eu")
    await until(lambda: following._seen is not None and following._seen.cluster == "eu")
    await until(lambda: shown(following) == {"eu"})
    copy = {"labels": {"kueue.x-k8s.io/multikueue-origin": "m"}, "uid": "uid-second"}
    sites["us"].jobs.send(("ADDED", obj("train", 7, metadata=copy, status={"active": 1})))
    await until(lambda: following._seen is not None and following._seen.elsewhere == ("us (us)",))


async def test_a_worker_that_does_not_answer_stays_watched_since_it_may_hold_a_copy(
    sites: dict[str, Site], following: Following
) -> None:
    sites["eu"].workload(event="DELETED")
    await until(lambda: shown(following) == {"us"})
    sites["eu"].server.on_watch(WORKLOADS, status(503, "away"))
    sites["eu"].workloads.send("cut")
    await until(lambda: following._attention.view(0.0).workers["eu"].trouble)
    place(sites, "us")
    await until(lambda: following._seen is not None and following._seen.cluster == "us")
    assert watched(following) == {"eu", "us"}
