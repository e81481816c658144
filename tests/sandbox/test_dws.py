"""Dynamic Workload Scheduler's stand-in, asked by real ProvisioningRequests on a real control plane."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from airflow_provider_multikueue.clusters.client import NAMESPACES, ApiError, Cluster, Resource
from airflow_provider_multikueue.sandbox.api import Sandbox

pytestmark = pytest.mark.sandbox

REGION = "us-east4"
REQUESTS = Resource("autoscaling.x-k8s.io", "v1", "provisioningrequests")
TEMPLATES = Resource("", "v1", "podtemplates")


class Region:
    """One region's cluster, as whoever asks for capacity sees it."""

    def __init__(self, fleet: Sandbox, cluster: Cluster, namespace: str) -> None:
        self.fleet, self.cluster, self.namespace = fleet, cluster, namespace

    async def ask(self, name: str, *, pods: int = 1, gpus: int = 1, run_duration: str | None = None) -> str:
        container = {"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
        template = {"metadata": {"name": name}, "template": {"spec": {"containers": [container]}}}
        with suppress(ApiError):  # a second request of the same name finds the first one's
            await self.cluster.create(TEMPLATES, template, self.namespace)
        request = {
            "apiVersion": REQUESTS.api_version,
            "kind": "ProvisioningRequest",
            "metadata": {"name": name},
            "spec": {
                "provisioningClassName": "queued-provisioning.gke.io",
                "podSets": [{"count": pods, "podTemplateRef": {"name": name}}],
                "parameters": {"maxRunDurationSeconds": run_duration} if run_duration else {},
            },
        }
        created = await self.cluster.create(REQUESTS, request, self.namespace)
        return str(created["metadata"]["uid"])

    async def conditions(self, name: str) -> dict[str, dict[str, Any]]:
        request = await self.cluster.get(REQUESTS, name, self.namespace)
        return {each["type"]: each for each in request.get("status", {}).get("conditions", [])}

    async def told(self, name: str) -> dict[str, str]:
        return {kind: each["status"] for kind, each in (await self.conditions(name)).items()}

    async def until(self, name: str, check: Callable[[dict[str, str]], bool], within: float = 10.0) -> dict[str, str]:
        deadline = time.monotonic() + within
        while not check(told := await self.told(name)):
            assert time.monotonic() < deadline, told
            await asyncio.sleep(0.05)
        return told

    async def delete(self, name: str) -> None:
        await self.cluster.delete(REQUESTS, name, self.namespace)

    async def stays(self, name: str, seconds: float = 0.7) -> dict[str, str]:
        """Return what the request is told after a while in which nothing may happen."""
        before = await self.told(name)
        await asyncio.sleep(seconds)
        assert await self.told(name) == before
        return before


@pytest.fixture
async def region(fleet: Sandbox) -> AsyncIterator[Region]:
    config = str(fleet.kubeconfig)
    async with await Cluster.from_kubeconfig(REGION, path=config, context=f"worker-{REGION}") as cluster:
        namespace = f"dws-{secrets.token_hex(4)}"
        await cluster.create(NAMESPACES, {"metadata": {"name": namespace}})
        fleet.capacity(REGION)
        yield Region(fleet, cluster, namespace)
        fleet.capacity(REGION)
        for request in (await cluster.list(REQUESTS, namespace))[0]:
            await cluster.delete(REQUESTS, request["metadata"]["name"], namespace)
        await cluster.delete(NAMESPACES, namespace)


def granted(told: dict[str, str]) -> bool:
    return told.get("Provisioned") == "True"


def waiting(told: dict[str, str]) -> bool:
    return told == {"Accepted": "True", "Provisioned": "False"}


def over(told: dict[str, str]) -> bool:
    return "True" in (told.get("Failed"), told.get("CapacityRevoked"))


async def test_capacity_is_granted_after_the_delay_and_accepted_at_once(region: Region) -> None:
    region.fleet.capacity(REGION, after=1.5)
    start = time.monotonic()
    await region.ask("a")
    await region.until("a", waiting, within=1)
    assert re.search(r"ETA: \d{4}-\d\d-\d\dT", (await region.conditions("a"))["Provisioned"]["message"])
    await region.until("a", granted)
    assert 1.4 < time.monotonic() - start < 3


async def test_gpus_are_counted_and_come_back_when_a_request_goes(region: Region) -> None:
    region.fleet.capacity(REGION, gpus=8)
    await region.ask("first", pods=3, gpus=2)
    await region.until("first", granted)
    await region.ask("second", pods=2, gpus=2)
    await region.until("second", waiting)
    await region.ask("small", gpus=2)
    await region.until("small", granted)
    assert waiting(await region.stays("second"))
    await region.delete("first")
    await region.until("second", granted, within=2)


async def test_a_starving_region_answers_when_its_script_changes(region: Region) -> None:
    region.fleet.capacity(REGION, mode="starve")
    await region.ask("a")
    await region.until("a", waiting)
    assert waiting(await region.stays("a"))
    region.fleet.capacity(REGION, mode="fail", text="no T4 left")
    await region.until("a", over)
    assert (await region.conditions("a"))["Failed"]["message"] == "no T4 left"


async def test_a_new_request_of_an_old_name_starts_from_nothing(region: Region) -> None:
    region.fleet.capacity(REGION, after=1.5)
    first = await region.ask("again")
    await asyncio.sleep(1)
    await region.delete("again")
    start = time.monotonic()
    assert await region.ask("again") != first
    await region.until("again", granted)
    assert time.monotonic() - start > 1.4


async def test_capacity_is_revoked_when_the_run_duration_is_over(region: Region) -> None:
    await region.ask("short", run_duration="2")
    await region.until("short", granted)
    start = time.monotonic()
    told = await region.until("short", over)
    assert told["CapacityRevoked"] == "True"
    assert time.monotonic() - start > 1.5


async def test_commands_reach_one_request_or_all(region: Region) -> None:
    for name in ("a", "b", "c"):
        await region.ask(name)
        await region.until(name, granted)
    one = f"{region.namespace}/a"
    assert region.fleet.expire(REGION, request=one) == [one]
    assert await region.told("a") == {"Accepted": "True", "Provisioned": "True", "BookingExpired": "True"}
    assert region.fleet.fail(REGION, request=f"{region.namespace}/b", text="broken") == [f"{region.namespace}/b"]
    assert {f"{region.namespace}/{name}" for name in "ac"} <= set(region.fleet.revoke(REGION))
    assert (await region.told("c"))["CapacityRevoked"] == "True"
    assert region.fleet.revoke(REGION, request=one) == []


async def test_an_api_server_that_restarts_is_found_again(region: Region) -> None:
    region.fleet.capacity(REGION, after=3)
    await region.ask("before")
    await region.until("before", waiting)
    await asyncio.to_thread(region.fleet.restart, f"{REGION}-apiserver")
    deadline = time.monotonic() + 60
    while True:
        try:
            await region.ask("after")
            break
        except ApiError:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
    await region.until("before", granted, within=20)
    await region.until("after", granted, within=20)
