"""One job, given by the run's conf, in the ways in which a task can wait for it."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import TaskGroup, dag, task

from airflow_provider_multikueue.operators import MultiKueueJobOperator
from airflow_provider_multikueue.sensors import MultiKueueAdmissionSensor, MultiKueueJobSensor

JOB = "{{ dag_run.conf['job'] | tojson }}"


class LastWords(MultiKueueJobOperator):
    """Its first try dies after its last act, before Airflow hears that it succeeded."""

    def _conclude(self, context: Any, outcome: Any) -> Any:
        report = super()._conclude(context, outcome)
        if context["ti"].try_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return report


def one_job(
    dag_id: str,
    *,
    run_timeout: timedelta | None = None,
    operator: type[MultiKueueJobOperator] = MultiKueueJobOperator,
    **arguments: Any,
) -> None:
    @dag(dag_id=dag_id, schedule=None, catchup=False, dagrun_timeout=run_timeout)
    def run_one_job() -> None:
        train = operator(task_id="train", job=JOB, **arguments)

        @task(retries=arguments.get("retries", 0))
        def after(ti: Any = None) -> Any:
            return ti.xcom_pull("train")["placement"]["region"]

        train >> after()

    run_one_job()


one_job("deferred", deferrable=True)
one_job("in_worker", deferrable=False)
one_job("retried", deferrable=True, retries=2, retry_delay=timedelta(seconds=1))
one_job("retried_in_worker", deferrable=False, retries=2, retry_delay=timedelta(seconds=1))
one_job("unheard", operator=LastWords, deferrable=True, retries=2, retry_delay=timedelta(seconds=1))
one_job("unheard_in_worker", operator=LastWords, deferrable=False, retries=2, retry_delay=timedelta(seconds=1))
one_job("sturdy", deferrable=True, retries=50, retry_delay=timedelta(seconds=1))
one_job("impatient", deferrable=True, admission_timeout=timedelta(seconds=8))
one_job("limited", deferrable=True, execution_timeout=timedelta(seconds=12))
one_job("limited_in_worker", deferrable=False, execution_timeout=timedelta(seconds=15))
one_job("timed", deferrable=True, run_timeout=timedelta(seconds=25))
one_job("kept", deferrable=True, on_kill_action="keep")
one_job("stored", deferrable=True, log_uri="{{ dag_run.conf['log_uri'] }}")


@dag(dag_id="split", schedule=None, catchup=False)
def split() -> None:
    """Submit, then wait for admission and for the end in tasks of their own."""
    submit = MultiKueueJobOperator(task_id="submit", job=JOB, wait_until="submitted", cleanup="never")
    report = "{{ ti.xcom_pull('submit') | tojson }}"
    admitted = MultiKueueAdmissionSensor(task_id="admitted", job=report, deferrable=True, timeout=60)
    ended = MultiKueueJobSensor(task_id="ended", job=report, deferrable=True, timeout=60)
    submit >> [admitted, ended]


@dag(dag_id="mapped", schedule=None, catchup=False)
def mapped() -> None:
    """The same job three times."""
    MultiKueueJobOperator.partial(task_id="train", deferrable=True).expand(job=[JOB] * 3)


@dag(dag_id="Entrenamiento.Campaña_ÑÑ", schedule=None, catchup=False)
def far_from_kubernetes() -> None:
    """Names that no Kubernetes object can have, in a group and mapped."""
    with TaskGroup("grp"):
        MultiKueueJobOperator.partial(task_id="Train__Model.", deferrable=True).expand(job=[JOB] * 3)


split()
mapped()
far_from_kubernetes()
