"""Kinds that MultiKueue does not dispatch, and what it does with one that it only says that it dispatches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_provider_multikueue.exceptions import AdmissionTimeoutError, ManifestError
from tests.sandbox.kind_manifests import kubeflow, ray, template
from tests.sandbox.kind_trials import MANAGER, Trial

pytestmark = [pytest.mark.sandbox, pytest.mark.fleet, pytest.mark.timeout(240)]

Object = dict[str, Any]


@pytest.mark.parametrize(
    ("api_version", "kind", "says"), [("apps/v1", "Deployment", "never finishes"), ("batch/v1", "CronJob", "dispatch")]
)
def test_a_kind_that_is_not_dispatched_is_refused_with_those_that_are(
    trial: Trial, api_version: str, kind: str, says: str
) -> None:
    spec = {"selector": {}, "template": template("echo never")}
    with pytest.raises(ManifestError, match=says) as refused:
        trial.run({"apiVersion": api_version, "kind": kind, "metadata": {"name": "no"}, "spec": spec})
    assert "JobSet, PyTorchJob" in str(refused.value)


def test_what_kueue_refuses_in_its_queue_is_said_before_anything_exists(trial: Trial) -> None:
    manifest = ray("echo steering", "sleep 60", "echo computing", shutdownAfterJobFinishes=False, sumbissionMode="x")
    manifest["spec"]["rayClusterSpec"]["enableInTreeAutoscaling"] = True
    with pytest.raises(ManifestError) as refused:
        trial.run(manifest)
    for part in ("spec.sumbissionMode: unknown field", "spec.shutdownAfterJobFinishes", "enableInTreeAutoscaling"):
        assert part in str(refused.value)
    assert trial.look(MANAGER, ("ray.io", "rayjobs")) == []


def test_a_jaxjob_is_cautioned_against_and_ends_by_its_timeout(trial: Trial) -> None:
    deadline = datetime.now(UTC) + timedelta(seconds=50)
    manifest = kubeflow("JAXJob", {"Worker": (2, "echo computing")})
    outcome = trial.run(manifest, admission_deadline=deadline.isoformat())
    assert isinstance(outcome.error, AdmissionTimeoutError)
    assert "refuses the copy of a JAXJob" in trial.log.text
    assert "the manager brings no job there" in trial.log.text
    assert trial.look(MANAGER, ("kubeflow.org", "jaxjobs")) == []
