"""What the provider's accounts may do, each right with what is lost without it.

The one table of it: ``deploy/rbac`` holds the same as manifests, ``multikueue doctor`` asks each cluster about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.kinds import Kind

__all__ = ["KUEUE_NAMESPACE", "RIGHTS", "WORKERS_FROM", "Right", "Role", "right_for", "rights_of", "rules"]

Role = Literal["manager", "manager-reap", "manager-secrets", "manager-profiles", "worker", "worker-heal"]
Need = Literal["required", "useful", "optional"]

KUEUE = "kueue.x-k8s.io"
KUEUE_NAMESPACE = "kueue-system"
READ = ("get", "list", "watch")


WORKERS_FROM: dict[str | None, Role] = {"manager_secrets": "manager-secrets", "cluster_profiles": "manager-profiles"}
"""The role of those who find their workers so; it is granted in Kueue's own namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """Verbs on one resource in one role; ``namespaced`` ones are granted in single namespaces, see `where`."""

    role: Role
    namespaced: bool
    group: str
    resource: str
    """As in RBAC: with its subresource, such as ``pods/log``."""
    verbs: tuple[str, ...]
    need: Need
    without: str
    """What does not work without it."""

    def where(self, jobs: str) -> str | None:
        """Return the namespace it is needed in, where the jobs are in ``jobs``; None for all of the cluster."""
        if not self.namespaced:
            return None
        return KUEUE_NAMESPACE if self.role in WORKERS_FROM.values() else jobs

    @property
    def plural(self) -> str:
        """The resource without its subresource."""
        return self.resource.partition("/")[0]

    @property
    def subresource(self) -> str | None:
        """The subresource, if there is one."""
        return self.resource.partition("/")[2] or None

    @property
    def shown(self) -> str:
        """The resource with its group, as ``kubectl auth can-i`` takes it."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


def _right(role: Role, namespaced: bool, group: str, resource: str, verbs: tuple[str, ...], *, lost: str) -> Right:
    need, _, without = lost.partition(": ")
    return Right(
        role=role,
        namespaced=namespaced,
        group=group,
        resource=resource,
        verbs=verbs,
        need=need,  # type: ignore[arg-type]
        without=without,
    )


RIGHTS: tuple[Right, ...] = (
    _right(
        *("manager", True, "batch", "jobs", (*READ, "create", "patch", "delete")),
        lost="required: jobs can't be submitted, followed and deleted",
    ),
    _right("manager", True, KUEUE, "workloads", READ, lost="required: jobs can't be followed"),
    _right(
        *("manager", True, KUEUE, "localqueues", ("get", "list")),
        lost="useful: a wrong queue is not refused, and regions= can't be kept",
    ),
    _right(
        *("manager", False, KUEUE, "clusterqueues", ("get",)),
        lost="useful: a queue that is not a MultiKueue queue is not refused, and regions= can't be kept",
    ),
    _right(
        *("manager", False, KUEUE, "admissionchecks", ("get",)),
        lost="useful: a queue that is not a MultiKueue queue is not refused, and regions= can't be kept",
    ),
    _right("manager", False, KUEUE, "multikueueconfigs", ("get",), lost="useful: regions= can't be kept"),
    _right(
        *("manager", False, KUEUE, "workloadpriorityclasses", ("get", "list")),
        lost="useful: a wrong priority_class= is not refused",
    ),
    _right(
        *("manager", False, KUEUE, "multikueueclusters", ("list",)),
        lost="optional: workers can't be found, and the doctor can't say which are connected",
    ),
    _right(
        *("manager-reap", False, "batch", "jobs", ("list",)),
        lost="optional: the reaper looks for jobs in one namespace alone",
    ),
    _right(
        *("manager-secrets", True, "", "secrets", ("get",)),
        lost='required: workers can\'t be found by "manager_secrets"',
    ),
    _right(
        *("manager-profiles", True, "multicluster.x-k8s.io", "clusterprofiles", ("list",)),
        lost='required: workers can\'t be found by "cluster_profiles"',
    ),
    _right(
        *("worker", True, "", "pods", READ),
        lost="useful: pods can't be seen: no logs, no exit codes, no result, no startup errors",
    ),
    _right("worker", True, "", "pods/log", ("get",), lost="useful: logs can't be read"),
    _right("worker", True, "batch", "jobs", READ, lost="useful: the worker's job can't be seen"),
    _right(
        *("worker", True, KUEUE, "workloads", READ),
        lost="useful: why a region does not admit a job can't be told, and its logs begin late or never",
    ),
    _right(
        *("worker", True, "autoscaling.x-k8s.io", "provisioningrequests", READ),
        lost="useful: what Dynamic Workload Scheduler says of a job can't be told",
    ),
    _right(
        *("worker", False, "", "nodes", ("get", "list")),
        lost="optional: reports have no zones, and a region that the connection does not state stays unknown",
    ),
    _right(
        *("worker-heal", True, KUEUE, "workloads", ("delete",)),
        lost="optional: a region that is stuck for a job can't be made to ask again",
    ),
)


def rights_of(*roles: Role) -> list[Right]:
    """Return the rights of the roles, in the table's order."""
    return [right for right in RIGHTS if right.role in roles]


def right_for(kind: Kind, role: Role) -> Right:
    """Return what the role needs for jobs of another kind: the same verbs as for Jobs."""
    jobs = next(right for right in rights_of(role) if (right.group, right.resource) == ("batch", "jobs"))
    lost = "can't be submitted, followed and deleted" if role == "manager" else "can't be seen on the worker"
    return replace(jobs, group=kind.group, resource=kind.plural, need="optional", without=f"a {kind.kind} {lost}")


def rules(rights: Iterable[Right]) -> list[dict[str, list[str]]]:
    """Return the rights as rules of a Role or ClusterRole."""
    return [{"apiGroups": [right.group], "resources": [right.resource], "verbs": list(right.verbs)} for right in rights]
