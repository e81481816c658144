"""One sweep of the reaper with everything that Airflow gives it: connections, this Airflow's name, the task that asks.

Shared by the operator and the command, which runs outside of any task.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue._compat import AirflowNotFoundException, base_url, get_connection, mask_secrets
from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.hooks import identity_of_task, owner_of_task
from airflow_provider_multikueue.opening import open_connection

if TYPE_CHECKING:
    from airflow_provider_multikueue.airflow_api import AirflowAddress, AirflowApi
    from airflow_provider_multikueue.logs.emit import Sink

__all__ = ["reap", "summary", "tell"]


async def reap(
    *,
    multikueue_conn_id: str,
    airflow_conn_id: str,
    sink: Sink,
    dry_run: bool,
    older_than: timedelta,
    namespace: str | None = None,
    deployment: str | None = None,
    ti: Any = None,
) -> list[dict[str, Any]]:
    """Sweep once and return what `Reaper.sweep` returns; ``ti`` is the running task that asks, if one does.

    Raises FleetConfigurationError for a connection that is missing or wrong, MultiKueueError when Airflow does not
    answer, `ApiError` when the manager refuses.
    """
    from airflow_provider_multikueue.decisions.connection import deployment_name
    from airflow_provider_multikueue.fleets.reaper import Reaper

    async with open_connection(multikueue_conn_id) as (fleet, config):
        address = await _address(airflow_conn_id)
        deployment = deployment or deployment_name(config, base_url=base_url(), manager_server=fleet.manager.server)
        reaper = Reaper(
            fleet=fleet,
            deployment=deployment,
            airflow=lambda: _open(address),
            sink=sink,
            dry_run=dry_run,
            older_than=older_than,
            namespace=namespace,
            witness=(identity_of_task(ti, deployment), owner_of_task(ti)) if ti is not None else None,
        )
        return await reaper.sweep()


def summary(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return a sweep in short, such as ``1 deleted, 3 kept``."""
    counts = Counter(str(entry["action"]) for entry in entries)
    return f"{', '.join(f'{count} {action}' for action, count in sorted(counts.items()))}" if counts else "no jobs"


def tell(entries: Iterable[Mapping[str, Any]], sink: Sink) -> None:
    """Say what became of each job: a line each, and the kept ones in a line for each reason."""
    kept: Counter[str] = Counter()
    for entry in entries:
        if entry["action"] == "kept":
            kept[str(entry["reason"])] += 1
            continue
        level = logging.ERROR if entry["action"] == "failed" else logging.INFO
        sink.record(level, f"{_name(entry)}: {entry['action']}, {entry['reason']}")
    for reason, count in kept.most_common():
        sink.record(logging.INFO, f"{count} kept: {reason}")


def _name(entry: Mapping[str, Any]) -> str:
    job, task = entry["job"], entry["task"]
    place = f"{job['kind']} {job['namespace']}/{job['name']}"
    return f"{place} of {task['dag_id']}.{task['task_id']} ({task['run_id']})" if task else place


async def _address(conn_id: str) -> AirflowAddress:
    from airflow_provider_multikueue.airflow_api import AirflowAddress

    try:
        connection = await get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise FleetConfigurationError(
            f"Airflow has no connection {conn_id!r}. Create one of type http to this Airflow's own API server, with a "
            "login that may read all DAGs, or set airflow_conn_id= to yours."
        ) from error
    address = AirflowAddress.from_connection(connection)
    await mask_secrets(address.secrets())
    return address


def _open(address: AirflowAddress) -> AbstractAsyncContextManager[AirflowApi]:
    from airflow_provider_multikueue.airflow_api import open_airflow

    return open_airflow(address)
