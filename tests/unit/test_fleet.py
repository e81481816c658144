"""Fleets are shared by all on a loop who open the same connection, and closed after the last."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from airflow_provider_multikueue.clusters import transport
from airflow_provider_multikueue.clusters.client import ApiError
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.decisions.names import JOB_LABEL
from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.fleets import fleet as fleets
from airflow_provider_multikueue.fleets.fleet import open_fleet
from tests.unit.apiserver import ApiServer, Feed, fleet_config, kubeconfig, listed, obj, status, until


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as running:
        for group, plural in (("kueue.x-k8s.io", "workloads"), ("autoscaling.x-k8s.io", "provisioningrequests")):
            running.on("GET", f"/apis/{group}", {"versions": [{"version": "v1beta2"}], "preferredVersion": {}})
            running.on("GET", f"/apis/{group}/v1beta2", {"resources": [{"name": plural, "namespaced": True}]})
        yield running


async def test_all_who_open_the_same_connection_share_one_fleet(server, tmp_path):
    config = fleet_config(server, tmp_path)
    async with open_fleet(config) as one, open_fleet(fleet_config(server, tmp_path)) as two:
        assert one is two
    async with open_fleet(config) as three:
        assert three is one


async def test_a_fleet_is_closed_a_while_after_its_last_user(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fleets, "LINGER", 0.05)
    config = fleet_config(server, tmp_path)
    async with open_fleet(config) as first:
        await asyncio.sleep(0.1)
        server.on("GET", "/version", {"gitVersion": "v1.35.4"})
        assert await first.manager.version()
    loop = asyncio.get_running_loop()
    await until(lambda: not fleets._shared[loop])
    await until(lambda: first.manager._transport._session.closed)
    async with open_fleet(config) as second:
        assert second is not first


async def test_a_fleet_that_cannot_be_opened_is_tried_anew_by_the_next(server, tmp_path):
    config = fleet_config(server, tmp_path)
    kept = (tmp_path / "config").read_text()
    (tmp_path / "config").unlink()
    for _ in range(2):
        with pytest.raises(FleetConfigurationError, match="manager_kube_config_path"):
            async with open_fleet(config):
                pass
    (tmp_path / "config").write_text(kept)
    async with open_fleet(config):
        pass


def test_a_short_lived_loop_leaves_nothing_behind(tmp_path):
    code = """
import asyncio, json
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.fleets.fleet import open_fleet
from tests.unit.apiserver import ApiServer, kubeconfig, listed, obj, until

async def main(leave):
    async with ApiServer().running() as server:
        server.on("GET", "/apis/batch/v1/namespaces/default/jobs", listed(obj("a")))
        extra = {"manager_kube_config": json.dumps(kubeconfig(server.url))}
        async with open_fleet(FleetConfig.from_extra(extra, conn_id="x")) as fleet:
            jobs = await fleet.watch_jobs(fleet.manager, "default")
            subscription = jobs.subscribe("a", lambda: None)
            await until(lambda: subscription.synced)
            if not leave:
                subscription.close()

for leave in (True, False):
    asyncio.run(main(leave))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-X", "dev", "-c", code],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    complaints = ("ResourceWarning", "Unclosed", "was destroyed", "never retrieved", "Traceback")
    assert done.returncode == 0
    assert not [line for line in done.stderr.splitlines() if any(complaint in line for complaint in complaints)]


async def test_each_loop_has_a_fleet_of_its_own(server, tmp_path):
    config = fleet_config(server, tmp_path)
    found = []

    async def elsewhere() -> None:
        async with open_fleet(config) as fleet:
            found.append(fleet)

    async with open_fleet(config) as here:
        thread = threading.Thread(target=lambda: asyncio.run(elsewhere()))
        thread.start()
        await asyncio.to_thread(thread.join)
    assert found[0] is not here


async def test_workers_are_connected_when_first_asked_for(server, tmp_path):
    async with open_fleet(fleet_config(server, tmp_path, us="us-east4", eu="europe-west4")) as fleet:
        assert fleet.worker_names == ("eu", "us")
        assert fleet.workers == {}
        one, two = await asyncio.gather(fleet.worker("us"), fleet.worker("us"))
        assert one is two
        assert one.name == "us"
        assert fleet.region("us") == "us-east4"
        assert (await fleet.worker("asia"), fleet.region("asia"), fleet.region(None)) == (None, None, None)


async def test_a_worker_whose_file_is_missing_fails_by_itself(server, tmp_path):
    path = str(tmp_path / "config")
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig(server.url)))
    workers = {"us": {"kube_config_path": str(tmp_path / "absent"), "region": "us-east4"}}
    config = FleetConfig.from_extra({"manager_kube_config_path": path, "workers": workers}, conn_id="x")
    async with open_fleet(config) as fleet:
        with pytest.raises(FleetConfigurationError, match="absent"):
            await fleet.worker("us")
        pods = await fleet.watch_pods("us", "default")
        subscription = pods.subscribe("train", lambda: None)
        await until(lambda: subscription.trouble)
        assert "absent" in subscription.trouble.text
        subscription.close()


@pytest.mark.parametrize(
    "extra",
    [
        {"manager_conn_id": "kubernetes_default"},
        {"manager_gke_cluster": "projects/p/locations/l/clusters/c", "manager_conn_id": "google_cloud_default"},
    ],
)
async def test_a_connection_that_was_not_looked_up_is_refused_by_name(extra):
    with pytest.raises(FleetConfigurationError, match=next(iter(extra))):
        async with open_fleet(FleetConfig.from_extra(extra, conn_id="x")):
            pass


async def test_the_same_watch_is_given_to_all(server, tmp_path):
    async with open_fleet(fleet_config(server, tmp_path, us="us-east4")) as fleet:
        us = await fleet.worker("us")
        assert await fleet.watch_pods(us, "default") is await fleet.watch_pods("us", "default")
        assert await fleet.watch_pods(us, "default") is not await fleet.watch_pods(us, "other")
        assert await fleet.watch_jobs("manager", "default") is await fleet.watch_jobs(fleet.manager, "default")


async def test_workloads_are_found_by_name_by_owner_and_by_label(server, tmp_path):
    meta = {"ownerReferences": [{"kind": "Job", "uid": "job-1"}], "labels": {"kueue.x-k8s.io/job-uid": "job-2"}}
    workload = obj("w", metadata=meta, spec={"podSets": [{"name": "main", "count": 3, "template": {"x": 1}}]})
    server.on("GET", "/apis/kueue.x-k8s.io/v1beta2/namespaces/default/workloads", listed(workload, obj("other")))
    async with open_fleet(fleet_config(server, tmp_path)) as fleet:
        watch = await fleet.watch_workloads(fleet.manager, "default")
        found = [watch.subscribe(key, lambda: None) for key in ("w", "job-1", "job-2", "job-3")]
        await until(lambda: found[0].synced)
        assert [len(subscription.objects) for subscription in found] == [1, 1, 1, 0]
        (trimmed,) = found[0].objects.values()
        assert trimmed["spec"]["podSets"] == [{"name": "main", "count": 3}]


async def test_pods_are_found_by_our_label_and_else_by_the_batch_controllers(server, tmp_path):
    ours = obj("p1", metadata={"labels": {JOB_LABEL: "train", "batch.kubernetes.io/job-name": "set-workers-0"}})
    plain = obj("p2", metadata={"labels": {"batch.kubernetes.io/job-name": "foreign"}})
    server.on("GET", "/api/v1/namespaces/default/pods", listed(ours, plain, obj("p3", metadata={"labels": None})))
    async with open_fleet(fleet_config(server, tmp_path, us="us-east4")) as fleet:
        watch = await fleet.watch_pods("us", "default")
        found = [watch.subscribe(key, lambda: None) for key in ("train", "foreign", "set-workers-0")]
        await until(lambda: found[0].synced)
        assert [list(subscription.objects) for subscription in found] == [["uid-p1"], ["uid-p2"], []]


async def test_provisioning_requests_are_found_by_their_workload(server, tmp_path):
    feed = Feed()
    path = "/apis/autoscaling.x-k8s.io/v1beta2/namespaces/default/provisioningrequests"
    owner = {"ownerReferences": [{"kind": "Workload", "name": "job-train", "uid": "w"}]}
    server.on("GET", path, listed())
    server.on_watch(path, feed)
    async with open_fleet(fleet_config(server, tmp_path, us="us-east4")) as fleet:
        watch = await fleet.watch_provisioning("us", "default")
        found = watch.subscribe("job-train", lambda: None)
        feed.send(("ADDED", obj("job-train-dws-prov-1", 2, metadata=owner)))
        await until(lambda: found.objects)


async def test_a_version_that_vanished_is_discovered_anew(server, tmp_path, monkeypatch):
    monkeypatch.setattr("airflow_provider_multikueue.clusters.attempts.BACKOFF", (0.01, 0.05))
    async with open_fleet(fleet_config(server, tmp_path)) as fleet:
        watch = await fleet.watch_workloads(fleet.manager, "default")
        found = watch.subscribe("w", lambda: None)
        await until(lambda: found.trouble and found.trouble.status == 404)
        server.on("GET", "/apis/kueue.x-k8s.io", {"versions": [{"version": "v1beta3"}]})
        server.on("GET", "/apis/kueue.x-k8s.io/v1beta3", {"resources": [{"name": "workloads", "namespaced": True}]})
        server.on("GET", "/apis/kueue.x-k8s.io/v1beta3/namespaces/default/workloads", listed(obj("w")))
        await until(lambda: found.objects)


async def test_nothing_secret_is_in_the_fleets_representations(server, tmp_path):
    config = FleetConfig.from_extra(
        {"manager_kube_config": json.dumps(kubeconfig(server.url, token="secret-token"))}, conn_id="x"
    )
    async with open_fleet(config) as fleet:
        with pytest.raises(ApiError) as caught:
            await fleet.manager.resource("none", "none")
        for thing in (config, fleet.manager._transport._source, fleet.manager._transport._access, caught.value):
            assert "secret-token" not in repr(thing)


# -- a connection that changes while its fleet is open


def inline(server: ApiServer, token: str) -> FleetConfig:
    config = json.dumps(kubeconfig(server.url, token=token))
    return FleetConfig.from_extra({"manager_kube_config": config}, conn_id="fleet")


async def test_a_connection_is_looked_up_again_after_a_401_and_its_new_token_is_used(server, monkeypatch):
    monkeypatch.setattr(transport, "RENEWAL_PAUSE", 0.0)
    good = status(401), {"gitVersion": "v1.35.4"}
    server.on("GET", "/version", {"gitVersion": "v1.35.4"}, *good)
    looked, hidden = [], set()

    async def look_up() -> FleetConfig:
        looked.append(1)
        return inline(server, "second-token")

    async def mask(secrets, _) -> None:
        hidden.update(secrets)

    async with open_fleet(inline(server, "first-token"), look_up=look_up, mask=mask) as fleet:
        await fleet.manager.version()
        assert (looked, hidden) == ([], {"first-token"})
        assert await fleet.manager.version()
    assert [seen.headers["Authorization"].split("-")[0] for seen in server.seen] == [
        "Bearer first",
        "Bearer first",
        "Bearer second",
    ]
    assert (looked, hidden) == ([1], {"first-token", "second-token"})


async def test_a_worker_too_gets_what_its_connection_says_by_now(server, tmp_path, monkeypatch):
    monkeypatch.setattr(transport, "RENEWAL_PAUSE", 0.0)
    server.on("GET", "/version", status(401), {"gitVersion": "v1.35.4"})

    def config(token: str) -> FleetConfig:
        (tmp_path / token).write_text(json.dumps(kubeconfig(server.url, token=token)))
        worker = {"kube_config_path": str(tmp_path / token), "region": "us-east4"}
        extra = {"manager_kube_config_path": str(tmp_path / token), "workers": {"us": worker}}
        return FleetConfig.from_extra(extra, conn_id="fleet")

    async def look_up() -> FleetConfig:
        return config("second-token")

    async with open_fleet(config("first-token"), look_up=look_up) as fleet:
        worker = await fleet.worker("us")
        assert worker is not None
        assert await worker.version()
    assert server.seen[-1].headers["Authorization"] == "Bearer second-token"


async def test_a_connection_that_cannot_be_looked_up_leaves_all_as_it_was(server, monkeypatch, caplog):
    monkeypatch.setattr(transport, "RENEWAL_PAUSE", 0.0)
    server.on("GET", "/version", status(401))

    async def look_up() -> FleetConfig:
        raise FleetConfigurationError("Airflow has no connection 'fleet'.")

    async with open_fleet(inline(server, "only-token"), look_up=look_up) as fleet:
        with pytest.raises(ApiError, match="401"):
            await fleet.manager.version()
    assert "can't be looked up again" in caplog.text
    assert "only-token" not in caplog.text
