"""From a GKE resource name to requests: a real gRPC server, a real token endpoint, google-auth in between."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from airflow_provider_multikueue.airflow_connections import resolve_connections
from airflow_provider_multikueue.clusters import gke, transport
from airflow_provider_multikueue.clusters.client import JOBS, ApiError
from airflow_provider_multikueue.clusters.google_account import GoogleAccount, google_account
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.fleets.fleet import open_fleet, source_of
from airflow_provider_multikueue.sandbox.pki import Authority
from tests.unit.apiserver import Answer, ApiServer, obj, status
from tests.unit.gkeserver import ACCOUNT, GkeServer
from tests.unit.test_airflow_connections import Given, looking_up

NAME = "projects/team/locations/us-east4/clusters/worker-us"
PATH = "/apis/batch/v1/namespaces/default/jobs/train"


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GkeServer]:
    with GkeServer().running(tmp_path) as server:
        monkeypatch.setenv(gke.API_ENDPOINT, server.address)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        yield server


def load(**cluster: Any) -> Any:
    return gke.GkeCluster(name=NAME, **cluster).load()


# -- endpoints

PRIVATE = {"private_cluster_config": {"private_endpoint": "10.0.0.2", "public_endpoint": "34.1.1.1"}}
DNS = {"control_plane_endpoints_config": {"dns_endpoint_config": {"endpoint": "gke-1.us-east4.gke.goog"}}}
NO_IP = {
    "control_plane_endpoints_config": {
        "dns_endpoint_config": {"endpoint": "gke-1.us-east4.gke.goog"},
        "ip_endpoints_config": {"enabled": False},
    }
}


@pytest.mark.parametrize(
    ("fields", "endpoint", "server"),
    [
        ({}, None, "https://34.1.1.1"),
        (PRIVATE, None, "https://34.1.1.1"),
        (PRIVATE, "private", "https://10.0.0.2"),
        (PRIVATE, "public", "https://34.1.1.1"),
        (DNS, None, "https://34.1.1.1"),
        (DNS, "dns", "https://gke-1.us-east4.gke.goog"),
        (NO_IP, None, "https://gke-1.us-east4.gke.goog"),
    ],
)
def test_the_endpoint_is_the_one_that_is_asked_for_or_that_gke_names(google, fields, endpoint, server):
    google.add(NAME, "34.1.1.1", **fields)
    assert load(endpoint=endpoint).server == server


@pytest.mark.parametrize("endpoint", ["private", "dns"])
def test_an_endpoint_that_is_not_there_is_said(google, endpoint):
    google.add(NAME, "34.1.1.1")
    with pytest.raises(FleetConfigurationError, match="gke_endpoint"):
        load(endpoint=endpoint)


def test_a_zonal_name_of_old_is_the_same_cluster(google):
    google.add("projects/team/locations/us-east4-b/clusters/worker-us", "34.1.1.1")
    extra = {"manager_gke_cluster": "projects/team/zones/us-east4-b/clusters/worker-us"}
    assert source_of(FleetConfig.from_extra(extra, conn_id="x").manager).load().server == "https://34.1.1.1"


# -- credentials


def test_application_default_credentials_are_used_without_a_connection(google):
    google.add(NAME, "34.1.1.1")
    access = load()
    assert access.authorization.startswith("Bearer ya29.")
    assert access.expires == pytest.approx(time.time() + 3600, abs=10)
    assert access.renew_at < access.expires
    assert google.grants[-1]["iss"] == ACCOUNT


@pytest.mark.parametrize("form", ["key_path", "keyfile_dict", "text", "prefixed"])
def test_the_key_of_a_google_connection_is_used(google, tmp_path, monkeypatch, form):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    google.add(NAME, "34.1.1.1")
    key = {**google.key_file(), "client_email": "other@team"}
    (tmp_path / "other.json").write_text(json.dumps(key))
    extra = {
        "key_path": {"key_path": str(tmp_path / "other.json")},
        "keyfile_dict": {"keyfile_dict": key},
        "text": {"keyfile_dict": json.dumps(key).replace("\\n", "\\\\n"), "project": "team"},
        "prefixed": {"extra__google_cloud_platform__keyfile_dict": json.dumps(key)},
    }[form]
    assert load(account=google_account(extra, conn_id="google")).authorization
    assert google.grants[-1]["iss"] == "other@team"


def test_an_impersonation_chain_ends_at_its_last_account(google):
    account = google_account({"impersonation_chain": "first@team, second@team"}, conn_id="google")
    credentials, _ = gke.credentials_of(account)
    assert credentials.service_account_email == "second@team"
    assert credentials._delegates == ["first@team"]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"key_path": "/nowhere.json"}, "key file must be readable"),
        ({"keyfile_dict": "{"}, "not a JSON object"),
        ({"keyfile_dict": {"type": "external_account"}}, "key_path"),
        ({"keyfile_dict": {"type": "service_account"}, "key_path": "x"}, "one of them"),
        (
            {"keyfile_dict": {"type": "service_account", "private_key": "-----no"}},
            "can't be used|no Google credentials",
        ),
        ({"credential_config_file": '{"type": "external_account"}'}, "must be a path"),
        ({"key_secret_name": "key"}, "Secret Manager"),
    ],
)
def test_what_cannot_be_used_is_said_without_the_key(google, extra, words):
    google.add(NAME, "34.1.1.1")
    with pytest.raises(FleetConfigurationError, match=words) as error:
        load(account=google_account(extra, conn_id="google"))
    assert "-----" not in str(error.value)


def test_an_account_hides_its_key(google):
    account = google_account({"keyfile_dict": google.key_file()}, conn_id="google")
    assert "PRIVATE" not in repr(account)
    assert any("PRIVATE" in secret for secret in account.secrets())


# -- what Google may answer


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, FleetConfigurationError, "container.clusters.get"),
        (grpc.StatusCode.NOT_FOUND, FleetConfigurationError, "does not exist"),
        (grpc.StatusCode.INTERNAL, ConnectionError, "did not answer"),
    ],
)
def test_a_refusal_is_final_where_asking_again_cannot_help(google, code, error, words):
    google.refusal = (code, "No.")
    with pytest.raises(error, match=words) as raised:
        load()
    assert NAME in str(raised.value)


def test_a_revoked_key_is_said(google):
    google.add(NAME, "34.1.1.1")
    google.token_status = 400
    with pytest.raises(FleetConfigurationError, match="gave no token"):
        load()


def test_no_credentials_at_all_is_said_with_what_to_do(google, monkeypatch, tmp_path):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    with pytest.raises(FleetConfigurationError, match="workload identity"):
        load()


def test_another_api_address_without_tls_is_for_loopback_only(google, monkeypatch):
    monkeypatch.setenv(gke.API_ENDPOINT, "http://example.com:80")
    with pytest.raises(FleetConfigurationError, match="loopback"):
        load()


def test_the_clusters_of_a_project_are_listed(google):
    google.add(NAME, "34.1.1.1")
    google.add("projects/other/locations/us-east4/clusters/worker-us", "34.1.1.2")
    account = GoogleAccount(where="tests")
    assert [cluster.endpoint for cluster in gke.clusters_of_project("team", account)] == ["34.1.1.1"]
    assert gke.default_project(account) == "team"


# -- the whole path


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, bytes]]:
    authority = Authority("cluster", tmp_path)
    pair = authority.server("api")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    async with ApiServer().running(context) as running:
        yield running, authority.pair.certificate.read_bytes()


async def test_a_fleet_by_resource_names_outlives_its_tokens(google, server, monkeypatch):
    monkeypatch.setattr(transport, "RENEWAL_PAUSE", 0.0)
    api, ca = server
    good: list[str] = []
    google.tokens = lambda _: good.append(f"ya29.{len(good)}") or good[-1]

    async def answer(request):
        accepted = request.headers.get("Authorization") == f"Bearer {good[-1]}"
        return await (Answer(obj("train")) if accepted else status(401, "Unauthorized"))(request)

    api.on("GET", PATH, answer)
    google.add(NAME, api.url.removeprefix("https://"), ca)
    extra = {
        "manager_gke_cluster": NAME,
        "manager_conn_id": "google",
        "workers": {"us": {"gke_cluster": NAME}},
        "gcp_conn_id": "google",
    }
    key = Given("google_cloud_platform", {"keyfile_dict": google.key_file()})
    config = await resolve_connections(FleetConfig.from_extra(extra, conn_id="fleet"), looking_up(google=key))
    assert key.extra["keyfile_dict"]["private_key"] in config.secrets()
    masked: set[str] = set()

    async def mask(texts: Iterable[str], _: object) -> None:
        masked.update(texts)

    async with open_fleet(config, mask=mask) as fleet:
        worker = await fleet.worker("us")
        assert worker is not None
        assert fleet.region("us") == "us-east4"
        assert await worker.get(JOBS, "train", "default")
        good.append("revoked")
        assert await worker.get(JOBS, "train", "default")
        assert await asyncio.gather(*(worker.get(JOBS, "train", "default") for _ in range(5)))
    assert set(google.calls) == {f"get {NAME}"}
    assert set(good) - {"revoked"} <= masked


async def test_an_outage_of_google_is_a_passing_trouble_of_the_cluster(google, server, monkeypatch):
    monkeypatch.setattr(transport, "RENEWAL_PAUSE", 0.0)
    api, ca = server
    api.on("POST", PATH.removesuffix("/train"), obj("train"))
    google.add(NAME, api.url.removeprefix("https://"), ca)
    google.refusal = (grpc.StatusCode.INTERNAL, "Later.")
    async with open_fleet(FleetConfig.from_extra({"manager_gke_cluster": NAME}, conn_id="x")) as fleet:
        with pytest.raises(ApiError, match="Google did not answer") as error:
            await fleet.manager.create(JOBS, {}, "default")
        assert error.value.passing
        google.refusal = None
        assert await fleet.manager.create(JOBS, {}, "default")
