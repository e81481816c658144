"""An Airflow home of this test process's own, set before anything imports Airflow; warnings under Airflow 2.11."""

import os
import tempfile
from importlib.metadata import version
from typing import TYPE_CHECKING

import hypothesis  # noqa: F401 - else its plugin compiles it at the very end, when a collected socket can break Python 3.11
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider_multikueue.sandbox.api import Sandbox

_home = tempfile.TemporaryDirectory(prefix="airflow-home-", ignore_cleanup_errors=True)

os.environ["AIRFLOW_HOME"] = _home.name
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = f"sqlite:///{_home.name}/airflow.db"


@pytest.fixture(scope="session")
def multikueue_sandbox(multikueue_sandbox: "Sandbox") -> "Sandbox":
    """The session's fleet, seen through the accounts that the environment asks for."""
    from tests.shipped_accounts import as_asked_for

    return as_asked_for(multikueue_sandbox)


@pytest.fixture(scope="module")
def bare_sandbox() -> "Iterator[Sandbox]":
    """Clusters without Kueue: those of a bare sandbox that is up already, or of one for the module's tests."""
    from airflow_provider_multikueue.sandbox.api import Sandbox

    if name := os.environ.get("MULTIKUEUE_TEST_BARE_SANDBOX"):
        yield Sandbox.attach(name)
        return
    with Sandbox.start_local(bare=True) as sandbox:
        yield sandbox


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the environment's accounts can't do."""
    if os.environ.get("MULTIKUEUE_TEST_ACCOUNTS"):
        from tests.shipped_accounts import skip_administrators

        skip_administrators(items, config.rootpath)


def pytest_configure(config: pytest.Config) -> None:
    """Let Airflow 2.11 and what it depends on warn as they like; a warning of ours stays an error."""
    if version("apache-airflow").startswith("2."):
        config.addinivalue_line("filterwarnings", "ignore:::(?!airflow_provider_multikueue|test_)")
