"""The process that owns a sandbox: starts every program, makes the fleet of them, keeps them running, ends them.

Started by the guardian as ``python -m airflow_provider_multikueue.sandbox.supervisor FOLDER``. It tells how far it is
in ``state.json`` and ``progress.log`` of the folder, and takes commands through ``supervisor.sock``:

``pause``, ``resume``, ``restart``, ``stop``, ``start`` with ``component``
    Freeze a program, let it go on, and so on. ``stop`` kills it, and it stays away until ``start``.
``empty`` with ``cluster``
    Make a bare cluster anew, with nothing of what it had.
``namespace``, ``forget_namespace`` with ``name``
    Make a namespace with a queue on all clusters, or delete it there.
``network`` with ``act`` and the arguments of that method of `Network`
    See ``network.py``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.sandbox import control
from airflow_provider_multikueue.sandbox.binaries import Binaries
from airflow_provider_multikueue.sandbox.bringup import BringUp
from airflow_provider_multikueue.sandbox.components import components_for
from airflow_provider_multikueue.sandbox.network import Network
from airflow_provider_multikueue.sandbox.paths import SandboxError
from airflow_provider_multikueue.sandbox.services import Program, Service, log_tail
from airflow_provider_multikueue.sandbox.spec import FleetSpec
from airflow_provider_multikueue.sandbox.state import write_state

__all__ = ["Supervisor", "main"]

log = logging.getLogger(__name__)


class Supervisor:
    """All services of one sandbox."""

    def __init__(self, folder: Path, spec: FleetSpec) -> None:
        self._folder, self._spec = folder, spec
        self._services: dict[str, Service] = {}
        self._phase, self._error = "starting", ""
        self._started = time.time()
        self._broken = asyncio.Event()
        components = components_for(kueue=spec.kueue, kinds=spec.kinds)
        self._bring = BringUp(folder, spec, Binaries(components), self)
        self._network = Network(folder, spec)

    async def run(self) -> bool:
        """Bring the sandbox up and keep it until cancelled; returns False, all ended, if it could not come up."""
        try:
            async with control.serve(self._folder / "supervisor.sock", self._handle):
                await self._bring_up()
                await asyncio.Event().wait()
        except Exception as error:
            log.exception("The sandbox could not come up.")
            self._phase, self._error = "failed", self._explain(error)
            return False
        finally:
            await self._end_all()
            self._tell()
        return True

    async def start(self, programs: Iterable[Program]) -> None:
        """Start programs that are new."""
        for program in programs:
            program.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            service = Service(program, changed=self._tell)
            self._services[program.name] = service
            await service.start()

    async def end(self, name: str) -> None:
        """End a program for good."""
        await self._services.pop(name).stop()
        self._tell()

    def say(self, text: str) -> None:
        """Tell the one who waits for the sandbox how far it is."""
        with (self._folder / "progress.log").open("a") as file:
            file.write(f"{time.time() - self._started:5.1f} s  {text}\n")

    async def _bring_up(self) -> None:
        building = asyncio.create_task(self._build())
        watching = asyncio.create_task(self._broken.wait())
        try:
            await asyncio.wait([building, watching], return_when=asyncio.FIRST_COMPLETED)
            if not building.done():
                raise SandboxError("A component of the sandbox keeps ending.")
            await building
        finally:
            building.cancel()
            watching.cancel()
            await asyncio.wait([building, watching])
        self._phase = "up"
        self._tell()

    async def _build(self) -> None:
        """Build the fleet, and give a component that has ended by itself the time to fail for good, or to stay."""
        await self._bring.run()
        while any(service.unsettled for service in self._services.values()):  # noqa: ASYNC110 - time alone settles it
            await asyncio.sleep(0.2)

    async def _handle(self, operation: str, arguments: dict[str, Any]) -> Any:
        match operation:
            case "namespace":
                return await self._bring.namespace(arguments["name"])
            case "empty":
                return await self._bring.empty(arguments["cluster"])
            case "forget_namespace":
                return await self._bring.forget_namespace(arguments["name"])
            case "network":
                return await self._on_network(arguments.pop("act"), arguments)
        return await self._on_component(operation, arguments["component"])

    async def _on_component(self, operation: str, name: str) -> Any:
        service = self._services.get(name)
        if service is None:
            raise SandboxError(f"The sandbox has no component {name!r}; it has {', '.join(self._services)}.")
        match operation:
            case "pause":
                service.pause()
            case "resume":
                service.resume()
            case "stop":
                await service.stop()
            case "start":
                await service.start()
            case "restart":
                await service.stop()
                await service.start()
            case _:
                raise SandboxError(f"The supervisor has no operation {operation!r}.")
        return service.state

    async def _on_network(self, act: str, arguments: dict[str, Any]) -> Any:
        if act not in ("open", "behave", "state", "cut"):
            raise SandboxError(f"The network knows no {act!r}.")
        return await getattr(self._network, act)(**arguments)

    async def _end_all(self) -> None:
        await self._network.close()
        agent = self._services.get("agent")
        if agent is not None:
            # Its pods get a moment to end; all others keep nothing that is worth it.
            await agent.stop(grace=3.0)
        await asyncio.gather(*(service.stop() for service in self._services.values()))

    def _explain(self, error: Exception) -> str:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        broken = [each.program for each in self._services.values() if each.failed or each.state == "restarting"]
        logs = [f"{each.name} ended; the last lines of {each.log}:\n{log_tail(each.log)}" for each in broken]
        return "\n".join([f"The sandbox did not come up: {error}", *logs])

    def _tell(self) -> None:
        components = {
            name: {"state": service.state, "pid": service.pid, "log": str(service.program.log)}
            for name, service in self._services.items()
        }
        if self._phase == "starting" and any(service.failed for service in self._services.values()):
            self._broken.set()
        state = {
            "phase": self._phase,
            "error": self._error,
            "started": self._started,
            "supervisor": os.getpid(),
            "spec": self._spec.dump(),
            "components": components,
        }
        write_state(self._folder, state)


def main() -> int:
    """Run with the folder that the command line names, until SIGTERM."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    folder = Path(sys.argv[1])

    async def until_told() -> bool:
        running = asyncio.create_task(Supervisor(folder, FleetSpec.load(folder / "spec.json")).run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        try:
            return await running
        except asyncio.CancelledError:
            return True

    return 0 if asyncio.run(until_told()) else 1


if __name__ == "__main__":
    sys.exit(main())
