"""Where the output of a deferred task's pods goes besides, or comes from instead: a store, and Cloud Logging."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from airflow_provider_multikueue.clusters import cloud_logging, gke
from airflow_provider_multikueue.decisions.rights import RIGHTS
from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import HERE, Watcher, job, prefix, start
from tests.sandbox.accounts import Accounts
from tests.unit.gkeserver import GkeServer
from tests.unit.loggingserver import LoggingServer

pytestmark = [pytest.mark.airflow, pytest.mark.fleet, pytest.mark.timeout(400)]

WORKER = "multikueue-dws-worker-us"
GKE = f"projects/team/locations/us-east4/clusters/{WORKER}"
SPEAKING = """
import os, sys, time
for i in range(3000): print("pod", os.environ.get("JOB_COMPLETION_INDEX"), "line", i, flush=i % 100 == 0)
sys.stdout.buffer.write(b"bytes \\xe4 " + b"x" * 200_000 + b"\\n")
time.sleep(1)
print("end", flush=True)
"""


def test_the_whole_output_is_in_the_store_and_the_task_says_where(
    airflow: LocalAirflow, granting: Sandbox, watcher: Watcher, tmp_path: Path
) -> None:
    manifest = job(SPEAKING, pods=3, completionMode="Indexed")
    uri = f"file://{tmp_path}/output"
    conf = {"job": json.loads(json.dumps(manifest)), "log_uri": uri}
    run = airflow.sync(airflow.trigger("stored", conf=conf))
    assert airflow.sync(airflow.wait_run("stored", run)) == "success"
    name = airflow.sync(airflow.xcom("stored", run, "train"))["job"]["name"]
    kept = watcher.output("us-east4", prefix(manifest))
    stored = {
        folder.name: b"".join(file.read_bytes() for file in sorted(folder.iterdir()))
        for folder in (tmp_path / "output" / name / "us-east4").iterdir()
    }
    assert stored == {pod.partition("_")[0]: data.replace(b"\xe4", b"\\xe4") for pod, data in kept.items()}
    assert len(stored) == 3
    text = airflow.sync(airflow.task_text("stored", run, "train"))
    assert f"the whole output is written to {uri}/{name}" in text
    assert "incomplete" not in text
    if airflow.api.major != 2:
        links = airflow.sync(airflow.api.get(f"/dags/stored/dagRuns/{run}/taskInstances/train/links"))
        assert links["extra_links"]["Whole output"] == f"{uri}/{name}"


@contextmanager
def google(accounts: Accounts, folder: Path) -> Iterator[tuple[GkeServer, dict[str, str]]]:
    """Give a Google that knows one worker of the fleet, and the variables with which that is asked."""
    whole = json.loads(accounts.sandbox.kubeconfig.read_text())
    cluster = next(each["cluster"] for each in whole["clusters"] if each["name"] == accounts.context(WORKER))
    server = GkeServer(tokens=lambda _: accounts.tokens[WORKER])
    with server.running(folder):
        authority = base64.b64decode(cluster["certificate-authority-data"])
        server.add(GKE, urlsplit(cluster["server"]).netloc, authority)
        connection = {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": json.dumps(server.key_file())}}
        yield server, {gke.API_ENDPOINT: server.address, "AIRFLOW_CONN_GOOGLE": json.dumps(connection)}


class Agent:
    """What sends the output of a worker's containers to Cloud Logging, as GKE's agent does: late, line by line."""

    def __init__(self, fleet: Sandbox, namespace: str, to: LoggingServer) -> None:
        self._folder = fleet.folder / "run/nodes/us-east4/kept-logs" / namespace
        self._namespace, self._to = namespace, to
        self._sent: dict[Path, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Agent:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            for file in sorted(self._folder.glob("*/*.log")):
                self._send(file)

    def _send(self, file: Path) -> None:
        pod = file.parent.name.partition("_")[0]
        resource = {"cluster_name": WORKER, "namespace_name": self._namespace}
        lines = file.read_text().splitlines()
        for line in lines[self._sent.get(file, 0) :]:
            self._to.write(line, pod=pod, job=re.sub(r"-\w{5}$", "", pod), resource=resource)
        self._sent[file] = len(lines)


@pytest.fixture
def accounts(fleet: Sandbox, multikueue_namespace: str, tmp_path: Path) -> Iterator[Accounts]:
    """Accounts with the rights that are documented."""
    made = Accounts(fleet, multikueue_namespace, tmp_path)
    asyncio.run(made.make())
    yield made
    asyncio.run(made.remove())


@pytest.fixture
def without_logs(accounts: Accounts) -> Iterator[Accounts]:
    """Accounts that may not read logs."""
    right = next(right for right in RIGHTS if right.resource == "pods/log")
    with asyncio.Runner() as runner:
        taken = accounts.without(right)
        runner.run(taken.__aenter__())
        yield accounts
        runner.run(taken.__aexit__(None, None, None))


def test_lines_come_from_cloud_logging_where_pods_may_not_be_read(
    fleet: Sandbox, granting: Sandbox, without_logs: Accounts, tmp_path: Path
) -> None:
    namespace = without_logs.namespace
    extra: dict[str, Any] = without_logs.extra()
    extra["workers"][WORKER] = {"gke_cluster": GKE, "conn_id": "google", "cloud_logging": True}
    connections = {"multikueue_default": {"conn_type": "multikueue", "extra": extra}}
    with google(without_logs, tmp_path) as (_, variables), LoggingServer().running() as logging:
        variables |= {cloud_logging.API_ENDPOINT: logging.address}
        with (
            LocalAirflow(
                dags=HERE / "dags", python=sys.executable, connections=connections, variables=variables
            ) as airflow,
            Agent(fleet, namespace, logging),
        ):
            script = "import time\nfor i in range(40): print('tick', i, flush=True); time.sleep(.4)"
            run = start(airflow, "deferred", job(script))
            assert airflow.sync(airflow.wait_run("deferred", run)) == "success"
            text = airflow.sync(airflow.task_text("deferred", run, "train"))
    assert [int(number) for number in re.findall(r"^tick (\d+)$", text, re.MULTILINE)] == list(range(40))
    assert "their lines come from Cloud Logging, some seconds late: https://console.cloud.google.com/logs" in text
    assert "can't be read: its account" not in text
