"""The table of kinds: what is dispatched, what is refused, where things are, how each kind ends."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_multikueue.decisions.kinds import (
    KINDS,
    Kind,
    find_kind,
    kind_of,
    outcome,
    pod_templates,
    refusal,
    walk,
)

NAMES = [
    "Job",
    "JobSet",
    "PyTorchJob",
    "TFJob",
    "PaddleJob",
    "XGBoostJob",
    "JAXJob",
    "MPIJob",
    "TrainJob",
    "RayJob",
    "AppWrapper",
    "Pod",
]
POD: dict[str, Any] = {"spec": {"containers": []}}


def test_every_finishing_kind_that_multikueue_dispatches_has_a_row() -> None:
    assert [row.kind for row in KINDS] == NAMES


@pytest.mark.parametrize("row", KINDS, ids=lambda row: row.kind)
def test_a_workload_made_of_the_longest_name_is_still_a_label_value(row: Kind) -> None:
    assert len(f"{row.kind.lower()}-{'n' * row.name_budget}-1a2b3") <= 63


@pytest.mark.parametrize("row", KINDS, ids=lambda row: row.kind)
def test_every_row_says_how_its_kind_ends(row: Kind) -> None:
    assert row.success
    assert row.failure
    assert refusal(row.api_version, row.kind) is None


def test_a_row_is_found_in_another_version_of_its_group() -> None:
    assert find_kind("jobset.x-k8s.io/v1", "JobSet").plural == "jobsets"
    assert find_kind("kubeflow.org/v1", "MPIJob").plural == "mpijobs"


def test_a_kind_without_a_row_works_by_its_workload_alone() -> None:
    row = find_kind("example.com/v1", "Training")
    assert (row.known, row.group, row.version, outcome(row, {"status": {"phase": "Failed"}})) == (
        False,
        "example.com",
        "v1",
        None,
    )
    assert refusal("example.com/v1", "Training") is None
    assert [find_kind("example.com/v1", kind).plural for kind in ("Training", "Study", "Process")] == [
        "trainings",
        "studies",
        "processes",
    ]


@pytest.mark.parametrize(
    ("api_version", "kind", "says"),
    [
        ("apps/v1", "Deployment", "never finishes"),
        ("apps/v1", "StatefulSet", "never finishes"),
        ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "never finishes"),
        ("ray.io/v1", "RayCluster", "never finishes"),
        ("batch/v1", "CronJob", "does not dispatch"),
        ("v1", "ConfigMap", "is not a job"),
        ("rbac.authorization.k8s.io/v1", "Role", "is not a job"),
        ("kueue.x-k8s.io/v1beta2", "LocalQueue", "is not a job"),
    ],
)
def test_what_is_not_dispatched_is_refused_with_the_list(api_version: str, kind: str, says: str) -> None:
    why = refusal(api_version, kind)
    assert why is not None
    assert says in why
    assert "PyTorchJob" in why


TEMPLATED = [
    ({"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": POD}}, ["spec.template"]),
    (
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "spec": {"replicatedJobs": [{"template": {"spec": {"template": POD}}}] * 2},
        },
        ["spec.replicatedJobs[0].template.spec.template", "spec.replicatedJobs[1].template.spec.template"],
    ),
    (
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "spec": {"pytorchReplicaSpecs": {"Master": {"template": POD}, "Worker": {"template": POD}}},
        },
        ["spec.pytorchReplicaSpecs.Master.template", "spec.pytorchReplicaSpecs.Worker.template"],
    ),
    (
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "spec": {
                "rayClusterSpec": {"headGroupSpec": {"template": POD}, "workerGroupSpecs": [{"template": POD}]},
                "submitterPodTemplate": POD,
            },
        },
        [
            "spec.rayClusterSpec.headGroupSpec.template",
            "spec.rayClusterSpec.workerGroupSpecs[0].template",
            "spec.submitterPodTemplate",
        ],
    ),
    (
        {
            "apiVersion": "workload.codeflare.dev/v1beta2",
            "kind": "AppWrapper",
            "spec": {
                "components": [
                    {"template": {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": POD}}},
                    {"template": {"apiVersion": "v1", "kind": "Pod", **POD}},
                    {"template": {"apiVersion": "v1", "kind": "ConfigMap"}},
                ]
            },
        },
        ["spec.components[0].template.spec.template", "spec.components[1].template"],
    ),
    ({"apiVersion": "v1", "kind": "Pod", **POD}, [""]),
]


@pytest.mark.parametrize(("manifest", "places"), TEMPLATED, ids=[item["kind"] for item, _ in TEMPLATED])
def test_pod_templates_are_found_with_their_places(manifest: dict[str, Any], places: list[str]) -> None:
    found = list(pod_templates(kind_of(manifest), manifest))
    assert [place for place, _ in found] == places
    assert all(template["spec"] == POD["spec"] for _, template in found)


@pytest.mark.parametrize("manifest", [None, [], {}, {"spec": None}, {"spec": {"template": None}}, {"spec": "text"}])
def test_no_templates_are_found_in_what_has_none(manifest: Any) -> None:
    assert list(pod_templates(find_kind("batch/v1", "Job"), manifest)) == []


def test_a_path_without_its_keys_leads_nowhere() -> None:
    assert list(walk({"a": [1, 2]}, ("a", "*"))) == [("a[0]", 1), ("a[1]", 2)]
    assert list(walk({"a": 5}, ("a", "*"))) == []


def conditions(*types: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": name, "status": "True", "reason": "R"} for name in types]}}


@pytest.mark.parametrize(
    ("api_version", "kind", "job", "succeeded"),
    [
        ("batch/v1", "Job", conditions("SuccessCriteriaMet", "Complete"), True),
        ("batch/v1", "Job", conditions("FailureTarget", "Failed"), False),
        ("batch/v1", "Job", conditions("Suspended"), None),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", conditions("Completed"), True),
        ("kubeflow.org/v1", "TFJob", conditions("Created", "Running", "Succeeded"), True),
        ("kubeflow.org/v2beta1", "MPIJob", conditions("Failed"), False),
        ("trainer.kubeflow.org/v1alpha1", "TrainJob", conditions("Complete"), True),
        ("ray.io/v1", "RayJob", {"status": {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}}, True),
        ("ray.io/v1", "RayJob", {"status": {"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}}, False),
        ("ray.io/v1", "RayJob", {"status": {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED"}}, False),
        ("ray.io/v1", "RayJob", {"status": {"jobDeploymentStatus": "ValidationFailed"}}, False),
        ("ray.io/v1", "RayJob", {"status": {"jobDeploymentStatus": "Running", "jobStatus": "SUCCEEDED"}}, None),
        ("workload.codeflare.dev/v1beta2", "AppWrapper", {"status": {"phase": "Succeeded"}}, True),
        ("v1", "Pod", {"status": {"phase": "Failed", "reason": "Evicted"}}, False),
        ("v1", "Pod", {"status": {"phase": "Running"}}, None),
        ("batch/v1", "Job", None, None),
        ("batch/v1", "Job", {"status": {"conditions": "text"}}, None),
    ],
)
def test_each_kind_ends_by_its_own_words(api_version: str, kind: str, job: Any, succeeded: bool | None) -> None:
    result = outcome(find_kind(api_version, kind), job)
    assert (result.succeeded if result else None) is succeeded


PAST = "PyTorchJob train has failed because it was active longer than specified deadline"
LIMIT = "PyTorchJob train has failed because it has reached the specified backoff limit"


def failed(reason: str, message: str = "") -> dict[str, Any]:
    return {"status": {"conditions": [{"type": "Failed", "status": "True", "reason": reason, "message": message}]}}


@pytest.mark.parametrize(
    ("api_version", "kind", "job", "late"),
    [
        ("batch/v1", "Job", failed("DeadlineExceeded"), True),
        ("kubeflow.org/v1", "PyTorchJob", failed("PyTorchJobFailed", PAST), True),
        ("kubeflow.org/v1", "PyTorchJob", failed("PyTorchJobFailed", LIMIT), False),
        ("kubeflow.org/v2beta1", "MPIJob", failed("DeadlineExceeded"), True),
        ("trainer.kubeflow.org/v1alpha1", "TrainJob", failed("DeadlineExceeded"), True),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", failed("FailedJobs", PAST), False),
        ("ray.io/v1", "RayJob", {"status": {"jobDeploymentStatus": "Failed", "reason": "DeadlineExceeded"}}, True),
        ("batch/v1", "Job", conditions("Complete"), False),
    ],
)
def test_a_failure_at_the_deadline_is_told_apart_for_each_kind(
    api_version: str, kind: str, job: Any, late: bool
) -> None:
    result = outcome(find_kind(api_version, kind), job)
    assert result is not None
    assert result.late is late


def test_an_unstated_false_condition_is_no_end() -> None:
    job = {"status": {"conditions": [{"type": "Failed", "status": "False"}]}}
    assert outcome(find_kind("batch/v1", "Job"), job) is None
