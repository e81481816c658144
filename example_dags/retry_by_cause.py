"""Retry what a retry can help, and only that. Needs Airflow 3.3, which has retry policies."""

from __future__ import annotations

from datetime import timedelta

from airflow.providers.common.compat.sdk import dag
from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

from airflow_provider_multikueue.exceptions import (
    AdmissionRejectedError,
    AdmissionTimeoutError,
    JobDeadlineError,
    JobDeletedError,
    JobEvictedError,
    JobFailedError,
    RunDurationExceededError,
    StartupError,
    WorkerLostError,
)
from airflow_provider_multikueue.operators import MultiKueueJobOperator

BY_CAUSE = ExceptionRetryPolicy(
    rules=[
        # No capacity anywhere: ask again when there may be some.
        RetryRule(
            [AdmissionTimeoutError, AdmissionRejectedError],
            action=RetryAction.RETRY,
            retry_delay=timedelta(hours=1),
            reason="no capacity",
        ),
        # The infrastructure failed the job: at once, from its last checkpoint.
        RetryRule(
            [JobEvictedError, WorkerLostError, StartupError],
            action=RetryAction.RETRY,
            retry_delay=timedelta(seconds=10),
            reason="infrastructure",
        ),
        # Its time is over; a job that goes on from a checkpoint needs another turn.
        RetryRule(RunDurationExceededError, action=RetryAction.RETRY, retry_delay=timedelta(seconds=10)),
        # The code failed, or somebody stopped the job: the same again costs GPUs and ends the same.
        RetryRule(
            [JobDeadlineError, JobFailedError, JobDeletedError], action=RetryAction.FAIL, reason="not for a retry"
        ),
    ]
)


@dag(
    schedule=None,
    catchup=False,
    tags=["multikueue"],
    # Without a backoffLimit of 0 Kubernetes would run failing pods again by itself, six times.
    params={"image": "gcr.io/k8s-staging-perf-tests/sleep:v0.0.3", "command": [], "args": ["120s"], "backoff_limit": 0},
)
def retry_by_cause() -> None:
    MultiKueueJobOperator(
        task_id="train",
        job="train.yaml",
        admission_timeout=timedelta(hours=6),
        deferrable=True,
        retries=3,
        retry_policy=BY_CAUSE,
    )


retry_by_cause()
