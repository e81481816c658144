"""The parts of the local Airflow that need no Airflow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_multikueue.sandbox.airflow_config import (
    HOME_MARK,
    Layout,
    commands,
    connection_environment,
    environment,
)
from airflow_provider_multikueue.sandbox.airflow_database import password_hash
from airflow_provider_multikueue.sandbox.airflow_rest import LogRecord, parse_text_log
from airflow_provider_multikueue.sandbox.leash import Leash, end_marked, marked


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(home=tmp_path, dags=tmp_path / "dags", port=1234)


@pytest.mark.parametrize("major", [2, 3])
def test_another_airflows_configuration_does_not_leak_in(
    layout: Layout, major: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "CeleryExecutor")
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", "x://")
    monkeypatch.setenv("KEPT", "yes")
    variables = environment(layout, major, {"triggerer.capacity": 10})
    assert variables["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"
    assert variables["AIRFLOW__TRIGGERER__CAPACITY"] == "10"
    assert variables["KEPT"] == "yes"
    assert variables[HOME_MARK] == layout.mark
    assert "AIRFLOW_CONN_OTHER" not in variables


@pytest.mark.parametrize("major", [2, 3])
def test_every_airflow_has_its_own_secrets(tmp_path: Path, major: int) -> None:
    one, two = (environment(Layout(home=tmp_path, dags=tmp_path, port=1), major, {}) for _ in range(2))
    same = {key for key in one if key.startswith("AIRFLOW__") and one[key] == two[key]}
    assert not {key for key in same if key.endswith(("_KEY", "JWT_SECRET"))}
    assert "scheduler" in commands(major)


def test_a_password_does_not_show(layout: Layout) -> None:
    assert layout.password not in repr(layout)
    assert layout.password not in password_hash(layout.password)


def test_connections_become_variables() -> None:
    found = connection_environment({"multikueue_default": {"conn_type": "multikueue"}, "b": "http://x"})
    assert found == {"AIRFLOW_CONN_MULTIKUEUE_DEFAULT": '{"conn_type": "multikueue"}', "AIRFLOW_CONN_B": "http://x"}


def test_a_text_log_is_split_into_records_at_its_heads() -> None:
    text = (
        "*** Found local files\n"
        "[2026-03-01T00:00:00.000+0000] {x.py:1} INFO - one\u2028still one\nmore\n"
        "[2026-03-01T00:00:01.000+0000] {x.py:2} ERROR - two\n"
    )
    assert parse_text_log(text) == [
        LogRecord("", "info", "*** Found local files"),
        LogRecord("2026-03-01T00:00:00.000+0000", "info", "one\u2028still one\nmore"),
        LogRecord("2026-03-01T00:00:01.000+0000", "error", "two"),
    ]


def _sleeper(value: str, *, ignore: bool = False) -> subprocess.Popen[bytes]:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN if {} else signal.SIG_DFL);"
        "print(flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code.format(ignore)],
        env={**os.environ, "LEASH_TEST": value},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_marked_processes_end_even_if_they_ignore_the_first_signal() -> None:
    willing, stubborn, other = _sleeper("a"), _sleeper("a", ignore=True), _sleeper("ab")
    try:
        assert sorted(marked("LEASH_TEST", "a")) == sorted([willing.pid, stubborn.pid])
        assert end_marked("LEASH_TEST", "a", grace=0.3) == 2
        assert (willing.wait(), stubborn.wait()) == (-15, -9)
        assert other.poll() is None
    finally:
        for each in (willing, stubborn, other):
            each.kill()
            each.communicate()


def test_what_is_on_the_leash_ends_when_its_holder_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    sleeper = _sleeper("held")
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, pathlib, time; from airflow_provider_multikueue.sandbox.leash import Leash;"
            "leash = Leash('LEASH_TEST', 'held', pathlib.Path(sys.argv[1])); print(flush=True); time.sleep(600)",
            str(folder),
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    holder.kill()
    holder.communicate()
    assert sleeper.wait(timeout=20) == -9
    sleeper.communicate()


def test_a_leash_let_go_cleans_up(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    Leash("LEASH_TEST", "nobody", folder).release()
    assert not folder.exists()
