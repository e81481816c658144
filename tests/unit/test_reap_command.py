"""``multikueue reap``, run as a user runs it."""

from __future__ import annotations

from pathlib import Path

from tests.unit.test_cli import run


def test_the_reaper_explains_itself_without_airflow(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules.update(airflow=None, aiohttp=None)\n")
    done = run("reap", "--help", path=tmp_path)
    assert done.returncode == 0
    assert "--delete" in done.stdout


def test_the_reaper_names_the_connection_that_is_missing():
    done = run("reap", "--multikueue-conn-id", "nowhere")
    assert done.returncode == 1
    assert "'nowhere'" in done.stderr


def test_the_reaper_takes_no_other_file_for_a_connection(tmp_path: Path):
    (tmp_path / "list.json").write_text("[]")
    done = run("reap", "--airflow-connection", str(tmp_path / "list.json"))
    assert done.returncode == 2
    assert "list.json does not hold a JSON object" in done.stderr
