"""The user's manifest and the task's identity, made into the job that is submitted to the manager."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from airflow_provider_multikueue.decisions.kinds import (
    MULTIKUEUE,
    Kind,
    deadlines_in,
    get_at,
    kind_of,
    pod_templates,
    refusal,
    set_at,
)
from airflow_provider_multikueue.decisions.manifests import manifest_hash, parse_manifest
from airflow_provider_multikueue.decisions.names import (
    CURSORS,
    DEPLOYMENT_LABEL,
    DISPATCHES,
    DOMAIN,
    HELD,
    IDENTITY,
    IDENTITY_LABEL,
    JOB_LABEL,
    JOINED,
    LIFETIME,
    MANIFEST,
    OWNER,
    REPORTED,
    Identity,
    Lifetime,
    Owner,
    Reported,
    identity_selector,
    job_name,
    label_value,
)
from airflow_provider_multikueue.exceptions import ManifestError

__all__ = [
    "CURSORS",
    "DEPLOYMENT_LABEL",
    "DISPATCHES",
    "DOMAIN",
    "HELD",
    "IDENTITY",
    "IDENTITY_LABEL",
    "JOB_LABEL",
    "JOINED",
    "LIFETIME",
    "MANIFEST",
    "MAX_RUN_DURATION",
    "OWNER",
    "PRIORITY_LABEL",
    "QUEUE_LABEL",
    "REPORTED",
    "TTL_FLOOR",
    "Decision",
    "Identity",
    "Lifetime",
    "Owner",
    "adopt_or_replace",
    "build_job",
    "generation_of",
    "held_for",
    "hold",
    "identity_of",
    "identity_selector",
    "is_report_lost",
    "job_name",
    "label_value",
    "lifetime_of",
    "manifest_hash",
    "namespace_of",
    "owner_of",
    "parse_manifest",
    "release",
    "reported",
    "run_duration_of",
]

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"
MAX_RUN_DURATION: Final = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"
MAX_EXEC_TIME: Final = "kueue.x-k8s.io/max-exec-time-seconds"

TTL_FLOOR: Final = 3600
"""Seconds. A worker that removes its copy before the manager has seen it end makes the manager run the job again, so
the time must outlast an outage of the manager; an hour outlasts a control plane's upgrade. Ended jobs are removed after
their report anyway."""

Decision = Literal["adopt", "replace", "foreign", "next_generation"]

_SERVER_SIDE = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "managedFields",
    "selfLink",
    "ownerReferences",
)


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
    execution_timeout: timedelta | None = None,
    default_queue_name: str | None = None,
    default_namespace: str | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """Return the job to submit, and what to tell the reader about changes made to it.

    ``queue_name`` and ``namespace`` win over the manifest's, which win over the defaults (the connection's).
    Raises ``ManifestError``.
    """
    job = copy.deepcopy(dict(manifest))
    kind = _checked_kind(job)
    metadata = _metadata(job)
    notes = [kind.caution] if kind.caution else []
    queue = _queue(metadata, queue_name, default_queue_name)
    digest = manifest_hash(
        manifest,
        queue_name=queue,
        priority_class=priority_class,
        max_run_duration=max_run_duration,
        namespace=namespace,
    )
    prefix = str(metadata.get("name") or metadata.pop("generateName", None) or "")
    metadata.pop("generateName", None)
    name = job_name(identity, generation, kind, prefix=prefix, manifest=job)
    metadata["name"] = name
    metadata["namespace"] = namespace_of(manifest, namespace, default_namespace)

    labels, annotations = metadata["labels"], metadata["annotations"]
    labels[QUEUE_LABEL] = queue
    if priority_class:
        labels[PRIORITY_LABEL] = priority_class
    _set_run_duration(job, annotations, max_run_duration, execution_timeout, notes)
    _hand_to_multikueue(job, kind, notes)
    shared = {JOB_LABEL: name, **_task_labels(identity, owner)}
    labels.update(shared)
    labels.update({DEPLOYMENT_LABEL: label_value(identity.deployment), IDENTITY_LABEL: identity.digest})
    annotations.update(
        {IDENTITY: identity.to_json(), OWNER: owner.to_json(), MANIFEST: digest, LIFETIME: lifetime.to_json()}
    )
    _label_pods(job, kind, shared)
    if kind.templates and not any(_requests(template) for _, template in pod_templates(kind, job)):
        notes.append(
            "No container requests a resource. Kueue then assigns no flavor and asks for no capacity, and the manager "
            "does not follow the job to its end: set resources.requests, at least for cpu."
        )
    return job, notes


def namespace_of(manifest: Mapping[str, Any], namespace: str | None, default: str | None) -> str:
    """Return the namespace of the job: the task's, else the manifest's, else the connection's."""
    return str(namespace or get_at(manifest, ("metadata", "namespace")) or default or "default")


def held_for(job: Mapping[str, Any] | None) -> timedelta:
    """Return how long the job existed before it joined its queue."""
    metadata = (job or {}).get("metadata") or {}
    try:
        joined = datetime.fromisoformat((metadata.get("annotations") or {})[JOINED])
        return max(joined - datetime.fromisoformat(metadata["creationTimestamp"]), timedelta())
    except (KeyError, TypeError, ValueError):
        return timedelta()


def _requests(template: Mapping[str, Any]) -> bool:
    """Whether a container of the template requests or limits a resource."""
    spec = template.get("spec") or {}
    containers = [c for group in ("containers", "initContainers") for c in spec.get(group) or () if isinstance(c, dict)]
    resources = (container.get("resources") or {} for container in containers)
    return any(each.get("requests") or each.get("limits") for each in resources)


def hold(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job as one that waits outside its queue until `release` puts it in.

    The pod of a short job can be read for about a second, so nothing may run before somebody watches. A job without a
    queue is no business of Kueue's; it is suspended, and bears the name of its manager so that nothing else starts it.
    A kind that has no such field is left as it is.
    """
    kind = kind_of(job)
    if kind.managed_by is None or kind.suspend is None:
        return dict(job)
    held = copy.deepcopy(dict(job))
    held["metadata"]["annotations"][HELD] = held["metadata"]["labels"].pop(QUEUE_LABEL)
    return held


def release(job: Mapping[str, Any] | None, *, now: datetime) -> dict[str, Any] | None:
    """Return the merge patch that puts a job that `hold` held into its queue; None if it is not held."""
    metadata = (job or {}).get("metadata") or {}
    queue = (metadata.get("annotations") or {}).get(HELD)
    if not queue:
        return None
    return {
        "metadata": {
            "uid": metadata.get("uid"),
            "labels": {QUEUE_LABEL: str(queue)},
            "annotations": {HELD: None, JOINED: now.isoformat()},
        }
    }


def _checked_kind(job: dict[str, Any]) -> Kind:
    why = refusal(str(job.get("apiVersion") or ""), str(job.get("kind") or ""))
    if why:
        raise ManifestError(f"kind: {why}.")
    kind = kind_of(job)
    if not isinstance(job.get("spec"), dict):
        raise ManifestError("spec: missing; a job has its pods described there.")
    found = [place for place, template in pod_templates(kind, job) if isinstance(template.get("spec"), dict)]
    if kind.templates and not found:
        where = " or ".join(".".join(path) for path in kind.templates)
        raise ManifestError(f"{where}: missing; a {kind.kind} has its pods described there.")
    return kind


def _metadata(job: dict[str, Any]) -> dict[str, Any]:
    """Return the job's metadata with labels and annotations in place and without what only a server sets."""
    job.pop("status", None)
    metadata = job.setdefault("metadata", {})
    if metadata is None:
        metadata = job["metadata"] = {}
    if not isinstance(metadata, dict):
        raise ManifestError("metadata: must be an object with name, labels and annotations.")
    for field in _SERVER_SIDE:
        metadata.pop(field, None)
    for field in ("labels", "annotations"):
        _text_map(metadata, field, "metadata")
    if MAX_EXEC_TIME in metadata["labels"]:
        raise ManifestError(
            f"metadata.labels: {MAX_EXEC_TIME} is refused: when that time is up on a worker the job starts anew on "
            "another, and in the end it stays suspended for ever. Use execution_timeout, or spec.activeDeadlineSeconds."
        )
    return metadata


def _text_map(owner: dict[str, Any], field: str, place: str) -> dict[str, str]:
    value = owner.get(field)
    if value is None:
        value = {}
    if not isinstance(value, dict):
        raise ManifestError(f"{place}.{field}: must be an object of texts, not {type(value).__name__}.")
    owner[field] = {str(key): "" if item is None else item for key, item in value.items()}
    return owner[field]  # type: ignore[no-any-return]


def _queue(metadata: dict[str, Any], given: str | None, default: str | None) -> str:
    written = metadata["labels"].get(QUEUE_LABEL) or metadata["annotations"].pop(QUEUE_LABEL, None)
    queue = given or written or default
    if not queue:
        raise ManifestError(
            "queue_name: no LocalQueue is named, and without one the job would run on the manager itself. Set "
            f"queue_name= on the task, or the label {QUEUE_LABEL} in the manifest, or queue_name in the connection."
        )
    return str(queue)


def run_duration_of(job: Mapping[str, Any] | None) -> int | None:
    """Return the seconds of run time that ``job`` asks of Dynamic Workload Scheduler, or None."""
    value = str(get_at(job, ("metadata", "annotations", MAX_RUN_DURATION)) or "")
    return int(value) if re.fullmatch(r"[0-9]{1,9}", value) and int(value) > 0 else None


def _set_run_duration(
    job: dict[str, Any],
    annotations: dict[str, Any],
    wanted: timedelta | None,
    execution_timeout: timedelta | None,
    notes: list[str],
) -> None:
    if wanted is not None:
        annotations[MAX_RUN_DURATION] = str(int(wanted.total_seconds()))
    if MAX_RUN_DURATION not in annotations:
        return
    annotations[MAX_RUN_DURATION] = str(annotations[MAX_RUN_DURATION])
    seconds = run_duration_of(job)
    if seconds is None:
        place = "max_run_duration" if wanted is not None else f"metadata.annotations[{MAX_RUN_DURATION}]"
        raise ManifestError(
            f"{place}: {annotations[MAX_RUN_DURATION]!r} is not a run time; give whole seconds, at least 1."
        )
    limits = [("execution_timeout", execution_timeout.total_seconds() if execution_timeout else None)]
    for name, limit in (*limits, *deadlines_in(kind_of(job), job)):
        if isinstance(limit, (int, float)) and seconds < limit:
            notes.append(
                f"Capacity is asked for {seconds} s only, less than {name} ({limit:g} s): "
                "it is taken away when they are over."
            )


def _hand_to_multikueue(job: dict[str, Any], kind: Kind, notes: list[str]) -> None:
    """Suspend the job, see that nobody else manages it, and lift a time to live that would make it run twice."""
    manager = get_at(job, kind.managed_by)
    if manager not in (None, "", MULTIKUEUE):
        place = ".".join(kind.managed_by or ())
        raise ManifestError(
            f"{place}: {manager!r} keeps MultiKueue from the job; leave the field out, or set it to {MULTIKUEUE}."
        )
    if kind.managed_by:
        # Kueue's webhook does this too, but not in the first moments after Kueue was restarted.
        set_at(job, kind.managed_by, MULTIKUEUE)
    if kind.suspend:
        set_at(job, kind.suspend, True)
    ttl = get_at(job, kind.ttl)
    if kind.ttl and isinstance(ttl, int) and ttl < TTL_FLOOR:
        set_at(job, kind.ttl, TTL_FLOOR)
        notes.append(
            f"{'.'.join(kind.ttl)} was {ttl} and is now {TTL_FLOOR}: a worker that removes the job before the manager "
            "has seen its end makes it run again. The ended job is removed after its report anyway (cleanup=)."
        )


def _task_labels(identity: Identity, owner: Owner) -> dict[str, str]:
    """Return the labels that Airflow's own operators set too."""
    labels = {"dag_id": identity.dag_id, "task_id": identity.task_id, "run_id": identity.run_id}
    if identity.map_index >= 0:
        labels["map_index"] = str(identity.map_index)
    labels["try_number"] = str(owner.attempt)
    return {key: label_value(value) for key, value in labels.items()}


def _label_pods(job: dict[str, Any], kind: Kind, labels: Mapping[str, str]) -> None:
    for place, template in pod_templates(kind, job):
        if template is job:
            continue
        metadata = template.get("metadata")
        if metadata is None:
            metadata = template["metadata"] = {}
        if not isinstance(metadata, dict):
            raise ManifestError(f"{place}.metadata: must be an object with labels and annotations.")
        _text_map(metadata, "labels", f"{place}.metadata").update(labels)


# -- what a job on the manager says about itself


def _annotation(job: Mapping[str, Any] | None, name: str) -> object:
    return get_at(job, ("metadata", "annotations", name))


def identity_of(job: Mapping[str, Any] | None) -> Identity | None:
    """Return whose job it is; None for a job that is not ours."""
    return Identity.from_json(_annotation(job, IDENTITY))


def owner_of(job: Mapping[str, Any] | None) -> Owner | None:
    """Return the try that owns the job."""
    return Owner.from_json(_annotation(job, OWNER))


def lifetime_of(job: Mapping[str, Any] | None) -> Lifetime | None:
    """Return the job's lifetime annotation."""
    return Lifetime.from_json(_annotation(job, LIFETIME))


def generation_of(job: Mapping[str, Any] | None) -> int:
    """Return the generation in the job's name; 0 if it has none."""
    last = str(get_at(job, ("metadata", "name")) or "").rpartition("-")[2]
    return int(last) if re.fullmatch(r"[0-9]{1,9}", last) else 0


def reported(job: Mapping[str, Any] | None) -> Reported | None:
    """Return how the job's end was reported to Airflow; None if it was not."""
    return Reported.from_json(_annotation(job, REPORTED))


def is_report_lost(job: Mapping[str, Any], owner: Owner) -> bool:
    """Whether ``owner`` is tried again although an earlier try reported the job's success.

    Airflow tries nothing again that it knows to have succeeded, and a clear raises ``max_tries``: the process died
    after its last act, before Airflow took note.
    """
    before, report = owner_of(job), reported(job)
    if before is None or report is None or owner.max_tries is None:
        return False
    return report.succeeded and before.attempt < owner.attempt and before.max_tries == owner.max_tries


def adopt_or_replace(existing: Mapping[str, Any], wanted: Mapping[str, Any]) -> Decision:
    """Decide about an object that already has the name of the job to submit.

    ``adopt``: ours and of the same manifest, live or ended without a report. ``replace``: ours, of another manifest or
    being deleted: delete it, await that, submit. ``next_generation``: ours, ended and reported: take the next name.
    ``foreign``: not this task's; never touch it.
    """
    identity = identity_of(existing)
    if identity is None or identity != identity_of(wanted):
        return "foreign"
    if get_at(existing, ("metadata", "deletionTimestamp")):
        return "replace"
    if reported(existing):
        return "next_generation"
    return "adopt" if _annotation(existing, MANIFEST) == _annotation(wanted, MANIFEST) else "replace"
