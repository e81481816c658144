"""The ``multikueue`` command, run as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_multikueue import __version__

COMMAND = [sys.executable, "-m", "airflow_provider_multikueue"]


def run(*arguments: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"PYTHONPATH": str(path)} if path else {})
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def without_extra(tmp_path: Path) -> Path:
    """A folder that makes the packages of the extra look as if they were not installed."""
    hide = "import sys\nsys.modules.update(aiohttp=None, cryptography=None)\n"
    (tmp_path / "sitecustomize.py").write_text(hide)
    return tmp_path


def test_version():
    done = run("--version")
    assert (done.returncode, done.stdout.strip()) == (0, f"multikueue {__version__}")


def test_no_command_is_an_error_that_shows_the_usage():
    done = run()
    assert done.returncode == 2
    assert "usage: multikueue" in done.stderr


def test_the_sandbox_lists_its_commands():
    done = run("sandbox", "--help")
    assert done.returncode == 0
    for command in ("up", "status", "env", "capacity", "logs", "down"):
        assert command in done.stdout


def test_without_the_extra_the_sandbox_says_what_to_install(without_extra: Path):
    done = run("sandbox", "up", path=without_extra)
    assert done.returncode == 2
    assert "pip install 'airflow-provider-multikueue[sandbox]'" in done.stderr


def test_without_the_extra_there_is_still_a_version(without_extra: Path):
    assert run("--version", path=without_extra).stdout.strip() == f"multikueue {__version__}"


def test_the_doctor_says_which_connection_it_cannot_use(tmp_path: Path):
    (tmp_path / "connection.json").write_text('{"manager_conext": "secret-word"}')
    done = run("doctor", "--file", str(tmp_path / "connection.json"))
    assert done.returncode == 2
    assert "manager_context" in done.stderr
    assert "secret-word" not in done.stderr
    assert run("doctor", "--file", str(tmp_path / "nowhere.json")).returncode == 2
