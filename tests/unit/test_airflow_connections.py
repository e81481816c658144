"""Clusters that are Airflow connections of type kubernetes, read as the cncf provider's hook reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_multikueue.airflow_connections import resolve_connections
from airflow_provider_multikueue.decisions.connection import FleetConfig, Form
from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.opening import load_config

GKE = "projects/p/locations/us-east4/clusters/c"
USER = {"name": "u", "user": {"token": "secret-token"}}


@dataclass
class Given:
    conn_type: str
    extra: Any = None


def looking_up(**connections: Given):
    async def look_up(conn_id: str) -> Given:
        return connections[conn_id]

    return look_up


async def resolved(extra: dict[str, Any], **connections: Given) -> FleetConfig:
    return await resolve_connections(FleetConfig.from_extra(extra, conn_id="fleet"), looking_up(**connections))


async def one(extra: Any, conn_type: str = "kubernetes") -> FleetConfig:
    return await resolved({"manager_conn_id": "k8s"}, k8s=Given(conn_type, extra))


@pytest.mark.parametrize(
    ("extra", "form", "value", "context"),
    [
        ({"kube_config_path": "/k", "cluster_context": "c"}, Form.PATH, "/k", "c"),
        ({"extra__kubernetes__kube_config_path": "/k"}, Form.PATH, "/k", None),
        ({"kube_config": '{"users": []}', "cluster_context": "c", "kube_config_path": ""}, Form.INLINE, None, "c"),
        ({"kube_config": {"users": []}}, Form.INLINE, '{"users": []}', None),
        ({"in_cluster": True}, Form.IN_CLUSTER, "", None),
        ({"in_cluster": "false", "kube_config_path": "/k"}, Form.PATH, "/k", None),
        ({}, Form.PATH, "~/.kube/config", None),
        (None, Form.PATH, "~/.kube/config", None),
    ],
)
@pytest.mark.parametrize("text", [True, False])
async def test_each_form_of_a_kubernetes_connection(extra, form, value, context, text):
    manager = (await one(json.dumps(extra) if text and extra is not None else extra)).manager
    assert (manager.form, manager.context) == (form, context)
    assert value is None or manager.value == value


async def test_the_namespace_of_the_managers_connection_holds_where_the_fleet_names_none():
    k8s = Given("kubernetes", {"kube_config_path": "/k", "namespace": "team"})
    assert (await resolved({"manager_conn_id": "k8s"}, k8s=k8s)).namespace == "team"
    assert (await resolved({"manager_conn_id": "k8s", "namespace": "mine"}, k8s=k8s)).namespace == "mine"


async def test_a_worker_keeps_its_region_and_its_secrets_are_masked():
    k8s = Given("kubernetes", {"kube_config": json.dumps({"users": [USER]})})
    workers = {"us": {"conn_id": "k8s", "region": "us-east4"}}
    config = await resolved({"manager_kube_config_path": "/k", "workers": workers}, k8s=k8s)
    assert (config.workers["us"].region, config.workers["us"].form) == ("us-east4", Form.INLINE)
    assert config.secrets() == ["secret-token"]
    assert "secret-token" not in repr(config)


async def test_another_secret_makes_another_fleet():
    digests = {(await one({"kube_config": json.dumps({"users": [token]})})).digest for token in ("one", "two")}
    assert len(digests) == 2


@pytest.mark.parametrize(
    ("extra", "conn_type", "words"),
    [
        ({"kube_config_path": "/k", "in_cluster": True}, "kubernetes", "exclude each other"),
        ({"kube_config_path": "/k", "disable_verify_ssl": True}, "kubernetes", "certificate authority"),
        ("[1]", "kubernetes", "not a JSON object"),
        ("{", "kubernetes", "not a JSON object"),
        ({}, "google_cloud_platform", "manager_gke_cluster"),
        ({}, "http", "type 'http'"),
    ],
)
async def test_a_connection_that_cannot_be_used_is_said(extra, conn_type, words):
    with pytest.raises(FleetConfigurationError, match=words):
        await one(extra, conn_type)


@pytest.mark.parametrize("key", ["manager_conn_id", "gcp_conn_id"])
async def test_a_gke_cluster_goes_with_a_google_connection(key):
    google = Given("google_cloud_platform", {"project": "team", "key_path": "/key.json"})
    config = await resolved({"manager_gke_cluster": GKE, key: "google"}, google=google)
    assert config.manager.form is Form.GKE
    assert (config.manager.google.project, config.manager.google.key_path) == ("team", "/key.json")
    with pytest.raises(FleetConfigurationError, match="must be of type google_cloud_platform"):
        await resolved({"manager_gke_cluster": GKE, key: "google"}, google=Given("kubernetes"))


async def test_connections_are_looked_up_in_airflow(monkeypatch):
    fleet = {"manager_conn_id": "k8s", "workers": {"us": {"conn_id": "missing"}}}
    monkeypatch.setenv("AIRFLOW_CONN_FLEET", json.dumps({"conn_type": "multikueue", "extra": fleet}))
    monkeypatch.setenv("AIRFLOW_CONN_K8S", json.dumps({"conn_type": "kubernetes", "extra": {"kube_config_path": "/k"}}))
    with pytest.raises(FleetConfigurationError, match="'missing'"):
        await load_config("fleet")
    del fleet["workers"]
    monkeypatch.setenv("AIRFLOW_CONN_FLEET", json.dumps({"conn_type": "multikueue", "extra": fleet}))
    assert (await load_config("fleet")).manager.value == "/k"
