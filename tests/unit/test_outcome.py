"""A trigger's event carries a report and an error, and the receiver checks it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_multikueue import exceptions
from airflow_provider_multikueue.decisions.outcome import Outcome
from airflow_provider_multikueue.exceptions import JobFailedError, MultiKueueError


def test_an_outcome_survives_the_way_through_airflow() -> None:
    sent = Outcome(report={"phase": "FAILED"}, error=JobFailedError("exit code 3 in us-east4"))
    got = Outcome.from_event(json.loads(json.dumps(sent.to_event())))
    assert got.report == sent.report
    assert type(got.error) is JobFailedError
    assert str(got.error) == "exit code 3 in us-east4"
    assert got.ended
    assert not got.deleted


def test_that_the_wait_has_deleted_the_job_travels_with_its_outcome() -> None:
    assert Outcome.from_event(Outcome(report=None, deleted=True).to_event()).deleted


@pytest.mark.parametrize("event", [None, {}, {"version": 2, "report": None}, {"version": 1}])
def test_an_event_that_is_not_ours_is_an_error_that_says_so(event: Any) -> None:
    with pytest.raises(MultiKueueError, match="same version"):
        Outcome.from_event(event)


@pytest.mark.parametrize("name", [n for n in exceptions.__all__ if n.endswith("Error")])
def test_every_error_of_the_tree_travels_by_its_name(name: str) -> None:
    cls = getattr(exceptions, name)
    assert type(exceptions.from_event(exceptions.to_event(cls("what, where, what next")))) is cls


def test_an_error_of_a_later_version_becomes_the_root_class() -> None:
    assert type(exceptions.from_event({"error": "SomeNewError", "text": "x"})) is MultiKueueError
