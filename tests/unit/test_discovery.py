"""Workers that are found on the manager: by GKE, by the Secrets that Kueue uses; regions by nodes."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
import yaml

from airflow_provider_multikueue.clusters import transport
from airflow_provider_multikueue.clusters.client import JOBS, ApiError
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.fleets import fleet as fleets
from airflow_provider_multikueue.fleets.discovery import GKE_ANNOTATION, GKE_LABEL, secret_of
from airflow_provider_multikueue.fleets.fleet import open_fleet
from tests.unit.apiserver import ApiServer, kubeconfig, listed, obj, status
from tests.unit.test_gke import google  # noqa: F401 - a fixture

CLUSTERS = "/apis/kueue.x-k8s.io/v1beta2/multikueueclusters"
SECRET = "/api/v1/namespaces/kueue-system/secrets/worker-us-secret"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as running:
        running.on("GET", "/apis/kueue.x-k8s.io", {"versions": [{"version": "v1beta2"}]})
        resources = [{"name": "multikueueclusters", "namespaced": False}]
        running.on("GET", "/apis/kueue.x-k8s.io/v1beta2", {"resources": resources})
        running.on("GET", "/apis/batch/v1/namespaces/default/jobs/train", obj("train"))
        yield running


def fleet(server: ApiServer, tmp_path: Path, workers: object) -> FleetConfig:
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(kubeconfig(server.url, token="some-token")))
    return FleetConfig.from_extra({"manager_kube_config_path": str(path), "workers": workers}, conn_id="fleet")


def multikueue_cluster(name: str, secret: str | None = None, **annotations: str) -> dict:
    reference = {"kubeConfig": {"location": secret, "locationType": "Secret"}} if secret else {}
    cluster = obj(name)
    cluster["metadata"]["annotations"] = {key.replace("__", "/"): value for key, value in annotations.items()}
    return {**cluster, "spec": {"clusterSource": reference}}


@pytest.mark.parametrize("how", ["name", "annotation", "label"])
async def test_a_worker_is_the_gke_cluster_that_its_name_an_annotation_or_a_label_says(server, tmp_path, google, how):  # noqa: F811
    name = f"projects/team/locations/us-east4-b/clusters/{'us' if how == 'name' else 'worker-us-east4'}"
    google.add(name, "34.1.1.1", resource_labels={GKE_LABEL: "us"} if how == "label" else {})
    google.add("projects/team/locations/us-east4-b/clusters/other", "34.1.1.2")
    us = multikueue_cluster("us", **({GKE_ANNOTATION.replace("/", "__"): name} if how == "annotation" else {}))
    server.on("GET", CLUSTERS, listed(us, multikueue_cluster("unknown")))
    async with open_fleet(fleet(server, tmp_path, "gke")) as opened:
        assert opened.worker_names == ("us",)
        assert opened.region("us") == "us-east4"
        assert (await opened.worker("us")).server == "https://34.1.1.1"
        assert await opened.worker("unknown") is None


async def test_two_gke_clusters_of_one_name_are_no_match(server, tmp_path, google, caplog):  # noqa: F811
    for location in ("us-east4", "europe-west4"):
        google.add(f"projects/team/locations/{location}/clusters/us", "34.1.1.1")
    server.on("GET", CLUSTERS, listed(multikueue_cluster("us")))
    async with open_fleet(fleet(server, tmp_path, "gke")) as opened:
        assert opened.worker_names == ()
    assert GKE_ANNOTATION in caplog.text


async def test_the_secrets_of_kueue_are_read_anew_after_a_refusal(server, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(transport, "RENEWAL_PAUSE", 0.0)
    server.on("GET", CLUSTERS, listed(multikueue_cluster("us", "worker-us-secret"), multikueue_cluster("profile")))

    def given(token: str) -> dict:
        text = yaml.safe_dump(kubeconfig(server.url, token=token)).encode()
        return {**obj("worker-us-secret"), "data": {"kubeconfig": base64.b64encode(text).decode()}}

    server.on("GET", SECRET, given("first-token"))
    masked: set[str] = set()

    async def mask(texts: Iterable[str], _: object) -> None:
        masked.update(texts)

    async with open_fleet(fleet(server, tmp_path, "manager_secrets"), mask=mask) as opened:
        assert opened.worker_names == ("us",)
        worker = await opened.worker("us")
        assert await worker.get(JOBS, "train", "default")
        assert server.seen[-1].headers["Authorization"] == "Bearer first-token"
        server.on("GET", SECRET, given("second-token"))
        server.on("GET", "/apis/batch/v1/namespaces/default/jobs/train", status(401, "Unauthorized"), obj("train"))
        assert await worker.get(JOBS, "train", "default")
        assert server.seen[-1].headers["Authorization"] == "Bearer second-token"
    assert {"some-token", "first-token", "second-token"} <= masked
    assert "account of its own" in caplog.text


async def test_a_secret_that_would_run_a_command_is_refused_by_its_name(server, tmp_path):
    user = {"exec": {"command": "sh", "apiVersion": "client.authentication.k8s.io/v1"}}
    text = base64.b64encode(yaml.safe_dump(kubeconfig(server.url, **user)).encode()).decode()
    server.on("GET", CLUSTERS, listed(multikueue_cluster("us", "worker-us-secret")))
    server.on("GET", SECRET, {**obj("worker-us-secret"), "data": {"kubeconfig": text}})
    async with open_fleet(fleet(server, tmp_path, "manager_secrets")) as opened:
        with pytest.raises(FleetConfigurationError, match=r"worker-us-secret of the manager.* asks to run a command"):
            await opened.worker("us")


@pytest.mark.parametrize("answer", [status(403, "Forbidden"), {**obj("worker-us-secret"), "data": {}}])
async def test_a_secret_that_cannot_be_read_is_said(server, tmp_path, answer):
    server.on("GET", CLUSTERS, listed(multikueue_cluster("us", "worker-us-secret")))
    server.on("GET", SECRET, answer)
    async with open_fleet(fleet(server, tmp_path, "manager_secrets")) as opened:
        with pytest.raises(FleetConfigurationError, match=r"secrets|kubeconfig"):
            await opened.worker("us")


async def test_a_manager_that_may_not_be_asked_for_its_workers_says_so(server, tmp_path):
    server.on("GET", CLUSTERS, status(403, "Forbidden"))
    with pytest.raises(FleetConfigurationError, match="multikueueclusters"):
        async with open_fleet(fleet(server, tmp_path, "manager_secrets")):
            pass


async def test_workers_that_join_later_are_found(server, tmp_path, monkeypatch):
    monkeypatch.setattr(fleets, "FIND_PAUSE", 0.0)
    server.on("GET", CLUSTERS, status(404, "NotFound"))
    server.on("GET", CLUSTERS, listed())
    async with open_fleet(fleet(server, tmp_path, "manager_secrets")) as opened:
        assert opened.worker_names == ()
        server.on("GET", CLUSTERS, listed(multikueue_cluster("us", "worker-us-secret")))
        with pytest.raises((FleetConfigurationError, ApiError)):
            await opened.worker("us")
        assert opened.worker_names == ("us",)


@pytest.mark.parametrize(
    ("regions", "region"), [(["us-east4", "us-east4"], "us-east4"), (["us-east4", "us-east5"], None), ([], None)]
)
async def test_the_region_of_a_worker_is_what_all_its_nodes_say(server, tmp_path, regions, region):
    nodes = [obj(f"node-{number}") for number, _ in enumerate(regions)]
    for node, name in zip(nodes, regions, strict=True):
        node["metadata"]["labels"] = {"topology.kubernetes.io/region": name}
    server.on("GET", "/api/v1/nodes", listed(*nodes))
    path = str(tmp_path / "config")
    async with open_fleet(fleet(server, tmp_path, {"us": {"kube_config_path": path}})) as opened:
        assert opened.region("us") is None
        assert await opened.worker("us")
        await opened.learn_regions()
        assert opened.region("us") == region


async def test_a_worker_whose_nodes_may_not_be_read_stays_without_a_region(server, tmp_path):
    server.on("GET", "/api/v1/nodes", status(403, "Forbidden"))
    path = str(tmp_path / "config")
    workers = {"us": {"kube_config_path": path}, "eu": {"kube_config_path": "/nowhere"}}
    async with open_fleet(fleet(server, tmp_path, workers)) as opened:
        await opened.learn_regions()
        assert opened.region("us") is opened.region("eu") is None


@pytest.mark.parametrize(
    ("spec", "secret"),
    [
        ({"kubeConfig": {"location": "a", "locationType": "Secret"}}, "a"),
        ({"clusterSource": {"kubeConfig": {"location": "a"}}}, "a"),
        ({"kubeConfig": {"location": "/a", "locationType": "Path"}}, None),
        ({"clusterSource": {"clusterProfileRef": {"name": "a"}}}, None),
    ],
)
def test_the_secret_of_a_worker_in_both_versions(spec, secret):
    assert secret_of({"spec": spec}) == secret
