"""From GKE resource names to a pod's log: Google's API and tokens are stood in for, the clusters are real."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from airflow_provider_multikueue.clusters import gke
from airflow_provider_multikueue.decisions.names import Identity
from airflow_provider_multikueue.hooks import MultiKueueHook
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.sandbox.accounts import Accounts
from tests.sandbox.test_hook import manifest
from tests.unit.gkeserver import GkeServer

pytestmark = [pytest.mark.sandbox, pytest.mark.broad]


@pytest.fixture
async def accounts(fleet: Sandbox, multikueue_namespace: str, tmp_path: Path) -> AsyncIterator[Accounts]:
    made = Accounts(fleet, multikueue_namespace, tmp_path)
    await made.make()
    yield made
    await made.remove()


@pytest.fixture
def google(accounts: Accounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GkeServer]:
    """Google, which knows the sandbox's clusters, and an account for each of them."""
    server = GkeServer(tokens=lambda account: accounts.tokens[account.partition("@")[0]])
    with server.running(tmp_path):
        monkeypatch.setenv(gke.API_ENDPOINT, server.address)
        known = json.loads(accounts.sandbox.kubeconfig.read_text())
        for name in accounts.tokens:
            context = next(c["context"] for c in known["contexts"] if c["name"] == accounts.context(name))
            cluster = next(c["cluster"] for c in known["clusters"] if c["name"] == context["cluster"])
            authority = base64.b64decode(cluster["certificate-authority-data"])
            server.add(resource_name(accounts, name), urlsplit(cluster["server"]).netloc, authority)
            key = {**server.key_file(), "client_email": f"{name}@team.iam.gserviceaccount.com"}
            connection = {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": json.dumps(key)}}
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.replace('-', '_').upper()}", json.dumps(connection))
        yield server


def resource_name(accounts: Accounts, name: str) -> str:
    worker = accounts.sandbox.connection()["extra"]["workers"].get(name, {})
    return f"projects/team/locations/{worker.get('region', 'europe-west4')}/clusters/{name}"


def by_name(accounts: Accounts, name: str) -> dict[str, Any]:
    return {"gke_cluster": resource_name(accounts, name), "conn_id": name.replace("-", "_")}


@pytest.mark.parametrize("workers", ["listed", "gke"])
def test_a_job_runs_and_its_log_is_read_by_resource_names_alone(accounts, google, monkeypatch, caplog, workers):
    names = [name for name in accounts.tokens if name != "manager"]
    manager = {f"manager_{key}": value for key, value in by_name(accounts, "manager").items()}
    extra = {**manager, "namespace": accounts.namespace, "queue_name": "dws-local-queue", "deployment": "gke"}
    if workers == "listed":
        extra["workers"] = {name: by_name(accounts, name) for name in names}
    else:
        # One account for all workers that are found: that of the only one here, or the first.
        extra |= {"workers": "gke", "gcp_conn_id": names[0].replace("-", "_")}
    monkeypatch.setenv("AIRFLOW_CONN_FLEET", json.dumps({"conn_type": "multikueue", "extra": extra}))
    hook = MultiKueueHook("fleet")
    identity = Identity(deployment="gke", dag_id="d", run_id=uuid.uuid4().hex, task_id="t", map_index=-1)
    job = hook.submit(manifest("echo hello from the pod; sleep 1"), identity=identity)
    lines: list[str] = []
    monkeypatch.setattr(hook.log, "log", lambda _level, _format, text: lines.append(text))
    report = hook.wait(job, logs="all")
    hook.delete(job)
    assert report["phase"] == "SUCCEEDED"
    assert report["placement"]["region"] in accounts.sandbox.regions
    if workers == "listed" or len(names) == 1:
        assert any("hello from" in line for line in lines), lines
    assert f"get {resource_name(accounts, 'manager')}" in google.calls
