"""Links from a task to its job: on the manager, where the job's pods are, and where their output is stored.

Their addresses are XComs, which the task's process writes at submission and the trigger when the job is placed or
moved. Airflow 2.11 asks a link's class in the web server; 3.x asks it in the task's process at each exit, also when it
defers, and writes the answer back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
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
    "links_of",
    "push_links",
    "push_output_link",
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


def links_of(fleet: Fleet, job: Mapping[str, Any], placement: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the addresses of a job, by XCom key; what is no GKE cluster has none.

    Where some workers are GKE clusters, one that is not has an empty address: a moved job's old one would lead astray.
    """
    found = {}
    if manager := job_url(fleet.gke_cluster(None), job):
        found[ManagerJobLink.xcom_key] = manager
    if placement is not None and any(fleet.gke_cluster(name) for name in fleet.worker_names):
        found[WorkerPodsLink.xcom_key] = job_url(fleet.gke_cluster(placement["cluster"]), job) or ""
    return found


def push_links(ti: Any, fleet: Fleet, job: Mapping[str, Any], placement: Mapping[str, Any] | None = None) -> None:
    """Write a job's addresses as XComs of the running task instance."""
    for key, url in links_of(fleet, job, placement).items():
        ti.xcom_push(key, url)


def push_output_link(ti: Any, log_uri: str | None, job: Mapping[str, Any]) -> None:
    """Write where the job's output is stored as an XCom of the running task instance."""
    if log_uri:
        ti.xcom_push(StoredOutputLink.xcom_key, storage_url(f"{log_uri.rstrip('/')}/{job['name']}"))


class PlacementPush:
    """Writes XCom ``placement`` and the links of a job that is being followed; ``put`` writes one XCom."""

    def __init__(self, job: Mapping[str, Any], put: Put) -> None:
        self._job = job
        self._put = put
        self._fleet: Fleet | None = None

    @asynccontextmanager
    async def open(
        self, opened: AbstractAsyncContextManager[tuple[Fleet, object]]
    ) -> AsyncIterator[tuple[Fleet, object]]:
        """Open what ``opened`` opens, and remember the fleet."""
        async with opened as (fleet, config):
            self._fleet = fleet
            yield fleet, config

    def place(self, placement: dict[str, Any]) -> None:
        """Write where the job is now."""
        self._put("placement", placement)
        if self._fleet is not None:
            for key, url in links_of(self._fleet, self._job, placement).items():
                self._put(key, url)
