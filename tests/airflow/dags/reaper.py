"""The reaper, looking only or deleting, as the run's conf says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import dag, task

from airflow_provider_multikueue.operators import MultiKueueReapOperator


@dag(schedule=None, catchup=False)
def reaper() -> None:
    @task.branch
    def choose(dag_run: Any = None) -> str:
        return "look" if (dag_run.conf or {}).get("look") else "reap"

    choose() >> [
        MultiKueueReapOperator(task_id="look", delete=False, older_than=timedelta(0)),
        MultiKueueReapOperator(task_id="reap", older_than=timedelta(0)),
    ]


reaper()
