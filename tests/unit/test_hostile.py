"""Whatever stands in a connection, a kubeconfig, a cluster's object or answer: an error of ours, no crash.

Each example that once got through is kept here as one.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_provider_multikueue.clusters import api_error, exec_plugin, kubeconfig, trim
from airflow_provider_multikueue.clusters.client import ApiError, Cluster
from airflow_provider_multikueue.clusters.credentials import access_for
from airflow_provider_multikueue.clusters.google_account import google_account
from airflow_provider_multikueue.clusters.resources import JOBS, call
from airflow_provider_multikueue.decisions import kueue_versions, plain_yaml
from airflow_provider_multikueue.decisions.connection import ClusterConfig, FleetConfig, Form
from airflow_provider_multikueue.decisions.jobs import (
    adopt_or_replace,
    generation_of,
    identity_of,
    lifetime_of,
    owner_of,
    run_duration_of,
)
from airflow_provider_multikueue.decisions.manifests import parse_manifest
from airflow_provider_multikueue.decisions.report import parse_job_reference, validate_report
from airflow_provider_multikueue.decisions.secret_texts import secret_leaves
from airflow_provider_multikueue.exceptions import FleetConfigurationError, ManifestError, MultiKueueError
from airflow_provider_multikueue.fleets import cluster_profiles, discovery
from airflow_provider_multikueue.fleets.doctor import examine
from airflow_provider_multikueue.fleets.queues import choose_queue, judge_queue, read_queue
from tests.unit import apiserver
from tests.unit.apiserver import ApiServer, listed, obj

QUICK = settings(max_examples=150, deadline=None)
SLOW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
TEXT = st.text(max_size=12)
ANY = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), TEXT, st.sampled_from(["True", "v1", "../..", "{{"])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value in a JSON document."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield (*path, key)
        yield from places(value, (*path, key))


@st.composite
def spoilt(draw: st.DrawFn, document: Any) -> Any:
    """Return a good document in which one value, wherever it is, was replaced by something else or taken away."""
    made = copy.deepcopy(document)
    *way, last = draw(st.sampled_from(list(places(made))))
    node = made
    for key in way:
        node = node[key]
    if draw(st.booleans()):
        node[last] = draw(ANY)
    else:
        del node[last]
    return made


def attempt(act: Callable[[], Any]) -> tuple[Any, str]:
    """Return what ``act`` returns, and the text of its error when it is one of configuration."""
    try:
        return act(), ""
    except FleetConfigurationError as error:
        return None, str(error)


# -- connections and kubeconfigs

CA = "certificate-authority-data"
CONFIG = apiserver.kubeconfig(
    "https://127.0.0.1:6443",
    cluster={CA: "eA==", "tls-server-name": "x", "proxy-url": "http://u:p@127.0.0.1:1"},
    token="some-token",
    username="u",
    password="some-password",
)


@QUICK
@given(spoilt(CONFIG))
@example({**CONFIG, "contexts": [{"name": "here", "context": {"cluster": ["c"], "user": {"a": 1}}}]})
@example({**CONFIG, "users": [{"name": "u", "user": {"exec": {"command": "sh"}}}]})
@example({**CONFIG, "clusters": [{"name": "c", "cluster": {"server": "https://[::1"}}]})
@example({**CONFIG, "clusters": [{"name": "c", "cluster": {"server": "https://a", CA: "0000"}}]})
def test_an_inline_kubeconfig_is_access_or_an_error_that_quotes_no_secret(config: Any) -> None:
    text = yaml.safe_dump(config)
    _, said = attempt(
        lambda: access_for(*kubeconfig.select(kubeconfig.parse(text, where="here"), None, where="here", inline=True))
    )
    assert "some-token" not in said
    assert "some-password" not in said


@QUICK
@given(st.one_of(st.text(max_size=100), st.text(alphabet="-:{}[]&*!|>%@`'\"\n ab01.~#,?", max_size=60)))
@example("!!python/object/apply:os.system ['touch /tmp/owned']")
@example("a: &a [*a]")
@example("{" * 5000)
def test_any_text_is_a_kubeconfig_or_an_error(text: str) -> None:
    with contextlib.suppress(FleetConfigurationError):
        kubeconfig.select(kubeconfig.parse(text, where="here"), None, where="here", inline=True)


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
"""A page of aliases that stand for thirty thousand million values."""


@pytest.mark.parametrize(
    "text", [LAUGHS, "users: &a [*a]", "[" * 1000, "{a: " * 500, "!!python/name:os.system"], ids=range(5)
)
def test_yaml_of_any_size_is_refused_before_anything_walks_through_it(text: str) -> None:
    extra = {"manager_kube_config": text}
    assert FleetConfig.from_extra(extra, conn_id="c").secrets() == []
    with pytest.raises(FleetConfigurationError, match="must be a kubeconfig"):
        kubeconfig.parse(text, where="here")


@QUICK
@given(spoilt(CONFIG).map(yaml.safe_dump) | st.text(alphabet="-:{}[]&*|>%@`'\"\n ab01.~#,?", max_size=60))
@example("[" * 100_000)
@example("a: &x {b: 1}\nc: {<<: *x}")
@example("a: 1\n---\nb: 2")
@example("'\ud800'")
def test_both_readers_of_yaml_read_the_same(text: str) -> None:
    """What one does not take the other may, and but for a lone "!" nothing is read as something else."""
    values = []
    for loader in (plain_yaml._PlainLoader, plain_yaml.BoundedLoader):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(plain_yaml, "_PlainLoader", loader)
            try:
                values.append(repr(plain_yaml.plain_yaml(text)))
            except ValueError:
                values.append("refused")
    assert values[0] == values[1] or "refused" in values


def test_what_is_nested_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for act in (
        lambda: FleetConfig.from_extra({"manager_kube_config": {"users": endless}}, conn_id="c"),
        lambda: google_account({"keyfile_dict": {"type": "service_account", "more": endless}}, conn_id="g"),
    ):
        with pytest.raises(FleetConfigurationError, match="not plain JSON"):
            act()


@QUICK
@given(spoilt({"manager_kube_config": json.dumps(CONFIG), "workers": {"w": {"conn_id": "c", "region": "r"}}}))
def test_any_extra_is_a_fleet_or_an_error(extra: Any) -> None:
    with contextlib.suppress(FleetConfigurationError):
        config = FleetConfig.from_extra(extra, conn_id="c")
        assert config.digest == config.digest
        assert isinstance(config.secrets(), list)


@QUICK
@given(
    spoilt(
        {"keyfile_dict": {"type": "service_account", "private_key": "k"}, "scope": "a,b", "impersonation_chain": ["x"]}
    )
)
@example({"keyfile_dict": {"type": "service_account", "private_key": {"a": 1}}})
def test_any_google_connection_is_an_account_or_an_error(extra: Any) -> None:
    with contextlib.suppress(FleetConfigurationError):
        account = google_account(extra, conn_id="g")
        account.secrets()
        ClusterConfig(name="m", form=Form.GKE, value="x", key="k", google=account).secrets()


@QUICK
@given(ANY)
def test_secrets_are_looked_for_in_anything(value: Any) -> None:
    assert all(isinstance(text, str) for text in secret_leaves({"token": value, "users": [value]}))


V1 = "client.authentication.k8s.io/v1"
EXEC = {
    "apiVersion": V1,
    "command": "./plugin",
    "args": ["get", "token"],
    "env": [{"name": "ZONE", "value": "eu"}],
    "installHint": "Install it.",
    "provideClusterInfo": True,
    "interactiveMode": "Never",
}


def by_path(file: Path, config: Any) -> None:
    """Use the kubeconfig in a file, but for running its plugin."""
    file.write_text(yaml.safe_dump(config))
    cluster, user = kubeconfig.select(kubeconfig.read_file(str(file), key="k"), None, where=f"kubeconfig {file}")
    if user.get("exec") is None:
        access_for(cluster, user)
        return
    command, environment = exec_plugin.prepared(user["exec"], cluster)
    assert all(isinstance(text, str) for text in [*command, *environment, *environment.values()])
    json.loads(environment["KUBERNETES_EXEC_INFO"])


@SLOW
@given(
    spoilt(apiserver.kubeconfig("https://127.0.0.1:6443", cluster={CA: ""}, exec=EXEC))
    | spoilt(apiserver.kubeconfig("https://127.0.0.1:6443", tokenFile="token", **{"client-key": "key"}))
    | spoilt(EXEC).map(lambda section: apiserver.kubeconfig("https://127.0.0.1:6443", exec=section))
)
@example(apiserver.kubeconfig("https://127.0.0.1:6443", tokenFile="a\0b"))
def test_a_kubeconfig_by_path_is_usable_or_an_error(tmp_path: Path, config: Any) -> None:
    attempt(lambda: by_path(tmp_path / "config", config))


@pytest.mark.parametrize(
    "spoiling",
    [
        {"args": 5},
        {"args": "get token"},
        {"args": [5]},
        {"args": {"a": "b"}},
        {"env": 5},
        {"env": [1]},
        {"env": [{"value": "eu"}]},
        {"env": [{"name": "ZONE", "value": 5}]},
        {"env": {"ZONE": "eu"}},
        {"command": 5},
        {"command": ["a/b"]},
        {"command": None},
        {"apiVersion": datetime.date(2026, 3, 1)},
        {"provideClusterInfo": "false"},
    ],
    ids=str,
)
def test_a_plugin_that_is_written_wrongly_is_named_with_its_file(tmp_path: Path, spoiling: Any) -> None:
    config = apiserver.kubeconfig("https://127.0.0.1:6443", exec={**EXEC, **spoiling})
    _, said = attempt(lambda: by_path(tmp_path / "config", config))
    assert str(tmp_path / "config") in said
    assert f"exec.{next(iter(spoiling))}" in said


def test_a_plugin_that_is_no_mapping_is_refused(tmp_path: Path) -> None:
    config = apiserver.kubeconfig("https://127.0.0.1:6443", exec="plugin get-token")
    _, said = attempt(lambda: by_path(tmp_path / "config", config))
    assert "`exec` must be a mapping" in said


CREDENTIAL = {
    "apiVersion": V1,
    "kind": "ExecCredential",
    "status": {"token": "some-token", "expirationTimestamp": "2026-03-01T00:00:00Z"},
}


@QUICK
@given(spoilt(CREDENTIAL).map(lambda answer: json.dumps(answer).encode()) | st.binary(max_size=60))
@example(b'{"apiVersion":"client.authentication.k8s.io/v1","status":{"token":{"a":1}}}')
@example(b'{"apiVersion":"client.authentication.k8s.io/v1","status":{"token":"a\\r\\nHost: evil"}}')
def test_what_a_plugin_prints_is_a_credential_or_an_error(out: bytes) -> None:
    given, said = attempt(lambda: exec_plugin._credential(out, V1, "plugin"))
    assert "some-token" not in said
    if given is not None:
        parts = [part for part in (given.token, given.certificate, given.key) if part is not None]
        assert all(isinstance(part, str) and "\r" not in part for part in parts)


# -- which job, which manifest


@QUICK
@given(st.one_of(ANY, st.text(max_size=40), spoilt({"job": {"name": "a", "namespace": "b", "kind": "Job"}})))
@example("default/../../../api/v1/secrets")
@example("a/b?watch=true")
@example('{"job": {"name": "../x", "namespace": ".."}}')
@example("{" * 5000)
@example('{"job":' * 100_000)
def test_any_job_is_a_reference_or_an_error(value: Any) -> None:
    with contextlib.suppress(ManifestError):
        part = parse_job_reference(value)
        assert part["name"]
        # Whatever the name is, it stays one segment of the path.
        path = call("get", JOBS, part["name"], part["namespace"]).path
        assert path.count("/") == 7
        assert "?" not in path
        assert not {".", ".."} & set(path.split("/"))


@pytest.mark.parametrize("name", ["..", "."])
def test_names_that_climb_the_path_are_refused(name: str) -> None:
    for names in ((name, "default"), ("x", name)):
        with pytest.raises(ValueError, match="is not the name of an object"):
            call("get", JOBS, *names)


@pytest.mark.parametrize("name", ["a/../b", "a%2fb", "a?b", "a#b", "a b", "a\nb"])
def test_names_and_namespaces_never_leave_their_place_in_the_path(name: str) -> None:
    for path in (call("get", JOBS, name, "default").path, call("get", JOBS, "x", name).path):
        assert path.count("/") == 7
        assert not set("?# \n") & set(path)
        assert not {".", ".."} & set(path.split("/"))


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['true']",
        "!!python/name:os.system",
        "apiVersion: !!python/tuple [batch/v1]\nkind: Job",
        "apiVersion: batch/v1\nkind: Job\nmetadata: !include /etc/passwd",
    ],
)
def test_tags_of_yaml_make_nothing(text: str) -> None:
    with pytest.raises(ManifestError):
        parse_manifest(text)


def test_a_dict_without_end_is_no_manifest() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(ManifestError, match="nested too deeply"):
        parse_manifest({"apiVersion": "batch/v1", "kind": "Job", "spec": deep})


@QUICK
@given(ANY)
def test_any_report_is_one_or_an_error(value: Any) -> None:
    with contextlib.suppress(ValueError):
        validate_report(value)


# -- objects of a cluster

META = {
    "name": "a",
    "namespace": "b",
    "uid": "u",
    "labels": {"airflow-provider-multikueue/job": "a"},
    "ownerReferences": [{"kind": "Workload", "name": "w", "uid": "v"}],
    "annotations": {
        "airflow-provider-multikueue/identity": json.dumps(
            {"deployment": "d", "dag_id": "d", "run_id": "r", "task_id": "t", "map_index": 1}
        ),
        "airflow-provider-multikueue/owner": '{"ti":"a","try":1}',
        "airflow-provider-multikueue/lifetime": '{"kind":"task"}',
        "airflow-provider-multikueue/manifest": "x",
        "provreq.kueue.x-k8s.io/maxRunDurationSeconds": "600",
    },
}
OBJECT = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": META,
    "spec": {
        "template": {
            "metadata": {"annotations": {}},
            "spec": {"containers": [{"name": "c", "image": "kueue:v0.19.1"}]},
        },
        "clusterSource": {"kubeConfig": {"location": "s"}, "clusterProfileRef": {"name": "p"}},
    },
    "status": {"conditions": [{"type": "Active", "status": "True"}], "accessProviders": [{"name": "google"}]},
}


@QUICK
@given(spoilt(OBJECT) | ANY)
@example({"metadata": {"annotations": {"airflow-provider-multikueue/owner": '{"ti":"a","try":{}}'}}})
def test_any_object_can_be_looked_at(thing: Any) -> None:
    thing = thing if isinstance(thing, dict) else {"metadata": thing, "spec": thing, "status": thing}
    for look in (identity_of, owner_of, lifetime_of, generation_of, run_duration_of, discovery.secret_of):
        look(thing)
    cluster_profiles.profile_of(thing)
    kueue_versions.version_of_image(thing)
    kueue_versions.version_of_schema(thing)
    adopt_or_replace(thing, OBJECT)
    for trimmed in (trim.trim_job, trim.trim_workload, trim.trim_pod, trim.trim_provisioning):
        trimmed(copy.deepcopy(thing))
    for keys in (trim.job_keys, trim.workload_keys, trim.pod_keys, trim.provisioning_keys):
        assert all(isinstance(key, str) for key in keys(thing))


@QUICK
@given(
    st.integers(300, 599),
    st.binary(max_size=60)
    | spoilt({"message": "m", "reason": "r", "details": {"retryAfterSeconds": 1, "causes": [{"message": "c"}]}}).map(
        lambda answer: json.dumps(answer).encode()
    ),
    st.text(max_size=5),
)
@example(429, b'{"details": {"retryAfterSeconds": "nan"}}', "")
@example(429, b'{"details": {"retryAfterSeconds": 1e999}}', "")
def test_any_refusal_is_an_error_with_a_sane_pause(status: int, body: bytes, after: str) -> None:
    error = api_error.from_answer(status, body, {"Retry-After": after}, "c", call("get", JOBS, "a", "b"))
    assert error.retry_after is None or 0 <= error.retry_after < 3600


# -- a whole manager that answers what it likes

KUEUE = "/apis/kueue.x-k8s.io"
WORLD: dict[str, Any] = {
    "/version": {"gitVersion": "v1.35.4"},
    KUEUE: {"versions": [{"version": "v1beta2"}], "preferredVersion": {"version": "v1beta2"}},
    f"{KUEUE}/v1beta2": {
        "resources": [
            {"name": name, "namespaced": name == "localqueues"}
            for name in ("localqueues", "clusterqueues", "admissionchecks", "multikueueconfigs", "multikueueclusters")
        ]
    },
    f"{KUEUE}/v1beta2/namespaces/default/localqueues": listed(obj("q")).body,
    f"{KUEUE}/v1beta2/namespaces/default/localqueues/q": obj("q", spec={"clusterQueue": "cq"}),
    f"{KUEUE}/v1beta2/clusterqueues/cq": obj(
        "cq", spec={"stopPolicy": "None", "admissionChecksStrategy": {"admissionChecks": [{"name": "check"}]}}
    ),
    f"{KUEUE}/v1beta2/admissionchecks/check": obj(
        "check", spec={"controllerName": "kueue.x-k8s.io/multikueue", "parameters": {"name": "config"}}
    ),
    f"{KUEUE}/v1beta2/multikueueconfigs/config": obj("config", spec={"clusters": ["us"]}),
    f"{KUEUE}/v1beta2/multikueueclusters": listed(obj("us", status={"conditions": [{"type": "Active"}]})).body,
    "/apis/apps/v1/namespaces/kueue-system/deployments/kueue-controller-manager": OBJECT,
    "/openapi/v3/apis/kueue.x-k8s.io/v1beta2": {"components": {"schemas": {"x.ClusterQueue": {"properties": {}}}}},
    "/apis/autoscaling.x-k8s.io": {"versions": [{"version": "v1"}]},
}
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@SLOW
@given(spoilt(WORLD))
def test_a_manager_that_answers_anything_breaks_neither_the_doctor_nor_a_submission(world: dict[str, Any]) -> None:
    asyncio.run(_ask(world))


async def _ask(world: dict[str, Any]) -> None:
    async with ApiServer().running() as server:
        for path, answer in world.items():
            server.on("GET", path, apiserver.Answer(answer))
        server.on("POST", REVIEWS, {"status": {"allowed": True}})
        config = apiserver.kubeconfig(server.url, token="some-token")
        fleet = FleetConfig.from_extra({"manager_kube_config": json.dumps(config), "namespace": "default"}, conn_id="x")
        found = await examine(fleet)
        json.dumps(found)
        async with await Cluster.from_kubeconfig("manager", config=config) as manager:
            with contextlib.suppress(ApiError, MultiKueueError):
                judge_queue(await read_queue(manager, "default", "q"), regions=["r"], region_of={"us": "r"})
            with contextlib.suppress(ApiError, MultiKueueError):
                await choose_queue(manager, "default", regions=["r"], region_of={"us": "r"})
