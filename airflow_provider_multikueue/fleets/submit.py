"""Submit once: whatever is retried, restarted or run twice at a time, one job comes of one task instance.

The name says whose job it is, so a second POST meets the first; what is there already is adopted when it is this task's
own and of the same manifest. A lost answer to a POST is no special case: the next look finds the job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.decisions import jobs
from airflow_provider_multikueue.decisions.kinds import KINDS, Kind, find_kind, get_at, outcome
from airflow_provider_multikueue.decisions.names import HANDED_OVER, Reported
from airflow_provider_multikueue.decisions.report import job_part
from airflow_provider_multikueue.exceptions import FleetConfigurationError, MultiKueueError
from airflow_provider_multikueue.fleets import stop
from airflow_provider_multikueue.fleets.creation import create, refused
from airflow_provider_multikueue.fleets.listing import list_kind
from airflow_provider_multikueue.fleets.queues import (
    QueueFacts,
    choose_queue,
    judge_queue,
    read_queue,
    recall_queue,
    remember_queue,
    stays_within,
)
from airflow_provider_multikueue.fleets.remembered import recall, remember

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.client import Resource
    from airflow_provider_multikueue.fleets.fleet import Fleet
    from airflow_provider_multikueue.logs.emit import Sink

__all__ = ["Request", "Submitted", "mark_handed_over", "mark_reported", "submit"]

LEFTOVER_SECONDS = 30.0
"""How long a new job waits for the last pods of a deleted one of the same name."""

ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be submitted, for whom; the manifest is parsed, its templates rendered."""

    manifest: Mapping[str, Any]
    identity: jobs.Identity
    owner: jobs.Owner
    lifetime: jobs.Lifetime
    queue_name: str | None = None
    namespace: str | None = None
    regions: Sequence[str] | None = None
    priority_class: str | None = None
    max_run_duration: timedelta | None = None
    execution_timeout: timedelta | None = None
    """The task's own limit, to be compared with the run duration."""
    default_queue_name: str | None = None
    default_namespace: str | None = None
    hold: bool = False
    """Create the job outside its queue; who follows it puts it in when all is watched."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """The job as the manager has it; ``adopted`` when it was there already."""

    job: dict[str, Any]
    adopted: bool


async def submit(fleet: Fleet, request: Request, sink: Sink) -> Submitted:
    """Submit the job, or adopt it; say in one line what was done.

    Raises:
        ManifestError: the API server refuses the manifest; the text has every field it names.
        FleetConfigurationError: queue, priority class or rights are wrong.
        RegionUnavailableError: the queue reaches other regions.
        MultiKueueError: the manager did not take it within two minutes.
    """
    from airflow_provider_multikueue.clusters.client import ApiError

    try:
        return await _check_and_submit(fleet, request, sink)
    except ApiError as error:
        failure = FleetConfigurationError if error.status in (401, 403) else MultiKueueError
        raise failure(f"The job could not be submitted: {error}") from error


async def _check_and_submit(fleet: Fleet, request: Request, sink: Sink) -> Submitted:
    kind = find_kind(str(request.manifest["apiVersion"]), str(request.manifest["kind"]))
    chosen = await _choose_queue(fleet, request, sink)
    draft, notes = _build(request, 1, chosen.name if chosen else request.queue_name)
    facts = await _check_queue(fleet, request, draft, chosen, sink)
    for note in notes:
        sink.record(logging.WARNING, note)
    if request.hold and await _is_catching(fleet, draft["metadata"]["namespace"]):
        request = replace(request, hold=False)
    submitted = await _submit(fleet, request, kind, facts.name, sink)
    sink.record(logging.INFO, _announcement(fleet, submitted, facts))
    return submitted


async def _is_catching(fleet: Fleet, namespace: str) -> bool:
    """Return whether Kueue would take a held job into a queue: into the LocalQueue ``default``, if there is one.

    It puts every job without a queue there as it is created; once its quota is reserved, another label has no effect.
    """
    from airflow_provider_multikueue.clusters.client import ApiError

    key = (fleet.config.digest, "no default queue", namespace)
    if recall(*key):
        return False
    try:
        await fleet.manager.get(await fleet.manager.resource("kueue.x-k8s.io", "localqueues"), "default", namespace)
    except ApiError as error:
        if error.status in (403, 404):
            remember(True, *key)
            return False
        raise
    return True


def _announcement(fleet: Fleet, submitted: Submitted, facts: QueueFacts) -> str:
    job = submitted.job["metadata"]
    held = jobs.HELD in job["annotations"]
    verb = "Took over" if submitted.adopted else "Created" if held else "Submitted"
    reach = ", ".join(fleet.region(worker) or worker for worker in facts.clusters or ())
    return (
        f"{verb} {submitted.job['kind']} {job['namespace']}/{job['name']} (uid {job['uid']}) for queue {facts.name}"
        f"{f', which reaches {reach}' if reach else ''}."
        f"{' It joins the queue as soon as it is watched.' if held else ''}"
    )


async def mark_reported(fleet: Fleet, job: Mapping[str, Any], report: Reported) -> None:
    """Note on the job that its end was reported, so that a later run of the task begins a new one."""
    await _mark(fleet, job, jobs.REPORTED, report.to_json())


async def mark_handed_over(fleet: Fleet, job: Mapping[str, Any], when: str) -> None:
    """Note on the job that its task succeeded and waits no longer: once it has ended, a new run begins a new one."""
    await _mark(fleet, job, HANDED_OVER, when)


async def _mark(fleet: Fleet, job: Mapping[str, Any], name: str, when: str) -> None:
    from airflow_provider_multikueue.clusters.client import ApiError

    resource = await _resource(fleet, find_kind(str(job["api_version"]), str(job["kind"])))
    body = {"metadata": {"uid": job["uid"], "annotations": {name: when}}}
    try:
        await fleet.manager.patch(resource, str(job["name"]), body, str(job["namespace"]))
    except ApiError as error:
        if error.status not in (404, 409):
            raise


async def _choose_queue(fleet: Fleet, request: Request, sink: Sink) -> QueueFacts | None:
    """Return the queue that keeps the job within its regions where neither task nor manifest names one; else None.

    The connection's is taken if it does.
    """
    if request.regions is None:
        return None
    await fleet.learn_regions()
    if request.queue_name or _label(request.manifest):
        return None
    namespace, default = _namespace(request), None
    if request.default_queue_name:
        default = await read_queue(fleet.manager, namespace, request.default_queue_name)
    if default is not None and stays_within(default, request.regions, _regions(fleet)):
        return default
    facts = await choose_queue(fleet.manager, namespace, regions=request.regions, region_of=_regions(fleet))
    sink.record(logging.INFO, f"queue {facts.name} keeps the job within {', '.join(request.regions)}")
    return facts


def _namespace(request: Request) -> str:
    return jobs.namespace_of(request.manifest, request.namespace, request.default_namespace)


def _regions(fleet: Fleet) -> dict[str, str | None]:
    return {worker: fleet.region(worker) for worker in fleet.worker_names}


async def _check_queue(
    fleet: Fleet, request: Request, draft: Mapping[str, Any], chosen: QueueFacts | None, sink: Sink
) -> QueueFacts:
    """Return what is known of the queue to use, after what can be known to be wrong about it was refused."""
    metadata = draft["metadata"]
    name, namespace = metadata["labels"][jobs.QUEUE_LABEL], metadata["namespace"]
    known = recall_queue(fleet.config.digest, namespace, name) if request.regions is None else None
    facts = chosen or known or await read_queue(fleet.manager, namespace, name)
    notes = judge_queue(facts, regions=request.regions, region_of=_regions(fleet))
    for note in notes:
        sink.record(logging.WARNING, note)
    if known is None and not notes and facts.multikueue:
        remember_queue(fleet.config.digest, facts)
    await _check_priority(fleet, metadata["labels"].get(jobs.PRIORITY_LABEL), sink)
    return facts


def _label(manifest: Mapping[str, Any]) -> str | None:
    marks = (get_at(manifest, ("metadata", place, jobs.QUEUE_LABEL)) for place in ("labels", "annotations"))
    return next((str(each) for each in marks if each), None)


async def _check_priority(fleet: Fleet, name: str | None, sink: Sink) -> None:
    from airflow_provider_multikueue.clusters.client import ApiError

    if name is None:
        return
    resource = await fleet.manager.resource("kueue.x-k8s.io", "workloadpriorityclasses")
    try:
        await fleet.manager.get(resource, name)
    except ApiError as error:
        if error.status == 403:
            sink.record(logging.WARNING, f"WorkloadPriorityClass {name} can't be checked: {error}")
            return
        if error.status != 404:
            raise
        known, _ = await fleet.manager.list(resource)
        names = ", ".join(sorted(item["metadata"]["name"] for item in known)) or "none"
        raise FleetConfigurationError(
            f"WorkloadPriorityClass {name} does not exist on the manager; there are: {names}. Set priority_class= to "
            f"one of them, or create it on the manager and on every worker. Nothing was submitted."
        ) from None


def _build(request: Request, generation: int, queue_name: str | None) -> tuple[dict[str, Any], list[str]]:
    return jobs.build_job(
        request.manifest,
        identity=request.identity,
        generation=generation,
        owner=request.owner,
        lifetime=request.lifetime,
        queue_name=queue_name,
        namespace=request.namespace,
        priority_class=request.priority_class,
        max_run_duration=request.max_run_duration,
        execution_timeout=request.execution_timeout,
        default_queue_name=request.default_queue_name,
        default_namespace=request.default_namespace,
    )


async def _submit(fleet: Fleet, request: Request, kind: Kind, queue: str, sink: Sink) -> Submitted:
    resource = await _resource(fleet, kind)
    if request.owner.attempt > 1:
        await _remove_strays(fleet, request, kind, sink)
    taken_names = 0
    for _ in range(ROUNDS):
        draft, _ = _build(request, 1, queue)
        namespace = draft["metadata"]["namespace"]
        mine = await _mine(fleet, resource, namespace, request.identity)
        past = [job for job in mine if _is_past(kind, job) and not jobs.is_report_lost(job, request.owner)]
        generation = 1 + taken_names + max((jobs.generation_of(job) for job in past), default=0)
        wanted, _ = _build(request, generation, queue)
        living = [job for job in mine if job not in past]
        if living:
            taken = await _take(fleet, resource, living[-1], wanted, sink)
            if taken is not None:
                return Submitted(taken, adopted=True)
            continue
        if request.owner.attempt > 1 and not await _name_is_free(fleet, namespace, wanted["metadata"]["name"]):
            # Pods of a deleted job may still hold this name on a worker that can't be asked now.
            wanted, _ = _build(request, max(generation, request.owner.attempt), queue)
        created = await create(fleet.manager, resource, wanted, held=jobs.hold(wanted) if request.hold else None)
        if created is not None:
            return Submitted(created, adopted=False)
        if await _is_foreign(fleet, resource, wanted, request.identity):
            sink.record(logging.WARNING, f"The name {wanted['metadata']['name']} is taken by someone else's object.")
            taken_names += 1
    raise MultiKueueError(
        f"Job of {request.identity.dag_id}.{request.identity.task_id} on the manager kept changing while it was to be "
        f"submitted ({ROUNDS} rounds): is another run of the same task instance at work?"
    )


async def _is_foreign(fleet: Fleet, resource: Resource, wanted: Mapping[str, Any], identity: jobs.Identity) -> bool:
    from airflow_provider_multikueue.clusters.client import ApiError

    try:
        found = await fleet.manager.get(resource, wanted["metadata"]["name"], wanted["metadata"]["namespace"])
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return jobs.identity_of(found) != identity


def _is_past(kind: Kind, job: Mapping[str, Any]) -> bool:
    """Whether a new run of the task has nothing to do with the job any more."""
    handed_over = bool(get_at(job, ("metadata", "annotations", HANDED_OVER))) and outcome(kind, job) is not None
    return jobs.reported(job) is not None or handed_over or bool(job["metadata"].get("deletionTimestamp"))


async def _mine(fleet: Fleet, resource: Resource, namespace: str, identity: jobs.Identity) -> list[dict[str, Any]]:
    """Return this task instance's jobs, lowest generation first."""
    items, _ = await fleet.manager.list(resource, namespace, labels=jobs.identity_selector(identity))
    own = [job for job in items if jobs.identity_of(job) == identity]
    return sorted(own, key=jobs.generation_of)


async def _remove_strays(fleet: Fleet, request: Request, kind: Kind, sink: Sink) -> None:
    """Delete what an earlier try made of another kind or in another namespace, as far as our account may look."""
    here = (kind.kind, _namespace(request))
    labels = jobs.identity_selector(request.identity)
    listed = await asyncio.gather(*(list_kind(fleet, each, labels, None) for each in KINDS))
    for job in (job for some in listed if isinstance(some, list) for job in some):
        metadata = job["metadata"]
        if (job["kind"], metadata["namespace"]) == here or jobs.identity_of(job) != request.identity:
            continue
        if metadata.get("ownerReferences") or _is_past(find_kind(job["apiVersion"], job["kind"]), job):
            continue
        where = f"{job['kind']} {metadata['namespace']}/{metadata['name']}"
        sink.record(logging.INFO, f"{where} of an earlier try is to be {here[0]} in {here[1]} now: deleting it first")
        await stop.delete_job(fleet, job_part(job), sink)


async def _take(
    fleet: Fleet, resource: Resource, existing: dict[str, Any], wanted: Mapping[str, Any], sink: Sink
) -> dict[str, Any] | None:
    """Take over a living job of this task, or delete one of another manifest; None: look again."""
    from airflow_provider_multikueue.clusters.client import ApiError

    metadata = existing["metadata"]
    name, namespace = str(metadata["name"]), str(metadata["namespace"])
    existing = {"apiVersion": wanted["apiVersion"], "kind": wanted["kind"], **existing}
    if jobs.adopt_or_replace(existing, wanted) == "replace":
        sink.record(logging.INFO, f"job {name} of an earlier try has another manifest: deleting it first")
        part = {"api_version": wanted["apiVersion"], "kind": wanted["kind"], "namespace": namespace, "name": name}
        await stop.delete_job(fleet, {**part, "uid": metadata["uid"]}, sink)
        return None
    annotations = {key: wanted["metadata"]["annotations"][key] for key in (jobs.OWNER, jobs.LIFETIME)}
    # What a try has not returned yet is neither handed over nor reported, whatever an earlier one did.
    annotations |= {name: None for name in (HANDED_OVER, jobs.REPORTED) if name in metadata["annotations"]}
    body = {"metadata": {"resourceVersion": metadata["resourceVersion"], "annotations": annotations}}
    try:
        taken = await fleet.manager.patch(resource, name, body, namespace)
    except ApiError as error:
        if error.status in (404, 409):
            return None
        raise refused(error, wanted) from error
    return {"apiVersion": wanted["apiVersion"], "kind": wanted["kind"], **taken}


async def _name_is_free(fleet: Fleet, namespace: str, name: str) -> bool:
    """Wait until no worker has pods of this name any more; False if that can't be had."""
    try:
        async with asyncio.timeout(LEFTOVER_SECONDS):
            while await stop.left_on_workers(fleet, namespace, name):  # noqa: ASYNC110 - other clusters' state
                await asyncio.sleep(0.5)
    except TimeoutError:
        return False
    return True


async def _resource(fleet: Fleet, kind: Kind) -> Resource:
    from airflow_provider_multikueue.clusters.client import ApiError

    try:
        return await fleet.manager.resource(kind.group, kind.plural)
    except ApiError as error:
        if error.status != 404:
            raise
        raise FleetConfigurationError(
            f"The manager does not know {kind.api_version} {kind.kind}: install its controller's CRDs on the manager "
            f"and on every worker."
        ) from error
