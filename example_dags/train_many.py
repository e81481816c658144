"""Submit the same job ten times at once, and see over which regions the fleet spreads them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from airflow.providers.common.compat.sdk import dag, task

from airflow_provider_multikueue.operators import MultiKueueJobOperator


@dag(
    schedule=None,
    catchup=False,
    tags=["multikueue"],
    params={"image": "gcr.io/k8s-staging-perf-tests/sleep:v0.0.3", "command": [], "args": ["30s"]},
)
def train_many() -> None:
    train = MultiKueueJobOperator.partial(task_id="train", deferrable=True).expand(job=["train.yaml"] * 10)

    @task
    def count_regions(reports: Any) -> dict[str, int]:
        regions = Counter(report["placement"]["region"] for report in reports)
        for region, jobs in regions.most_common():
            print(f"{jobs} jobs ran in {region}")
        return dict(regions)

    count_regions(train.output)


train_many()
