"""The fleet that the tests here share."""

from __future__ import annotations

import pytest

from airflow_provider_multikueue.sandbox.api import Sandbox


@pytest.fixture(scope="session")
def fleet(multikueue_sandbox: Sandbox) -> Sandbox:
    """The session's fleet."""
    return multikueue_sandbox
