"""Which pods' ends a job's success stands for, by its manifest and status: what was not seen of them is no result.

A watch on a worker can miss pods: it may be forbidden, cut, or begun too late. A result that another pod wrote, or a
list with a hole in it, would then pass for the right one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

from airflow_provider_multikueue.decisions.conditions import items_at, text_at
from airflow_provider_multikueue.decisions.kinds import Kind, get_at, kind_of
from airflow_provider_multikueue.decisions.podview import coordinator, leads, ordinal, role

__all__ = ["missing_leader", "missing_pods"]

Pod = Mapping[str, Any]
Place = tuple[str, tuple[int, ...]]  # role, and number within it

_UNHEARD: Final = ("ps", "evaluator", "scheduler")  # serve the others, and are stopped with them
_SHOWN: Final = 5


def missing_leader(first: Pod, kind: Kind, job: Mapping[str, Any] | None) -> str:
    """Say which pod leads the job, if it is not ``first``, the first in order of those that succeeded.

    Empty text if it is, or if the manifest leaves open who ends the job.
    """
    kind, job = _unwrapped(kind, job)
    if name := coordinator(first):
        return "" if leads(first, kind.leader) else f"the coordinator {name.partition('.')[0]}"
    return _missing_role(first, kind, job) or _missing_number(first, kind, job)


def missing_pods(succeeded: Collection[Pod], seen: Iterable[Pod], kind: Kind, job: Mapping[str, Any] | None) -> str:
    """Say which pods' ends a list of all results lacks; empty text if none, or if the manifest does not tell.

    ``seen`` are all known pods. Where the leader's end ends the job others may be stopped with it: there a pod is
    missing only if nothing of it was seen.
    """
    kind, job = _unwrapped(kind, job)
    if kind.kind == "Job":
        return _missing_of_job(succeeded, job)
    if kind.kind == "JobSet":
        return _listed(sorted(set(_jobset_places(job)) - {_place(pod) for pod in succeeded}))
    if kind.kind != "MPIJob" and (replicas := _replicas(kind, job)):
        wanted = {(name, (i,)) for name, count in replicas.items() if name not in _UNHEARD for i in range(count)}
        return _listed(sorted(wanted - {_place(pod) for pod in seen}))
    return ""


def _unwrapped(kind: Kind, job: Mapping[str, Any] | None) -> tuple[Kind, Mapping[str, Any] | None]:
    """Return the one job in a wrapper; what stands beside others is looked at as little as an unknown kind."""
    components = items_at(job, "spec", "components") if kind.wraps else []
    inner = get_at(components[0], ("template",)) if len(components) == 1 else None
    return (kind_of(inner), inner) if isinstance(inner, Mapping) else (kind, job)


def _place(pod: Pod) -> Place:
    return role(pod).lower(), ordinal(pod)


def _listed(places: Collection[Place]) -> str:
    names = ["-".join([name, *map(str, number)]) for name, number in places]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _number(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


# -- who leads


def _missing_role(first: Pod, kind: Kind, job: Mapping[str, Any] | None) -> str:
    if kind.kind == "JobSet":
        names = _leading_jobs(job)
        return f"the first pod of {names[0]}" if names and role(first) not in names else ""
    if kind.kind == "RayJob":
        submits = get_at(job, ("spec", "submissionMode")) in (None, "", "K8sJobMode")
        return "the submitter" if job is not None and submits and not leads(first, kind.leader) else ""
    if kind.kind == "TrainJob":
        return "node 0" if role(first).endswith("-initializer") else ""
    leader = next((name for name in (kind.leader, "master") if name in _replicas(kind, job)), None)
    return f"the {leader}" if leader is not None and not leads(first, leader) else ""


def _leading_jobs(job: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the replicated jobs of which one leads: the first, or in its place one that alone decides the success."""
    names = [text_at(item, "name") for item in items_at(job, "spec", "replicatedJobs")]
    operator, targets = _success_policy(job)
    return () if operator == "Any" and not targets else (*names[:1], *targets)


def _success_policy(job: Mapping[str, Any] | None) -> tuple[str, tuple[str, ...]]:
    targets = get_at(job, ("spec", "successPolicy", "targetReplicatedJobs"))
    found = tuple(str(name) for name in targets) if isinstance(targets, list) else ()
    return text_at(job, "spec", "successPolicy", "operator") or "All", found


def _missing_number(first: Pod, kind: Kind, job: Mapping[str, Any] | None) -> str:
    """Say which number should lead: 0, or where any may end the job, the lowest that its status says has succeeded."""
    policy = get_at(job, ("spec", "successPolicy"))
    wanted = 0
    if kind.kind == "Job" and policy:
        wanted = min(_completed(job), default=-1)
    elif policy and _success_policy(job)[0] == "Any":
        wanted = -1
    numbers = ordinal(first)
    if wanted < 0 or not numbers or max(numbers) == wanted:
        return ""
    return f"number {wanted}" + (f" of {role(first)}" if role(first) else "")


# -- who succeeds


def _missing_of_job(succeeded: Collection[Pod], job: Mapping[str, Any] | None) -> str:
    if text_at(job, "spec", "completionMode") == "Indexed":
        indexes = _completed(job)
        if not indexes and not get_at(job, ("spec", "successPolicy")):
            indexes = set(range(_number(get_at(job, ("spec", "completions")), 0)))
        return _listed([("number", (i,)) for i in sorted(indexes - {i for pod in succeeded for i in ordinal(pod)})])
    wanted = get_at(job, ("spec", "completions")) or get_at(job, ("status", "succeeded"))
    lacking = _number(wanted, 0) - len(succeeded)
    return f"{lacking} of its {wanted} pods" if lacking > 0 else ""


def _completed(job: Mapping[str, Any] | None) -> set[int]:
    """Return the indexes in ``status.completedIndexes``, such as ``0,2-4``."""
    text = text_at(job, "status", "completedIndexes")
    spans = [re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part) for part in text.split(",")]
    return {i for span in spans if span for i in range(int(span[1]), int(span[2] or span[1]) + 1)}


def _jobset_places(job: Mapping[str, Any] | None) -> Iterator[Place]:
    operator, targets = _success_policy(job)
    if operator == "Any":
        return
    for item in items_at(job, "spec", "replicatedJobs"):
        name, spec = text_at(item, "name"), get_at(item, ("template", "spec"))
        if (targets and name not in targets) or text_at(spec, "completionMode") == "NonIndexed":
            continue
        size = _number(get_at(spec, ("completions",)), _number(get_at(spec, ("parallelism",)), 1))
        for replica in range(_number(get_at(item, ("replicas",)), 1)):
            yield from ((name.lower(), (replica, index)) for index in range(size))


def _replicas(kind: Kind, job: Mapping[str, Any] | None) -> dict[str, int]:
    """Return how many pods each role of a training job has; none for other kinds."""
    path = kind.templates[0] if kind.templates else ()
    if len(path) != 4 or not path[1].endswith("ReplicaSpecs"):
        return {}
    found = get_at(job, path[:2])
    roles = found.items() if isinstance(found, Mapping) else ()
    return {str(name).lower(): _number(get_at(item, ("replicas",)), 1) for name, item in roles}
