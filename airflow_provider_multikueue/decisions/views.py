"""What is known of a job at one moment, and what follows from it: plain values, no decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.kinds import Kind

__all__ = [
    "Blocked",
    "CopyMemory",
    "DeadRegion",
    "Ending",
    "EndingKind",
    "Memory",
    "Observation",
    "Phase",
    "RegionCheck",
    "Stage",
    "View",
    "WorkerView",
    "place_of",
]

Object = Mapping[str, Any]


Blocked = Literal["", "stopped", "unfit"]
"""What keeps a queue from reserving quota: nothing; it is stopped, which people undo; or it cannot serve the job."""


def place_of(cluster: str | None, region: str | None) -> str:
    """Return region and cluster for a reader; what is not known is left out."""
    return f"{region} ({cluster})" if region and cluster else region or cluster or ""


class Phase(StrEnum):
    """Where a job is in its life: a closed list."""

    SUBMITTED = "SUBMITTED"
    QUEUED = "QUEUED"
    PLACING = "PLACING"
    ADMITTED = "ADMITTED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    EVICTED = "EVICTED"
    LOST = "LOST"

    @property
    def ended(self) -> bool:
        """Whether nothing comes after it."""
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.LOST)

    @property
    def placed(self) -> bool:
        """Whether the job is on a worker now."""
        return self in (Phase.ADMITTED, Phase.RUNNING)


class Stage(StrEnum):
    """How far one region is with answering."""

    SILENT = "silent"  # asked, and no copy of the job is there
    UNREADABLE = "unreadable"  # not in the connection, or no right to read it
    UNREACHABLE = "unreachable"
    UNANSWERED = "unanswered"  # a copy is there and that cluster's Kueue has not looked at it
    INADMISSIBLE = "inadmissible"
    QUOTA = "quota"  # waits for quota there
    ASKED = "asked"
    ACCEPTED = "accepted"
    GRANTED = "granted"
    FAILED = "failed"
    REJECTED = "rejected"
    EVICTED = "evicted"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """What is known of a job on one worker.

    ``can_heal``: whether we may delete the copy of its Workload there. ``looking``: the first look is still under way.
    ``pods_seen``: its pods are watched there, and that watch answers.
    """

    cluster: str
    region: str | None = None
    trouble: str | None = None
    trouble_since: float | None = None
    workload: Object | None = None
    job: Object | None = None
    provisioning: tuple[Object, ...] = ()
    pods: tuple[Object, ...] = ()
    readable: bool = True
    looking: bool = False
    can_heal: bool = True
    pods_seen: bool = True

    @property
    def where(self) -> str:
        """The region if it is known, else the cluster."""
        return self.region or self.cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyMemory:
    """What one worker showed and has taken away since, or gave no time for. Times are epoch seconds."""

    silent_since: float | None = None  # no copy is there
    blocked: Blocked = ""
    blocked_since: float | None = None  # the queue there can reserve no quota, for the same kind of reason
    rejected: tuple[str, ...] = ()  # uids of the copies that were rejected
    rejected_since: float | None = None
    failure: str = ""  # why capacity was refused there, in that cluster's words
    ended_since: float | None = None
    ended_uid: str = ""
    provisioned: float | None = None
    cause: str = ""  # why the copy that was admitted was evicted
    cause_since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What earlier views showed and later ones no longer show: fold it with ``remember``. Times are epoch seconds.

    It is not stored. A trigger that begins anew counts each ``_since`` from its own first look, so that what is ended
    after a grace is ended later, never sooner.
    """

    namespace: str = ""
    name: str = ""
    job_gone_since: float | None = None
    workload_gone_since: float | None = None
    inactive_since: float | None = None
    blocked: Blocked = ""
    blocked_since: float | None = None  # its queue can reserve no quota, for the same kind of reason
    cluster: str | None = None  # the manager's last choice
    admitted: float | None = None  # when that choice was admitted
    left: str | None = None  # the choice before, from which the job was evicted
    left_reason: str = ""
    left_at: float | None = None  # the time of that eviction
    used_up: str = ""  # how the run time asked of Dynamic Workload Scheduler was used up
    copies: Mapping[str, CopyMemory] = field(default_factory=dict)

    def of(self, cluster: str | None) -> CopyMemory:
        """Return what is remembered of one worker."""
        return self.copies.get(cluster or "") or CopyMemory()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All that is known of a job at ``now`` (epoch seconds)."""

    kind: Kind
    job: Object | None
    job_seen: bool
    workload: Object | None
    workload_seen: bool
    workers: Mapping[str, WorkerView]
    now: float
    manager_trouble: str | None = None
    manager_trouble_since: float | None = None
    memory: Memory = field(default_factory=Memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionCheck:
    """What one region says to being asked."""

    cluster: str
    region: str | None
    stage: Stage
    text: str = ""
    since: datetime | None = None

    @property
    def where(self) -> str:
        """The region if it is known, else the cluster."""
        return self.region or self.cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRegion:
    """A region that will not answer any more for this job.

    ``curable``: deleting the Workload ``namespace/name`` with ``uid`` on that worker makes the manager ask there anew.
    ``healable``: we may do so. ``final``: the manager has chosen this region in vain, and asks no other.
    """

    cluster: str
    region: str | None
    reason: str
    since: float
    healable: bool
    curable: bool = False
    final: bool = False
    namespace: str = ""
    name: str = ""
    uid: str = ""

    @property
    def where(self) -> str:
        """The region if it is known, else the cluster."""
        return self.region or self.cluster


EndingKind = Literal[
    "succeeded",
    "failed",
    "deadline",
    "run_duration",
    "rejected",
    "inadmissible",
    "deactivated",
    "deleted",
    "workload_deleted",
    "not_dispatched",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a job ended. ``source`` is ``manager`` or ``worker:<cluster>``."""

    kind: EndingKind
    reason: str
    message: str
    source: str = "manager"

    @property
    def phase(self) -> Phase:
        """The phase that this ending is."""
        if self.kind == "succeeded":
            return Phase.SUCCEEDED
        return Phase.LOST if self.kind in ("deleted", "workload_deleted") else Phase.FAILED

    @property
    def leaves_job(self) -> bool:
        """Whether the job may still be on the manager, live or suspended, and has to be deleted by us."""
        return self.kind != "deleted" and (self.kind not in ("succeeded", "failed") or self.source != "manager")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a view means. Times are UTC; ``flavors`` is by pod set and resource.

    ``override`` names the rule that made us not believe the manager; ``trouble`` says what cannot be reached,
    ``trouble_of`` which cluster that is (empty text: the manager);
    ``elsewhere`` names the places where another copy of the job runs too, which a worker that was lost may leave;
    ``was_admitted``: now or in an earlier dispatch; ``pods_seen``: those of a placed job can be;
    ``joined`` is when it came into its queue, out of which it is held until it is watched; ``failures`` says how pods
    failed in this dispatch, without whom it goes on; ``hopeless_since`` is set while every region that
    was asked is dead; ``came_from`` is the place that an evicted job left last, and ``moved_because`` why it did;
    ``recheck`` is the epoch time at which the same view means something else, by the clock alone.
    """

    phase: Phase
    namespace: str = ""
    name: str = ""
    cluster: str | None = None
    region: str | None = None
    asked: tuple[str, ...] = ()
    checks: tuple[RegionCheck, ...] = ()
    dead: tuple[DeadRegion, ...] = ()
    hopeless_since: float | None = None
    submitted: datetime | None = None
    joined: datetime | None = None
    quota_reserved: datetime | None = None
    admitted: datetime | None = None
    was_admitted: bool = False
    started: datetime | None = None
    finished: datetime | None = None
    flavors: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    queue: str | None = None
    cluster_queue: str | None = None
    priority_class: str | None = None
    pods_running: int = 0
    pods_seen: bool = True
    failures: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    ending: Ending | None = None
    waiting: str = ""
    trouble: str = ""
    trouble_of: str = ""
    came_from: str = ""
    moved_because: str = ""
    evicted: datetime | None = None
    evicted_reason: str | None = None
    inactive: bool = False
    override: str | None = None
    recheck: float | None = None

    @property
    def where(self) -> str:
        """The region if it is known, else the cluster; empty before placement."""
        return self.region or self.cluster or ""

    @property
    def place(self) -> str:
        """Region and cluster for a reader, such as ``us-east4 (multikueue-dws-worker-us)``."""
        return place_of(self.cluster, self.region)
