"""As many mapped tasks as are to wait, and one whose trigger measures the triggerer from inside (`bench.probe`).

Their rows are made deferred by hand, so none of them ever submits anything.
"""

import os

from airflow.sdk import DAG

from airflow_provider_multikueue.operators import MultiKueueJobOperator

with DAG("waiting", schedule=None):
    names = [f"queue-{number}" for number in range(int(os.environ["BENCH_TASKS"]))]
    MultiKueueJobOperator.partial(task_id="wait", job="unused", deferrable=True).expand(queue_name=names)
    MultiKueueJobOperator(task_id="probe", job="unused", deferrable=True)
