"""Fixtures that give tests a real fleet. They start nothing, and import nothing, until a test asks for one.

``multikueue_sandbox``
    The fleet of this test session: one for all tests, shared by the processes of pytest-xdist. With the option
    ``--multikueue-sandbox NAME``, or ``MULTIKUEUE_TEST_SANDBOX`` in the environment, a sandbox that is up already.
``multikueue_namespace``
    The name of a new namespace with a queue ``dws-local-queue`` on all clusters, so that tests can run side by side.
``multikueue_connection``
    An Airflow connection of the fleet, plain JSON, that submits to this namespace.
``multikueue_sandbox_options``
    Override it to change how the session's fleet is made: the keywords of `Sandbox.start_local`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from airflow_provider_multikueue.sandbox.api import Sandbox

_NAME_OPTION = "--multikueue-sandbox"
_NAME_VARIABLE = "MULTIKUEUE_TEST_SANDBOX"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names a sandbox which is up already."""
    text = "use the sandbox of this name, which is up already, instead of one for this session"
    parser.getgroup("multikueue").addoption(_NAME_OPTION, metavar="NAME", help=text)


@pytest.fixture(scope="session")
def multikueue_sandbox_options() -> dict[str, Any]:
    """Return the keywords of `Sandbox.start_local` with which the session's fleet is made."""
    return {}


@pytest.fixture(scope="session")
def multikueue_sandbox(request: pytest.FixtureRequest, multikueue_sandbox_options: dict[str, Any]) -> Iterator[Sandbox]:
    """Yield the session's fleet."""
    from airflow_provider_multikueue.sandbox.api import Sandbox

    name = request.config.getoption(_NAME_OPTION) or os.environ.get(_NAME_VARIABLE)
    if name:
        yield Sandbox.attach(name)
    elif hasattr(request.config, "workerinput"):
        yield _shared(multikueue_sandbox_options)
    else:
        with Sandbox.start_local(**multikueue_sandbox_options) as sandbox:
            yield sandbox


@pytest.fixture
def multikueue_namespace(multikueue_sandbox: Sandbox) -> Iterator[str]:
    """Yield the name of a namespace of the test's own, on all clusters."""
    name = multikueue_sandbox.make_namespace()
    yield name
    multikueue_sandbox.delete_namespace(name)


@pytest.fixture
def multikueue_connection(multikueue_sandbox: Sandbox, multikueue_namespace: str) -> dict[str, Any]:
    """Return an Airflow connection that submits to the test's namespace."""
    connection = multikueue_sandbox.connection()
    return connection | {"extra": connection["extra"] | {"namespace": multikueue_namespace}}


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the fleet that the processes of pytest-xdist shared; nothing to do where there was none."""
    if hasattr(config, "workerinput") or not getattr(config.option, "numprocesses", None):
        return
    from airflow_provider_multikueue.sandbox.paths import fleet_folder

    name = _shared_name(os.getpid())
    if fleet_folder(name).exists():
        from airflow_provider_multikueue.sandbox import launch

        launch.bring_down(fleet_folder(name))
        launch.forget(name)


def _shared(options: dict[str, Any]) -> Sandbox:
    """Return the fleet of all processes of this session; the first to ask starts it, and it ends with their parent."""
    from airflow_provider_multikueue.sandbox.api import Sandbox
    from airflow_provider_multikueue.sandbox.paths import SandboxError, cache_root

    owner = os.getppid()
    name = _shared_name(owner)
    cache_root().mkdir(parents=True, exist_ok=True, mode=0o700)
    with (cache_root() / "pytest.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(SandboxError):
            return Sandbox.attach(name)
        return Sandbox.start_for(owner, name=name, **options)


def _shared_name(owner: int) -> str:
    return f"pytest-{owner}"
