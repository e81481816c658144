"""Mapped tasks that each run a short job; each notes what its own part of the task's process took."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider_multikueue.operators import MultiKueueJobOperator


@contextmanager
def noted(what: str, ti: Any) -> Iterator[None]:
    """Note what the block took of the task's process."""
    begun, cpu, wall = time.time(), time.process_time(), time.monotonic()
    try:
        yield
    finally:
        took = {"what": what, "map_index": ti.map_index, "begun": begun, "wall": time.monotonic() - wall}
        took |= {"cpu": time.process_time() - cpu, "process_cpu": time.process_time()}
        with Path(os.environ["BENCH_NOTES"]).open("a") as notes:
            notes.write(json.dumps(took) + "\n")


class NotedJobOperator(MultiKueueJobOperator):
    """The operator, with a note of what it took."""

    def execute(self, context: Any) -> Any:
        """Submit and defer."""
        with noted("submit", context["ti"]):
            return super().execute(context)

    def execute_complete(self, context: Any, event: Any = None, job: Any = None) -> Any:
        """Report."""
        with noted("complete", context["ti"]):
            return super().execute_complete(context, event, job)


JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"generateName": "bench-"},
    "spec": {
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {
                        "name": "main",
                        "image": "gcr.io/k8s-staging-perf-tests/sleep:v0.0.3",
                        "args": ["1s"],
                        "resources": {"requests": {"cpu": "10m"}},
                    }
                ],
            }
        }
    },
}

with DAG("training", schedule=None, max_active_tasks=1000):
    names = [None] * int(os.environ["BENCH_TASKS"])
    NotedJobOperator.partial(task_id="train", job=JOB, deferrable=True).expand(priority_class=names)
