"""The sandbox from Python: start one or attach to one, and make its regions grant, starve, fail.

::

    with Sandbox.start_local(regions=["us-east4", "europe-west4"]) as sandbox:   # or: async with
        sandbox.capacity("us-east4", mode="starve")
        os.environ.update(sandbox.env())
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from airflow_provider_multikueue.sandbox import bare as bare_clusters
from airflow_provider_multikueue.sandbox import launch
from airflow_provider_multikueue.sandbox.access import CONNECTION, KUBECONFIG
from airflow_provider_multikueue.sandbox.components import DEFAULT_KUEUE
from airflow_provider_multikueue.sandbox.control import call
from airflow_provider_multikueue.sandbox.fleet_file import FLEET_FILE
from airflow_provider_multikueue.sandbox.paths import SandboxError
from airflow_provider_multikueue.sandbox.services import log_tail
from airflow_provider_multikueue.sandbox.spec import DEFAULT_REGIONS, FleetSpec
from airflow_provider_multikueue.sandbox.state import read_state

__all__ = ["Sandbox", "StartingSandbox"]


class Sandbox:
    """A fleet that runs. Its methods answer within moments and may be called from a coroutine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.spec = FleetSpec.load(self.folder / "spec.json")

    @staticmethod
    def start_local(
        *,
        name: str | None = None,
        regions: Sequence[str] = DEFAULT_REGIONS,
        gpus: int = 64,
        nodes: int = 4,
        kueue: str = DEFAULT_KUEUE,
        worker_lost_timeout: float = 900.0,
        kinds: Sequence[str] = (),
        bare: bool = False,
        folder: Path | str | None = None,
        progress: Callable[[str], None] = lambda _: None,
    ) -> StartingSandbox:
        """Return a context manager, for ``with`` and ``async with`` alike, that starts a sandbox and ends it.

        ``gpus`` and ``nodes`` count for each region; ``kinds`` are the kinds of jobs besides the batch Job, such as
        ``jobset`` and ``training`` (see ``job_kinds.py``). ``bare`` clusters come without Kueue: see `fleet_file`. The
        sandbox also ends with this process, however that ends.
        Without a ``name`` it gets one of its own, so that any number can run side by side.
        """
        spec = FleetSpec(
            name=name or f"local-{secrets.token_hex(4)}",
            regions=tuple(regions),
            gpus=gpus,
            nodes=nodes,
            kueue=kueue,
            worker_lost_timeout=worker_lost_timeout,
            kinds=tuple(kinds),
            bare=bare,
        )
        return StartingSandbox(spec, Path(folder) if folder else None, progress)

    @classmethod
    def start_for(cls, owner: int, *, name: str, **options: Any) -> Self:
        """Return a new sandbox that ends with the process ``owner``; options as for `start_local`."""
        starting = cls.start_local(name=name, **options)
        return cls(starting.start(owner))

    @classmethod
    def attach(cls, name: str = "default") -> Self:
        """Return the sandbox ``name`` that someone started; SandboxError if it isn't up."""
        sandbox = cls(launch.folder_of(name))
        if (phase := sandbox.state.get("phase")) != "up":
            raise SandboxError(
                f"The sandbox {name!r} is not up but {phase}; see `multikueue sandbox status --name {name}`."
            )
        return sandbox

    @property
    def name(self) -> str:
        """Its name."""
        return self.spec.name

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions that have a worker."""
        return self.spec.regions

    @property
    def state(self) -> dict[str, Any]:
        """What the sandbox tells about itself: phase, components with state, process and log."""
        return read_state(self.folder)

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig file with a context for each cluster."""
        return self.folder / KUBECONFIG

    @property
    def fleet_file(self) -> Path:
        """The fleet file that makes a fleet of bare clusters; Kueue's manifests are beside it."""
        return self.folder / FLEET_FILE

    @property
    def accounts(self) -> dict[str, str]:
        """The tokens of two accounts that all bare clusters know: ``admin``, and ``nobody``, who has no rights."""
        return bare_clusters.accounts(self.folder)

    def empty(self, cluster: str) -> None:
        """Make a bare cluster (``manager``, or a region) anew, with nothing of what it had."""
        self._supervisor("empty", cluster=cluster)

    def connection(self, *, network: bool = False) -> dict[str, Any]:
        """Return the Airflow connection of the fleet: ``conn_type`` and ``extra``, plain JSON.

        With ``network`` it leads to the clusters on the way that `network` has misbehave.
        """
        text = (self.folder / CONNECTION).read_text()
        if network:
            text = text.replace(json.dumps(str(self.kubeconfig)), json.dumps(self._on_network("open")))
        content: dict[str, Any] = json.loads(text)
        return content

    def env(self, *, conn_id: str = "multikueue_default", network: bool = False) -> dict[str, str]:
        """Return the environment in which Airflow and Kubernetes' tools find the fleet; ``network`` as above."""
        connection = self.connection(network=network)
        return {
            f"AIRFLOW_CONN_{conn_id.upper()}": json.dumps(connection),
            "KUBECONFIG": str(connection["extra"]["manager_kube_config_path"]),
        }

    def network(self, cluster: str | None = None, **faults: Any) -> None:
        """Let the way to a cluster (``manager``, a region, None: all) behave so from now on; without faults, well.

        It is the way of those who use ``connection(network=True)``. The keywords are those of
        `airflow_provider_multikueue.sandbox.proxy.Fault`: ``mode`` "blackhole" or "refuse", ``cut_after`` bytes,
        ``delay`` seconds, ``rate`` bytes a second; and of `airflow_provider_multikueue.sandbox.gateway.Answers`:
        ``status`` (with ``share``, ``times``, ``retry_after``), ``buffer``, ``end_after`` seconds, ``path``.
        """
        for each in self.spec.clusters if cluster is None else [cluster]:
            self._on_network("behave", cluster=each, faults=faults)

    def network_state(self, cluster: str) -> dict[str, Any]:
        """Return how the way to a cluster behaves."""
        return dict(self._on_network("state", cluster=cluster))

    def cut(self, cluster: str | None = None) -> int:
        """Reset all connections on the way to a cluster (None: all), once; return how many."""
        clusters = self.spec.clusters if cluster is None else [cluster]
        return sum(self._on_network("cut", cluster=each) for each in clusters)

    def capacity(self, region: str | None = None, *, namespace: str | None = None, **script: Any) -> None:
        """Let a region (None: all) answer requests for capacity by another script, those that wait included.

        With a ``namespace``, its requests alone, whatever others are answered: for tests that run side by side.

        The keywords are those of `airflow_provider_multikueue.sandbox.capacity.Script`: ``mode`` "grant", "starve" or
        "fail", ``after`` seconds, ``gpus`` (by default those of the region; None: without end), ``text``, ``eta``,
        ``booking``. What is left out has its default.
        """
        for each in self._regions(region):
            self._agent("script", region=each, script=script, namespace=namespace)

    def revoke(self, region: str | None = None, *, request: str | None = None, text: str | None = None) -> list[str]:
        """Take granted capacity back, of one request (``namespace/name``) or all; returns the requests."""
        return self._act("revoke", region, request, text)

    def fail(self, region: str | None = None, *, request: str | None = None, text: str | None = None) -> list[str]:
        """Fail one request (``namespace/name``) or all; returns the requests."""
        return self._act("fail", region, request, text)

    def expire(self, region: str | None = None, *, request: str | None = None, text: str | None = None) -> list[str]:
        """Let the booking of granted capacity expire; returns the requests."""
        return self._act("expire", region, request, text)

    def requests(self, region: str) -> dict[str, Any]:
        """Return a region's script, and what is known of each request for capacity."""
        return dict(self._agent("requests", region=region))

    def node(self, region: str, method: str, **arguments: Any) -> Any:
        """Have a region's node agent do one of its commands."""
        return self._agent("node", region=region, method=method, **arguments)

    def pause(self, component: str) -> None:
        """Freeze a component, such as ``manager-kueue`` or ``us-east4-apiserver``: it answers nothing more."""
        self._supervisor("pause", component=component)

    def resume(self, component: str) -> None:
        """Let a frozen component go on."""
        self._supervisor("resume", component=component)

    def stop(self, component: str) -> None:
        """Kill a component; it stays away until `start`."""
        self._supervisor("stop", component=component)

    def start(self, component: str) -> None:
        """Start a component that was stopped."""
        self._supervisor("start", component=component)

    def restart(self, component: str) -> None:
        """Kill a component and start it again."""
        self._supervisor("restart", component=component)

    def logs(self, component: str, lines: int = 50) -> str:
        """Return the last lines of a component's log."""
        return log_tail(self.log_path(component), lines)

    def log_path(self, component: str) -> Path:
        """Return the file that a component logs to."""
        components = self.state.get("components", {})
        if component not in components:
            raise SandboxError(f"The sandbox has no component {component!r}; it has {', '.join(components)}.")
        return Path(components[component]["log"])

    def make_namespace(self, name: str | None = None) -> str:
        """Make a namespace with a queue on all clusters, for tests that run side by side, and return its name."""
        name = name or f"test-{secrets.token_hex(5)}"
        self._supervisor("namespace", name=name)
        return name

    def delete_namespace(self, name: str) -> None:
        """Begin to delete a namespace and all that is in it, on all clusters."""
        self._supervisor("forget_namespace", name=name)

    def down(self) -> None:
        """End the sandbox; nothing of it is left."""
        launch.bring_down(self.folder)

    def _act(self, act: str, region: str | None, request: str | None, text: str | None) -> list[str]:
        answers = (
            self._agent("act", region=each, act=act, request=request, text=text) for each in self._regions(region)
        )
        return [each for answer in answers for each in answer]

    def _regions(self, region: str | None) -> Sequence[str]:
        return self.regions if region is None else [region]

    def _on_network(self, act: str, **arguments: Any) -> Any:
        return self._supervisor("network", act=act, **arguments)

    def _agent(self, operation: str, **arguments: Any) -> Any:
        return call(self.folder / "agent.sock", operation, **arguments)

    def _supervisor(self, operation: str, **arguments: Any) -> Any:
        return call(self.folder / "supervisor.sock", operation, **arguments)


class StartingSandbox:
    """A sandbox for the length of a ``with`` or ``async with`` block."""

    def __init__(self, spec: FleetSpec, folder: Path | None, progress: Callable[[str], None]) -> None:
        self._spec, self._folder, self._progress = spec, folder, progress
        self._sandbox: Sandbox | None = None

    def start(self, owner: int) -> Path:
        """Start the sandbox, to end with the process ``owner``, and return its folder."""
        return launch.bring_up(self._spec, folder=self._folder, owner=owner, progress=self._progress)

    def __enter__(self) -> Sandbox:
        self._sandbox = Sandbox(self.start(os.getpid()))
        return self._sandbox

    def __exit__(self, *_: object) -> None:
        if self._sandbox is not None:
            self._sandbox.down()
            launch.forget(self._spec.name)

    async def __aenter__(self) -> Sandbox:
        starting = asyncio.create_task(asyncio.to_thread(self.__enter__))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # A thread can't be cancelled: the sandbox comes up first, and is ended then.
            await asyncio.wait([starting])
            await asyncio.to_thread(self.__exit__)
            raise

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)
