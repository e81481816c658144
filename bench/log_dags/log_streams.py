"""A task that waits for the trigger that measures logs, which runs in the triggerer from its start to its end."""

from __future__ import annotations

from typing import Any

from airflow.sdk import BaseOperator, dag

from bench.log_trigger import LogTrigger


class Measure(BaseOperator):
    """Defers to the trigger with the run's conf."""

    def execute(self, context: Any) -> None:
        """Defer."""
        self.defer(trigger=LogTrigger(**context["dag_run"].conf), method_name="done")

    def done(self, context: Any, event: Any) -> None:
        """Be done."""


@dag(schedule=None, catchup=False)
def log_streams() -> None:
    """One measurement."""
    Measure(task_id="measure")


log_streams()
