"""The user's manifest and the task's identity, made into the job that is submitted to the manager."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

from airflow_provider_multikueue.manifests import manifest_hash, parse_manifest
from airflow_provider_multikueue.names import (
    CURSORS,
    DEPLOYMENT_LABEL,
    DISPATCHES,
    DOMAIN,
    IDENTITY,
    IDENTITY_LABEL,
    JOB_LABEL,
    LIFETIME,
    MANIFEST,
    OWNER,
    REPORTED,
    Identity,
    Lifetime,
    Owner,
    identity_selector,
    job_name,
    label_value,
)

__all__ = [
    "CURSORS",
    "DEPLOYMENT_LABEL",
    "DISPATCHES",
    "DOMAIN",
    "IDENTITY",
    "IDENTITY_LABEL",
    "JOB_LABEL",
    "LIFETIME",
    "MANIFEST",
    "MAX_RUN_DURATION",
    "OWNER",
    "PRIORITY_LABEL",
    "QUEUE_LABEL",
    "REPORTED",
    "Decision",
    "Identity",
    "Lifetime",
    "Owner",
    "adopt_or_replace",
    "build_job",
    "generation_of",
    "identity_of",
    "identity_selector",
    "is_reported",
    "job_name",
    "label_value",
    "lifetime_of",
    "manifest_hash",
    "owner_of",
    "parse_manifest",
]

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
MAX_RUN_DURATION = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"

Decision = Literal["adopt", "replace", "foreign", "next_generation"]


def build_job(
    manifest: Mapping[str, Any],
    *,
    identity: Identity,
    generation: int,
    owner: Owner,
    lifetime: Lifetime,
    queue_name: str | None = None,
    namespace: str | None = None,
    priority_class: str | None = None,
    max_run_duration: timedelta | None = None,
    default_queue_name: str | None = None,
    default_namespace: str | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Return the job to submit and what to tell the reader about changes made to it.

    ``queue_name`` and ``namespace`` win over the manifest's, which win over the defaults (the connection's). Raises ``ManifestError``.
    """
    raise NotImplementedError


def adopt_or_replace(existing: Mapping[str, Any], wanted: Mapping[str, Any]) -> Decision:
    """Decide about an object that already has the name of the job to submit.

    ``adopt``: ours and the same manifest, live or ended without a report. ``replace``: ours, another manifest or being deleted: delete, await,
    submit. ``next_generation``: ours, ended and reported: take the next name. ``foreign``: not this task's; never touch it.
    """
    raise NotImplementedError


def identity_of(job: Mapping[str, Any] | None) -> Identity | None:
    """Return whose job it is; None for a job that is not ours."""
    raise NotImplementedError


def owner_of(job: Mapping[str, Any] | None) -> Owner | None:
    """Return the try that owns the job."""
    raise NotImplementedError


def lifetime_of(job: Mapping[str, Any] | None) -> Lifetime | None:
    """Return the job's lifetime annotation."""
    raise NotImplementedError


def generation_of(job: Mapping[str, Any]) -> int:
    """Return the generation in the job's name; 0 if it has none."""
    raise NotImplementedError


def is_reported(job: Mapping[str, Any] | None) -> bool:
    """Whether the job's end was reported to Airflow."""
    raise NotImplementedError
