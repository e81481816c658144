"""Makes the tasks of a run deferred, each with a trigger of ours, by writing what Airflow would have written.

Thousands of tasks would take Airflow half an hour of two cores to start; what is measured is how they wait. Runs inside
of the Airflow's environment: ``python -m bench.defer`` reads the run's id and the jobs on standard input.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from bench.waiting_jobs import reference


def main() -> None:
    """Write the rows."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    asked = json.load(sys.stdin)
    of_run = {"dag_id": "waiting", "run_id": asked["run"]}
    with create_session() as session:
        of_tasks = select(TaskInstance).filter_by(**of_run).order_by(TaskInstance.map_index)
        instances = session.scalars(of_tasks.filter_by(task_id="wait")).all()
        for instance, job in zip(instances, asked["jobs"], strict=True):
            part = reference(job)
            orders = {"job": part, "orders": {}, "multikueue_conn_id": "multikueue_default"}
            _defer(
                session, instance, "airflow_provider_multikueue.triggers.MultiKueueJobTrigger", orders, {"job": part}
            )
        probe = session.scalars(of_tasks.filter_by(task_id="probe")).one()
        _defer(session, probe, "bench.probe.Probe", asked["probe"], {})
        session.scalars(select(DagRun).filter_by(**of_run)).one().state = "running"


def _defer(session: Any, instance: Any, classpath: str, arguments: dict[str, Any], then: dict[str, Any]) -> None:
    from airflow._shared.timezones import timezone
    from airflow.models.trigger import Trigger
    from airflow.sdk.serde import serialize

    trigger = Trigger(classpath=classpath, kwargs=arguments)
    session.add(trigger)
    session.flush()
    instance.trigger_id = trigger.id
    instance.state, instance.try_number = "deferred", 1
    instance.start_date = timezone.utcnow()
    instance.next_method, instance.next_kwargs = "execute_complete", serialize(then)


if __name__ == "__main__":
    main()
