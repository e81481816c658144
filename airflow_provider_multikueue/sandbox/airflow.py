"""A real Airflow of one's own for a while: to show a DAG, or to test it, on a sandbox fleet.

::

    async with LocalAirflow(dags=folder, connections={"multikueue_default": connection}) as airflow:
        run = await airflow.trigger("train_anywhere")
        await airflow.wait_run("train_anywhere", run, within=120)
        report = await airflow.xcom("train_anywhere", run, "train")

Scheduler, triggerer, DAG processor and API server are real and separate processes; only the database is SQLite, and all
of it is gone afterwards. Several can run at once. In code without an event loop, ``with LocalAirflow(...) as airflow``
starts it and ``airflow.sync(airflow.trigger(...))`` waits for a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Coroutine, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from airflow_provider_multikueue.sandbox.airflow_component import Component
from airflow_provider_multikueue.sandbox.airflow_config import (
    HOME_MARK,
    Layout,
    commands,
    connection_environment,
    environment,
)
from airflow_provider_multikueue.sandbox.airflow_database import inspect_installation, prepare
from airflow_provider_multikueue.sandbox.airflow_rest import AirflowApi, AirflowApiError
from airflow_provider_multikueue.sandbox.airflow_runs import RUN_ENDS, TASK_ENDS, DagRuns, poll
from airflow_provider_multikueue.sandbox.leash import Leash, end_marked
from airflow_provider_multikueue.sandbox.paths import SandboxError

__all__ = ["RUN_ENDS", "TASK_ENDS", "LocalAirflow"]

T = TypeVar("T")

START_SECONDS = 300.0


class LocalAirflow(DagRuns):
    """An Airflow that runs while its context is open; what it can do with DAG runs is inherited.

    ``python`` is the interpreter of the environment whose Airflow runs, ours by default. ``connections`` maps ids to a
    URI, JSON text or a mapping; they exist in the environment of the processes only. ``settings`` changes the
    configuration, as ``{"section.option": value}``; ``variables`` adds to the processes' environment. ``home`` is kept
    when it is given, else it is a folder that goes with the Airflow.
    """

    def __init__(
        self,
        *,
        dags: Path | str,
        python: Path | str = sys.executable,
        home: Path | str | None = None,
        connections: Mapping[str, str | Mapping[str, Any]] | None = None,
        settings: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.components: dict[str, Component] = {}
        self._dags = Path(dags).absolute()
        self._python = Path(python).absolute()
        self._home = None if home is None else Path(home).absolute()
        self._settings = dict(settings or {})
        self._variables = {**(variables or {}), **connection_environment(connections or {})}
        self._layout: Layout | None = None
        self._api: AirflowApi | None = None
        self._leash: Leash | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # What is known about it

    @property
    def layout(self) -> Layout:
        """Where it lives, and who may enter: ``url``, ``username``, ``password``, ``home``."""
        if self._layout is None:
            raise SandboxError("This Airflow was not started. Use it inside `async with LocalAirflow(...)`.")
        return self._layout

    @property
    def api(self) -> AirflowApi:
        """The session at its REST API, for what has no method here."""
        if self._api is None:
            raise SandboxError("This Airflow was not started. Use it inside `async with LocalAirflow(...)`.")
        return self._api

    @property
    def url(self) -> str:
        """The address of its UI."""
        return self.layout.url

    # Life

    async def start(self) -> Self:
        """Start all components and wait until each has reported itself healthy."""
        installation = await inspect_installation(self._python)
        self._layout = layout = self._lay_out()
        self._leash = Leash(HOME_MARK, layout.mark, None if self._home else layout.home)
        self._api = AirflowApi(layout.url, major=installation.major, username=layout.username, password=layout.password)
        try:
            variables = {**environment(layout, installation.major, self._settings), **self._variables}
            await prepare(layout, installation, variables)
            for name, arguments in commands(installation.major).items():
                command = (str(installation.python), "-m", "airflow", *arguments)
                self.components[name] = Component(name, command, variables, layout.home / f"{name}.log")
                self.components[name].start()
            await self.wait_healthy()
        except BaseException:
            await asyncio.shield(self.stop())
            raise
        return self

    async def stop(self) -> None:
        """End all processes, those of tasks included, and remove the folder unless it was given."""
        if self._api is not None:
            await self._api.close()
        for component in self.components.values():
            component.signal(signal.SIGCONT)
            component.signal(signal.SIGTERM)
        if self._layout is not None:
            await asyncio.to_thread(end_marked, HOME_MARK, self._layout.mark, grace=2.0)
        for component in self.components.values():
            await component.wait()
        if self._leash is not None:
            await asyncio.to_thread(self._leash.release)

    # Its components

    def signal(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a component's main process: kill it, freeze it (SIGSTOP), let it go on (SIGCONT)."""
        self._component(name).signal(number)

    async def stop_component(self, name: str, *, grace: float = 20.0) -> None:
        """End a component in good order, and wait for it."""
        await self._component(name).stop(grace=grace)

    async def start_component(self, name: str, *, within: float = START_SECONDS) -> None:
        """Start a component that has ended, and wait until it is healthy."""
        self._component(name).start()
        await self.wait_healthy(within=within)

    async def restart(self, name: str, *, grace: float = 20.0, within: float = START_SECONDS) -> None:
        """End a component in good order and start it again; returns when it is healthy."""
        await self.stop_component(name, grace=grace)
        await self.start_component(name, within=within)

    async def wait_healthy(self, *, within: float = START_SECONDS) -> None:
        """Wait until each component has reported itself since its last start; raises if one has ended instead."""

        async def lagging() -> list[str]:
            for component in self.components.values():
                if component.exit_code is not None:
                    raise SandboxError(
                        f"Airflow's {component.name} ended with {component.exit_code}:\n{component.tail()}"
                    )
            try:
                health = await self.api.health()
            except AirflowApiError as error:  # also a refusal: it may not have all its parts yet
                return [str(error)]
            return [name for name in self.components if not self._reported(name, health)]

        await poll(
            lagging, lambda names: not names, within=within, what="Airflow's components to be healthy", every=0.1
        )

    def _component(self, name: str) -> Component:
        if name not in self.components:
            raise SandboxError(f"This Airflow has no {name!r}; it has {', '.join(self.components) or 'not started'}.")
        return self.components[name]

    def _reported(self, name: str, health: Mapping[str, Any]) -> bool:
        key = name.replace("-", "_")
        if key not in health:
            return True  # the one that answers
        beat = health[key].get(f"latest_{key}_heartbeat")
        return (
            health[key].get("status") == "healthy"
            and beat is not None
            and datetime.fromisoformat(beat).timestamp() >= self.components[name].started
        )

    def _lay_out(self) -> Layout:
        if self._home is not None:
            self._home.mkdir(parents=True, exist_ok=True, mode=0o700)
        home = self._home or Path(tempfile.mkdtemp(prefix="local-airflow-"))
        return Layout(home=home, dags=self._dags, port=_free_port())

    # Its edges

    async def __aenter__(self) -> Self:
        """Start it."""
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Stop it."""
        await self.stop()

    def __enter__(self) -> Self:
        """Start it, on an event loop in a thread of its own."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="local-airflow", daemon=True)
        self._thread.start()
        return self.sync(self.start())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop it, and the loop with it."""
        self.sync(self.stop())
        if self._loop is not None and self._thread is not None:
            self.sync(self._loop.shutdown_default_executor())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def sync(self, call: Coroutine[Any, Any, T]) -> T:
        """Return what ``call`` returns, for code without an event loop."""
        if self._loop is None:
            call.close()
            raise SandboxError("LocalAirflow.sync works inside `with LocalAirflow(...)`. Await the call instead.")
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


def _free_port() -> int:
    # Below the sandboxes' ports, and below those that Linux gives to outgoing connections.
    for port in random.sample(range(10000, 20000), 10000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise SandboxError("No port between 10000 and 20000 is free on 127.0.0.1. Stop what uses them.")
