"""A fleet seen through the accounts of deploy/rbac, for tests that else are an administrator's.

With ``MULTIKUEUE_TEST_ACCOUNTS=shipped`` in the environment the tests' fleets hand out connections of these accounts,
and each namespace of jobs gets their roles, as an administrator would apply them. What tests do beside the provider
they still do as administrators, by ``kubeconfig``.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_multikueue.clusters.client import ApiError, Cluster, Resource
from airflow_provider_multikueue.decisions.rights import Role, rights_of
from airflow_provider_multikueue.sandbox.api import Sandbox

__all__ = [
    "ACCOUNT",
    "ADMINISTRATORS",
    "GROUP",
    "RBAC",
    "RESOURCES",
    "ShippedAccounts",
    "as_asked_for",
    "skip_administrators",
]

VARIABLE = "MULTIKUEUE_TEST_ACCOUNTS"
ADMINISTRATORS = {
    "tests/sandbox/test_client.py": "tries the client on all sorts of objects, most of which the provider never uses",
    "tests/sandbox/test_dws.py": "is about the stand-in for Dynamic Workload Scheduler; no connection is used",
    "tests/sandbox/test_fleet.py": "is about the sandbox's own clusters and their administrator's kubeconfig",
    "tests/sandbox/test_lifetime.py": "starts and ends sandboxes of its own",
    "tests/sandbox/test_node.py": "is about the sandbox's nodes; no connection is used",
    "tests/sandbox/test_watch.py": "watches config maps, for which the provider has no rights and no use",
    "tests/airflow/test_local_airflow.py": "is about the sandbox's Airflow, without jobs",
}
"""What is not run with the shipped accounts, by file, with the reason.

Files that make accounts of their own with deploy/rbac (`tests.sandbox.accounts`) run as they are.
"""
RBAC = Path(__file__).parents[1] / "deploy" / "rbac"
GROUP = "rbac.authorization.k8s.io"
RESOURCES = {
    "ServiceAccount": Resource("", "v1", "serviceaccounts"),
    "Role": Resource(GROUP, "v1", "roles"),
    "RoleBinding": Resource(GROUP, "v1", "rolebindings"),
    "ClusterRole": Resource(GROUP, "v1", "clusterroles", namespaced=False),
    "ClusterRoleBinding": Resource(GROUP, "v1", "clusterrolebindings", namespaced=False),
}
ACCOUNT = "airflow-multikueue"
HOME = "default"
"""The account's own namespace."""
DAY = 86400


def skip_administrators(items: Iterable[pytest.Item], root: Path) -> None:
    """Skip what only an administrator can do, where the environment asks for the shipped accounts."""
    if not os.environ.get(VARIABLE):
        return
    for item in items:
        reason = ADMINISTRATORS.get(item.path.relative_to(root).as_posix())
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"not with the shipped accounts: it {reason}"))


def as_asked_for(sandbox: Sandbox) -> Sandbox:
    """Return the sandbox, with connections of the shipped accounts where the environment asks for them."""
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "shipped"):
        raise ValueError(f"{VARIABLE} must be `shipped` or unset, not {asked!r}")
    return ShippedAccounts(sandbox.folder) if asked else sandbox


class ShippedAccounts(Sandbox):
    """A sandbox whose connections may do what deploy/rbac allows, in default and in the namespaces made here."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.restricted = Path(tempfile.mkdtemp(prefix="shipped-accounts-")) / "kubeconfig"
        atexit.register(shutil.rmtree, self.restricted.parent)
        asyncio.run(self._make_accounts())
        asyncio.run(self._grant(HOME))

    def connection(self, *, network: bool = False) -> dict[str, Any]:
        """Return the Airflow connection of the accounts."""
        text = json.dumps(super().connection(network=network))
        connection: dict[str, Any] = json.loads(
            text.replace(json.dumps(str(self.kubeconfig)), json.dumps(str(self.restricted)))
        )
        return connection

    def make_namespace(self, name: str | None = None) -> str:
        """Make a namespace with a queue, and the roles in it."""
        made = super().make_namespace(name)
        asyncio.run(self._grant(made))
        return made

    async def _make_accounts(self) -> None:
        """Make the accounts, and a kubeconfig of theirs."""
        tokens = await self._tokens()
        config = json.loads(self.kubeconfig.read_text())
        users = {user["name"]: user for user in config["users"]}
        for context in config["contexts"]:
            users[context["context"]["user"]]["user"] = {"token": tokens[context["name"]]}
        self.restricted.write_text(yaml.safe_dump(config))

    async def _tokens(self) -> dict[str, str]:
        async def make(context: str, cluster: Cluster) -> tuple[str, str]:
            for obj in yaml.safe_load_all((RBAC / "account.yaml").read_text()):
                await apply(cluster, obj, HOME)
            path = Resource("", "v1", f"serviceaccounts/{ACCOUNT}/token")
            answer = await cluster.create(path, {"spec": {"expirationSeconds": DAY}}, HOME)
            return context, answer["status"]["token"]

        return dict(await self._each(make))

    async def _grant(self, namespace: str) -> None:
        """Apply the roles of all clusters in a namespace, and return when they hold."""

        async def grant(context: str, cluster: Cluster) -> None:
            roles = self._roles(context)
            for obj in objects(*roles):
                await apply(cluster, obj, namespace)
            async with await Cluster.from_kubeconfig(context, path=str(self.restricted), context=context) as mine:
                for right in rights_of(*roles):
                    where = namespace if right.namespaced else None
                    resource = Resource(right.group, "", right.plural, namespaced=right.namespaced)
                    await _until_allowed(mine, right.verbs[-1], resource, where, right.subresource)

        await self._each(grant)

    @contextmanager
    def granted(self, role: Role) -> Iterator[None]:
        """Give the manager's account a further role for a while."""

        async def grant() -> None:
            async with self._admin() as ((_, manager), *_):
                for obj in objects(role):
                    await apply(manager, obj, HOME)
            context = self.spec.manager_context
            async with await Cluster.from_kubeconfig(context, path=str(self.restricted), context=context) as mine:
                for right in rights_of(role):
                    await _until_allowed(mine, right.verbs[-1], Resource(right.group, "", right.plural), None, None)

        async def take() -> None:
            async with self._admin() as ((_, manager), *_):
                for obj in objects(role):
                    await manager.delete(RESOURCES[obj["kind"]], obj["metadata"]["name"], HOME)

        asyncio.run(grant())
        try:
            yield
        finally:
            asyncio.run(take())

    def _roles(self, context: str) -> tuple[Role, ...]:
        return ("manager",) if context == self.spec.manager_context else ("worker", "worker-heal")

    async def _each(self, act: Callable[[str, Cluster], Awaitable[Any]]) -> list[Any]:
        async with self._admin() as clusters:
            return list(await asyncio.gather(*(act(context, cluster) for context, cluster in clusters)))

    @asynccontextmanager
    async def _admin(self) -> AsyncIterator[list[tuple[str, Cluster]]]:
        contexts = [self.spec.manager_context, *(worker.context for worker in self.spec.workers)]
        path = str(self.kubeconfig)
        clusters = [await Cluster.from_kubeconfig(context, path=path, context=context) for context in contexts]
        try:
            yield list(zip(contexts, clusters, strict=True))
        finally:
            await asyncio.gather(*(cluster.close() for cluster in clusters))


def objects(*roles: Role) -> list[dict[str, Any]]:
    """Return what is in the roles' files."""
    return [obj for role in roles for obj in yaml.safe_load_all((RBAC / f"{role}.yaml").read_text())]


async def _until_allowed(
    cluster: Cluster, verb: str, resource: Resource, namespace: str | None, subresource: str | None
) -> None:
    async with asyncio.timeout(30):
        while not await cluster.access(verb, resource, namespace, subresource=subresource):  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # an API server learns of a role by a watch of its own


async def apply(cluster: Cluster, obj: dict[str, Any], namespace: str) -> None:
    """Create an object unless it is there; one that names another namespace is refused, as kubectl does."""
    stated = obj["metadata"].get("namespace", namespace)
    assert stated == namespace, f"{obj['kind']} {obj['metadata']['name']} is of namespace {stated}, not {namespace}"
    try:
        await cluster.create(RESOURCES[obj["kind"]], obj, namespace)
    except ApiError as error:
        if error.status != 409:
            raise
