"""Where the output of a job is when its pods can't tell: Cloud Logging, for GKE clusters, or nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.decisions.console import logs_filter, logs_url
from airflow_provider_multikueue.logs.cloud import CloudSource

if TYPE_CHECKING:
    from airflow_provider_multikueue.fleets.fleet import Fleet

__all__ = ["cloud_source", "gone"]


def cloud_source(fleet: Fleet, job: Mapping[str, Any], worker: str) -> CloudSource | None:
    """Return where Cloud Logging has the job's output on ``worker``; None where it is not on, or no GKE cluster."""
    api, name = fleet.cloud_logging(worker), fleet.gke_cluster(worker)
    if api is None or name is None:
        return None
    return CloudSource(api, logs_filter(name, job), logs_url(name, job) or "")


def gone(fleet: Fleet, job: Mapping[str, Any], worker: str | None) -> str:
    """Say that the output of a job can't be shown, since its pods went with its end, and where it may still be."""
    where = fleet.region(worker) or worker or "its region"
    url = logs_url(fleet.gke_cluster(worker), job) if worker else None
    kept = (
        f"it is in Cloud Logging if that is on in the cluster: {url} (set `cloud_logging` for the worker in the "
        "connection, and it is shown here)"
        if url
        else "it is kept nowhere that is known here; a task that waits from the start shows it, and log_uri stores it"
    )
    return f"── no output of the pods in {where} was seen, since they are removed when a job ends: {kept} ──"
