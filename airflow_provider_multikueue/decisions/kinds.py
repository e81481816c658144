"""The kinds of jobs that MultiKueue dispatches: one row a kind, and the few questions asked of a row.

A kind that has no row and comes with a Workload still works, by its Workload alone (``Kind.known`` is False).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

__all__ = [
    "KINDS",
    "MULTIKUEUE",
    "Kind",
    "Outcome",
    "deadlines_in",
    "find_kind",
    "get_at",
    "is_late",
    "kind_of",
    "outcome",
    "pod_templates",
    "refusal",
    "set_at",
    "walk",
]

MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""The value of ``managedBy`` that hands a job to MultiKueue."""

Path = tuple[str, ...]
"""Keys from the object's root; ``*`` stands for each item of a list or each value of a mapping."""

LABEL_LIMIT = 63
HASH_SUFFIX = 6  # "-" and five characters, which Kubernetes and Kueue append to names


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of job.

    ``name_limit`` is the longest name that the kind's own controller bears. ``pod_label`` is the label of its pods
    whose value is the job's name, ``role_label`` the one that tells their roles apart, ``leader`` the role whose end
    decides. ``success`` and ``failure`` are types of conditions, or values at ``state`` for the kinds that have none.
    ``verdict`` is a path and the value there which means success, for a ``state`` that only says that the job is over.
    ``deadlines`` is where its limits on the run time are, ``late`` what its failure says at one whose reason is another
    than DeadlineExceeded. ``caution`` is what to tell whoever submits one.
    """

    api_version: str
    kind: str
    plural: str
    name_limit: int = LABEL_LIMIT
    templates: tuple[Path, ...] = ()
    wraps: bool = False
    pod_label: str | None = None
    role_label: str | None = None
    leader: str | None = None
    success: tuple[str, ...] = ()
    failure: tuple[str, ...] = ()
    state: Path = ()
    verdict: tuple[Path, str] | None = None
    reason: Path = ()
    message: Path = ()
    suspend: Path | None = ("spec", "suspend")
    managed_by: Path | None = ("spec", "managedBy")
    ttl: Path | None = ("spec", "ttlSecondsAfterFinished")
    deadlines: tuple[Path, ...] = (("spec", "activeDeadlineSeconds"),)
    late: str = ""
    caution: str = ""
    known: bool = True

    @property
    def group(self) -> str:
        """The API group, empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The API version without its group."""
        return self.api_version.rpartition("/")[2]

    @property
    def name_budget(self) -> int:
        """The longest name for which Kueue's Workload name (kind, name, five characters) is still a label value.

        Kueue before 0.18 puts that name into a label of the worker's copy, and the copy is refused if it is longer.
        """
        return min(self.name_limit, LABEL_LIMIT - len(self.kind) - 1 - HASH_SUFFIX)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended, by its own status; ``at`` is the time its cluster gave. ``late``: at its own deadline."""

    succeeded: bool
    reason: str
    message: str
    at: str | None
    late: bool = False


def _kubeflow(
    kind: str,
    plural: str,
    specs: str,
    leader: str,
    api_version: str = "kubeflow.org/v1",
    role_label: str = "training.kubeflow.org/replica-type",
    caution: str = "",
) -> Kind:
    """Return the row of a job of the training or MPI operator, which are alike."""
    return Kind(
        api_version=api_version,
        kind=kind,
        plural=plural,
        name_limit=LABEL_LIMIT - len("-evaluator-999"),
        templates=(("spec", specs, "*", "template"),),
        pod_label="training.kubeflow.org/job-name",
        role_label=role_label,
        caution=caution,
        leader=leader,
        success=("Succeeded",),
        failure=("Failed",),
        suspend=("spec", "runPolicy", "suspend"),
        managed_by=("spec", "runPolicy", "managedBy"),
        ttl=("spec", "runPolicy", "ttlSecondsAfterFinished"),
        deadlines=(("spec", "runPolicy", "activeDeadlineSeconds"),),
        late="longer than specified deadline",  # the training operator's; its reason is <Kind>Failed
    )


KINDS: tuple[Kind, ...] = (
    Kind(
        api_version="batch/v1",
        kind="Job",
        plural="jobs",
        templates=(("spec", "template"),),
        pod_label="batch.kubernetes.io/job-name",
        success=("Complete",),
        failure=("Failed",),
        late="longer than specified deadline",  # all that its Workload alone tells of it
    ),
    Kind(
        api_version="jobset.x-k8s.io/v1alpha2",
        kind="JobSet",
        plural="jobsets",
        templates=(("spec", "replicatedJobs", "*", "template", "spec", "template"),),
        pod_label="jobset.sigs.k8s.io/jobset-name",
        role_label="jobset.sigs.k8s.io/replicatedjob-name",
        deadlines=(("spec", "replicatedJobs", "*", "template", "spec", "activeDeadlineSeconds"),),
        success=("Completed",),
        failure=("Failed",),
    ),
    _kubeflow("PyTorchJob", "pytorchjobs", "pytorchReplicaSpecs", "master"),
    _kubeflow("TFJob", "tfjobs", "tfReplicaSpecs", "chief"),
    _kubeflow("PaddleJob", "paddlejobs", "paddleReplicaSpecs", "master"),
    _kubeflow("XGBoostJob", "xgboostjobs", "xgbReplicaSpecs", "master"),
    _kubeflow(
        *("JAXJob", "jaxjobs", "jaxReplicaSpecs", "worker"),
        caution="Kueue up to 0.19.1 refuses the copy of a JAXJob on a worker, so that it waits for ever while capacity "
        "is held for it: use a JobSet instead, or set admission_timeout.",
    ),
    _kubeflow(
        *("MPIJob", "mpijobs", "mpiReplicaSpecs", "launcher"),
        api_version="kubeflow.org/v2beta1",
        role_label="training.kubeflow.org/job-role",
    ),
    Kind(
        api_version="trainer.kubeflow.org/v1alpha1",
        kind="TrainJob",
        plural="trainjobs",
        name_limit=LABEL_LIMIT - len("-dataset-initializer-0-0") - HASH_SUFFIX,
        pod_label="jobset.sigs.k8s.io/jobset-name",
        role_label="jobset.sigs.k8s.io/replicatedjob-name",
        leader="node",
        ttl=None,
        success=("Complete",),
        failure=("Failed",),
    ),
    Kind(
        api_version="ray.io/v1",
        kind="RayJob",
        plural="rayjobs",
        name_limit=47,
        templates=(
            ("spec", "rayClusterSpec", "headGroupSpec", "template"),
            ("spec", "rayClusterSpec", "workerGroupSpecs", "*", "template"),
            ("spec", "submitterPodTemplate"),
        ),
        pod_label="batch.kubernetes.io/job-name",  # of the submitter, whose template may be the operator's own
        role_label="ray.io/group",
        leader="",  # the submitter is in no group
        success=("Complete",),
        failure=("Failed", "ValidationFailed"),  # at the second Kueue itself, up to 0.19.1, waits for ever
        state=("status", "jobDeploymentStatus"),
        verdict=(("status", "jobStatus"), "SUCCEEDED"),
        reason=("status", "reason"),
        message=("status", "message"),
    ),
    Kind(
        api_version="workload.codeflare.dev/v1beta2",
        kind="AppWrapper",
        plural="appwrappers",
        templates=(("spec", "components", "*", "template"),),
        wraps=True,
        ttl=None,
        pod_label="workload.codeflare.dev/appwrapper",
        success=("Succeeded",),
        failure=("Failed",),
        state=("status", "phase"),
    ),
    Kind(
        api_version="v1",
        kind="Pod",
        plural="pods",
        templates=((),),
        success=("Succeeded",),
        failure=("Failed",),
        state=("status", "phase"),
        reason=("status", "reason"),
        message=("status", "message"),
        suspend=None,
        managed_by=None,
        ttl=None,
    ),
)

_BY_NAME = {(row.group, row.kind): row for row in KINDS}

_ENDLESS = frozenset(
    {
        "Deployment",
        "StatefulSet",
        "DaemonSet",
        "ReplicaSet",
        "ReplicationController",
        "LeaderWorkerSet",
        "RayCluster",
        "RayService",
    }
)
_NOT_DISPATCHED = frozenset({"CronJob", "SparkApplication", "ScheduledSparkApplication", "PodTemplate"})
_NO_JOBS = (
    "apps",
    "autoscaling",
    "policy",
    "kueue.x-k8s.io",
    "networking.k8s.io",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "apiextensions.k8s.io",
    "admissionregistration.k8s.io",
    "scheduling.k8s.io",
    "resource.k8s.io",
    "gateway.networking.k8s.io",
    "cert-manager.io",
    "monitoring.coreos.com",
)


def find_kind(api_version: str, kind: str) -> Kind:
    """Return the row of a kind in any of its versions, or a row made for a kind that is not in the table.

    The made row's plural is the one that Kubernetes itself guesses from a kind.
    """
    row = _BY_NAME.get((api_version.rpartition("/")[0], kind))
    if row is None:
        return Kind(
            api_version=api_version,
            kind=kind,
            plural=_guessed_plural(kind),
            suspend=None,
            managed_by=None,
            ttl=None,
            known=False,
        )
    return row


def _guessed_plural(kind: str) -> str:
    word = kind.lower()
    if word.endswith("y"):
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith("s") else f"{word}s"


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """Return the row for the kind of ``manifest``."""
    return find_kind(str(manifest.get("apiVersion") or ""), str(manifest.get("kind") or ""))


def refusal(api_version: str, kind: str) -> str | None:
    """Say why MultiKueue does not dispatch this kind; None if it does, or may."""
    group = api_version.rpartition("/")[0]
    if (group, kind) in _BY_NAME:
        return None
    if kind in _ENDLESS:
        return f"a {kind} never finishes, so no task can wait for it; kinds that finish: {_listed()}"
    if kind in _NOT_DISPATCHED:
        return f"MultiKueue does not dispatch a {kind}; it dispatches {_listed()}"
    if group == "" or group in _NO_JOBS:
        return f"a {kind} is not a job, and MultiKueue copies nothing but the job to the workers; jobs are {_listed()}"
    return None


def _listed() -> str:
    return ", ".join(row.kind for row in KINDS)


def walk(node: Any, path: Path, words: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of ``node`` at ``path``, with its place in words such as ``spec.replicatedJobs[0].template``."""
    if not path:
        yield words, node
        return
    key, rest = path[0], path[1:]
    if key == "*" and isinstance(node, list):
        for index, item in enumerate(node):
            yield from walk(item, rest, f"{words}[{index}]")
    elif key == "*" and isinstance(node, dict):
        for name, item in node.items():
            yield from walk(item, rest, f"{words}.{name}")
    elif isinstance(node, dict) and key in node:
        yield from walk(node[key], rest, f"{words}.{key}" if words else key)


def get_at(node: Any, path: Path | None) -> Any:
    """Return the value at ``path`` (without ``*``), or None."""
    for key in path or ():
        # The first is what nearly all are, and asking an abstract class takes ten times as long.
        if not isinstance(node, (dict, Mapping)):
            return None
        node = node.get(key)
    return node if path else None


def set_at(node: dict[str, Any], path: Path, value: Any) -> None:
    """Set the value at ``path``, making what is missing on the way."""
    for key in path[:-1]:
        inner = node.get(key)
        node = inner if isinstance(inner, dict) else node.setdefault(key, {})
    node[path[-1]] = value


def pod_templates(kind: Kind, manifest: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each pod template in ``manifest`` with its place in words, such as ``spec.template`` (empty for a Pod)."""
    for path in kind.templates:
        for words, node in walk(manifest, path):
            if not isinstance(node, dict):
                continue
            if kind.wraps:
                inner = pod_templates(kind_of(node), node)
                yield from ((f"{words}.{place}".rstrip("."), template) for place, template in inner)
            else:
                yield words, node


def deadlines_in(kind: Kind, manifest: Any) -> Iterator[tuple[str, Any]]:
    """Yield each limit that ``manifest`` sets on its run time with its place in words, and its value as written."""
    for path in kind.deadlines:
        yield from walk(manifest, path)
    for place, node in (found for path in kind.templates if kind.wraps for found in walk(manifest, path)):
        if isinstance(node, dict):
            yield from ((f"{place}.{inner}", value) for inner, value in deadlines_in(kind_of(node), node))


def outcome(kind: Kind, job: Mapping[str, Any] | None) -> Outcome | None:
    """Return how ``job`` ended by its own status; None while it has not, or for a kind without a row."""
    if not isinstance(job, Mapping):
        return None
    found = _by_state(kind, job) if kind.state else _by_conditions(kind, job)
    if found is None or found.succeeded:
        return found
    return replace(found, late=is_late(kind, found.reason, found.message))


def is_late(kind: Kind, reason: str, message: str) -> bool:
    """Whether a failure for ``reason``, with ``message``, is one at the job's own deadline."""
    return reason == "DeadlineExceeded" or (kind.late != "" and kind.late in message)


def _by_state(kind: Kind, job: Mapping[str, Any]) -> Outcome | None:
    state = get_at(job, kind.state)
    if state not in (*kind.success, *kind.failure):
        return None
    succeeded = state in kind.success
    if succeeded and kind.verdict is not None:
        succeeded = get_at(job, kind.verdict[0]) == kind.verdict[1]
    at = get_at(job, ("status", "endTime")) or get_at(job, ("status", "completionTime"))
    reason, message = get_at(job, kind.reason), get_at(job, kind.message)
    return Outcome(succeeded, str(reason or state), str(message or ""), str(at) if at else None)


def _by_conditions(kind: Kind, job: Mapping[str, Any]) -> Outcome | None:
    conditions = get_at(job, ("status", "conditions"))
    for condition in conditions if isinstance(conditions, list) else ():
        if not isinstance(condition, Mapping) or str(condition.get("status")) != "True":
            continue
        if condition.get("type") in (*kind.success, *kind.failure):
            succeeded = condition.get("type") in kind.success
            at = (succeeded and get_at(job, ("status", "completionTime"))) or condition.get("lastTransitionTime")
            reason = condition.get("reason") or condition["type"]
            return Outcome(succeeded, str(reason), str(condition.get("message") or ""), str(at) if at else None)
    return None
