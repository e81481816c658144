"""Which pod leads a job, and which job a pod is of, by the labels of the real controllers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_multikueue.clusters.trim import pod_keys
from airflow_provider_multikueue.decisions.kinds import find_kind
from airflow_provider_multikueue.decisions.names import JOB_LABEL
from airflow_provider_multikueue.decisions.pods import container_ends
from airflow_provider_multikueue.decisions.podview import role
from airflow_provider_multikueue.decisions.results import read_result

Object = dict[str, Any]
KUBEFLOW, JOBSET = "training.kubeflow.org", "jobset.sigs.k8s.io"


def pod(name: str, labels: Object, *, code: int = 0, finished: str = "2026-01-01T00:00:09Z") -> Object:
    ended = {"exitCode": code, "finishedAt": finished, "message": json.dumps(name)}
    status = {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [{"name": "main", "state": {"terminated": ended}}],
    }
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}


def in_jobset(name: str, job: str, rank: int, index: int = 0, **more: str) -> Object:
    numbers = {"job-index": "0", "job-global-index": str(rank)}
    labels = {
        f"{JOBSET}/{key}": value
        for key, value in {"jobset-name": "js", "replicatedjob-name": job, **numbers, **more}.items()
    }
    return pod(
        name,
        labels | {"batch.kubernetes.io/job-completion-index": str(index)},
        finished=f"2026-01-01T00:00:0{9 - rank}Z",
    )


JOBSET_PODS = [in_jobset("worker", "worker", 1), in_jobset("driver", "driver", 0), in_jobset("second", "worker", 1, 1)]
COORDINATED = [
    in_jobset("worker", "worker", 1, coordinator="js-worker-0-1.js"),
    in_jobset("driver", "driver", 0, coordinator="js-worker-0-1.js"),
    in_jobset("second", "worker", 1, 1, coordinator="js-worker-0-1.js"),
]
TF_WITHOUT_CHIEF = [
    pod("ps", {f"{KUBEFLOW}/replica-type": "ps", f"{KUBEFLOW}/replica-index": "0"}, finished="2026-01-01T00:00:01Z"),
    pod(
        "w0", {f"{KUBEFLOW}/replica-type": "worker", f"{KUBEFLOW}/replica-index": "0", f"{KUBEFLOW}/job-role": "master"}
    ),
]
MPI = [
    pod("w0", {f"{KUBEFLOW}/job-role": "worker", f"{KUBEFLOW}/replica-index": "0"}, finished="2026-01-01T00:00:01Z"),
    pod("launcher", {f"{KUBEFLOW}/job-role": "launcher"}),
]
RAY = [
    pod("head", {"ray.io/group": "headgroup"}, finished="2026-01-01T00:00:01Z"),
    pod("submitter", {"batch.kubernetes.io/job-name": "job"}),
]


@pytest.mark.parametrize(
    ("api_version", "kind", "pods", "leader"),
    [
        ("jobset.x-k8s.io/v1alpha2", "JobSet", JOBSET_PODS, "driver"),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", COORDINATED, "second"),
        ("kubeflow.org/v1", "TFJob", TF_WITHOUT_CHIEF, "w0"),
        ("kubeflow.org/v2beta1", "MPIJob", MPI, "launcher"),
        ("ray.io/v1", "RayJob", RAY, "submitter"),
    ],
    ids=["JobSet", "JobSet with a coordinator", "TFJob without a chief", "MPIJob", "RayJob"],
)
def test_the_leader_is_who_the_controller_says(api_version: str, kind: str, pods: list[Object], leader: str) -> None:
    for order in (pods, pods[::-1]):
        assert read_result(order, find_kind(api_version, kind)) == leader


def test_launcher_and_workers_of_an_mpijob_are_told_apart() -> None:
    assert [role(each) for each in MPI] == ["worker", "launcher"]


@pytest.mark.parametrize(
    ("labels", "keys"),
    [
        ({JOB_LABEL: "mine", "batch.kubernetes.io/job-name": "mine-driver-0"}, ["mine"]),
        ({f"{JOBSET}/jobset-name": "train", "batch.kubernetes.io/job-name": "train-node-0"}, ["train", "train-node-0"]),
        ({"batch.kubernetes.io/job-name": "ray-job"}, ["ray-job"]),
        ({"app": "web"}, []),
    ],
    ids=["ours", "a TrainJob's", "a RayJob's submitter", "nobody's"],
)
def test_a_pod_without_our_label_is_found_by_those_of_its_controllers(labels: Object, keys: list[str]) -> None:
    assert sorted(pod_keys({"metadata": {"name": "pod", "labels": labels}})) == keys


def test_a_failure_comes_before_those_that_were_stopped_because_of_it() -> None:
    pods = [pod("a", {}, code=143, finished="2026-01-01T00:00:01Z"), pod("b", {}, code=3), pod("c", {}, code=137)]
    assert [end.pod for end in container_ends(pods)] == ["b", "a", "c"]
