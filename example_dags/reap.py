"""Every hour, delete jobs whose task is over or gone: what a kill left behind that came while no triggerer ran."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import dag

from airflow_provider_multikueue.operators import MultiKueueReapOperator


@dag(
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,  # it needs a connection to Airflow's own API
    tags=["multikueue"],
)
def reap() -> None:
    MultiKueueReapOperator(task_id="reap", older_than=timedelta(minutes=5))


reap()
