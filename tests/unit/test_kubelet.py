"""The parameters of a request for a log mean what they mean to a kubelet; a node looks like one of GKE's."""

from __future__ import annotations

import pytest

from airflow_provider_multikueue.sandbox.containerlog import LogOptions
from airflow_provider_multikueue.sandbox.kubelet import log_options
from airflow_provider_multikueue.sandbox.nodeobject import is_ready, lease, node_object

SECOND = 1_000_000_000


def test_nothing_asked_for_is_the_whole_log_as_it_is() -> None:
    assert log_options({}, now=0) == LogOptions()


def test_everything_asked_for() -> None:
    query = {"follow": "true", "timestamps": "true", "tailLines": "0", "limitBytes": "7", "sinceSeconds": "3"}
    expected = LogOptions(follow=True, timestamps=True, tail_lines=0, limit_bytes=7, since=2 * SECOND)
    assert log_options(query, now=5 * SECOND) == expected


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:01Z", SECOND),
        ("1970-01-01T01:00:01+01:00", SECOND),
        ("1970-01-01T00:00:01.123456789Z", SECOND + 123_456_789),
        ("1970-01-01T00:00:01.5Z", SECOND + 500_000_000),
    ],
)
def test_times_keep_all_their_decimals(text: str, nanoseconds: int) -> None:
    assert log_options({"sinceTime": text}, now=0).since == nanoseconds


@pytest.mark.parametrize(
    "query",
    [
        {"sinceTime": "yesterday"},
        {"sinceTime": "1970-01-01T00:00:01"},
        {"sinceSeconds": "0"},
        {"tailLines": "-1"},
        {"limitBytes": "0"},
        {"limitBytes": "x"},
    ],
)
def test_what_makes_no_sense_is_named(query: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(query))):
        log_options(query, now=0)


def test_a_node_offers_gpus_and_says_where_it_is() -> None:
    node = node_object("n", region="us-east4", zone="us-east4-b", gpus=4, port=10250, version="v1.35.4")
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"
    assert node["metadata"]["labels"]["topology.kubernetes.io/zone"] == "us-east4-b"
    assert node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"] == 10250
    assert is_ready(node)


def test_a_node_is_not_ready_while_tainted_or_silent() -> None:
    node = node_object("n", region="r", zone="z", gpus=0, port=1, version="v")
    tainted = node | {"spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]}}
    silent = node | {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
    assert not is_ready(tainted)
    assert not is_ready(silent)


def test_a_lease_belongs_to_its_node() -> None:
    made = lease("n", "uid")
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid"
    assert made["spec"]["renewTime"].endswith("Z")
