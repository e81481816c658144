"""One job, given by the run's conf, on a fleet whose connection is full of secrets."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import dag

from airflow_provider_multikueue.operators import MultiKueueJobOperator
from airflow_provider_multikueue.sensors import MultiKueueJobSensor


def secretive(dag_id: str, *, deferrable: bool) -> None:
    settings: dict[str, Any] = {"multikueue_conn_id": "secretive", "deferrable": deferrable}

    @dag(dag_id=dag_id, schedule=None, catchup=False)
    def run_one_job() -> None:
        job = "{{ dag_run.conf['job'] | tojson }}"
        MultiKueueJobOperator(task_id="train", job=job, **settings)
        submit = MultiKueueJobOperator(task_id="submit", job=job, wait_until="submitted", cleanup="never", **settings)
        MultiKueueJobSensor(task_id="watch", job="{{ ti.xcom_pull('submit') | tojson }}", **settings).set_upstream(
            submit
        )

    run_one_job()


secretive("secretive_deferred", deferrable=True)
secretive("secretive_in_worker", deferrable=False)
