"""A container's environment and command line come from its pod's specification."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from airflow_provider_multikueue.sandbox.podenv import (
    ConfigError,
    Place,
    Sources,
    environment,
    expand,
    parse_quantity,
    references,
    rewrite,
)

PLACE = Place(ip="127.9.9.9", host_ip="127.0.0.1", allocatable={"cpu": "64", "memory": "256Gi"})
SOURCES = Sources(
    configmaps={"settings": {"mode": b"fast", "bad name!": b"x"}}, secrets={"token": {"value": b"hush", "raw": b"\xff"}}
)


def env_of(entries: list[dict[str, Any]], *, sources: Sources = SOURCES, **container: Any) -> dict[str, str]:
    spec = {"name": "main", "env": entries, **container}
    pod = {
        "metadata": {
            "name": "job-0-abcde",
            "namespace": "team",
            "uid": "u-1",
            "labels": {"app": "x"},
            "annotations": {"batch.kubernetes.io/job-completion-index": "2"},
        },
        "spec": {"nodeName": "node-1", "containers": [spec], "initContainers": []},
    }
    return environment(pod, spec, sources, PLACE, {"PATH": "/bin"})


def from_field(path: str) -> str:
    return env_of([{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}])["X"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "job-0-abcde"),
        ("metadata.namespace", "team"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['app']", "x"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['batch.kubernetes.io/job-completion-index']", "2"),
        ("spec.nodeName", "node-1"),
        ("status.podIP", "127.9.9.9"),
        ("status.hostIP", "127.0.0.1"),
    ],
)
def test_the_downward_api_tells_about_the_pod(path: str, value: str) -> None:
    assert from_field(path) == value


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"spec\.nope"):
        from_field("spec.nope")


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ({"resource": "limits.memory"}, str(512 * 1024**2)),
        ({"resource": "limits.memory", "divisor": "1Mi"}, "512"),
        ({"resource": "requests.cpu", "divisor": "1m"}, "100"),
        ({"resource": "requests.cpu"}, "1"),
        ({"resource": "limits.cpu", "containerName": "main"}, "64"),
        ({"resource": "requests.memory"}, "0"),
    ],
)
def test_resources_are_told_in_units_of_the_divisor(reference: dict[str, str], value: str) -> None:
    resources = {"limits": {"memory": "512Mi"}, "requests": {"cpu": "100m"}}
    entry = {"name": "X", "valueFrom": {"resourceFieldRef": reference}}
    assert env_of([entry], resources=resources)["X"] == value


def test_later_entries_see_earlier_ones() -> None:
    env = env_of([{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$$(A)-$(NONE)-$5"}, {"name": "C"}])
    assert (env["B"], env["C"]) == ("1-$(A)-$(NONE)-$5", "")


def test_whole_objects_and_keys_are_read() -> None:
    key = {"secretKeyRef": {"name": "token", "key": "value"}}
    env = env_of(
        [{"name": "TOKEN", "valueFrom": key}],
        envFrom=[
            {"configMapRef": {"name": "settings"}, "prefix": "P_"},
            {"secretRef": {"name": "none", "optional": True}},
        ],
    )
    assert env == {"PATH": "/bin", "P_mode": "fast", "TOKEN": "hush"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "k"}}, 'configmap "none" not found'),
        ({"configMapKeyRef": {"name": "settings", "key": "k"}}, "couldn't find key k in ConfigMap team/settings"),
        ({"secretKeyRef": {"name": "none", "key": "k"}}, 'secret "none" not found'),
        ({"secretKeyRef": {"name": "token", "key": "k"}}, "couldn't find key k in Secret team/token"),
    ],
)
def test_what_is_missing_is_named_unless_it_is_optional(source: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        env_of([{"name": "X", "valueFrom": source}])
    optional = {kind: {**reference, "optional": True} for kind, reference in source.items()}
    assert "X" not in env_of([{"name": "X", "valueFrom": optional}])


def test_missing_whole_objects_are_named() -> None:
    with pytest.raises(ConfigError, match='secret "gone" not found'):
        env_of([], envFrom=[{"secretRef": {"name": "gone"}}])


def test_references_are_collected_from_containers_and_volumes() -> None:
    pod = {
        "spec": {
            "initContainers": [{"envFrom": [{"configMapRef": {"name": "a"}}]}],
            "containers": [
                {
                    "env": [
                        {"name": "x", "valueFrom": {"secretKeyRef": {"name": "b", "key": "k"}}},
                        {"name": "y", "value": "z"},
                    ]
                }
            ],
            "volumes": [{"configMap": {"name": "c"}}, {"secret": {"secretName": "d"}}, {"emptyDir": {}}],
        }
    }
    assert references(pod) == ({"a", "c"}, {"b", "d"})


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", "1"),
        ("100m", "0.1"),
        ("1Gi", str(1024**3)),
        ("1.5k", "1500"),
        ("2e3", "2000"),
        ("1E", str(10**18)),
        (3, "3"),
    ],
)
def test_quantities(text: object, number: str) -> None:
    assert parse_quantity(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "x", "1Q", "1 Gi"])
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)


def test_expansion_knows_escapes() -> None:
    assert expand("$(A) $$(A) $$ $B $(", {"A": "x"}) == "x $(A) $ $B $("


def test_paths_are_rewritten_where_they_stand_for_themselves() -> None:
    paths = {"/data": "/p/1", "/data/in": "/p/2", "/dev/termination-log": "/p/t"}
    text = "cat /data/x /data/in/y '/data' --o=/data >/dev/termination-log /database x/data /data-2 /data.bak"
    assert rewrite(text, paths) == "cat /p/1/x /p/2/y '/p/1' --o=/p/1 >/p/t /database x/data /data-2 /data.bak"
    assert rewrite(text, {}) == text
