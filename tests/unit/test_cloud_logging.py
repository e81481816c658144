"""Output from Cloud Logging, where pods can't be read: over Google's own client and gRPC."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator

import grpc
import pytest

from airflow_provider_multikueue.clusters import cloud_logging
from airflow_provider_multikueue.clusters.cloud_logging import API_ENDPOINT, CloudLogging
from airflow_provider_multikueue.clusters.google_account import GoogleAccount
from airflow_provider_multikueue.decisions.console import logs_filter, logs_url
from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.logs import cloud
from airflow_provider_multikueue.logs.cloud import CloudSource
from airflow_provider_multikueue.logs.reader import PodLogs
from tests.unit.gkeserver import GkeServer
from tests.unit.kubelet import Pod
from tests.unit.loggingserver import LoggingServer
from tests.unit.test_reader import Killed, Recorded, until

GKE = "projects/team/locations/us-east4/clusters/worker-us"
JOB = {"api_version": "batch/v1", "kind": "Job", "namespace": "default", "name": "train-x", "uid": "u"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoggingServer]:
    monkeypatch.setattr(cloud_logging, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(cloud, "PAUSE", 0.05)
    with LoggingServer().running() as running:
        monkeypatch.setenv(API_ENDPOINT, running.address)
        yield running


@pytest.fixture
def source() -> CloudSource:
    account = GoogleAccount(where="a test", key=json.dumps(GkeServer(token_uri="http://127.0.0.1:9/").key_file()))
    return CloudSource(CloudLogging("team", account), logs_filter(GKE, JOB), logs_url(GKE, JOB) or "")


@pytest.fixture
def out() -> Recorded:
    return Recorded()


def reader(source: CloudSource, out: Recorded, **options: object) -> PodLogs:
    return PodLogs(sink=out, cloud=lambda _: source, since="2026-01-01T00:00:00+00:00", **options)


async def test_pods_that_may_not_be_read_are_shown_from_cloud_logging(server, kubelet, cluster, source, out):
    kubelet.faults = [403] * 99
    pod = Pod(kubelet, "train-x-a")
    pod.start()
    logs = reader(source, out)
    server.write("one", pod="train-x-a", job="train-x")
    server.write("not ours", pod="train-y-a", job="train-y")
    server.write("elsewhere", pod="train-x-a", job="train-x", resource={"location": "europe-west4"})
    logs.update(cluster, "us-east4", [pod.status()])
    await until(lambda: "one" in out.lines)
    server.write("two", pod="train-x-a", job="train-x")
    await until(lambda: "two" in out.lines)
    pod.end()
    server.write("three", pod="train-x-a", job="train-x")
    logs.update(cluster, "us-east4", [pod.status()])
    await logs.drain(5)
    assert out.lines == ["one", "two", "three"]
    assert "── pod train-x-a in us-east4, from Cloud Logging ──" in out.remarks
    assert not [text for _, text in out.records if "may not" in text]


async def test_entries_that_arrive_late_or_twice_are_shown_once(server, source, out):
    logs = reader(source, out)
    now = time.time()
    server.write("second", pod="train-x-a", job="train-x", at=now)
    assert logs.read_cloud("worker-us", "us-east4")
    await until(lambda: out.lines == ["second"])
    server.write("first, but late", pod="train-x-a", job="train-x", at=now - 20)
    await until(lambda: out.lines == ["second", "first, but late"])
    await logs.drain(5)
    assert out.lines == ["second", "first, but late"]


async def test_another_reader_goes_on_where_each_container_stood(server, source, out):
    first, now = reader(source, out), time.time()
    server.write("b 1", pod="train-x-b", job="train-x", at=now - 20)
    server.write("a 2", pod="train-x-a", job="train-x", at=now - 8)
    server.write("a 1", pod="train-x-a", job="train-x", at=now - 9)
    assert first.read_cloud("worker-us", "us-east4")
    await until(lambda: len(out.lines) == 3)
    cursors = json.loads(json.dumps(await first.hand_over()))
    await first.close()
    server.write("b 2, which arrives late", pod="train-x-b", job="train-x", at=now - 15)
    server.write("a 3", pod="train-x-a", job="train-x", at=now)
    second = reader(source, out, cursors=cursors)
    second.read_cloud("worker-us", "us-east4")
    await second.drain(5)
    assert sorted(line.split("] ")[-1] for line in out.lines) == ["a 1", "a 2", "a 3", "b 1", "b 2, which arrives late"]


async def test_entries_that_were_not_out_at_a_loss_come_again(server, source, out):
    gone, now = Recorded(), time.time()
    first = reader(source, Killed(gone, 1))
    server.write("one", pod="train-x-a", job="train-x", at=now - 200)
    first.read_cloud("worker-us", "us-east4")
    await until(lambda: gone.lines)
    server.write("two", pod="train-x-a", job="train-x", at=now - 150)
    server.write("three", pod="train-x-a", job="train-x", at=now)
    await until(lambda: len(gone.lines) == 3)
    cursors = json.loads(json.dumps(await first.hand_over()))
    await first.close()
    second = reader(source, out, cursors=cursors)
    second.read_cloud("worker-us", "us-east4")
    await second.drain(5)
    assert out.lines == ["two", "three"]


async def test_more_than_a_page_is_read_to_its_end(server, source, out, monkeypatch):
    monkeypatch.setattr(cloud_logging, "PAGE", 100)
    monkeypatch.setattr(cloud, "PAGE", 100)
    now = time.time() - 10
    for n in range(950):
        server.write(f"line {n}", pod="train-x-a", job="train-x", at=now + n / 1000)
    logs = reader(source, out)
    assert logs.read_cloud("worker-us", "us-east4")
    await logs.drain(10)
    assert [line for line in out.lines if line.startswith("line")] == [f"line {n}" for n in range(950)]


async def test_lines_that_were_read_from_the_pod_do_not_come_again(server, kubelet, cluster, source, out):
    pod = Pod(kubelet, "train-x-a")
    pod.start()
    now = time.time()
    logs = reader(source, out)
    logs.update(cluster, "us-east4", [pod.status()])
    pod.write("one")
    await until(lambda: out.lines == ["one"])
    server.write("one", pod="train-x-a", job="train-x", at=now - 1)
    server.write("two", pod="train-x-a", job="train-x", at=time.time() + 1)
    assert logs.read_cloud("worker-us", "us-east4")
    await until(lambda: "two" in out.lines)
    await logs.close()
    assert out.lines == ["one", "two"]


async def test_json_lines_have_their_level_and_pods_their_names(server, source, out):
    logs = reader(source, out, several=True)
    for index in (0, 1):
        labels = {"k8s-pod/batch_kubernetes_io/job-completion-index": str(index)}
        line = {"message": "bad", "step": 7}
        server.write(line, pod=f"train-x-{index}-a", job="train-x", labels=labels, severity="ERROR")
        server.write("good", pod=f"train-x-{index}-a", job="train-x", labels=labels, severity="ERROR")
    assert logs.read_cloud("worker-us", "us-east4")
    await logs.drain(5)
    assert out.lines == ['[0] bad {"step": 7.0}', "[0] good", '[1] bad {"step": 7.0}', "[1] good"]
    assert [level for level, text in out.records if "bad" in text] == [logging.ERROR] * 2
    assert [level for level, text in out.records if "good" in text] == [logging.INFO] * 2


async def test_a_right_that_is_missing_is_named(server, source, out):
    server.refusal = (grpc.StatusCode.PERMISSION_DENIED, "Permission denied")
    logs = reader(source, out)
    assert logs.read_cloud("worker-us", "us-east4")
    await logs.drain(5)
    assert any("roles/logging.viewer" in text for text in out.remarks)


async def test_an_outage_passes(server, source, out):
    server.refusal = (grpc.StatusCode.UNAVAILABLE, "down")
    logs = reader(source, out)
    server.write("one", pod="train-x-a", job="train-x")
    assert logs.read_cloud("worker-us", "us-east4")
    await until(lambda: len(server.requests) > 1)
    server.refusal = None
    await until(lambda: out.lines == ["one"])
    await logs.close()


async def test_without_it_one_line_names_right_and_setting(kubelet, cluster, out):
    kubelet.faults = [403] * 99
    pods = [Pod(kubelet, f"train-x-{n}") for n in range(3)]
    for pod in pods:
        pod.start()
        pod.end()
    logs = PodLogs(sink=out)
    logs.update(cluster, "us-east4", [pod.status() for pod in pods])
    await logs.drain(5)
    (told,) = [text for _, text in out.records if "can't be read" in text]
    assert "`pods/log`" in told
    assert "`cloud_logging`" in told


async def test_only_loopback_may_be_without_tls(server, source, monkeypatch):
    monkeypatch.setenv(API_ENDPOINT, "http://logging.example.com")
    with pytest.raises(FleetConfigurationError, match="LOGGING_API"):
        await source.api.entries(source.query, since="2026-01-01T00:00:00Z")


def test_the_console_shows_the_same_query():
    url = logs_url(GKE, JOB) or ""
    assert url.startswith("https://console.cloud.google.com/logs/query;query=resource.type%3D%22k8s_container%22%0A")
    assert url.endswith("?project=team")
    assert logs_url(None, JOB) is None
