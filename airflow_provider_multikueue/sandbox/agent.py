"""The process that stands in for what needs a cloud, and for controllers that are not built, in every worker.

Nodes with GPUs, Dynamic Workload Scheduler, and the controllers of some kinds of jobs.

It is told what to do through a control channel (``agent.sock`` in the sandbox's folder). Operations:

``script(region, script, namespace=None)``
    Answer the region's requests for capacity, or those of one namespace, by another `Script`, given as plain JSON.
``act(region, act, request=None, text=None)``
    Revoke, fail or expire one request or all of the region; returns those that were answered.
``requests(region)``
    What is known of each request.
``node(region, method, **arguments)``
    Call a method of the region's node agent that `NodeAgent.COMMANDS` names.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.clusters.client import Cluster
from airflow_provider_multikueue.sandbox import control
from airflow_provider_multikueue.sandbox.capacity import Script
from airflow_provider_multikueue.sandbox.dws import Dws
from airflow_provider_multikueue.sandbox.job_controllers import run_stand_ins
from airflow_provider_multikueue.sandbox.node import NodeAgent
from airflow_provider_multikueue.sandbox.paths import SandboxError
from airflow_provider_multikueue.sandbox.pki import ServerTls

__all__ = ["main"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Region:
    """What stands in for the cloud in one region."""

    cluster: Cluster
    nodes: NodeAgent
    dws: Dws
    gpus: int

    def script(self, plain: Mapping[str, Any]) -> Script:
        """Return the script with this plain form; unless it says otherwise, capacity ends with the nodes' GPUs."""
        return Script.from_json({"gpus": self.gpus, **plain})


async def run(configuration: Mapping[str, Any]) -> None:
    """Serve all workers and the control channel until cancelled."""
    async with contextlib.AsyncExitStack() as stack:
        regions = {each["region"]: await _region(each, stack) for each in configuration["workers"]}

        async def handle(operation: str, arguments: dict[str, Any]) -> Any:
            return await _handle(regions, operation, arguments)

        await stack.enter_async_context(control.serve(Path(configuration["socket"]), handle))
        async with asyncio.TaskGroup() as tasks:
            for name, region in regions.items():
                tasks.create_task(region.nodes.run(), name=f"nodes-{name}")
                tasks.create_task(region.dws.run(), name=f"dws-{name}")
                tasks.create_task(run_stand_ins(region.cluster, configuration.get("kinds", ())), name=f"jobs-{name}")


async def _region(each: Mapping[str, Any], stack: contextlib.AsyncExitStack) -> Region:
    cluster = await Cluster.from_kubeconfig(each["region"], path=each["kubeconfig"])
    stack.push_async_callback(cluster.close)
    tls = ServerTls(
        certificate=Path(each["certificate"]), key=Path(each["key"]), client_authority=Path(each["client_authority"])
    )
    nodes = NodeAgent(
        cluster=cluster,
        region=each["region"],
        zones=tuple(each["zones"]),
        gpus=each["gpus"],
        nodes=each["nodes"],
        tls=tls,
        port=each["port"],
        state_dir=Path(each["state_dir"]),
    )
    region = Region(cluster, nodes, Dws(cluster, each["region"]), each["gpus"])
    region.dws.set_script(region.script({}))
    return region


async def _handle(regions: Mapping[str, Region], operation: str, arguments: dict[str, Any]) -> Any:
    name = arguments.pop("region", None)
    if name not in regions:
        raise SandboxError(f"This sandbox has no region {name!r}; it has {', '.join(regions)}.")
    region = regions[name]
    match operation:
        case "script":
            region.dws.set_script(region.script(arguments["script"]), namespace=arguments.get("namespace"))
            return None
        case "act":
            return await region.dws.act(arguments.pop("act"), **arguments)
        case "requests":
            return {"script": region.dws.script.to_json(), "requests": region.dws.requests()}
        case "node":
            return await _command(region.nodes, arguments.pop("method"), arguments)
    raise SandboxError(f"The agent has no operation {operation!r}.")


async def _command(nodes: NodeAgent, method: str, arguments: dict[str, Any]) -> Any:
    if method not in NodeAgent.COMMANDS:
        raise SandboxError(f"The node agent has no command {method!r}; it has {', '.join(sorted(NodeAgent.COMMANDS))}.")
    answer = getattr(nodes, method)(**arguments)
    return await answer if inspect.isawaitable(answer) else answer


def main() -> None:
    """Run with the configuration file that the command line names, until SIGTERM."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    configuration = json.loads(Path(sys.argv[1]).read_text())

    async def until_told() -> None:
        running = asyncio.create_task(run(configuration))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(until_told())


if __name__ == "__main__":
    main()
