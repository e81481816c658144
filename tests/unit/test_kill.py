"""What a task's state means for its job when Airflow stops the trigger."""

from __future__ import annotations

import pytest

from airflow_provider_multikueue.kill import judge


@pytest.mark.parametrize("state", ["success", "failed", "skipped", "upstream_failed", "removed"])
def test_a_task_that_is_over_takes_its_job_along(state: str) -> None:
    assert judge(state, patient=True) == "delete"


@pytest.mark.parametrize("state", ["deferred", "running", "up_for_retry", "up_for_reschedule", "restarting"])
def test_a_task_that_goes_on_keeps_its_job(state: str) -> None:
    assert judge(state, patient=True) == "keep"
    assert judge(state, patient=False) == "keep"


@pytest.mark.parametrize("state", [None, "no_status", "scheduled", "queued"])
def test_an_unclear_state_is_looked_at_again(state: str | None) -> None:
    assert judge(state, patient=True) == "unclear"


@pytest.mark.parametrize("state", [None, "no_status"])
def test_a_task_that_stays_gone_or_cleared_takes_its_job_along(state: str | None) -> None:
    assert judge(state, patient=False) == "delete"


@pytest.mark.parametrize("state", ["scheduled", "queued"])
def test_a_task_about_to_run_keeps_its_job_for_the_next_try(state: str) -> None:
    assert judge(state, patient=False) == "keep"


def test_a_state_of_a_later_airflow_keeps_the_job() -> None:
    assert judge("some_new_state", patient=False) == "keep"
