"""The client against a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from airflow_provider_multikueue.clusters.client import CONFIGMAPS, JOBS, PODS, SECRETS, ApiError, Cluster
from airflow_provider_multikueue.sandbox.api import Sandbox

pytestmark = pytest.mark.sandbox


@pytest.fixture
async def manager(multikueue_sandbox: Sandbox) -> AsyncIterator[Cluster]:
    async with await Cluster.from_kubeconfig("manager", path=str(multikueue_sandbox.kubeconfig)) as cluster:
        yield cluster


@pytest.fixture
def namespace(multikueue_namespace: str) -> str:
    return multikueue_namespace


def configmap(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def refused(awaitable: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await awaitable
    return caught.value


async def test_an_object_from_creation_to_deletion(manager, namespace):
    made = await manager.create(CONFIGMAPS, configmap("a", x="1"), namespace)
    uid, version = made["metadata"]["uid"], made["metadata"]["resourceVersion"]
    assert (await refused(manager.create(CONFIGMAPS, configmap("a"), namespace))).status == 409
    assert (await manager.get(CONFIGMAPS, "a", namespace))["data"] == {"x": "1"}
    patched = await manager.patch(CONFIGMAPS, "a", {"data": {"y": "2"}}, namespace)
    assert patched["data"] == {"x": "1", "y": "2"}
    operation = [{"op": "remove", "path": "/data/x"}]
    assert (await manager.patch(CONFIGMAPS, "a", operation, namespace, kind="json"))["data"] == {"y": "2"}
    applied = await manager.patch(
        CONFIGMAPS, "a", configmap("a", y="3"), namespace, kind="apply", field_manager="tests", force=True
    )
    assert applied["data"] == {"y": "3"}
    assert (await refused(manager.replace(CONFIGMAPS, "a", made, namespace))).status == 409
    assert (await manager.replace(CONFIGMAPS, "a", {**applied, "data": {}}, namespace)).get("data") is None
    for precondition in ({"uid": "another"}, {"uid": uid, "resource_version": version}):
        assert (await refused(manager.delete(CONFIGMAPS, "a", namespace, **precondition))).status == 409
    await manager.delete(CONFIGMAPS, "a", namespace, uid=uid)
    assert (await refused(manager.delete(CONFIGMAPS, "a", namespace))).status == 404


async def test_a_dry_run_creates_nothing(manager, namespace):
    await manager.create(CONFIGMAPS, configmap("dry"), namespace, dry_run=True)
    assert (await refused(manager.get(CONFIGMAPS, "dry", namespace))).status == 404


async def test_an_invalid_object_is_refused_with_its_causes(manager, namespace):
    error = await refused(manager.create(CONFIGMAPS, configmap("Not_Valid"), namespace))
    assert (error.status, error.reason) == (422, "Invalid")
    assert error.causes[0]["field"] == "metadata.name"


async def test_pages_make_the_whole_list(manager, namespace):
    await asyncio.gather(
        *(manager.create(CONFIGMAPS, configmap(f"page-{i}") | {"data": {"i": str(i)}}, namespace) for i in range(7))
    )
    items, version = await manager.list(CONFIGMAPS, namespace, limit=2)
    assert {f"page-{i}" for i in range(7)} <= {item["metadata"]["name"] for item in items}
    assert version.isdigit()
    (one,), _ = await manager.list(CONFIGMAPS, namespace, fields="metadata.name=page-3")
    assert one["data"] == {"i": "3"}


async def test_a_watch_gives_changes_a_bookmark_and_a_good_end(manager, namespace):
    _, version = await manager.list(CONFIGMAPS, namespace)
    accepted = asyncio.Event()
    seen = []

    async def change() -> None:
        await accepted.wait()
        await manager.create(CONFIGMAPS, configmap("w", x="x" * 900_000), namespace)
        await manager.patch(CONFIGMAPS, "w", {"data": {"x": "y"}}, namespace)
        await manager.delete(CONFIGMAPS, "w", namespace)

    changing = asyncio.create_task(change())
    watching = manager.watch(
        CONFIGMAPS,
        namespace,
        resource_version=version,
        fields="metadata.name=w",
        timeout_seconds=5,
        accepted=accepted.set,
    )
    async for kind, obj in watching:
        seen.append((kind, len(obj.get("data", {}).get("x", ""))))
    await changing
    assert seen[:3] == [("ADDED", 900_000), ("MODIFIED", 1), ("DELETED", 1)]
    assert {kind for kind, _ in seen[3:]} <= {"BOOKMARK"}


async def test_what_is_served_is_discovered(manager):
    workloads = await manager.resource("kueue.x-k8s.io", "workloads")
    assert (workloads.plural, workloads.namespaced) == ("workloads", True)
    assert not (await manager.resource("kueue.x-k8s.io", "clusterqueues")).namespaced
    assert (await refused(manager.resource("kueue.x-k8s.io", "nonsense"))).status == 404
    assert (await refused(manager.resource("nonsense.io", "nonsense"))).status == 404


async def test_rights_and_version_can_be_asked(manager, namespace):
    assert await manager.access("get", PODS, namespace, subresource="log")
    assert (await manager.version())["gitVersion"].startswith("v1.")


async def test_an_account_without_rights_is_told_which_it_lacks(multikueue_sandbox, namespace):
    config = yaml.safe_load(multikueue_sandbox.kubeconfig.read_text())
    config["users"] = []
    for context in config["contexts"]:
        context["context"].pop("user", None)
    async with await Cluster.from_kubeconfig("manager", config=config) as stranger:
        error = await refused(stranger.list(JOBS, namespace))
        assert error.status in (401, 403)
        if error.status == 403:
            assert f'Grant it the verb "list" on "jobs.batch" in namespace {namespace}' in str(error)
        assert not (error.status == 403 and await _may(stranger, namespace))


async def _may(cluster: Cluster, namespace: str) -> bool:
    with contextlib.suppress(ApiError):
        return await cluster.access("get", SECRETS, namespace)
    return False


async def test_a_wrong_token_is_refused_and_not_repeated_in_the_error(multikueue_sandbox, namespace):
    config = yaml.safe_load(multikueue_sandbox.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": "not-the-right-token"}
    async with await Cluster.from_kubeconfig("manager", config=config) as stranger:
        error = await refused(stranger.get(JOBS, "x", namespace))
    assert error.status == 401
    assert "not-the-right-token" not in str(error)


async def test_every_cluster_of_the_one_kubeconfig_answers(multikueue_sandbox):
    path = str(multikueue_sandbox.kubeconfig)
    contexts = [entry["name"] for entry in yaml.safe_load(multikueue_sandbox.kubeconfig.read_text())["contexts"]]
    assert len(contexts) == 1 + len(multikueue_sandbox.regions)
    for context in contexts:
        async with await Cluster.from_kubeconfig(context, path=path, context=context) as cluster:
            started = time.monotonic()
            await cluster.probe()
            assert time.monotonic() - started < 5
