"""Links from a task to its job: on the manager, where the job's pods are, and where their output is stored.

Their addresses are XComs, which the task's process writes at submission and the trigger when the job is placed or
moved. Airflow 2.11 asks a link's class in the web server; 3.x asks it in the task's process at each exit, also when it
defers, and writes the answer back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue._compat import BaseOperatorLink, stored_xcom
from airflow_provider_multikueue.decisions.console import job_url, storage_url

if TYPE_CHECKING:
    from airflow_provider_multikueue.fleets.fleet import Fleet

__all__ = [
    "LINKS",
    "ManagerJobLink",
    "PlacementPush",
    "StoredOutputLink",
    "WorkerPodsLink",
    "manager_link",
    "pods_link",
    "push_manager_link",
    "push_output_link",
    "push_pods_link",
]

Put = Callable[[str, Any], object]


class ManagerJobLink(BaseOperatorLink):
    """The job on the manager's cluster in the GKE console."""

    name = "Job on the manager"
    xcom_key = "_link_ManagerJobLink"

    def get_link(self, operator: object, *, ti_key: Any) -> str:
        """Return the address; empty where there is none."""
        return str(stored_xcom(ti_key, self.xcom_key) or "")


class WorkerPodsLink(BaseOperatorLink):
    """The job with its pods on the worker's cluster in the GKE console."""

    name = "Pods in the winning region"
    xcom_key = "_link_WorkerPodsLink"

    def get_link(self, operator: object, *, ti_key: Any) -> str:
        """Return the address; empty where there is none."""
        return str(stored_xcom(ti_key, self.xcom_key) or "")


class StoredOutputLink(BaseOperatorLink):
    """The whole output of the job's pods, where the task has a ``log_uri``."""

    name = "Whole output"
    xcom_key = "_link_StoredOutputLink"

    def get_link(self, operator: object, *, ti_key: Any) -> str:
        """Return the address; empty where there is none."""
        return str(stored_xcom(ti_key, self.xcom_key) or "")


LINKS: tuple[BaseOperatorLink, ...] = (ManagerJobLink(), WorkerPodsLink(), StoredOutputLink())


def manager_link(fleet: Fleet, job: Mapping[str, Any]) -> dict[str, str]:
    """Return the address of the job on the manager, by XCom key; empty where that is no GKE cluster."""
    url = job_url(fleet.gke_cluster(None), job)
    return {ManagerJobLink.xcom_key: url} if url else {}


def pods_link(fleet: Fleet, job: Mapping[str, Any], placement: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the address of the job's pods, by XCom key; nothing before placement, or where no worker is a GKE cluster.

    Where some workers are GKE clusters, one that is not has an empty address: a moved job's old one would lead astray.
    """
    if placement is None or not any(fleet.gke_cluster(name) for name in fleet.worker_names):
        return {}
    return {WorkerPodsLink.xcom_key: job_url(fleet.gke_cluster(placement["cluster"]), job) or ""}


def push_manager_link(ti: Any, fleet: Fleet, job: Mapping[str, Any]) -> None:
    """Write where the job is on the manager as an XCom of the running task instance, once: it never changes."""
    _push(ti, manager_link(fleet, job))


def push_pods_link(ti: Any, fleet: Fleet, job: Mapping[str, Any], placement: Mapping[str, Any] | None) -> None:
    """Write where the job's pods are, or were last, as an XCom of the running task instance."""
    _push(ti, pods_link(fleet, job, placement))


def _push(ti: Any, links: Mapping[str, str]) -> None:
    for key, url in links.items():
        ti.xcom_push(key, url)


def push_output_link(ti: Any, log_uri: str | None, job: Mapping[str, Any]) -> None:
    """Write where the job's output is stored as an XCom of the running task instance."""
    if log_uri:
        ti.xcom_push(StoredOutputLink.xcom_key, storage_url(f"{log_uri.rstrip('/')}/{job['name']}"))


class PlacementPush:
    """Writes XCom ``placement`` and the link to the pods of a job that is followed; ``put`` writes one XCom.

    The link to the manager was written by the task's process at submission. What has not changed is not written again.

    ``async with`` opens what ``opened`` opens, remembers the fleet, and calls ``ready``.
    """

    __slots__ = ("_fleet", "_job", "_opened", "_put", "_ready", "_written")

    def __init__(
        self,
        job: Mapping[str, Any],
        put: Put,
        *,
        opened: AbstractAsyncContextManager[tuple[Fleet, object]],
        ready: Callable[[], object] = lambda: None,
    ) -> None:
        self._job = job
        self._put = put
        self._opened = opened
        self._ready = ready
        self._fleet: Fleet | None = None
        self._written: dict[str, Any] = {}

    async def __aenter__(self) -> tuple[Fleet, object]:
        """Open, and return what was opened."""
        self._fleet, other = await self._opened.__aenter__()
        self._ready()
        return self._fleet, other

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Close it."""
        return await self._opened.__aexit__(kind, error, trace)

    def place(self, placement: dict[str, Any]) -> None:
        """Write where the job is now."""
        links = pods_link(self._fleet, self._job, placement) if self._fleet is not None else {}
        for key, value in {"placement": placement, **links}.items():
            if self._written.get(key) != value:
                self._written[key] = value
                self._put(key, value)
