"""A DAG run in one process, as its author tries it: ``dag.test()``, which runs triggers without a triggerer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import job

pytestmark = [pytest.mark.airflow, pytest.mark.fleet, pytest.mark.timeout(400)]

DAG = """
from airflow import DAG
from airflow_provider_multikueue.operators import MultiKueueJobOperator

with DAG("tried", schedule=None) as dag:
    MultiKueueJobOperator(task_id="train", job={job!r}, deferrable=True)

if __name__ == "__main__":
    run = dag.test()
    print("ended as", getattr(run.state, "value", run.state))
    print("region", run.get_task_instance("train").xcom_pull("train")["placement"]["region"])
"""


def test_a_deferred_job_runs_in_a_dag_that_is_tried_in_one_process(granting: Sandbox, tmp_path: Path) -> None:
    script = tmp_path / "dags" / "tried.py"
    script.parent.mkdir()
    script.write_text(DAG.format(job=job("print('trained')")))
    environment = os.environ | {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__DAGS_FOLDER": str(script.parent),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_MULTIKUEUE_DEFAULT": json.dumps(granting.connection()),
    }

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=False)

    made = run("-m", "airflow", "db", "migrate")
    assert made.returncode == 0, made.stderr[-2000:]
    tried = run(str(script))
    said = tried.stdout + tried.stderr
    assert "ended as success" in said, said[-4000:]
    assert "region us-east4" in said
    assert "trained" in said
