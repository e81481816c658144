"""A JobSet whose leader gives the result, and a job for each day of the past."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.providers.common.compat.sdk import dag, task

from airflow_provider_multikueue.operators import MultiKueueJobOperator

JOB = "{{ dag_run.conf['job'] | tojson }}"


@dag(dag_id="led", schedule=None, catchup=False)
def led() -> None:
    """Hand the result of a job's leader on."""
    train = MultiKueueJobOperator(task_id="train", job=JOB, deferrable=True, read_result=True)

    @task
    def after(ti: Any = None) -> Any:
        return ti.xcom_pull("train")["result"]

    train >> after()


# Its days are over: nothing is scheduled, and a backfill finds three.
@dag(
    dag_id="daily",
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    end_date=datetime(2026, 1, 3, tzinfo=UTC),
    catchup=False,
)
def daily() -> None:
    """Run the same job for each day."""
    MultiKueueJobOperator(task_id="train", job=JOB, deferrable=True)


led()
daily()
