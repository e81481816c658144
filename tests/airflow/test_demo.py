"""What `make demo` runs, on the tests' fleet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_multikueue.sandbox.api import Sandbox

pytestmark = [pytest.mark.airflow, pytest.mark.fleet, pytest.mark.timeout(400)]

DEMO = Path(__file__).parents[2] / "scripts" / "demo.py"


def test_the_demo_shows_a_run_from_start_to_end(fleet: Sandbox) -> None:
    scripts = {region: fleet.requests(region)["script"] for region in fleet.regions}
    shown = subprocess.run(
        [sys.executable, DEMO, "--name", fleet.name], check=False, capture_output=True, text=True, timeout=360
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    for text in (
        "Asking 3 regions",
        "Admitted in europe-west4",
        "epoch 5 of 5",
        "Trained in europe-west4",
        "task publish_abroad is skipped",
        "All of it is stopped",
    ):
        assert text in shown.stdout
    assert {region: fleet.requests(region)["script"] for region in fleet.regions} == scripts


def test_the_demo_ends_at_once_when_it_is_interrupted(fleet: Sandbox, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, DEMO, "--name", fleet.name],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A shell that runs pytest in the background lets its children ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "Starting Airflow" in line:
                demo.send_signal(signal.SIGINT)
        assert demo.wait(60) == 130
    assert list(tmp_path.iterdir()) == []
    assert fleet.state["phase"] == "up"
