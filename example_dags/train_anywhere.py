"""Train in whichever region has GPUs first, then go on with what depends on where that was."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.providers.common.compat.sdk import dag, task

from airflow_provider_multikueue.operators import MultiKueueJobOperator


@dag(
    schedule=None,
    catchup=False,
    tags=["multikueue"],
    params={"image": "gcr.io/k8s-staging-perf-tests/sleep:v0.0.3", "command": [], "args": ["120s"]},
)
def train_anywhere() -> None:
    train = MultiKueueJobOperator(
        task_id="train",
        job="train.yaml",
        admission_timeout=timedelta(hours=6),
        deferrable=True,
    )

    @task
    def show_region(ti: Any = None) -> None:
        print("Trained in", ti.xcom_pull("train")["placement"]["region"])

    @task.branch
    def choose_bucket(ti: Any = None) -> str:
        region = ti.xcom_pull("train")["placement"]["region"]
        return "publish_in_europe" if region.startswith("europe-") else "publish_abroad"

    @task
    def publish_in_europe() -> None:
        print("The model stays in Europe.")

    @task
    def publish_abroad() -> None:
        print("The model is copied to Europe.")

    train >> show_region()
    train >> choose_bucket() >> [publish_in_europe(), publish_abroad()]


train_anywhere()
