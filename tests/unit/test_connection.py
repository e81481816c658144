"""What a connection says about the fleet."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_multikueue.decisions.connection import MANAGER_KEYS, FleetConfig, Form, deployment_name
from airflow_provider_multikueue.exceptions import FleetConfigurationError
from tests.unit.apiserver import kubeconfig

EXTRA = {
    "manager_kube_config_path": "/etc/fleet/kubeconfig",
    "manager_context": "manager-europe-west4",
    "namespace": "default",
    "queue_name": "dws-local-queue",
    "deployment": "prod-eu",
    "workers": {
        "multikueue-dws-worker-us": {
            "kube_config_path": "/etc/fleet/kubeconfig",
            "context": "worker-us-east4",
            "region": "us-east4",
        }
    },
}
PATH = {"manager_kube_config_path": "/config"}


def parse(extra) -> FleetConfig:
    return FleetConfig.from_extra(extra, conn_id="fleet")


def refusal(extra) -> str:
    with pytest.raises(FleetConfigurationError) as caught:
        parse(extra)
    assert "'fleet'" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "extra",
    [
        EXTRA,
        json.dumps(EXTRA),
        {**EXTRA, "workers": json.dumps(EXTRA["workers"])},
        {f"extra__multikueue__{key}": value for key, value in EXTRA.items()},
        {**EXTRA, "manager_in_cluster": "false", "manager_conn_id": "", "manager_gke_cluster": None},
        {**EXTRA, "manager_in_cluster": False, "manager_kube_config": "  "},
    ],
)
def test_one_fleet_in_the_forms_that_files_and_the_ui_store(extra):
    config = parse(extra)
    assert config == parse(EXTRA)
    assert (config.manager.form, config.manager.value) == (Form.PATH, "/etc/fleet/kubeconfig")
    assert config.manager.context == "manager-europe-west4"
    worker = config.workers["multikueue-dws-worker-us"]
    assert (worker.name, worker.context, worker.region) == ("multikueue-dws-worker-us", "worker-us-east4", "us-east4")
    assert (config.namespace, config.queue_name, config.deployment) == ("default", "dws-local-queue", "prod-eu")


@pytest.mark.parametrize(
    ("extra", "form"),
    [
        ({"manager_in_cluster": "true"}, Form.IN_CLUSTER),
        ({"manager_in_cluster": True}, Form.IN_CLUSTER),
        ({"manager_conn_id": "kubernetes_default"}, Form.CONN_ID),
        ({"manager_gke_cluster": "projects/p/locations/europe-west4/clusters/manager"}, Form.GKE),
        ({"manager_kube_config": json.dumps(kubeconfig("https://x"))}, Form.INLINE),
        ({"manager_kube_config": kubeconfig("https://x")}, Form.INLINE),
    ],
)
def test_each_form_of_the_manager(extra, form):
    assert parse(extra).manager.form is form


def test_the_region_of_a_gke_worker_is_its_location_unless_it_is_stated():
    name = "projects/p/locations/{}/clusters/c"
    workers = {
        "a": {"gke_cluster": name.format("us-east4")},
        "b": {"gke_cluster": name.format("us-east4-b")},
        "c": {"gke_cluster": name.format("us-east4"), "region": "elsewhere"},
        "d": {"in_cluster": True},
    }
    config = parse({**PATH, "workers": workers})
    assert [worker.region for worker in config.workers.values()] == ["us-east4", "us-east4", "elsewhere", None]


@pytest.mark.parametrize("mode", ["gke", "cluster_profiles", "manager_secrets"])
def test_workers_may_be_found_instead_of_listed(mode):
    config = parse({**PATH, "workers": mode})
    assert (config.workers_from, dict(config.workers)) == (mode, {})


def test_a_misspelt_key_is_answered_with_the_nearest():
    assert "Did you mean `manager_context`?" in refusal({**PATH, "manager_contxt": "x"})
    workers = {"us": {"kube_config_path": "/x", "regoin": "us-east4"}}
    text = refusal({**PATH, "workers": workers})
    assert "Did you mean `region`?" in text
    assert "'us'" in text


def test_a_key_like_no_other_is_answered_with_all():
    text = refusal({**PATH, "zzz": 1})
    assert all(key in text for key in MANAGER_KEYS)


def test_a_missing_manager_is_answered_with_the_ways_to_give_one():
    text = refusal({})
    for key in ("kube_config_path", "kube_config", "in_cluster", "conn_id", "gke_cluster"):
        assert f"`manager_{key}`" in text


def test_two_ways_to_the_manager_are_one_too_many():
    text = refusal({**PATH, "manager_in_cluster": "true"})
    assert "`manager_kube_config_path`, `manager_in_cluster`" in text


@pytest.mark.parametrize(
    ("extra", "named"),
    [
        ("{", "extra"),
        ("[]", "extra"),
        ("7", "extra"),
        ({**PATH, "workers": "{"}, "workers"),
        ({**PATH, "workers": "all"}, "workers"),
        ({**PATH, "workers": [1]}, "workers"),
        ({**PATH, "workers": {"us": None}}, "us"),
        ({**PATH, "workers": {"us": {}}}, "us"),
        ({**PATH, "workers": {"us": {"kube_config": "inline"}}}, "kube_config"),
        ({**PATH, "workers": {"us": {"kube_config_path": 7}}}, "kube_config_path"),
        ({**PATH, "namespace": 7}, "namespace"),
        ({"manager_in_cluster": "perhaps"}, "manager_in_cluster"),
        ({"manager_in_cluster": "true", "manager_context": "x"}, "manager_context"),
        ({"manager_gke_cluster": "my-cluster"}, "manager_gke_cluster"),
    ],
)
def test_errors_name_the_key(extra, named):
    assert named in refusal(extra)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@given(st.one_of(json_values, st.dictionaries(st.sampled_from(sorted(MANAGER_KEYS)), json_values), st.text()))
def test_whatever_stands_there_is_a_fleet_or_an_error_of_ours(extra):
    try:
        config = parse(extra if isinstance(extra, str | dict) else json.dumps(extra))
    except FleetConfigurationError:
        return
    assert config.secrets() == config.secrets()
    assert config.digest


def test_secrets_are_the_leaves_that_must_be_masked_and_are_not_in_the_repr():
    user = {
        "token": "t-secret",
        "password": "p-secret",
        "client-key-data": "a2V5LXNlY3JldA==",
        "client-certificate-data": "public",
    }
    inline = kubeconfig("https://x", cluster={"proxy-url": "http://me:proxy-secret@proxy:80"}, **user)
    config = parse({"manager_kube_config": json.dumps(inline)})
    assert set(config.secrets()) == {"t-secret", "p-secret", "a2V5LXNlY3JldA==", "proxy-secret"}
    assert "secret" not in repr(config)
    assert parse(EXTRA).secrets() == []


def test_the_digest_is_made_once():
    config = parse(EXTRA)
    assert config.digest is config.digest


def test_the_digest_tells_ways_to_clusters_apart_and_nothing_else():
    assert parse(EXTRA).digest == parse({**EXTRA, "queue_name": "other", "deployment": "other"}).digest
    assert parse(EXTRA).digest != parse({**EXTRA, "manager_context": "other"}).digest
    assert parse(EXTRA).digest != parse({**EXTRA, "workers": {}}).digest


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("https://airflow.example.com", "airflow.example.com"),
        ("https://Airflow.example.com/team-a/", "airflow.example.com/team-a"),
        ("https://user:password@airflow.example.com:8443/", "airflow.example.com:8443"),
    ],
)
def test_this_airflow_is_named_by_its_base_url(base_url, name):
    assert deployment_name(parse(PATH), base_url=base_url, manager_server="https://10.0.0.1") == name


@pytest.mark.parametrize("base_url", [None, "", "http://localhost:8080", "http://127.0.0.1:8080", "http://0.0.0.0:1"])
def test_on_localhost_it_must_be_named_except_for_a_fleet_that_is_there_too(base_url):
    with pytest.raises(FleetConfigurationError, match="deployment"):
        deployment_name(parse(PATH), base_url=base_url, manager_server="https://10.0.0.1")
    assert deployment_name(parse(PATH), base_url=base_url, manager_server="https://127.0.0.1:6443") == "local"
    assert deployment_name(parse(EXTRA), base_url=base_url, manager_server="https://10.0.0.1") == "prod-eu"
