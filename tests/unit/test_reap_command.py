"""``multikueue reap``, run as a user runs it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.unit.apiserver import ApiServer, kubeconfig, listed
from tests.unit.test_cli import run
from tests.unit.test_reaper import World, job, row


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


async def test_its_json_stands_alone_however_much_is_logged(tmp_path: Path):
    async with ApiServer().running() as manager, ApiServer().running() as airflow:
        world = World(manager, airflow)
        world.manager.on("GET", "/apis/batch/v1/jobs", listed(job("over")))
        world.tasks(row("over", "failed"))
        fleet, api = tmp_path / "fleet.json", tmp_path / "api.json"
        fleet.write_text(json.dumps({"manager_kube_config": kubeconfig(manager.url, token="t"), "deployment": "prod"}))
        api.write_text(json.dumps({"host": airflow.url, "extra": {"token": "t"}}))
        files = ["--multikueue-connection", str(fleet), "--airflow-connection", str(api)]
        environment = os.environ | {"AIRFLOW__LOGGING__LOGGING_LEVEL": "DEBUG", "AIRFLOW_HOME": str(tmp_path)}
        command = [sys.executable, "-m", "airflow_provider_multikueue", "reap", "--json", *files]
        process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1, env=environment)
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    [entry] = json.loads(out)
    assert (entry["job"]["name"], entry["action"]) == ("over", "would delete")
