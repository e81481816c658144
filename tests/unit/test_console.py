"""Addresses in the Google Cloud console."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_multikueue.decisions.console import job_url

CLUSTER = "projects/my-project/locations/europe-west4/clusters/manager"


def job(kind: str = "Job", api_version: str = "batch/v1", name: str = "train-1") -> dict[str, Any]:
    return {"api_version": api_version, "kind": kind, "namespace": "team-a", "name": name, "uid": "u"}


def test_a_job_has_a_page_of_its_own():
    assert job_url(CLUSTER, job()) == (
        "https://console.cloud.google.com/kubernetes/job/europe-west4/manager/team-a/train-1/details?project=my-project"
    )


def test_a_zonal_cluster_in_the_older_form():
    assert "/job/us-east4-b/c/" in str(job_url("projects/p/zones/us-east4-b/clusters/c", job()))


@pytest.mark.parametrize(
    "other", [job("JobSet", "jobset.x-k8s.io/v1alpha2"), job("Job", "batch.volcano.sh/v1alpha1"), job("Pod", "v1")]
)
def test_other_kinds_lead_to_what_runs_in_their_namespace(other: dict[str, Any]):
    url = str(job_url(CLUSTER, other))
    assert url.startswith("https://console.cloud.google.com/kubernetes/workload/overview?project=my-project&pageState=")
    assert "gke%2Feurope-west4%2Fmanager" in url
    assert "team-a" in url


def test_a_project_of_a_domain_is_quoted():
    assert "project=example.com%3Ap" in str(job_url("projects/example.com:p/locations/l/clusters/c", job()))


@pytest.mark.parametrize("cluster", [None, "", "manager", "projects/p/locations/l", f"{CLUSTER}/more"])
def test_what_is_no_gke_cluster_has_no_address(cluster: str | None):
    assert job_url(cluster, job()) is None
