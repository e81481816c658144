"""What is known of a Kueue by its image or its schema."""

from __future__ import annotations

import pytest

from airflow_provider_multikueue.decisions.kueue_versions import known_problems, version_of_image, version_of_schema


def deployment(image: str) -> dict:
    return {"spec": {"template": {"spec": {"containers": [{"image": "proxy:v9.9.9"}, {"image": image}]}}}}


@pytest.mark.parametrize(
    ("image", "text"),
    [
        ("registry.k8s.io/kueue/kueue:v0.19.1", "0.19.1"),
        ("mirror.example/team/kueue-controller:v0.17.0-gke.2", "0.17.0"),
        ("registry.k8s.io/kueue/kueue@sha256:0123", None),
    ],
)
def test_the_version_is_the_images_tag(image, text):
    version = version_of_image(deployment(image))
    assert (version.text if version else None) == text


def schema(**fields: object) -> dict:
    cluster_queue = {"properties": {"spec": {"properties": fields}}}
    return {"components": {"schemas": {"io.x-k8s.kueue.v1beta2.ClusterQueue": cluster_queue}}}


def test_the_schema_narrows_the_version_down():
    assert version_of_schema(schema(concurrentAdmissionPolicy={})).text == "0.18 or newer"
    assert version_of_schema(schema(cohort={})).text == "0.17 or older"
    assert version_of_schema({"components": {}}) is None


def test_an_older_version_has_the_problems_of_newer_ones_and_its_own():
    old = known_problems(version_of_image(deployment("kueue:v0.17.0")))
    new = known_problems(version_of_image(deployment("kueue:v0.19.1")))
    assert set(new) < set(old)
    assert known_problems(None) == new == known_problems(version_of_schema(schema(concurrentAdmissionPolicy={})))
    assert known_problems(version_of_schema(schema())) == old
