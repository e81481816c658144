"""The tutorial's fleet file on this machine: its queues, its teams and their priorities, its residency group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from airflow_provider_multikueue.decisions.names import Identity
from airflow_provider_multikueue.hooks import MultiKueueHook
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.sandbox.test_hook import manifest
from tests.unit.test_setup import EXAMPLE

pytestmark = [pytest.mark.fleet, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def tutorial() -> Iterator[Sandbox]:
    """A sandbox that the command has made of the file, or one that is up."""
    if name := os.environ.get("MULTIKUEUE_TEST_TUTORIAL_SANDBOX"):
        yield Sandbox.attach(name)
        return
    name = f"tutorial-{uuid.uuid4().hex[:6]}"
    command = [sys.executable, "-m", "airflow_provider_multikueue", "sandbox"]
    done = subprocess.run(
        [*command, "up", "--name", name, "--fleet", str(EXAMPLE)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    try:
        assert done.returncode == 0, done.stderr
        yield Sandbox.attach(name)
    finally:
        subprocess.run([*command, "down", "--name", name], timeout=120, check=True)


@pytest.mark.parametrize(
    ("queue", "namespace", "priority", "region"),
    [
        ("dws-local-queue-eu", "default", None, "europe-west4"),
        ("dws-local-queue", "team-research", "research", "us-east4"),
        ("dws-local-queue", "team-production", "production", "us-east4"),
    ],
    ids=["eu", "research", "production"],
)
def test_a_job_runs_where_its_queue_may(
    tutorial: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    queue: str,
    namespace: str,
    priority: str | None,
    region: str,
) -> None:
    tutorial.capacity(mode="grant", after=20)
    tutorial.capacity("us-east4", after=1)
    if region == "europe-west4":
        tutorial.capacity(region, after=5)
    monkeypatch.setenv("AIRFLOW_CONN_FLEET", json.dumps(tutorial.connection()))
    hook = MultiKueueHook("fleet")
    identity = Identity(deployment="t", dag_id="d", run_id=uuid.uuid4().hex, task_id="t", map_index=-1)
    submitted = hook.submit(
        manifest("echo hello"), identity=identity, queue_name=queue, namespace=namespace, priority_class=priority
    )
    report = hook.wait(submitted)
    hook.delete(submitted)
    assert (report["phase"], report["placement"]["region"]) == ("SUCCEEDED", region)
    assert report["priority_class"] == priority
