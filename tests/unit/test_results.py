"""A job's result is what its leader wrote, or an error that shows what it wrote instead."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
