"""Workers by ClusterProfiles: whose address is used, who we are there, and where no token is sent."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_multikueue.clusters.client import JOBS
from airflow_provider_multikueue.clusters.connect_gateway import GATEWAY, FleetMember
from airflow_provider_multikueue.clusters.google_account import GoogleAccount
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.fleets.cluster_profiles import PROFILE_ANNOTATION
from airflow_provider_multikueue.fleets.fleet import open_fleet
from tests.unit.apiserver import ApiServer, kubeconfig, listed, obj, status
from tests.unit.test_gke import google  # noqa: F401 - a fixture

CLUSTERS = "/apis/kueue.x-k8s.io/v1beta2/multikueueclusters"
GROUP = "/apis/multicluster.x-k8s.io"
PROFILES = f"{GROUP}/v1alpha1/namespaces/kueue-system/clusterprofiles"
MEMBER = "/v1/projects/1/locations/us-east4/gkeMemberships/us"
SERVER = f"https://us-east4-connectgateway.googleapis.com{MEMBER}"
NAME = "projects/1/locations/us-east4/clusters/us"


@pytest.fixture
async def server(google, monkeypatch) -> AsyncIterator[ApiServer]:  # noqa: F811
    async with ApiServer().running() as running:
        running.on("GET", "/apis/kueue.x-k8s.io", {"versions": [{"version": "v1beta2"}]})
        resources = [{"name": "multikueueclusters", "namespaced": False}]
        running.on("GET", "/apis/kueue.x-k8s.io/v1beta2", {"resources": resources})
        running.on("GET", GROUP, {"versions": [{"version": "v1alpha1"}]})
        resources = [{"name": "clusterprofiles", "namespaced": True}]
        running.on("GET", f"{GROUP}/v1alpha1", {"resources": resources})
        running.on("GET", CLUSTERS, listed(cluster("us")))
        running.on("GET", f"{MEMBER}/apis/batch/v1/namespaces/default/jobs/train", obj("train"))
        monkeypatch.setenv(GATEWAY, running.url)
        yield running


def fleet(server: ApiServer, tmp_path: Path) -> FleetConfig:
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig(server.url, token="some-token")))
    extra = {"manager_kube_config_path": str(tmp_path / "config"), "workers": "cluster_profiles"}
    return FleetConfig.from_extra(extra, conn_id="fleet")


def cluster(name: str, profile: str | None = "us-profile", **annotations: str) -> dict[str, Any]:
    made = obj(name, metadata={"annotations": annotations})
    return made | {"spec": {"clusterSource": {"clusterProfileRef": {"name": profile}} if profile else {}}}


def profile(*, annotations: dict[str, str] | None = None, **status: Any) -> dict[str, Any]:
    return obj("us-profile", metadata={"annotations": annotations or {}}) | {"spec": {}, "status": status}


def google_at(server: str, **more: Any) -> list[dict[str, Any]]:
    return [
        {"name": "other", "cluster": {"server": "https://x"}},
        {"name": "google", "cluster": {"server": server} | more},
    ]


@pytest.mark.parametrize(
    "profile",
    [
        profile(accessProviders=google_at(SERVER), annotations={"fleet.gke.io/clusterName": NAME}),
        profile(
            credentialProviders=google_at(SERVER),
            annotations={"fleet.gke.io/clusterName": f"//container.googleapis.com/{NAME}"},
        ),
        profile(
            accessProviders=google_at(SERVER),
            credentialProviders=google_at("https://old-connectgateway.googleapis.com/v1"),
            annotations={"fleet.gke.io/clusterName": NAME},
        ),
        profile(annotations={"gateway.gke.io/endpoint": SERVER, "fleet.gke.io/clusterName": NAME}),
    ],
    ids=["access", "credential", "both", "annotation"],
)
async def test_a_worker_is_reached_at_its_profiles_address_as_ourselves(server, tmp_path, google, profile):  # noqa: F811
    server.on("GET", PROFILES, listed(profile))
    async with open_fleet(fleet(server, tmp_path)) as opened:
        assert opened.worker_names == ("us",)
        assert opened.region("us") == "us-east4"
        assert opened.gke_cluster("us") == NAME
        worker = await opened.worker("us")
        assert worker is not None
        assert await worker.get(JOBS, "train", "default")
    assert server.seen[-1].headers["Authorization"].startswith("Bearer ya29.")


async def test_an_annotation_names_the_profile_where_kueue_itself_uses_a_secret(server, tmp_path):
    server.on("GET", CLUSTERS, listed(cluster("us", None, **{PROFILE_ANNOTATION: "us-profile"})))
    server.on("GET", PROFILES, listed(profile(accessProviders=google_at(SERVER))))
    async with open_fleet(fleet(server, tmp_path)) as opened:
        assert opened.worker_names == ("us",)
        assert opened.region("us") is None


@pytest.mark.parametrize(
    ("clusters", "profiles", "why"),
    [
        ([cluster("us", None)], [profile()], "names no ClusterProfile"),
        ([cluster("us", "absent")], [profile()], "there is no ClusterProfile kueue-system/absent"),
        ([cluster("us")], [profile(accessProviders=google_at("")[:1])], "access providers: other"),
        ([cluster("us")], [profile()], "access providers: none"),
        ([cluster("us")], [profile(accessProviders={"a": 1})], "access providers: none"),
        ([cluster("us")], [{**profile(), "status": "?"}], "access providers: none"),
        ([{"spec": 1}], [{"metadata": []}], "names no ClusterProfile"),
    ],
)
async def test_a_worker_that_cannot_be_reached_so_is_named_with_the_reason(
    server, tmp_path, caplog, clusters, profiles, why
):
    server.on("GET", CLUSTERS, listed(*clusters))
    server.on("GET", PROFILES, listed(*profiles))
    async with open_fleet(fleet(server, tmp_path)) as opened:
        assert opened.worker_names == ()
    assert why in caplog.text


@pytest.mark.parametrize(
    ("path", "answer"), [(GROUP, status(404, "no such group")), (PROFILES, status(403, "Forbidden"))]
)
async def test_profiles_that_are_not_there_or_not_to_be_read_are_said(server, tmp_path, path, answer):
    server.on("GET", path, answer)
    with pytest.raises(FleetConfigurationError, match="clusterprofiles"):
        async with open_fleet(fleet(server, tmp_path)):
            pass


@pytest.mark.parametrize(
    "address",
    [
        "https://attacker.example/v1",
        "https://connectgateway.googleapis.com.attacker.example/v1",
        "https://attacker.example/connectgateway.googleapis.com",
        "https://us-connectgateway.googleapis.com@attacker.example/v1",
        "https://us-connectgateway.googleapis.com:8443/v1",
        "http://us-connectgateway.googleapis.com/v1",
        "https://storage.googleapis.com/v1",
        "https://169.254.169.254/",
        "https://[::1",
        "file:///etc/passwd",
        "https://gke.goog",
    ],
)
def test_no_google_token_goes_to_anybody_else(google, address):  # noqa: F811
    member = FleetMember(server=address, where="ClusterProfile p", account=GoogleAccount(where="nobody"))
    with pytest.raises(FleetConfigurationError, match="not one of Google's"):
        member.load()
    assert google.grants == []


@pytest.mark.parametrize(
    "address",
    ["https://connectgateway.googleapis.com/v1/x", "https://gke-1a2b.us-east4.gke.goog", f"{SERVER}"],
)
def test_googles_own_addresses_are_used_as_they_are(google, address):  # noqa: F811
    access = FleetMember(server=address, where="p", account=GoogleAccount(where="default")).load()
    assert access.server == address
    assert access.expires is not None
    assert len(access.secrets) == 1


def test_what_stands_in_for_google_is_on_this_machine(google, monkeypatch):  # noqa: F811
    monkeypatch.setenv(GATEWAY, "http://10.0.0.1:80")
    with pytest.raises(FleetConfigurationError, match=GATEWAY):
        FleetMember(server=SERVER, where="p", account=GoogleAccount(where="default")).load()
