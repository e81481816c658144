"""The way from a user of the fleet, such as an Airflow, to its clusters: as good or as bad as one says.

In front of each cluster stand a `FaultProxy`, for what happens to bytes and connections, and behind it a `Gateway`, for
what happens to requests. Nothing of it runs until somebody asks for it. Kueue's own connections, and those of whoever
uses the sandbox's plain kubeconfig, don't come this way.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.sandbox.access import KUBECONFIG
from airflow_provider_multikueue.sandbox.files import write_private
from airflow_provider_multikueue.sandbox.gateway import Answers, Gateway
from airflow_provider_multikueue.sandbox.paths import SandboxError
from airflow_provider_multikueue.sandbox.pki import Authority
from airflow_provider_multikueue.sandbox.proxy import Fault, FaultProxy
from airflow_provider_multikueue.sandbox.spec import FleetSpec

__all__ = ["Network"]

Object = dict[str, Any]


class _Way:
    """The way to one cluster."""

    def __init__(self, proxy: FaultProxy, gateway: Gateway) -> None:
        self.proxy, self.gateway = proxy, gateway

    @property
    def state(self) -> Object:
        """How it behaves."""
        return {**self.proxy.fault.to_json(), **self.gateway.answers.to_json()}

    async def behave(self, faults: Mapping[str, Any]) -> None:
        """Behave so from now on; what is not named is as on a good day."""
        of_answers = {key: value for key, value in faults.items() if key in Answers.names()}
        try:
            answers = Answers(**of_answers)
            fault = Fault.from_json({key: value for key, value in faults.items() if key not in of_answers})
        except (TypeError, ValueError) as error:
            raise SandboxError(str(error)) from error
        self.gateway.answer(answers)
        await self.proxy.set_fault(fault)


class Network:
    """The ways to all clusters of the sandbox in ``folder``; `open` makes them."""

    def __init__(self, folder: Path, spec: FleetSpec) -> None:
        self._folder, self._spec = folder, spec
        self._stack = contextlib.AsyncExitStack()
        self._ways: dict[str, _Way] = {}

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig file whose contexts lead this way."""
        return self._folder / "pki" / "network" / KUBECONFIG

    async def open(self) -> str:
        """Make the ways, if that is not done, and return the path of the kubeconfig file that leads there."""
        if not self._ways:
            whole: Object = json.loads((self._folder / KUBECONFIG).read_text())
            authority = Authority("network-ca", self._folder / "pki" / "network")
            text = authority.pair.certificate.read_bytes()
            for key, number in zip(self._spec.clusters, range(len(whole["clusters"])), strict=True):
                self._ways[key] = await self._way(key, _single(whole, number), authority)
                _lead(whole["clusters"][number]["cluster"], self._ways[key].proxy.port, text)
            write_private(self.kubeconfig, json.dumps(whole, indent=1))
        return str(self.kubeconfig)

    async def behave(self, cluster: str, faults: Mapping[str, Any]) -> Object:
        """Let the way to a cluster behave so from now on, and return how it does."""
        way = await self._find(cluster)
        await way.behave(faults)
        return way.state

    async def state(self, cluster: str) -> Object:
        """Return how the way to a cluster behaves."""
        return (await self._find(cluster)).state

    async def cut(self, cluster: str) -> int:
        """Reset all connections on the way to a cluster; return how many."""
        return (await self._find(cluster)).proxy.cut()

    async def close(self) -> None:
        """Close all ways."""
        await self._stack.aclose()

    async def _find(self, cluster: str) -> _Way:
        await self.open()
        if cluster not in self._ways:
            raise SandboxError(f"This sandbox has no cluster {cluster!r}; it has {', '.join(self._ways)}.")
        return self._ways[cluster]

    async def _way(self, key: str, access: Object, authority: Authority) -> _Way:
        folder = self._folder / "pki" / "network" / key
        gateway = Gateway(access, pair=authority.server(f"{key}-gateway"), folder=folder)
        await self._stack.enter_async_context(gateway)
        proxy = await self._stack.enter_async_context(FaultProxy("127.0.0.1", gateway.port))
        return _Way(proxy, gateway)


def _single(whole: Mapping[str, Any], number: int) -> Object:
    return {part: [whole[part][number]] for part in ("clusters", "users")}


def _lead(cluster: Object, port: int, authority: bytes) -> None:
    """Let a kubeconfig's entry lead to another port, where ``authority`` vouches for the server."""
    cluster["server"] = f"https://127.0.0.1:{port}"
    cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
