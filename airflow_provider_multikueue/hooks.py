"""The hook: a fleet by its Airflow connection, for DAG code and for this provider's operators.

Its methods are the synchronous edge of the asynchronous modules: each runs one coroutine to its end, also when called
inside a running event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_multikueue._compat import (
    BaseHook,
    TaskInstanceKeys,
    base_url,
    task_instance_id,
)
from airflow_provider_multikueue.decisions.measures import measures_of_submission
from airflow_provider_multikueue.decisions.names import Identity, Lifetime, Owner
from airflow_provider_multikueue.decisions.orders import LOOK, Orders
from airflow_provider_multikueue.decisions.report import JobPart, Placement, Report, job_part, validate_report
from airflow_provider_multikueue.exceptions import MultiKueueError
from airflow_provider_multikueue.metrics import emit
from airflow_provider_multikueue.opening import open_connection

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.connection import FleetConfig
    from airflow_provider_multikueue.decisions.outcome import Outcome
    from airflow_provider_multikueue.fleets.fleet import Fleet
    from airflow_provider_multikueue.fleets.submit import Request, Submitted
    from airflow_provider_multikueue.logs.emit import Sink

__all__ = [
    "LogSink",
    "MultiKueueHook",
    "count_submission",
    "owner_of_task",
    "run_sync",
]

T = TypeVar("T")


class MultiKueueHook(BaseHook):
    """A MultiKueue fleet: submit, observe, wait for, place and delete jobs.

    :param multikueue_conn_id: an Airflow connection of type ``multikueue``.
    """

    conn_name_attr = "multikueue_conn_id"
    default_conn_name = "multikueue_default"
    conn_type = "multikueue"
    hook_name = "MultiKueue fleet"

    def __init__(self, multikueue_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.multikueue_conn_id = multikueue_conn_id

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Return the fields of the connection form of Airflow 2.11."""
        from airflow_provider_multikueue._compat import connection_form_widgets
        from airflow_provider_multikueue.get_provider_info import get_provider_info

        return connection_form_widgets(get_provider_info()["connection-types"][0]["conn-fields"])

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return what the connection form of Airflow 2.11 hides."""
        from airflow_provider_multikueue.get_provider_info import get_provider_info

        types = get_provider_info()["connection-types"]
        behaviour: dict[str, Any] = types[0]["ui-field-behaviour"]
        return {
            "hidden_fields": behaviour.get("hidden-fields", []),
            "relabeling": behaviour.get("relabeling", {}),
            "placeholders": behaviour.get("placeholders", {}),
        }

    def submit(
        self,
        job: object,
        *,
        identity: Identity | None = None,
        owner: Owner | None = None,
        queue_name: str | None = None,
        namespace: str | None = None,
        regions: list[str] | None = None,
        priority_class: str | None = None,
        max_run_duration: timedelta | None = None,
        lifetime: str = "detached",
        deadline: datetime | None = None,
    ) -> JobPart:
        """Submit a job once and return which object it is; the same identity gets the same job.

        ``job`` is YAML text, a dict or a ``kubernetes`` client model. Without ``identity`` the task that calls is
        meant. Raises ``ManifestError``, ``FleetConfigurationError``, ``RegionUnavailableError`` or ``MultiKueueError``.
        """
        submitted = run_sync(
            lambda: self._submit(
                job,
                identity=identity,
                owner=owner,
                lifetime=Lifetime(kind=lifetime, deadline=deadline),  # type: ignore[arg-type]
                queue_name=queue_name,
                namespace=namespace,
                regions=regions,
                priority_class=priority_class,
                max_run_duration=max_run_duration,
            )
        )
        return job_part(submitted.job)

    def observe(self, job: object) -> Report:
        """Return the report of the job as it is now."""
        return _reported(run_sync(lambda: self._follow(job, LOOK)))

    def wait(
        self, job: object, *, until: str = "finished", timeout: timedelta | None = None, logs: str = "none"
    ) -> Report:
        """Wait until the job is ``admitted`` or ``finished`` and return its report, with the pods' output in this log.

        Raises the error of a job that did not end well; ``JobDeadlineError`` after ``timeout``, which leaves
        the job as it is.
        """
        deadline = (datetime.now(UTC) + timeout).isoformat() if timeout else None
        orders = Orders(until=until, deadline=deadline, logs=logs, may_delete=False, heal=False)
        outcome = run_sync(lambda: self._follow(job, orders))
        if outcome.error is not None:
            raise outcome.error
        return _reported(outcome)

    def placement(self, job: object) -> Placement | None:
        """Return where the job is placed now; None before admission."""
        return self.observe(job)["placement"]

    def delete(self, job: object) -> None:
        """Delete the job on the manager and follow its pods until they are gone, for at most 20 s."""
        run_sync(lambda: self._delete(job))

    def test_connection(self) -> tuple[bool, str]:
        """Say for the manager and each worker whether it answers, and what the doctor holds to be an error there."""
        try:
            return run_sync(self._test)
        except MultiKueueError as error:
            return False, str(error)

    def run(self, work: Callable[[Fleet, FleetConfig], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine that is given the open fleet and its configuration."""

        async def inner() -> T:
            async with self.open() as (fleet, config):
                return await work(fleet, config)

        return run_sync(inner)

    def open(self) -> AbstractAsyncContextManager[tuple[Fleet, FleetConfig]]:
        """Open the fleet for asynchronous use."""
        return open_connection(self.multikueue_conn_id)

    async def _submit(self, job: object, **wishes: Any) -> Submitted:
        from airflow_provider_multikueue.fleets.submit import submit

        sink = LogSink(self.log)
        async with self.open() as (fleet, config):
            request = prepare(job, fleet=fleet, config=config, sink=sink, **wishes)
            submitted = await submit(fleet, request, sink)
        count_submission(submitted)
        return submitted

    async def _follow(self, job: object, orders: Orders) -> Outcome:
        from airflow_provider_multikueue.fleets.follow import follow, resolve

        async with self.open() as (fleet, _):
            part = await resolve(fleet, job)
        return await follow(self.open(), part, orders, LogSink(self.log))

    async def _delete(self, job: object) -> None:
        from airflow_provider_multikueue.fleets.follow import resolve
        from airflow_provider_multikueue.fleets.stop import delete_job

        async with self.open() as (fleet, _):
            await delete_job(fleet, await resolve(fleet, job), LogSink(self.log))

    async def _test(self) -> tuple[bool, str]:
        from airflow_provider_multikueue.fleets.doctor import examine_fleet

        async with self.open() as (fleet, _):
            found = await examine_fleet(fleet)
        return found["healthy"], "; ".join(_in_short(cluster) for cluster in found["clusters"])


@dataclass(frozen=True, slots=True)
class LogSink:
    """Writes each record at once: for a process that has a task's log to itself."""

    log: Any

    def record(self, level: int, text: str) -> None:
        """Log ``text`` as it is: a percent sign in it is no placeholder."""
        self.log.log(level, "%s", text)


def prepare(
    job: object,
    *,
    fleet: Fleet,
    config: FleetConfig,
    sink: Sink,
    ti: Any = None,
    identity: Identity | None = None,
    owner: Owner | None = None,
    **wishes: Any,
) -> Request:
    """Return the request for ``job`` (YAML text, a dict or a client model) of ``identity``, or else of ``ti``."""
    from airflow_provider_multikueue.decisions.connection import deployment_name
    from airflow_provider_multikueue.decisions.manifests import parse_manifest
    from airflow_provider_multikueue.fleets.submit import Request

    deployment = deployment_name(config, base_url=base_url(), manager_server=fleet.manager.server)
    if identity is None:
        ti = ti or _calling_task()
        identity, owner = identity_of_task(ti, deployment), owner or owner_of_task(ti)
    return Request(
        manifest=parse_manifest(job, sanitize=_sanitize, note=lambda text: sink.record(logging.WARNING, text)),
        identity=identity,
        owner=owner or Owner(ti="", attempt=1),
        default_queue_name=config.queue_name,
        default_namespace=config.namespace,
        **wishes,
    )


def count_submission(submitted: Submitted) -> None:
    """Count the job in Airflow's metrics, unless it was there already."""
    if not submitted.adopted:
        emit(measures_of_submission(submitted.job))


def identity_of_task(ti: TaskInstanceKeys, deployment: str) -> Identity:
    """Return the identity that all tries of a task instance share."""
    return Identity(
        deployment=deployment,
        dag_id=str(ti.dag_id),
        run_id=str(ti.run_id),
        task_id=str(ti.task_id),
        map_index=int(ti.map_index),
    )


def owner_of_task(ti: Any) -> Owner:
    """Return the owner that this try of a task instance is."""
    # A trigger's task instance has no max_tries.
    return Owner(ti=task_instance_id(ti), attempt=int(ti.try_number), max_tries=getattr(ti, "max_tries", None))


def run_sync(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end from synchronous code, in a thread of its own where a loop is running already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    with ThreadPoolExecutor(1, "multikueue") as pool:
        return pool.submit(lambda: asyncio.run(work())).result()


def _calling_task() -> Any:
    from airflow.providers.common.compat.sdk import get_current_context

    try:
        return get_current_context()["ti"]
    except Exception as error:
        raise ValueError("submit() outside a task needs identity=Identity(...), which says whose job it is") from error


def _sanitize(model: Any) -> Any:
    from kubernetes.client import ApiClient

    return ApiClient().sanitize_for_serialization(model)


def _reported(outcome: Outcome) -> Report:
    if outcome.report is None:
        raise outcome.error or MultiKueueError("nothing was seen of the job")
    return validate_report(outcome.report)


def _in_short(cluster: dict[str, Any]) -> str:
    """Return what the doctor says of a cluster, in a sentence."""
    where = f" ({cluster['region'] or 'region unknown'})" if cluster["role"] == "worker" else ""
    errors = [finding["text"] for finding in cluster["findings"] if finding["level"] == "error"]
    if not errors:
        return f"{cluster['name']}{where}: Kubernetes {cluster['kubernetes']}, Kueue {cluster['kueue'] or 'is there'}"
    return f"{cluster['name']}{where}: {' '.join(errors)}"
