"""The ways to a sandbox's clusters, made anew on demand, and what can be wrong with them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from airflow_provider_multikueue.clusters.client import ApiError, Cluster, Resource
from airflow_provider_multikueue.sandbox.network import Network
from airflow_provider_multikueue.sandbox.paths import SandboxError
from airflow_provider_multikueue.sandbox.spec import FleetSpec
from tests.unit.test_gateway import Site

ECHO = Resource("", "v1", "echo")


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    site = Site(tmp_path / "site")
    runner = await site.server()
    access = site.access(runner.addresses[0][1])
    whole = {**access, "contexts": [], "clusters": [], "users": []}
    for name in ("manager", "worker"):
        whole["contexts"].append({"name": name, "context": {"cluster": name, "user": name}})
        whole["clusters"].append({**access["clusters"][0], "name": name})
        whole["users"].append({**access["users"][0], "name": name})
    (tmp_path / "kubeconfig").write_text(json.dumps(whole))
    network = Network(tmp_path, FleetSpec(regions=("us-east4",)))
    yield network
    await network.close()
    await runner.cleanup()


async def ask(network: Network, context: str) -> str | None:
    """Return under which name the server sees who comes this way."""
    async with await Cluster.from_kubeconfig(context, path=await network.open(), context=context) as cluster:
        answer = await cluster.get(ECHO, "it")
        user: str | None = answer["user"]
        return user


async def test_each_cluster_has_a_way_of_its_own(network: Network) -> None:
    assert await network.behave("us-east4", {"status": 418}) == {**(await network.state("manager")), "status": 418}
    assert await ask(network, "manager") == "admin"
    with pytest.raises(ApiError, match="418"):
        await ask(network, "worker")
    await network.behave("us-east4", {})
    assert await ask(network, "worker") == "admin"


async def test_connections_break_on_command(network: Network) -> None:
    async with await Cluster.from_kubeconfig("w", path=await network.open(), context="worker") as cluster:
        await cluster.get(ECHO, "it")
        assert await network.cut("us-east4") == 1
        await network.behave("us-east4", {"mode": "refuse"})
        with pytest.raises(ApiError) as broken:
            await cluster.get(ECHO, "it")
        assert broken.value.status == 0
        await network.behave("us-east4", {})
        await cluster.get(ECHO, "it")


@pytest.mark.parametrize(
    ("faults", "told"),
    [({"mode": "sleepy"}, "blackhole"), ({"statuss": 503}, "statuss"), ({"status": 200}, "400 to 599")],
    ids=["mode", "unknown", "status"],
)
async def test_what_makes_no_sense_is_refused(network: Network, faults: dict[str, object], told: str) -> None:
    with pytest.raises(SandboxError, match=told):
        await network.behave("us-east4", faults)
    with pytest.raises(SandboxError, match=r"no cluster 'mars'; it has manager, us-east4"):
        await network.cut("mars")
