"""A job's result is what its leader wrote, or an error that shows what it wrote instead."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_multikueue.clusters.trim import trim_job
from airflow_provider_multikueue.decisions.kinds import find_kind
from airflow_provider_multikueue.decisions.results import MESSAGE_BYTES, read_result
from airflow_provider_multikueue.exceptions import ResultError

JOB = find_kind("batch/v1", "Job")
PYTORCH = find_kind("kubeflow.org/v1", "PyTorchJob")


def pod(
    name: str, message: str | None, *, phase: str = "Succeeded", finished: str = "2026-03-01T12:00:09Z", **labels: str
) -> dict[str, Any]:
    ended = {"exitCode": 0, "finishedAt": finished} | ({"message": message} if message is not None else {})
    return {
        "metadata": {"name": name, "labels": {key.replace("__", "/"): value for key, value in labels.items()}},
        "status": {"phase": phase, "containerStatuses": [{"name": "main", "state": {"terminated": ended}}]},
    }


def indexed(index: int, message: str | None, **known: Any) -> dict[str, Any]:
    made = pod(f"job-{index}-abcde", message, **known)
    made["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"] = str(index)
    return made


def test_the_only_pod_leads() -> None:
    assert read_result([pod("a", '{"loss": 0.25}')], JOB) == {"loss": 0.25}


def test_index_0_of_an_indexed_job_leads_whoever_ends_first() -> None:
    pods = [indexed(2, "2", finished="2026-03-01T12:00:01Z"), indexed(0, "0"), indexed(1, "1")]
    assert read_result(pods, JOB) == 0
    assert read_result(pods, JOB, every=True) == [0, 1, 2]


def test_index_0_without_a_message_has_no_stand_in() -> None:
    with pytest.raises(ResultError, match="job-0-abcde wrote no termination message"):
        read_result([indexed(0, None), indexed(1, "1")], JOB)


def batch(mode: str = "Indexed", status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {"kind": "Job", "spec": {"completionMode": mode, "completions": 3, **spec}, "status": status or {}}


def training(kind: str, specs: str, **roles: int) -> dict[str, Any]:
    return {"kind": kind, "spec": {specs: {name: {"replicas": count} for name, count in roles.items()}}}


def of_role(role: str, index: int, message: str = "1", **known: Any) -> dict[str, Any]:
    labels = {"training.kubeflow.org/replica-type": role, "training.kubeflow.org/replica-index": str(index)}
    made = pod(f"{role}-{index}", message, **known)
    made["metadata"]["labels"] = labels | (
        {"training.kubeflow.org/job-role": "master"} if role in ("master", "chief") else {}
    )
    return made


def of_jobset(name: str, rank: int, index: int = 0, replica: int = 0) -> dict[str, Any]:
    made = pod(f"{name}-{replica}-{index}", f'"{name}-{replica}-{index}"')
    own = {"jobset-name": "js", "replicatedjob-name": name, "job-index": replica, "job-global-index": rank}
    made["metadata"]["labels"] = {f"jobset.sigs.k8s.io/{key}": str(value) for key, value in own.items()} | {
        "batch.kubernetes.io/job-completion-index": str(index)
    }
    return made


def jobset(*jobs: tuple[str, int, int], **policy: Any) -> dict[str, Any]:
    replicated = [
        {"name": name, "replicas": replicas, "template": {"spec": {"completions": size, "parallelism": size}}}
        for name, replicas, size in jobs
    ]
    return {"kind": "JobSet", "spec": {"replicatedJobs": replicated} | ({"successPolicy": policy} if policy else {})}


JOBSET = find_kind("jobset.x-k8s.io/v1alpha2", "JobSet")
RAY = find_kind("ray.io/v1", "RayJob")
TRAIN = find_kind("trainer.kubeflow.org/v1alpha1", "TrainJob")
WRAPPER = find_kind("workload.codeflare.dev/v1beta2", "AppWrapper")
DRIVEN = jobset(("worker", 1, 1), ("driver", 1, 1), operator="All", targetReplicatedJobs=["driver"])
HEAD = pod("head", "1")
HEAD["metadata"]["labels"] = {"ray.io/group": "headgroup"}
INITIALIZER = of_jobset("dataset-initializer", 0)
WRAPPED = {"spec": {"components": [{"template": {"apiVersion": "batch/v1", **batch()}}]}}


@pytest.mark.parametrize(
    ("pods", "kind", "job", "says"),
    [
        ([indexed(1, "1"), indexed(2, "2")], JOB, batch(), "number 0"),
        ([indexed(0, "0", phase="Running"), indexed(1, "1")], JOB, batch(), "number 0"),
        ([indexed(1, "1")], JOB, None, "number 0"),
        ([indexed(2, "2")], JOB, batch(successPolicy={"rules": [{}]}, status={"completedIndexes": "1-2"}), "number 1"),
        ([indexed(1, "1")], WRAPPER, WRAPPED, "number 0"),
        ([of_role("worker", 0)], PYTORCH, training("PyTorchJob", "pytorchReplicaSpecs", Master=1, Worker=1), "master"),
        (
            [of_role("worker", 0)],
            find_kind("kubeflow.org/v1", "TFJob"),
            training("TFJob", "tfReplicaSpecs", Chief=1, Worker=1),
            "chief",
        ),
        (
            [of_role("worker", 1)],
            find_kind("kubeflow.org/v1", "JAXJob"),
            training("JAXJob", "jaxReplicaSpecs", Worker=2),
            "number 0 of worker",
        ),
        ([of_jobset("worker", 1)], JOBSET, jobset(("driver", 1, 1), ("worker", 1, 1)), "first pod of driver"),
        ([of_jobset("driver", 0, 1)], JOBSET, jobset(("driver", 1, 2)), "number 0 of driver"),
        ([HEAD], RAY, {"spec": {}}, "submitter"),
        ([INITIALIZER], TRAIN, {"spec": {}}, "node 0"),
    ],
)
def test_a_leader_whose_success_was_not_seen_has_no_stand_in(pods: Any, kind: Any, job: Any, says: str) -> None:
    with pytest.raises(ResultError, match=f"of .*{says}.* no success was seen"):
        read_result(pods, kind, job=job and trim_job(job))


@pytest.mark.parametrize(
    ("pods", "kind", "job", "result"),
    [
        ([indexed(2, "2")], JOB, batch(successPolicy={"rules": [{}]}, status={"completedIndexes": "2"}), 2),
        ([of_jobset("driver", 1)], JOBSET, DRIVEN, "driver-0-0"),
        ([of_jobset("worker", 1)], JOBSET, jobset(("a", 1, 1), ("worker", 1, 1), operator="Any"), "worker-0-0"),
        ([HEAD], RAY, {"spec": {"submissionMode": "HTTPMode"}}, 1),
        ([pod("a", "7")], JOB, batch("NonIndexed"), 7),
        ([of_role("master", 0)], PYTORCH, training("PyTorchJob", "pytorchReplicaSpecs", Master=1, Worker=9), 1),
    ],
)
def test_who_leads_is_left_to_those_who_succeeded_where_the_manifest_leaves_it_open(
    pods: Any, kind: Any, job: Any, result: Any
) -> None:
    assert read_result(pods, kind, job=trim_job(job)) == result


@pytest.mark.parametrize(
    ("pods", "kind", "job", "says"),
    [
        ([indexed(0, "0"), indexed(2, "2")], JOB, batch(), "number-1"),
        ([indexed(0, "0")], JOB, batch(completions=9), "number-1, .*number-5 and 3 more"),
        ([pod("a", "1")], JOB, batch("NonIndexed"), "2 of its 3 pods"),
        ([pod("a", "1")], JOB, batch("NonIndexed", completions=None, status={"succeeded": 2}), "1 of its 2 pods"),
        ([of_jobset("worker", 0)], JOBSET, jobset(("worker", 2, 1)), "worker-1-0"),
        (
            [of_role("master", 0)],
            PYTORCH,
            training("PyTorchJob", "pytorchReplicaSpecs", Master=1, Worker=1),
            "worker-0",
        ),
    ],
)
def test_a_list_with_a_hole_is_no_list(pods: Any, kind: Any, job: Any, says: str) -> None:
    with pytest.raises(ResultError, match=says):
        read_result(pods, kind, every=True, job=trim_job(job))


@pytest.mark.parametrize(
    ("pods", "kind", "job", "length"),
    [
        ([indexed(i, "1") for i in range(3)], JOB, batch(), 3),
        ([indexed(1, "1")], JOB, batch(successPolicy={"rules": [{}]}, status={"completedIndexes": "1"}), 1),
        ([of_jobset("driver", 1)], JOBSET, DRIVEN, 1),
        (
            [of_role("master", 0), of_role("worker", 0, phase="Running")],
            PYTORCH,
            training("PyTorchJob", "pytorchReplicaSpecs", Master=1, Worker=1),
            1,
        ),
    ],
)
def test_a_list_has_those_that_the_success_stands_for(pods: Any, kind: Any, job: Any, length: int) -> None:
    assert len(read_result(pods, kind, every=True, job=trim_job(job))) == length


def test_among_pods_that_are_alike_one_that_was_not_seen_may_have_written() -> None:
    with pytest.raises(ResultError, match="2 of its 3 pods no success was seen"):
        read_result([pod("a", None)], JOB, job=batch("NonIndexed"))


def test_among_pods_that_are_alike_the_one_that_wrote_leads() -> None:
    pods = [pod("a", None, finished="2026-03-01T12:00:01Z"), pod("b", "[1]", finished="2026-03-01T12:00:02Z")]
    assert read_result(pods, JOB) == [1]


def test_the_master_of_a_training_job_leads() -> None:
    def of(replica: str, message: str) -> dict[str, Any]:
        made = pod(replica, message)
        made["metadata"]["labels"]["training.kubeflow.org/replica-type"] = replica
        made["metadata"]["labels"]["training.kubeflow.org/replica-index"] = "0"
        return made

    assert read_result([of("worker", '"worker"'), of("master", '"master"')], PYTORCH) == "master"


def test_a_pod_that_failed_and_was_replaced_has_no_say() -> None:
    assert read_result([pod("a", '"failed"', phase="Failed"), pod("b", '"good"')], JOB) == "good"


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (None, "wrote no termination message"),
        ("", "wrote no termination message"),
        ("  \n", "wrote no termination message"),
        ("loss=0.25", "is not JSON.*'loss=0.25'"),
        ("NaN", "is not JSON.*'NaN'"),
        ('["' + "x" * (MESSAGE_BYTES - 2), "was cut at 4096 bytes.*xxx"),
        ("[" * 4000, "is not JSON"),
    ],
)
def test_a_result_that_is_none_is_an_error_that_shows_it(message: str | None, says: str) -> None:
    with pytest.raises(ResultError, match=says):
        read_result([pod("a", message)], JOB)


def test_pods_that_were_never_seen_are_said() -> None:
    with pytest.raises(ResultError, match="was not seen"):
        read_result([], JOB)


@given(st.text(max_size=5000))
def test_any_text_gives_a_value_or_a_result_error(message: str) -> None:
    with contextlib.suppress(ResultError):
        read_result([pod("a", message)], JOB)


def test_a_result_in_object_storage_is_its_address() -> None:
    message = '{"result_uri": "gs://bucket/model.pt", "loss": 0.1}'
    assert read_result([pod("a", message)], JOB) == {"result_uri": "gs://bucket/model.pt", "loss": 0.1}


@pytest.mark.parametrize("uri", ["null", '""', '"model.pt"', '"://x"', "7"])
def test_an_address_that_is_none_is_an_error(uri: str) -> None:
    with pytest.raises(ResultError, match="pod a wrote has the result_uri"):
        read_result([pod("a", f'{{"result_uri": {uri}}}')], JOB)
