"""A job's life on a manager and its workers, told step by step, as the real ones were seen to write it.

A story holds the objects as they are at ``now`` (seconds after the submission) and gives what ``observe`` makes of
them; what a follower would remember between two looks is remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_multikueue.decisions.conditions import is_true
from airflow_provider_multikueue.decisions.kinds import MULTIKUEUE, Kind, find_kind
from airflow_provider_multikueue.decisions.narrate import narrate
from airflow_provider_multikueue.decisions.workload import Memory, Observation, View, WorkerView, observe, remember

BEGIN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
REGIONS = {
    "multikueue-dws-worker-asia": "asia-southeast1",
    "multikueue-dws-worker-eu": "europe-west4",
    "multikueue-dws-worker-us": "us-east4",
}
ASIA, EU, US = REGIONS
JOB_NAME = "dws-job-train-abc-1"
COPY_NAME = "job-dws-job-train-abc-1-1a2b3"
JOB_KIND = find_kind("batch/v1", "Job")


def stamp(seconds: float) -> str:
    """Return the time as a cluster writes it: whole seconds."""
    return (BEGIN + timedelta(seconds=int(seconds))).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=int(seconds))


def set_condition(obj: dict[str, Any], name: str, status: str, now: float, reason: str = "", message: str = "") -> None:
    """Write a condition as Kubernetes does: its time is kept when its status is."""
    conditions = obj.setdefault("status", {}).setdefault("conditions", [])
    old = next((item for item in conditions if item["type"] == name), None)
    since = old["lastTransitionTime"] if old and old["status"] == status else stamp(now)
    conditions[:] = [item for item in conditions if item is not old]
    conditions.append(
        {"type": name, "status": status, "reason": reason, "message": message, "lastTransitionTime": since}
    )


@dataclass
class Worker:
    cluster: str
    workload: dict[str, Any] | None = None
    job: dict[str, Any] | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    pods: list[dict[str, Any]] = field(default_factory=list)
    trouble: str | None = None
    trouble_since: float | None = None
    readable: bool = True
    can_heal: bool = True

    def view(self) -> WorkerView:
        return WorkerView(
            cluster=self.cluster,
            region=REGIONS.get(self.cluster),
            trouble=self.trouble,
            trouble_since=self.trouble_since,
            workload=self.workload,
            job=self.job,
            provisioning=tuple(self.requests),
            pods=tuple(self.pods),
            readable=self.readable,
            can_heal=self.can_heal,
        )


@dataclass
class Story:
    kind: Kind = JOB_KIND
    run_duration: str | None = "600"
    now: float = 0.0
    memory: Memory = field(default_factory=Memory)
    manager_trouble: str | None = None
    workload: dict[str, Any] | None = None
    workers: dict[str, Worker] = field(default_factory=lambda: {name: Worker(name) for name in REGIONS})
    seen: Observation | None = None
    lines: list[str] = field(default_factory=list)
    copies: int = 0

    def __post_init__(self) -> None:
        annotations = {"provreq.kueue.x-k8s.io/maxRunDurationSeconds": self.run_duration} if self.run_duration else {}
        self.job: dict[str, Any] | None = {
            "apiVersion": self.kind.api_version,
            "kind": self.kind.kind,
            "metadata": {
                "name": JOB_NAME,
                "namespace": "default",
                "uid": "manager-uid",
                "creationTimestamp": stamp(0),
                "labels": {"kueue.x-k8s.io/queue-name": "dws-local-queue"},
                "annotations": annotations,
            },
            "spec": {"suspend": True, "managedBy": MULTIKUEUE},
            "status": {},
        }

    # -- looking

    def view(self) -> View:
        return View(
            kind=self.kind,
            job=self.job,
            job_seen=True,
            workload=self.workload,
            workload_seen=self.workload is not None or self.copies > 0,
            workers={name: worker.view() for name, worker in self.workers.items()},
            now=BEGIN.timestamp() + self.now,
            manager_trouble=self.manager_trouble,
            memory=self.memory,
        )

    def look(self, after: float = 0.0) -> Observation:
        """Look as a follower does, ``after`` seconds later, and keep what it would say."""
        self.now += after
        self.memory = remember(self.memory, self.view())
        seen = observe(self.view())
        self.lines += [text for _, text in narrate(self.seen, seen)]
        self.seen = seen
        return seen

    # -- the manager

    def manager(self, name: str, status: str = "True", reason: str = "", message: str = "") -> None:
        assert self.workload is not None
        set_condition(self.workload, name, status, self.now, reason, message)

    def queued(self, reason: str = "Pending", message: str = "") -> Story:
        """Kueue made the Workload, and it has no quota yet."""
        self.workload = {
            "metadata": {"name": COPY_NAME, "namespace": "default", "creationTimestamp": stamp(self.now)},
            "spec": {"queueName": "dws-local-queue", "active": True},
            "status": {},
        }
        self.copies += 1
        if message:
            self.manager("QuotaReserved", "False", reason, message)
        return self

    def reserved(self) -> Story:
        """Quota is reserved on the manager, and its check is pending."""
        if self.workload is None:
            self.queued()
        assert self.workload is not None
        self.manager("QuotaReserved", reason="QuotaReserved")
        if any(item["type"] == "Evicted" for item in self.workload["status"]["conditions"]):
            self.manager("Evicted", "False", "QuotaReserved", "Previously: ...")
        self.workload["status"]["admission"] = {"clusterQueue": "dws-cluster-queue"}
        self.workload["status"]["admissionChecks"] = [
            {"name": "sample-dws-multikueue", "state": "Pending", "message": ""}
        ]
        return self

    def nominated(self, *clusters: str) -> Story:
        """The manager asks regions: a copy of the Workload and a request for capacity is on each."""
        if not is_true(self.workload, "QuotaReserved"):
            self.reserved()
        assert self.workload is not None
        names = clusters or tuple(REGIONS)
        self.workload["status"]["nominatedClusterNames"] = list(names)
        for name in names:
            self.copied(name)
            self.requested(name)
        return self

    def chosen(self, cluster: str) -> Story:
        """The manager chose the winner: the losers' copies are gone, the job's copy is on the winner."""
        assert self.workload is not None
        status = self.workload["status"]
        status.pop("nominatedClusterNames", None)
        status["clusterName"] = cluster
        self.manager("Admitted", reason="Admitted")
        for name, worker in self.workers.items():
            if name != cluster:
                worker.workload, worker.requests = None, []
        self.workers[cluster].job = self.copy_of_job()
        return self

    def running(self, cluster: str, pods: int = 1) -> Story:
        assert self.job is not None
        self.workers[cluster].pods = [self.pod(f"{JOB_NAME}-{self.copies}{i}") for i in range(pods)]
        return self

    def placed(self, cluster: str, pods: int = 1) -> Story:
        """A clean life up to its running pods."""
        self.nominated().granted(cluster).chosen(cluster).running(cluster, pods)
        return self

    def evicted(self, reason: str = "AdmissionCheck", message: str = "Evicted due to AdmissionCheck") -> Story:
        """The manager evicts: clusterName goes in the same write."""
        assert self.workload is not None
        assert self.job is not None
        self.workload["status"].pop("clusterName", None)
        self.manager("Evicted", reason=reason, message=message)
        self.job["spec"]["suspend"] = True
        return self

    def requeued(self) -> Story:
        """The quota is given back."""
        self.manager("QuotaReserved", "False", "Pending", "The workload is backing off")
        self.manager("Admitted", "False", "NoReservationUnsatisfiedChecks")
        for worker in self.workers.values():
            worker.workload, worker.job, worker.requests = None, None, []
        return self

    def job_condition(self, name: str, reason: str = "", message: str = "") -> Story:
        assert self.job is not None
        set_condition(self.job, name, "True", self.now, reason, message)
        if name == "Complete":
            self.job["status"]["completionTime"] = stamp(self.now)
        return self

    def finished(self, reason: str = "Succeeded", message: str = "Reached expected number of succeeded pods") -> Story:
        self.manager("Finished", reason=reason, message=message)
        return self

    # -- a worker

    def copied(self, cluster: str) -> None:
        self.copies += 1
        workload: dict[str, Any] = {
            "metadata": {
                "name": COPY_NAME,
                "namespace": "default",
                "uid": f"copy-{self.copies}",
                "creationTimestamp": stamp(self.now),
                "labels": {"kueue.x-k8s.io/multikueue-origin": "rig"},
            },
            "spec": {"active": True},
            "status": {
                "admission": {
                    "clusterQueue": "dws-cluster-queue",
                    "podSetAssignments": [{"name": "main", "flavors": {"nvidia.com/gpu": "default-dws-flavor"}}],
                },
                "admissionChecks": [{"name": "dws-prov", "state": "Pending", "message": ""}],
            },
        }
        set_condition(workload, "QuotaReserved", "True", self.now, "QuotaReserved")
        self.workers[cluster].workload = workload

    def requested(self, cluster: str) -> None:
        request: dict[str, Any] = {
            "metadata": {"name": f"{COPY_NAME}-dws-prov-1", "creationTimestamp": stamp(self.now)},
            "status": {},
        }
        self.workers[cluster].requests = [request]

    def request(self, cluster: str, name: str, status: str = "True", message: str = "") -> Story:
        set_condition(self.workers[cluster].requests[0], name, status, self.now, name, message)
        return self

    def check(self, cluster: str, state: str, message: str = "") -> Story:
        copy = self.workers[cluster].workload
        assert copy is not None
        copy["status"]["admissionChecks"] = [{"name": "dws-prov", "state": state, "message": message}]
        return self

    def worker(self, cluster: str, name: str, status: str = "True", reason: str = "", message: str = "") -> Story:
        copy = self.workers[cluster].workload
        assert copy is not None
        set_condition(copy, name, status, self.now, reason, message)
        return self

    def granted(self, cluster: str) -> Story:
        self.request(cluster, "Provisioned").check(cluster, "Ready", "provisioned")
        return self.worker(cluster, "Admitted", reason="Admitted")

    def failed_once(self, cluster: str, message: str = "no capacity") -> Story:
        """The first failed request: the copy is evicted and never asks again."""
        self.workers[cluster].requests = []
        self.check(cluster, "Pending", "Reset to Pending after eviction. Previously: Retry")
        text = f'Evicted due to AdmissionCheck in Retry state: "dws-prov" (Retrying after failure: {message})'
        return self.worker(cluster, "Evicted", reason="AdmissionCheck", message=text)

    def rejected(self, cluster: str, message: str = "no capacity") -> Story:
        """With no retries the copy is deactivated at once."""
        copy = self.workers[cluster].workload
        assert copy is not None
        copy["spec"]["active"] = False
        self.check(cluster, "Rejected", message)
        return self.worker(cluster, "Evicted", reason="DeactivatedDueToAdmissionCheck", message=message)

    def copy_of_job(self, uid: str = "worker-uid") -> dict[str, Any]:
        return {
            "kind": self.kind.kind,
            "metadata": {
                "name": JOB_NAME,
                "namespace": "default",
                "uid": uid,
                "labels": {"kueue.x-k8s.io/multikueue-origin": "rig"},
                "annotations": {"kueue.x-k8s.io/prebuilt-workload-name": COPY_NAME},
            },
            "status": {},
        }

    def worker_job_ends(self, cluster: str, name: str = "Complete", reason: str = "CompletionsReached") -> Story:
        job = self.workers[cluster].job
        assert job is not None
        set_condition(job, name, "True", self.now, reason, "ended there")
        return self

    def pod(self, name: str, *, state: dict[str, Any] | None = None, phase: str = "Running") -> dict[str, Any]:
        running = {"running": {"startedAt": stamp(self.now)}}
        return {
            "metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": stamp(self.now)},
            "spec": {"nodeName": "node-1"},
            "status": {
                "phase": phase,
                "containerStatuses": [{"name": "main", "image": "img", "state": state or running}],
            },
        }

    def without_worker(self, cluster: str) -> Story:
        self.workers.pop(cluster)
        return self

    def change(self, cluster: str, **values: Any) -> Story:
        self.workers[cluster] = replace(self.workers[cluster], **values)
        return self
