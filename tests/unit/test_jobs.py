"""The job that is submitted: named, labelled, handed to MultiKueue; and what to do about one that is there already."""

from __future__ import annotations

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_multikueue.decisions import jobs
from airflow_provider_multikueue.decisions.jobs import Identity, Lifetime, Owner, build_job, parse_manifest
from airflow_provider_multikueue.decisions.kinds import deadlines_in, find_kind
from airflow_provider_multikueue.exceptions import ManifestError

WHO = Identity(deployment="prod", dag_id="dag", run_id="run 1", task_id="train", map_index=3)
SEED = """
apiVersion: batch/v1
kind: Job
metadata:
  generateName: dws-job-
  namespace: team
  labels: {kueue.x-k8s.io/queue-name: dws-local-queue}
  annotations: {provreq.kueue.x-k8s.io/maxRunDurationSeconds: 600}
spec:
  parallelism: 3
  suspend: true
  ttlSecondsAfterFinished: 3600
  template:
    spec:
      containers: [{name: main, image: img, resources: {requests: {cpu: 100m}}}]
"""


def built(change: str = "", by: str = "", **options: Any) -> tuple[dict[str, Any], list[str]]:
    manifest = parse_manifest(SEED.replace(change, by)) if change else parse_manifest(SEED)
    return built_of(manifest, **options)


def built_of(manifest: dict[str, Any], **options: Any) -> tuple[dict[str, Any], list[str]]:
    known = {
        "identity": WHO,
        "generation": 1,
        "owner": Owner(ti="uuid", attempt=2),
        "lifetime": Lifetime(kind="task"),
        "default_queue_name": "default-queue",
    }
    return build_job(manifest, **{**known, **options})


def test_the_seeds_job_is_named_labelled_and_handed_over_without_a_note() -> None:
    job, notes = built()
    metadata = job["metadata"]
    assert notes == []
    assert "generateName" not in metadata
    assert metadata["name"] == f"dws-job-dag-train-{WHO.digest}-1"
    assert metadata["namespace"] == "team"
    shared = {
        "airflow-provider-multikueue/job": metadata["name"],
        "dag_id": "dag",
        "task_id": "train",
        "run_id": jobs.label_value("run 1"),
        "map_index": "3",
        "try_number": "2",
    }
    assert job["spec"]["template"]["metadata"]["labels"] == shared
    assert metadata["labels"] == {
        **shared,
        "kueue.x-k8s.io/queue-name": "dws-local-queue",
        "airflow-provider-multikueue/deployment": "prod",
        "airflow-provider-multikueue/id": WHO.digest,
    }
    assert metadata["annotations"]["provreq.kueue.x-k8s.io/maxRunDurationSeconds"] == "600"
    assert jobs.identity_of(job) == WHO
    assert jobs.owner_of(job) == Owner(ti="uuid", attempt=2)
    assert jobs.lifetime_of(job) == Lifetime(kind="task")
    assert jobs.run_duration_of(job) == 600
    assert jobs.generation_of(job) == 1
    assert jobs.reported(job) is None


@pytest.mark.parametrize("by", ["suspend: true", "suspend: false", "completions: 1"])
def test_suspend_may_be_anything(by: str) -> None:
    assert built("suspend: true", by)[0]["spec"]["suspend"] is True


def test_the_manifest_that_was_given_is_left_alone() -> None:
    manifest = parse_manifest(SEED)
    before = copy.deepcopy(manifest)
    built_of(manifest)
    assert manifest == before


def test_a_task_that_is_not_mapped_has_no_map_index() -> None:
    job, _ = built(identity=Identity(deployment="p", dag_id="d", run_id="r", task_id="t"))
    assert "map_index" not in job["metadata"]["labels"]


@pytest.mark.parametrize(
    ("manifest", "options", "queue"),
    [
        (SEED, {"queue_name": "given"}, "given"),
        (SEED, {}, "dws-local-queue"),
        (SEED.replace("  labels: {kueue.x-k8s.io/queue-name: dws-local-queue}\n", ""), {}, "default-queue"),
    ],
)
def test_the_tasks_queue_wins_over_the_manifests_over_the_connections(
    manifest: str, options: dict[str, Any], queue: str
) -> None:
    job, _ = built_of(parse_manifest(manifest), **options)
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == queue


def test_without_any_queue_the_three_places_are_named() -> None:
    with pytest.raises(ManifestError, match=r"queue_name= on the task.*label kueue\.x-k8s\.io/queue-name.*connection"):
        built("  labels: {kueue.x-k8s.io/queue-name: dws-local-queue}\n", "", default_queue_name=None)


@pytest.mark.parametrize(
    ("change", "options", "namespace"),
    [
        ("", {"namespace": "given", "default_namespace": "conn"}, "given"),
        ("", {"default_namespace": "conn"}, "team"),
        ("  namespace: team\n", {"default_namespace": "conn"}, "conn"),
        ("  namespace: team\n", {}, "default"),
    ],
)
def test_the_tasks_namespace_wins_over_the_manifests_over_the_connections(
    change: str, options: dict[str, Any], namespace: str
) -> None:
    assert built(change, "", **options)[0]["metadata"]["namespace"] == namespace


def test_priority_class_and_run_duration_of_the_task_win() -> None:
    job, _ = built(priority_class="high", max_run_duration=timedelta(hours=2))
    assert job["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "high"
    assert job["metadata"]["annotations"]["provreq.kueue.x-k8s.io/maxRunDurationSeconds"] == "7200"


@pytest.mark.parametrize("value", ["0", "-5", "10m", "1.5", "''"])
def test_a_run_duration_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(ManifestError, match="whole seconds"):
        built("maxRunDurationSeconds: 600", f"maxRunDurationSeconds: {value}")


RAY = {"spec": {"activeDeadlineSeconds": 700}}
JOB = {"apiVersion": "batch/v1", "kind": "Job", **RAY}


@pytest.mark.parametrize(
    ("api_version", "kind", "manifest", "place"),
    [
        ("ray.io/v1", "RayJob", RAY, "spec.activeDeadlineSeconds"),
        ("v1", "Pod", RAY, "spec.activeDeadlineSeconds"),
        (
            *("kubeflow.org/v1", "PyTorchJob"),
            {"spec": {"runPolicy": {"activeDeadlineSeconds": 700}}},
            "spec.runPolicy.activeDeadlineSeconds",
        ),
        (
            *("jobset.x-k8s.io/v1alpha2", "JobSet"),
            {"spec": {"replicatedJobs": [{"template": {"spec": {}}}, {"template": RAY}]}},
            "spec.replicatedJobs[1].template.spec.activeDeadlineSeconds",
        ),
        (
            *("workload.codeflare.dev/v1beta2", "AppWrapper"),
            {"spec": {"components": [{"template": JOB}]}},
            "spec.components[0].template.spec.activeDeadlineSeconds",
        ),
    ],
)
def test_each_kind_has_its_limits_where_its_controller_reads_them(
    api_version: str, kind: str, manifest: dict[str, Any], place: str
) -> None:
    assert [found for found in deadlines_in(find_kind(api_version, kind), manifest) if found[1]] == [(place, 700)]


def test_a_run_duration_shorter_than_a_training_jobs_limit_is_noted() -> None:
    manifest = parse_manifest(SEED)
    master = {"template": manifest["spec"]["template"]}
    spec = {"runPolicy": {"activeDeadlineSeconds": 700}, "pytorchReplicaSpecs": {"Master": master}}
    _, notes = built_of({**manifest, "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": spec})
    assert [note for note in notes if "less than spec.runPolicy.activeDeadlineSeconds (700 s)" in note]


def test_a_run_duration_shorter_than_the_jobs_limits_is_noted() -> None:
    _, notes = built("parallelism: 3", "activeDeadlineSeconds: 700", execution_timeout=timedelta(seconds=900))
    assert [note.split(" is taken")[0] for note in notes] == [
        "Capacity is asked for 600 s only, less than execution_timeout (900 s): it",
        "Capacity is asked for 600 s only, less than spec.activeDeadlineSeconds (700 s): it",
    ]


@pytest.mark.parametrize("ttl", [0, 2, 3599])
def test_a_time_to_live_that_makes_a_job_run_twice_is_lifted_and_said(ttl: int) -> None:
    job, notes = built("ttlSecondsAfterFinished: 3600", f"ttlSecondsAfterFinished: {ttl}")
    assert job["spec"]["ttlSecondsAfterFinished"] == 3600
    assert f"was {ttl} and is now 3600" in notes[0]
    assert "run again" in notes[0]


def test_a_job_without_a_time_to_live_gets_none() -> None:
    assert "ttlSecondsAfterFinished" not in built("  ttlSecondsAfterFinished: 3600\n", "")[0]["spec"]


def test_kueues_own_time_limit_is_refused_with_what_to_use() -> None:
    with pytest.raises(ManifestError, match=r"max-exec-time-seconds is refused.*execution_timeout"):
        built(
            "kueue.x-k8s.io/queue-name: dws", "kueue.x-k8s.io/max-exec-time-seconds: 5, kueue.x-k8s.io/queue-name: dws"
        )


def test_another_manager_is_refused_and_multikueue_itself_is_not() -> None:
    with pytest.raises(ManifestError, match=r"spec\.managedBy: 'example\.com/other'"):
        built("suspend: true", "managedBy: example.com/other")
    built("suspend: true", "managedBy: kueue.x-k8s.io/multikueue")


def test_what_only_a_server_sets_is_left_out() -> None:
    manifest = parse_manifest(SEED)
    manifest["status"] = {"active": 1}
    manifest["metadata"].update(uid="u", resourceVersion="5", creationTimestamp="x", managedFields=[], name="old")
    job, _ = built_of(manifest)
    assert "status" not in job
    assert not {"uid", "resourceVersion", "creationTimestamp", "managedFields"} & set(job["metadata"])
    assert job["metadata"]["name"].startswith("old-dag-train-")


@pytest.mark.parametrize(
    ("manifest", "says"),
    [
        ({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {}}, "never finishes"),
        ({"apiVersion": "batch/v1", "kind": "Job"}, "spec: missing"),
        ({"apiVersion": "batch/v1", "kind": "Job", "spec": {}}, "spec.template: missing"),
        (
            {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {}}}, "metadata": []},
            "metadata: must be",
        ),
        (
            {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {}}}, "metadata": {"labels": []}},
            "metadata.labels: must be",
        ),
        (
            {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {}, "metadata": []}}},
            "spec.template.metadata: must be",
        ),
        (
            {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "spec": {}},
            r"spec.pytorchReplicaSpecs.\*.template: missing",
        ),
    ],
)
def test_a_manifest_that_cannot_be_a_job_is_refused_with_the_field(manifest: dict[str, Any], says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        built_of(manifest)


def test_every_pod_template_of_every_kind_is_labelled() -> None:
    pod = {"spec": {"containers": []}}
    manifest = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "spec": {"pytorchReplicaSpecs": {r: {"template": copy.deepcopy(pod)} for r in ("Master", "Worker")}},
    }
    job, _ = built_of(manifest)
    specs = job["spec"]["pytorchReplicaSpecs"]
    names = {specs[r]["template"]["metadata"]["labels"]["airflow-provider-multikueue/job"] for r in specs}
    assert names == {job["metadata"]["name"]}
    assert job["spec"]["runPolicy"]["suspend"] is True


def test_a_pod_is_labelled_itself_and_has_no_suspend() -> None:
    job, _ = built_of({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []}})
    assert job["metadata"]["labels"]["airflow-provider-multikueue/job"] == job["metadata"]["name"]
    assert "suspend" not in job["spec"]


def test_a_kind_without_a_row_is_named_and_queued_only() -> None:
    job, _ = built_of({"apiVersion": "example.com/v1", "kind": "Training", "spec": {"x": 1}})
    assert job["spec"] == {"x": 1}
    assert job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "default-queue"


# -- an object that has the name already


def existing(**changes: Any) -> dict[str, Any]:
    job, _ = built(**{k: v for k, v in changes.items() if k in ("identity", "queue_name", "owner")})
    job["metadata"].update(changes.get("metadata", {}))
    job["metadata"]["annotations"].update(changes.get("annotations", {}))
    return job


REPORTED = {"airflow-provider-multikueue/reported": "2026-03-01T12:00:00+00:00"}


@pytest.mark.parametrize(
    ("found", "decision"),
    [
        (existing(), "adopt"),
        (existing(owner=Owner(ti="other", attempt=1)), "adopt"),
        (existing(queue_name="another"), "replace"),
        (existing(metadata={"deletionTimestamp": "2026-03-01T12:00:00Z"}), "replace"),
        (existing(annotations=REPORTED), "next_generation"),
        (existing(annotations=REPORTED, queue_name="another"), "next_generation"),
        (existing(identity=Identity(deployment="b", dag_id="d", run_id="r", task_id="t")), "foreign"),
        ({"metadata": {"name": "x"}}, "foreign"),
        ({}, "foreign"),
    ],
)
def test_what_is_there_already_is_adopted_replaced_or_left_alone(found: dict[str, Any], decision: str) -> None:
    assert jobs.adopt_or_replace(found, existing()) == decision


def test_the_hash_does_not_depend_on_the_try() -> None:
    hashes = {
        built(owner=Owner(ti=ti, attempt=n))[0]["metadata"]["annotations"][jobs.MANIFEST]
        for ti, n in (("a", 1), ("b", 2))
    }
    assert len(hashes) == 1


def test_what_is_exported_is_there() -> None:
    assert all(hasattr(jobs, name) for name in jobs.__all__)


def test_a_held_job_is_outside_its_queue_until_it_is_released() -> None:
    job, _ = built()
    held = jobs.hold(job)
    assert jobs.QUEUE_LABEL not in held["metadata"]["labels"]
    assert (held["spec"]["suspend"], held["spec"]["managedBy"]) == (True, "kueue.x-k8s.io/multikueue")
    assert jobs.adopt_or_replace(held, job) == "adopt"
    patch = jobs.release(held, now=datetime(2026, 3, 1, tzinfo=UTC))
    assert patch is not None
    assert patch["metadata"]["labels"] == {jobs.QUEUE_LABEL: "dws-local-queue"}
    assert jobs.release(job, now=datetime(2026, 3, 1, tzinfo=UTC)) is None
    assert jobs.release(None, now=datetime(2026, 3, 1, tzinfo=UTC)) is None


def test_a_kind_that_cannot_be_suspended_is_not_held() -> None:
    job, _ = built_of({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": []}})
    assert jobs.hold(job) == job


def test_a_job_that_requests_nothing_is_told_what_comes_of_it() -> None:
    _, notes = built("requests: {cpu: 100m}", "requests: {}")
    (note,) = notes
    assert "requests a resource" in note


def test_the_time_out_of_the_queue_is_known_from_the_job() -> None:
    metadata = {"creationTimestamp": "2026-03-01T12:00:00Z", "annotations": {jobs.JOINED: "2026-03-01T12:00:03+00:00"}}
    assert jobs.held_for({"metadata": metadata}) == timedelta(seconds=3)
    assert jobs.held_for({"metadata": {"creationTimestamp": "2026-03-01T12:00:00Z"}}) == timedelta()
    assert jobs.held_for(None) == timedelta()
