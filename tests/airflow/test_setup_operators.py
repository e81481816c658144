"""Every operator that sets a fleet up, run by a real Airflow on clusters without Kueue."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import HERE

pytestmark = [pytest.mark.airflow, pytest.mark.fleet, pytest.mark.timeout(1500)]

PYTHONS = {"3.3": sys.executable, "2.11": os.environ.get("MULTIKUEUE_TEST_AIRFLOW_2_PYTHON")}
DAG = "setting_up"


@pytest.fixture
def fleet(bare_sandbox: Sandbox, tmp_path: Path) -> tuple[Path, str]:
    """The sandbox's fleet file with one worker, and that worker."""
    content: dict[str, Any] = json.loads(bare_sandbox.fleet_file.read_text())
    name, worker = next(iter(content["workers"].items()))
    content["workers"] = {name: worker}
    content["kueue"]["manifests"] = str(bare_sandbox.folder / "kueue.yaml")
    path = tmp_path / "fleet.yaml"
    path.write_text(json.dumps(content))
    return path, name


@pytest.mark.parametrize("version", PYTHONS)
def test_each_operator_plans_does_and_undoes(fleet: tuple[Path, str], version: str) -> None:
    if PYTHONS[version] is None:
        pytest.skip("MULTIKUEUE_TEST_AIRFLOW_2_PYTHON names no interpreter; `make test-fleet` sets it")
    with LocalAirflow(dags=HERE / "dags", python=Path(str(PYTHONS[version]))) as airflow:
        conf = {"fleet": str(fleet[0]), "worker": fleet[1]}
        run = airflow.sync(airflow.trigger(DAG, conf=conf))
        state = airflow.sync(airflow.wait_run(DAG, run, within=1200))
        tasks = airflow.sync(airflow.task_instances(DAG, run))
        failed = [each["task_id"] for each in tasks if each["state"] == "failed"]
        assert state == "success", "\n".join(airflow.sync(airflow.task_text(DAG, run, task)) for task in failed)
        done = {each["task_id"]: airflow.sync(airflow.xcom(DAG, run, each["task_id"])) for each in tasks}
        log = airflow.sync(airflow.task_text(DAG, run, "plan"))
    assert "+ manager: Deployment kueue-system/kueue-controller-manager" in log
    assert actions(done["plan"]) == actions(done["install_manager"]) == {"create"}
    assert done["apply"] == []  # the single steps have done it all
    planned = {(each["kind"], each["name"]) for each in done["plan_removal"]}
    removed = {(each["kind"], each["name"]) for task in ("disconnect_worker", "remove_manager") for each in done[task]}
    assert planned <= removed
    assert actions(done["remove_worker"]) == {"delete"}


def actions(changes: list[dict[str, Any]]) -> set[str]:
    return {each["action"] for each in changes}
