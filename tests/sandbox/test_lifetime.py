"""Nothing of a sandbox is left, however it ends, and a sandbox that can't come up says why."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_multikueue.sandbox.api import Sandbox
from airflow_provider_multikueue.sandbox.components import DEFAULT_KUEUE, components_for
from airflow_provider_multikueue.sandbox.paths import SandboxError, binaries_root, fleet_folder

pytestmark = pytest.mark.sandbox

REGION = "us-east4"

OWNER = """
import sys, time
from airflow_provider_multikueue.sandbox.api import Sandbox
with Sandbox.start_local(name=sys.argv[1], regions=["us-east4"]) as sandbox:
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a sandbox of the test's own, which is ended if the test failed to."""
    name = f"life-{os.getpid()}-{time.monotonic_ns() % 10**6}"
    yield name
    command(name, "down")


def command(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "airflow_provider_multikueue", "sandbox", words[0], "--name", name, *words[1:]]
    return subprocess.run(line, capture_output=True, text=True, timeout=200, check=False)


def processes(folder: Path) -> list[int]:
    """The processes that have to do with a sandbox's folder, which is in their command line or is where they run."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                text = (entry / "cmdline").read_bytes().decode(errors="replace")
                if str(folder) in text or str((entry / "cwd").readlink()).startswith(str(folder)):
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


def eventually(true: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.parametrize("victim", ["owner", "guardian", "supervisor"])
def test_nothing_is_left_when_one_of_its_processes_is_killed(name: str, victim: str) -> None:
    folder = fleet_folder(name)
    with subprocess.Popen([sys.executable, "-c", OWNER, name], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        assert len(processes(folder)) > 10
        guardian = int((folder / "lock").read_text())
        supervisor = Sandbox.attach(name).state["supervisor"]
        os.kill({"owner": owner.pid, "guardian": guardian, "supervisor": supervisor}[victim], signal.SIGKILL)
        assert eventually(lambda: processes(folder) == [], 20), processes(folder)
        owner.kill()
    if victim == "owner":
        assert eventually(lambda: not folder.exists(), 5)
    elif victim == "supervisor":
        assert not list(folder.rglob("*.key"))


def test_the_commands_lead_through_the_life_of_a_sandbox(name: str, tmp_path: Path) -> None:
    up = command(name, "up", "--regions", REGION, "--gpus", "8", "--folder", str(tmp_path / "fleet"))
    assert up.returncode == 0, up.stderr
    assert f"multikueue sandbox env --name {name}" in up.stdout
    again = command(name, "up")
    assert again.returncode == 1
    assert "is running already" in again.stderr

    status = json.loads(command(name, "status", "--json").stdout)
    assert status["phase"] == "up"
    assert {each["state"] for each in status["components"].values()} == {"running"}

    extra = json.loads(command(name, "env", "--json").stdout)["extra"]
    assert list(extra["workers"]) == ["multikueue-dws-worker-us"]
    assert extra["manager_kube_config_path"] == str(tmp_path / "fleet" / "kubeconfig")
    assert "export AIRFLOW_CONN_FLEET=" in command(name, "env", "--conn-id", "fleet").stdout

    assert command(name, "capacity", REGION, "grant", "--after", "3").returncode == 0
    script = json.loads(command(name, "capacity", REGION).stdout)["script"]
    assert (script["mode"], script["after"], script["gpus"]) == ("grant", 3.0, 8)
    assert command(name, "capacity", "mars", "starve").returncode == 1

    assert f"{REGION}-kueue" in command(name, "logs").stdout.split()
    assert "Starting manager" in command(name, "logs", f"{REGION}-kueue", "--lines", "9999").stdout

    assert command(name, "down").stdout == f"The sandbox '{name}' is down.\n"
    assert processes(tmp_path / "fleet") == []
    assert not list((tmp_path / "fleet").rglob("*.key"))
    assert command(name, "status").returncode == 3


def test_a_component_that_cannot_start_is_named_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built, root = binaries_root(), tmp_path / "cache" / "airflow-provider-multikueue"
    shutil.copytree(built, root / "binaries", copy_function=os.symlink, ignore=shutil.ignore_patterns("*.lock"))
    scheduler = next(each for each in components_for(kueue=DEFAULT_KUEUE) if "kube-scheduler" in each.programs)
    broken = root / "binaries" / scheduler.folder.name / "kube-scheduler"
    broken.unlink()
    broken.write_text("#!/bin/sh\necho no timetable today >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(SandboxError) as failure, Sandbox.start_local(name="broken", regions=[REGION]):
        pass
    assert f"{REGION}-scheduler ended" in str(failure.value) or "manager-scheduler ended" in str(failure.value)
    assert "no timetable today" in str(failure.value)
    assert eventually(lambda: processes(root / "fleets" / "broken") == [], 10)
