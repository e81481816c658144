"""Random lives of a job, well-formed and not: whatever the clusters write, what we make of it stays sane."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from airflow_provider_multikueue.decisions.endings import admission_timed_out, error_for, startup_timed_out
from airflow_provider_multikueue.decisions.kinds import KINDS, find_kind
from airflow_provider_multikueue.decisions.narrate import describe_waiting, narrate
from airflow_provider_multikueue.decisions.report import Dispatches, build_report, job_part, validate_report
from airflow_provider_multikueue.decisions.workload import (
    DeadRegion,
    Memory,
    Phase,
    View,
    WorkerView,
    observe,
    remember,
)
from airflow_provider_multikueue.exceptions import MultiKueueError
from tests.unit.stories import BEGIN, REGIONS, US, Story, Worker, set_condition

CLUSTERS = st.sampled_from(list(REGIONS))
STATUS = st.sampled_from(["True", "False", "Unknown"])
MANAGER_CONDITIONS = st.sampled_from(["QuotaReserved", "Admitted", "Evicted", "Finished", "Preempted", "PodsReady"])
REASONS = st.sampled_from(
    [
        "",
        "Pending",
        "Inadmissible",
        "Misconfigured",
        "Suspended",
        "Succeeded",
        "Failed",
        "OwnerNotFound",
        "AdmissionCheck",
        "Preempted",
        "Deactivated",
        "DeactivatedDueToAdmissionCheck",
        "DeactivatedDueToMaximumExecutionTimeExceeded",
        "DeactivatedDueToEvictedOnManagerCluster",
        "DeadlineExceeded",
    ]
)
JOB_CONDITIONS = st.sampled_from(["Complete", "Failed", "Suspended", "FailureTarget"])
REQUEST_CONDITIONS = st.sampled_from(["Accepted", "Provisioned", "Failed", "CapacityRevoked", "BookingExpired"])
CHECK_STATES = st.sampled_from(["Pending", "Ready", "Retry", "Rejected"])
POD_STATES = st.sampled_from(
    [
        {"running": {"startedAt": "2026-03-01T12:00:03Z"}},
        {"waiting": {"reason": "ImagePullBackOff", "message": "no"}},
        {"terminated": {"exitCode": 0, "startedAt": "2026-03-01T12:00:03Z", "finishedAt": "2026-03-01T12:00:04Z"}},
        {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
    ]
)


class Life(RuleBasedStateMachine):
    """Conditions come and go in any order, on every cluster; a follower looks after each."""

    def __init__(self) -> None:
        super().__init__()
        self.story = Story()
        self.dispatches = Dispatches()
        self.seen = self.story.look()

    @initialize(duration=st.sampled_from([None, "1", "600"]), far=st.integers(0, 3))
    def begin(self, duration: str | None, far: int) -> None:
        self.story = Story(run_duration=duration)
        if far:
            [self.story.queued, self.story.nominated, lambda: self.story.placed(US)][far - 1]()

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 5.0, 11.0, 35.0, 61.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.story.now += seconds

    @rule()
    def a_workload_appears(self) -> None:
        if self.story.workload is None:
            self.story.queued()

    @rule()
    def the_workload_goes(self) -> None:
        self.story.workload = None

    @rule()
    def the_job_goes(self) -> None:
        self.story.job = None

    @rule(name=MANAGER_CONDITIONS, status=STATUS, reason=REASONS)
    def the_manager_writes(self, name: str, status: str, reason: str) -> None:
        if self.story.workload is not None:
            self.story.manager(name, status, reason, f"{name} is {status}")

    @rule(active=st.booleans())
    def somebody_switches_it(self, active: bool) -> None:
        if self.story.workload is not None:
            self.story.workload["spec"]["active"] = active

    @rule(name=JOB_CONDITIONS, status=STATUS, reason=REASONS)
    def the_job_says(self, name: str, status: str, reason: str) -> None:
        if self.story.job is not None:
            set_condition(self.story.job, name, status, self.story.now, reason, "text")

    @rule(active=st.integers(0, 3), failed=st.integers(0, 2))
    def the_job_counts(self, active: int, failed: int) -> None:
        if self.story.job is not None:
            self.story.job["status"].update(active=active, failed=failed)

    @rule(names=st.lists(CLUSTERS, unique=True))
    def regions_are_asked(self, names: list[str]) -> None:
        if self.story.workload is not None:
            self.story.workload["status"]["nominatedClusterNames"] = names
            for name in names:
                self.story.copied(name)
                self.story.requested(name)

    @rule(cluster=st.one_of(CLUSTERS, st.just("a-worker-of-someone-else")))
    def one_is_chosen(self, cluster: str) -> None:
        if self.story.workload is not None:
            self.story.workload["status"]["clusterName"] = cluster

    @rule()
    def the_choice_is_cleared(self) -> None:
        if self.story.workload is not None:
            self.story.workload["status"].pop("clusterName", None)

    @rule(cluster=CLUSTERS, name=MANAGER_CONDITIONS, status=STATUS, reason=REASONS)
    def a_worker_writes(self, cluster: str, name: str, status: str, reason: str) -> None:
        if self.story.workers[cluster].workload is not None:
            self.story.worker(cluster, name, status, reason, "text")

    @rule(cluster=CLUSTERS, state=CHECK_STATES, message=st.sampled_from(["", "no capacity"]))
    def a_check_says(self, cluster: str, state: str, message: str) -> None:
        if self.story.workers[cluster].workload is not None:
            self.story.check(cluster, state, message)

    @rule(cluster=CLUSTERS, name=REQUEST_CONDITIONS, status=STATUS)
    def a_request_is_answered(self, cluster: str, name: str, status: str) -> None:
        if self.story.workers[cluster].requests:
            self.story.request(cluster, name, status, "text")

    @rule(cluster=CLUSTERS, ours=st.booleans())
    def a_copy_of_the_job_appears(self, cluster: str, ours: bool) -> None:
        job = self.story.copy_of_job()
        if not ours:
            job["metadata"]["labels"] = {}
        self.story.workers[cluster].job = job

    @rule(cluster=CLUSTERS, name=JOB_CONDITIONS)
    def a_copy_says(self, cluster: str, name: str) -> None:
        if self.story.workers[cluster].job is not None:
            self.story.worker_job_ends(cluster, name)

    @rule(cluster=CLUSTERS, state=POD_STATES)
    def a_pod_shows(self, cluster: str, state: dict[str, Any]) -> None:
        self.story.workers[cluster].pods = [self.story.pod("p", state=state)]

    @rule(cluster=CLUSTERS)
    def a_worker_is_swept(self, cluster: str) -> None:
        self.story.workers[cluster] = Worker(cluster)

    @rule(cluster=CLUSTERS, trouble=st.sampled_from([None, "refused"]))
    def a_worker_is_cut_off(self, cluster: str, trouble: str | None) -> None:
        self.story.change(cluster, trouble=trouble, trouble_since=BEGIN.timestamp() if trouble else None)

    @rule(trouble=st.sampled_from([None, "refused"]))
    def the_manager_is_cut_off(self, trouble: str | None) -> None:
        self.story.manager_trouble = trouble

    @invariant()
    def it_stays_sane(self) -> None:
        self.seen = self.story.look()
        self.looking_is_sane()
        self.success_is_never_invented()
        self.looking_again_changes_nothing()
        self.stays_only_grow()
        self.everything_can_be_reported()
        self.every_bad_end_is_an_error()

    def looking_is_sane(self) -> None:
        seen = self.seen
        assert seen.phase.ended == (seen.ending is not None)
        assert (seen.waiting == "") or not seen.phase.ended
        if seen.phase.placed:
            assert seen.admitted is not None or self.story.workload is None
        if seen.region is not None:
            assert seen.region == REGIONS[seen.cluster or ""]
        assert {region.cluster for region in seen.dead} <= set(seen.asked)
        assert [check.cluster for check in seen.checks] == list(seen.asked)
        assert seen.recheck is None or seen.recheck > BEGIN.timestamp() + self.story.now

    def success_is_never_invented(self) -> None:
        if self.seen.phase is Phase.SUCCEEDED:
            words = json.dumps([self.story.workload, self.story.job, *(w.job for w in self.story.workers.values())])
            assert '"Complete"' in words or '"Succeeded"' in words

    def looking_again_changes_nothing(self) -> None:
        lines = len(self.story.lines)
        assert self.story.look() == self.seen
        assert len(self.story.lines) == lines

    def stays_only_grow(self) -> None:
        before = self.dispatches
        self.dispatches = before.update(self.seen)
        assert len(self.dispatches.items) >= len(before.items)
        assert all(stay["ended"] or stay["reason"] for stay in self.dispatches.items[:-1])
        assert self.dispatches.update(self.seen) is self.dispatches
        assert Dispatches.from_json(self.dispatches.to_json()) == self.dispatches

    def everything_can_be_reported(self) -> None:
        report = build_report(self.seen, job=job_part(self.story.job or {}), dispatches=self.dispatches)
        assert json.loads(json.dumps(report)) == validate_report(report)

    def every_bad_end_is_an_error(self) -> None:
        pods = [pod for worker in self.story.workers.values() for pod in worker.pods]
        error = error_for(self.seen, pods, ["last line"])
        assert isinstance(error, MultiKueueError) == (self.seen.phase in (Phase.FAILED, Phase.LOST))


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


# -- objects that no cluster would write

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=5), st.floats(allow_nan=True))
WORDS = st.sampled_from(
    ["True", "Evicted", "Admitted", "QuotaReserved", "Finished", US, "Pending", "2026-03-01T12:00:00Z"]
)
KEYS = st.sampled_from(
    [
        "metadata",
        "spec",
        "status",
        "conditions",
        "type",
        "reason",
        "message",
        "name",
        "clusterName",
        "labels",
        "state",
        "nominatedClusterNames",
        "admissionChecks",
        "lastTransitionTime",
        "containerStatuses",
        "terminated",
        "active",
        "admission",
        "podSetAssignments",
        "flavors",
        "creationTimestamp",
        "annotations",
        "ownerReferences",
        "waiting",
    ]
)
JUNK = st.recursive(
    SCALARS | WORDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)
OBJECTS = st.none() | st.dictionaries(KEYS, JUNK, max_size=5)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from([*KINDS, find_kind("example.com/v1", "Training")]),
    job=OBJECTS,
    workload=OBJECTS,
    copies=st.lists(st.tuples(OBJECTS, OBJECTS, OBJECTS, OBJECTS), max_size=3),
    seen=st.booleans(),
)
def test_no_object_whatever_it_holds_makes_it_raise(
    kind: Any, job: Any, workload: Any, copies: list[tuple[Any, Any, Any, Any]], seen: bool
) -> None:
    workers = {
        name: WorkerView(cluster=name, workload=copy, job=theirs, provisioning=(request or {},), pods=(pod or {},))
        for name, (copy, theirs, request, pod) in zip(REGIONS, copies, strict=False)
    }
    view = View(
        kind=kind, job=job, job_seen=seen, workload=workload, workload_seen=seen, workers=workers, now=BEGIN.timestamp()
    )
    memory = remember(remember(Memory(), view), view)
    observation = observe(View(**{name: getattr(view, name) for name in view.__slots__} | {"memory": memory}))
    assert isinstance(narrate(None, observation), list)
    assert describe_waiting(observation, now=view.now)
    pods = [pod for worker in workers.values() for pod in worker.pods]
    error_for(observation, pods)
    admission_timed_out(observation, BEGIN - BEGIN)
    startup_timed_out(observation, BEGIN - BEGIN, pods)
    report = build_report(observation, job=job_part(job or {}), dispatches=Dispatches().update(observation))
    assert validate_report(json.loads(json.dumps(report)))
    assert all(isinstance(region, DeadRegion) for region in observation.dead)
