"""What an import costs and brings with it, each in an interpreter of its own; and what modules say is public."""

import json
import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

import airflow_provider_multikueue

HEAVY = ("aiohttp", "cryptography", "google.auth", "google.cloud", "kubernetes", "kubernetes_asyncio", "yaml")
AIRFLOW = "from airflow.providers.common.compat.sdk import BaseOperator, BaseSensorOperator, BaseHook; "
PROVIDER = [
    module.name
    for module in pkgutil.walk_packages(airflow_provider_multikueue.__path__, "airflow_provider_multikueue.")
    if not module.ispkg and not module.name.endswith(".__main__") and ".sandbox" not in module.name
]


def loaded_by(statement: str, *, after: str = "") -> set[str]:
    """Return the names of the modules that ``statement`` loads, not counting those that ``after`` has loaded."""
    program = f"import json, sys\n{after}\nbefore = set(sys.modules)\n{statement}\n"
    program += "print(json.dumps(sorted(set(sys.modules) - before)))"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def of(packages: tuple[str, ...], modules: set[str]) -> set[str]:
    return {
        name for name in modules if name.startswith(tuple(f"{package}." for package in packages)) or name in packages
    }


@pytest.mark.parametrize("module", ["operators", "sensors"])
def test_what_a_dag_imports_brings_nothing_heavy(module: str):
    loaded = loaded_by(f"import airflow_provider_multikueue.{module}", after=AIRFLOW)
    assert not of(HEAVY, loaded)
    # Nor what only a wait needs: each dataclass takes a millisecond.
    assert not of(
        tuple(f"airflow_provider_multikueue.{name}" for name in ("clusters", "fleets", "hooks", "decisions.workload")),
        loaded,
    )


def test_the_package_imports_nothing():
    assert loaded_by("import airflow_provider_multikueue") <= {"airflow_provider_multikueue", "__future__"}


def test_discovery_imports_nothing_of_airflow():
    loaded = loaded_by("from airflow_provider_multikueue.get_provider_info import get_provider_info")
    assert not of(("airflow", *HEAVY), loaded)


def test_the_command_runs_without_airflow():
    loaded = loaded_by("from airflow_provider_multikueue.cli import main; main(['sandbox', 'status'])")
    assert not of(("airflow",), loaded)


def test_the_pytest_plugin_costs_those_nothing_who_do_not_use_it():
    loaded = loaded_by("import airflow_provider_multikueue.sandbox.pytest_plugin", after="import pytest, asyncio")
    assert not of(("airflow", *HEAVY), loaded)


@pytest.mark.parametrize("name", PROVIDER)
def test_what_is_public_is_listed_and_there(name: str):
    module = import_module(name)
    assert module.__all__ == sorted(module.__all__, key=sort_key)
    assert not [public for public in module.__all__ if not hasattr(module, public)]


def sort_key(name: str) -> tuple[bool, bool, str]:
    """Order constants, then classes, then functions, as the linter does."""
    return (not name.isupper(), not name[0].isupper(), name)
