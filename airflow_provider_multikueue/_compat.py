"""Every line that differs between Airflow versions; each entry says when it can go."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

__all__ = ["AirflowException", "AirflowFailException"]
