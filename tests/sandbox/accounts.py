"""Accounts of their own in a fleet: with the rights of deploy/rbac in one namespace, or less."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from airflow_provider_multikueue.clusters.client import ApiError, Cluster, Resource
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.decisions.rights import WORKERS_FROM, Right
from airflow_provider_multikueue.fleets.fleet import open_fleet
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.shipped_accounts import ACCOUNT, RBAC, RESOURCES


@dataclass
class Accounts:
    """One account a cluster, in the namespace that its jobs are in."""

    sandbox: Sandbox
    namespace: str
    folder: Path
    heal: bool = False
    """Whether the optional roles are given too."""
    workers_from: str | None = None
    """How workers are found that are not listed: what that needs is given too."""
    lifetime: int = 3600
    tokens: dict[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[dict[str, Cluster]]:
        """Give the clusters, seen by the administrator; the manager is called "manager"."""
        config = FleetConfig.from_extra(self._of_admin(), conn_id="admin")
        async with open_fleet(config) as fleet:
            workers = {name: await fleet.worker(name) for name in fleet.worker_names}
            yield {"manager": fleet.manager, **{name: worker for name, worker in workers.items() if worker}}

    async def make(self) -> None:
        """Apply the manifests, and write a kubeconfig with a token for each cluster."""
        contexts = json.loads(self.sandbox.kubeconfig.read_text())
        async with self.admin() as clusters:
            for name, cluster in clusters.items():
                for role in self.roles(name):
                    for obj in self.objects(role):
                        await self._apply(cluster, obj, self._where(role))
                body = {"spec": {"expirationSeconds": self.lifetime}}
                path = Resource("", "v1", f"serviceaccounts/{ACCOUNT}/token")
                token = (await cluster.create(path, body, self.namespace))["status"]["token"]
                context = self.context(name)
                entry = next(c["context"] for c in contexts["contexts"] if c["name"] == context)
                self.tokens[name] = token
                next(u for u in contexts["users"] if u["name"] == entry["user"])["user"] = {"token": token}
        (self.folder / "kubeconfig").write_text(yaml.safe_dump(contexts))

    def roles(self, cluster: str) -> tuple[str, ...]:
        """Return the manifests of a cluster."""
        if cluster == "manager":
            finding = WORKERS_FROM.get(self.workers_from)
            return ("account", "manager", *(("manager-reap",) if self.heal else ()), *((finding,) if finding else ()))
        return ("account", "worker", "worker-heal") if self.heal else ("account", "worker")

    def _where(self, role: str) -> str:
        return "kueue-system" if role in WORKERS_FROM.values() else self.namespace

    def context(self, cluster: str) -> str:
        extra = self._of_admin()
        return str(extra["manager_context"] if cluster == "manager" else extra["workers"][cluster]["context"])

    def extra(self) -> dict[str, Any]:
        """Return the connection's extra that uses these accounts."""
        extra: dict[str, Any] = json.loads(
            json.dumps(self._of_admin()).replace(
                json.dumps(str(self.sandbox.kubeconfig)), json.dumps(str(self.folder / "kubeconfig"))
            )
        )
        if self.workers_from:
            extra["workers"] = self.workers_from
        return extra | {"namespace": self.namespace, "deployment": "rights"}

    def _of_admin(self) -> dict[str, Any]:
        """Return the extra of the administrator's connection, also where tests have the shipped accounts."""
        extra: dict[str, Any] = Sandbox.connection(self.sandbox)["extra"]
        return extra

    def objects(self, role: str) -> Iterable[dict[str, Any]]:
        """Return a manifest's objects for this namespace, the roles with names that no other account's have there."""
        for obj in yaml.safe_load_all((RBAC / f"{role}.yaml").read_text()):
            obj["metadata"].pop("namespace", None)
            for reference in (obj["metadata"], obj.get("roleRef")):
                if reference and obj["kind"] != "ServiceAccount":
                    reference["name"] += f"-{self.namespace}"
            for subject in obj.get("subjects", ()):
                subject["namespace"] = self.namespace
            yield obj

    @asynccontextmanager
    async def without(self, right: Right) -> AsyncIterator[None]:
        """Take a right away for the length of the block."""
        async with self.admin() as clusters:
            mine = {name: c for name, c in clusters.items() if right.role in self.roles(name)}
            role = next(o for o in self.objects(right.role) if o["kind"] == self._kind(right))
            less = copy.deepcopy(role)
            rule = {"apiGroups": [right.group], "resources": [right.resource], "verbs": list(right.verbs)}
            less["rules"].remove(rule)
            try:
                await asyncio.gather(*(self._put(cluster, less, right, allowed=False) for cluster in mine.values()))
                yield
            finally:
                await asyncio.gather(*(self._put(cluster, role, right, allowed=True) for cluster in mine.values()))

    def _kind(self, right: Right) -> str:
        return "Role" if right.namespaced else "ClusterRole"

    async def _put(self, cluster: Cluster, role: dict[str, Any], right: Right, *, allowed: bool) -> None:
        """Change a role, and return when the API server goes by it."""
        await cluster.patch(
            *(RESOURCES[role["kind"]], role["metadata"]["name"], {"rules": role["rules"]}, self._where(right.role)),
            kind="merge",
        )
        config = yaml.safe_load((self.folder / "kubeconfig").read_text())
        resource = Resource(right.group, "", right.plural)
        where = right.where(self.namespace)
        context = self.context(cluster.name)
        async with await Cluster.from_kubeconfig(cluster.name, config=config, context=context) as mine:
            for _ in range(100):
                verb = right.verbs[0]
                if await mine.access(verb, resource, where, subresource=right.subresource) is allowed:
                    return
                await asyncio.sleep(0.1)
        raise AssertionError(f"{cluster.name} does not go by the changed role")

    async def _apply(self, cluster: Cluster, obj: dict[str, Any], namespace: str) -> None:
        try:
            await cluster.create(RESOURCES[obj["kind"]], obj, namespace)
        except ApiError as error:
            if error.status != 409:
                raise

    async def remove(self) -> None:
        """Take all rights away."""
        async with self.admin() as clusters:
            for name, cluster in clusters.items():
                for role in self.roles(name):
                    for obj in self.objects(role):
                        if obj["kind"] != "ServiceAccount":  # it is the same one in the next test
                            await cluster.delete(RESOURCES[obj["kind"]], obj["metadata"]["name"], self._where(role))
