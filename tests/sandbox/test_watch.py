"""The shared watch against real API servers that restart, freeze and forget."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from airflow_provider_multikueue.clusters import watch as watches
from airflow_provider_multikueue.clusters.client import CONFIGMAPS, NAMESPACES, ApiError, Cluster, Resource
from airflow_provider_multikueue.clusters.watch import SharedWatch, Subscription
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.unit.apiserver import until

pytestmark = pytest.mark.sandbox

APISERVER = "{}-apiserver"


@pytest.fixture(scope="module")
def fleet() -> Iterator[Sandbox]:
    """A small fleet of this module's own: it freezes and restarts its API server."""
    name = os.environ.get("MULTIKUEUE_TEST_WATCH_SANDBOX")
    if name:
        yield Sandbox.attach(name)
    else:
        with Sandbox.start_local(regions=["us-east4"]) as sandbox:
            yield sandbox


@pytest.fixture
def apiserver(fleet: Sandbox) -> str:
    return APISERVER.format(fleet.regions[0])


async def connected(fleet: Sandbox, name: str) -> Cluster:
    path, context = str(fleet.kubeconfig), f"worker-{fleet.regions[0]}"
    return await Cluster.from_kubeconfig(name, path=path, context=context)


@pytest.fixture
async def cluster(fleet: Sandbox) -> AsyncIterator[Cluster]:
    async with await connected(fleet, "worker-us") as cluster:
        yield cluster


@pytest.fixture
async def actor(fleet: Sandbox) -> AsyncIterator[Cluster]:
    """Someone else who changes objects."""
    async with await connected(fleet, "actor") as cluster:
        yield cluster


@pytest.fixture
async def namespace(actor: Cluster) -> AsyncIterator[str]:
    name = f"watch-{time.time_ns():x}"
    await actor.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    await actor.delete(NAMESPACES, name)


@pytest.fixture
async def watch(cluster: Cluster, namespace: str) -> AsyncIterator[SharedWatch]:
    async def open_(*, fresh: bool) -> tuple[Cluster, Resource]:
        return cluster, CONFIGMAPS

    shared = SharedWatch("config maps", open_, namespace, index=lambda thing: [thing["metadata"]["name"]], trim=dict)
    yield shared
    await shared.close()


def configmap(name: str, value: str = "") -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}}


def value(subscription: Subscription) -> str | None:
    return next((thing["data"]["value"] for thing in subscription.objects.values()), None)


async def test_thousands_wait_with_one_list_and_hear_of_changes_soon(watch, actor, namespace):
    await asyncio.gather(*(actor.create(CONFIGMAPS, configmap(f"c-{i}"), namespace) for i in range(100)))
    subscriptions = [watch.subscribe(f"c-{i % 100}", lambda: None) for i in range(5000)]
    await until(lambda: all(s.synced for s in subscriptions))
    delays = []
    for i in range(20):
        await actor.patch(CONFIGMAPS, f"c-{i}", {"data": {"value": "new"}}, namespace)
        committed = time.monotonic()
        await until(lambda i=i: value(subscriptions[i]) == "new")
        delays.append(time.monotonic() - committed)
    assert watch.lists == 1
    assert sorted(delays)[10] < 0.5


async def test_a_restart_of_the_api_server_loses_no_change(watch, actor, fleet, namespace, apiserver):
    await actor.create(CONFIGMAPS, configmap("kept", "0"), namespace)
    await actor.create(CONFIGMAPS, configmap("deleted", "0"), namespace)
    kept, deleted = (watch.subscribe(name, lambda: None) for name in ("kept", "deleted"))
    await until(lambda: value(kept) == value(deleted) == "0")
    await asyncio.to_thread(fleet.restart, apiserver)
    async with asyncio.timeout(60):
        while True:
            try:
                await actor.patch(CONFIGMAPS, "kept", {"data": {"value": "1"}}, namespace)
                await actor.delete(CONFIGMAPS, "deleted", namespace)
                break
            except ApiError as error:
                if not error.passing and error.status not in (401, 403):  # while its own caches fill
                    raise
    await until(lambda: value(kept) == "1" and not deleted.objects, seconds=30)
    await until(lambda: kept.trouble is None)


async def test_a_frozen_api_server_is_noticed_and_what_happened_meanwhile_is_seen(
    watch, actor, fleet, namespace, apiserver, monkeypatch
):
    monkeypatch.setattr(watches, "LOOK", 0.5)
    monkeypatch.setattr(Cluster.probe, "__defaults__", (2.0,))
    await actor.create(CONFIGMAPS, configmap("frozen", "0"), namespace)
    frozen = watch.subscribe("frozen", lambda: None)
    await until(lambda: value(frozen) == "0")
    await asyncio.to_thread(fleet.pause, apiserver)
    paused = time.time()
    try:
        await until(lambda: frozen.trouble, seconds=30)
        assert abs(frozen.trouble.since - paused) < 5
        assert "timed out" in frozen.trouble.text
        assert value(frozen) == "0"
    finally:
        await asyncio.to_thread(fleet.resume, apiserver)
    await until(lambda: frozen.trouble is None, seconds=30)
    await actor.patch(CONFIGMAPS, "frozen", {"data": {"value": "1"}}, namespace)
    await until(lambda: value(frozen) == "1")
    assert watch.lists == 1
