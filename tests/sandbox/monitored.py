"""A fleet with a history, in a real Prometheus: jobs that ran, waited, were moved and refused, and a worker lost."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import ssl
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.clusters.client import JOBS, ApiError, Cluster, Resource
from airflow_provider_multikueue.sandbox.airflow_runs import poll
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.prometheus import (
    MONITORING,
    Prometheus,
    free_port,
    kueue_clusters,
    manifest,
    program,
    running,
    scrape_config,
    started,
    until,
)

GROUP = "rbac.authorization.k8s.io"
RESOURCES = {
    "ServiceAccount": Resource("", "v1", "serviceaccounts"),
    "Secret": Resource("", "v1", "secrets"),
    "Role": Resource(GROUP, "v1", "roles"),
    "RoleBinding": Resource(GROUP, "v1", "rolebindings"),
    "ClusterRoleBinding": Resource(GROUP, "v1", "clusterrolebindings", namespaced=False),
}
SYSTEM = "kueue-system"
LABEL = "monitored=true"

# Airflow's own client sends these, as a worker and a triggerer would, before and after Prometheus has looked.
AIRFLOW = """
import sys
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)
from airflow_provider_multikueue.decisions.measures import measures_of_outcome, measures_of_submission
from airflow_provider_multikueue.decisions.outcome import Outcome
from airflow_provider_multikueue.exceptions import JobFailedError
from airflow_provider_multikueue.metrics import emit
from airflow_provider_multikueue.tally import tally

job = {"namespace": "default", "name": "train"}
def stay(region, ended=None, reason=None):
    return {"cluster": region, "region": region, "admitted": "now", "ended": ended, "reason": reason}
def report(*stays, phase="SUCCEEDED", waited=2.5):
    return {"job": job, "queue": "dws-local-queue", "phase": phase, "waited_seconds": waited, "ran_seconds": 9.0,
            "dispatches": list(stays)}
for line in sys.stdin:
    emit(measures_of_submission({"metadata": {"namespace": "default", "labels": {
        "kueue.x-k8s.io/queue-name": "dws-local-queue"}}}))
    emit(measures_of_outcome(Outcome(report=report(stay("us-east4"))), job))
    moved = stay("asia-southeast1", "later", "Evicted")
    emit(measures_of_outcome(Outcome(report=report(moved, stay("us-east4"), waited=8.0)), job))
    failed = report(stay("europe-west4"), phase="FAILED")
    emit(measures_of_outcome(Outcome(report=failed, error=JobFailedError("exit code 3")), job))
    tally.add("multikueue.log_lines", 120)
    tally.add("multikueue.watch_reconnects", fleet_cluster="multikueue-dws-worker-us")
    emit(tally.take())
    print("sent", flush=True)
"""


@dataclass(frozen=True, slots=True)
class Monitored:
    """The fleet, its Prometheus, and what each Kueue's endpoint said last."""

    fleet: Sandbox
    prometheus: Prometheus
    endpoints: dict[str, str]
    seconds: float
    """How long the history took."""


@contextlib.contextmanager
def monitored(fleet: Sandbox, folder: Path) -> Iterator[Monitored]:
    """Make the fleet's accounts for metrics, let it be scraped, and make the history."""
    tokens = asyncio.run(_accounts(fleet))
    scrapes = [scrape_config(fleet, key, token) for key, token in tokens.items()]
    exporter, statsd = free_port(), free_port()
    scrapes.append({"job_name": "airflow", "static_configs": [{"targets": [f"127.0.0.1:{exporter}"]}]})
    command = [
        program("statsd-exporter.sh"),
        f"--statsd.mapping-config={MONITORING / 'statsd-mapping.yaml'}",
        f"--web.listen-address=127.0.0.1:{exporter}",
        f"--statsd.listen-udp=127.0.0.1:{statsd}",
        "--statsd.listen-tcp=",
    ]
    with (
        (folder / "exporter.log").open("wb") as log,
        started(command, log),
        running(folder, scrapes, MONITORING / "alerts.yaml") as prometheus,
        _airflow(statsd) as send,
    ):
        begun = time.monotonic()
        _history(fleet, prometheus, send)
        seen = {key: read_endpoint(scrape) for key, scrape in zip(tokens, scrapes, strict=False)}
        yield Monitored(fleet, prometheus, seen, time.monotonic() - begun)


async def _accounts(fleet: Sandbox) -> dict[str, str]:
    """Make the accounts that read metrics and return the token of each cluster's."""

    async def account(key: str, context: str) -> str:
        async with await Cluster.from_kubeconfig(context, path=str(fleet.kubeconfig), context=context) as cluster:
            for each in manifest(key):
                if each["kind"] == "PodMonitoring":  # Google's; the fleet has no collector that knows it
                    continue
                try:
                    await cluster.create(RESOURCES[each["kind"]], each, each["metadata"].get("namespace"))
                except ApiError as error:
                    if error.status != 409:
                        raise

            async def data() -> dict[str, str]:
                secret = await cluster.get(RESOURCES["Secret"], "kueue-metrics-token", SYSTEM)
                return secret.get("data") or {}

            token = (await poll(data, bool, within=30, what="the token to be made"))["token"]
        return base64.b64decode(token).decode()

    clusters = kueue_clusters(fleet)
    found = await asyncio.gather(*(account(key, context) for key, (context, _) in clusters.items()))
    return dict(zip(clusters, found, strict=True))


def read_endpoint(scrape: dict[str, Any]) -> str:
    """Return what a Kueue's endpoint says to who scrapes it."""
    (target,) = scrape["static_configs"][0]["targets"]
    bearer = f"{scrape['authorization']['type']} {scrape['authorization']['credentials']}"
    request = urllib.request.Request(f"https://{target}/metrics", headers={"Authorization": bearer})
    with urllib.request.urlopen(request, timeout=10, context=ssl._create_unverified_context()) as answer:
        return str(answer.read().decode())


@contextlib.contextmanager
def _airflow(port: int) -> Iterator[Any]:
    """Give what sends one round of the provider's metrics through Airflow's client."""
    settings = {
        "AIRFLOW__METRICS__STATSD_ON": "True",
        "AIRFLOW__METRICS__STATSD_HOST": "127.0.0.1",
        "AIRFLOW__METRICS__STATSD_PORT": str(port),
        "AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED": "True",
    }
    with subprocess.Popen(
        [sys.executable, "-c", AIRFLOW],
        env=os.environ | settings,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told, heard = process.stdin, process.stdout

        def send() -> None:
            print("send", file=told, flush=True)
            for line in heard:
                if line.strip() == "sent":
                    return
            raise AssertionError("the process that sends Airflow's metrics has ended")

        yield send
        told.close()


def _history(fleet: Sandbox, prometheus: Prometheus, send: Any) -> None:
    """Let happen what the dashboards show, twice, since a count is seen only as it grows."""
    admitted = 'sum(kueue_admitted_workloads_total{job="kueue-manager"})'
    evicted = 'sum(kueue_evicted_workloads_total{job="kueue-manager"})'
    active = 'sum(kueue_reserving_active_workloads{job="kueue-manager"})'
    refused = 'sum(kueue_evicted_workloads_total{job="kueue-worker",location="europe-west4",reason="AdmissionCheck"})'
    try:
        for _ in range(2):
            send()
            before = {expr: prometheus.value(expr) for expr in (admitted, evicted, refused)}
            # us-east4 grants, then has nothing left; europe-west4 refuses; asia-southeast1 grants, and takes it back
            fleet.capacity("us-east4", mode="grant", after=1)
            fleet.capacity("europe-west4", mode="fail", after=1)
            fleet.capacity("asia-southeast1", mode="starve")
            asyncio.run(_submit(fleet, 3, seconds=4))
            _grown(prometheus, admitted, before, by=3)
            fleet.capacity("us-east4", mode="starve")
            fleet.capacity("asia-southeast1", mode="grant", after=2)
            asyncio.run(_submit(fleet, 2, seconds=20))
            _grown(prometheus, admitted, before, by=5)
            fleet.revoke("asia-southeast1")
            _grown(prometheus, evicted, before, by=1)
            _grown(prometheus, refused, before, by=1)
            # Kueue 0.17 may strand a job that was moved; who watches the dashboard would delete it.
            with contextlib.suppress(AssertionError):
                until(lambda: prometheus.value(active) == 0, within=90, what="all jobs to be over")
            asyncio.run(_remove(fleet))
            until(lambda: prometheus.value(active) == 0, within=90, what="all jobs to be gone")
        _lose(fleet, prometheus, "us-east4")
    finally:
        fleet.capacity()


def _lose(fleet: Sandbox, prometheus: Prometheus, region: str) -> None:
    """Take a worker's API server away until the manager has tried to connect again twice."""
    retried = 'sum(controller_runtime_reconcile_total{controller="multikueue_cluster",result="requeue_after"})'
    before = {retried: prometheus.value(retried)}
    fleet.stop(f"{region}-apiserver")
    try:
        _grown(prometheus, retried, before, by=2)
    finally:
        fleet.start(f"{region}-apiserver")


def _grown(prometheus: Prometheus, expr: str, before: dict[str, float], *, by: int) -> None:
    until(lambda: prometheus.value(expr) >= before[expr] + by, within=180, what=f"{expr} to grow by {by}")


async def _remove(fleet: Sandbox) -> None:
    context = fleet.spec.manager_context
    async with await Cluster.from_kubeconfig(context, path=str(fleet.kubeconfig), context=context) as cluster:
        found, _ = await cluster.list(JOBS, "default", labels=LABEL)
        for job in found:
            with contextlib.suppress(ApiError):  # it is gone by itself
                await cluster.delete(JOBS, job["metadata"]["name"], "default")


async def _submit(fleet: Sandbox, count: int, *, seconds: int) -> None:
    context = fleet.spec.manager_context
    gpu = {"requests": {"cpu": "100m", "nvidia.com/gpu": 1}, "limits": {"nvidia.com/gpu": 1}}
    container = {
        "name": "main",
        "image": "gcr.io/k8s-staging-perf-tests/sleep:v0.0.3",
        "args": [f"{seconds}s"],
        "resources": gpu,
    }
    async with await Cluster.from_kubeconfig(context, path=str(fleet.kubeconfig), context=context) as cluster:
        for _ in range(count):
            metadata = {
                "name": f"monitored-{uuid.uuid4().hex[:8]}",
                "namespace": "default",
                "labels": {"kueue.x-k8s.io/queue-name": "dws-local-queue", "monitored": "true"},
                "annotations": {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": "600"},
            }
            template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
            spec = {"suspend": True, "backoffLimit": 0, "ttlSecondsAfterFinished": 60, "template": template}
            job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
            await cluster.create(JOBS, job, "default")
