"""Workers by ClusterProfiles on a real manager: Google and its gateway are stood in for, the clusters are real."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from airflow_provider_multikueue.clusters.client import ApiError, Cluster, Resource
from airflow_provider_multikueue.clusters.connect_gateway import GATEWAY
from airflow_provider_multikueue.decisions.names import Identity
from airflow_provider_multikueue.fleets.cluster_profiles import PROFILE_ANNOTATION
from airflow_provider_multikueue.hooks import MultiKueueHook
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.sandbox.accounts import Accounts
from tests.sandbox.test_hook import manifest
from tests.unit.gkeserver import GkeServer

pytestmark = [pytest.mark.sandbox, pytest.mark.broad]

GROUP = "multicluster.x-k8s.io"
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", namespaced=False)
PROFILES = Resource(GROUP, "v1alpha1", "clusterprofiles")
MEMBERS = Resource("kueue.x-k8s.io", "v1beta2", "multikueueclusters", namespaced=False)
KUEUE = "kueue-system"
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"clusterprofiles.{GROUP}",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/4322"},
    },
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "ClusterProfile", "plural": "clusterprofiles", "singular": "clusterprofile"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


class Gateway:
    """What Google's gateway does: an address below which each member is, and the caller's identity passed on."""

    def __init__(self, accounts: Accounts) -> None:
        config = json.loads(accounts.sandbox.kubeconfig.read_text())
        contexts = {each["name"]: each["context"]["cluster"] for each in config["contexts"]}
        clusters = {each["name"]: each["cluster"]["server"] for each in config["clusters"]}
        self._servers = {name: clusters[contexts[accounts.context(name)]] for name in accounts.tokens}
        self._tokens = accounts.tokens
        self.callers: set[str] = set()
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        self.callers.add(request.headers["Authorization"])
        headers = {"Authorization": f"Bearer {self._tokens[name]}", "Accept": request.headers["Accept"]}
        address = f"{self._servers[name]}/{request.match_info['rest']}"
        body = await request.read()
        if body:
            headers["Content-Type"] = request.headers["Content-Type"]
        async with self._session.request(
            request.method, address, params=request.query, data=body or None, headers=headers
        ) as answer:
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            return response

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        unchecked = ssl.create_default_context()
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        forever = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(ssl=unchecked, limit=0)
        async with aiohttp.ClientSession(timeout=forever, connector=connector) as self._session:
            app = web.Application()
            app.router.add_route("*", "/v1/projects/1/locations/{region}/gkeMemberships/{name}/{rest:.*}", self.handle)
            runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield
            finally:
                await runner.cleanup()

    def __enter__(self) -> Gateway:
        self._loop, started = asyncio.new_event_loop(), threading.Event()
        self._stop = asyncio.Event()

        async def serve() -> None:
            async with self.running():
                started.set()
                await self._stop.wait()

        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(serve()))
        self._thread.start()
        assert started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()


@pytest.fixture
async def accounts(fleet: Sandbox, multikueue_namespace: str, tmp_path: Path) -> AsyncIterator[Accounts]:
    made = Accounts(fleet, multikueue_namespace, tmp_path, workers_from="cluster_profiles")
    await made.make()
    yield made
    await made.remove()


@pytest.fixture
async def profiles(accounts: Accounts) -> AsyncIterator[None]:
    """The manager's inventory, as a fleet of Google keeps it: a profile for each worker."""
    extra = accounts.sandbox.connection()["extra"]
    async with accounts.admin() as clusters:
        manager = clusters["manager"]
        await _create(manager, CRDS, CRD, None)
        for name, worker in extra["workers"].items():
            await _create_soon(manager, _profile(name, worker["region"]))
            await manager.patch(MEMBERS, name, {"metadata": {"annotations": {PROFILE_ANNOTATION: f"{name}-profile"}}})
        yield
        for name in extra["workers"]:
            await manager.patch(MEMBERS, name, {"metadata": {"annotations": {PROFILE_ANNOTATION: None}}})
        await manager.delete(CRDS, CRD["metadata"]["name"])  # type: ignore[index]


def _profile(name: str, region: str) -> dict[str, Any]:
    at = f"https://{region}-connectgateway.googleapis.com/v1/projects/1/locations/{region}/gkeMemberships/{name}"
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "ClusterProfile",
        "metadata": {
            "name": f"{name}-profile",
            "annotations": {"fleet.gke.io/clusterName": f"projects/1/locations/{region}/clusters/{name}"},
        },
        "spec": {"clusterManager": {"name": "gke-fleet"}},
        "status": {"accessProviders": [{"name": "google", "cluster": {"server": at}}]},
    }


async def _create(cluster: Cluster, resource: Resource, obj: dict[str, Any], namespace: str | None) -> None:
    try:
        await cluster.create(resource, obj, namespace)
    except ApiError as error:
        if error.status != 409:
            raise


async def _create_soon(cluster: Cluster, obj: dict[str, Any]) -> None:
    """Create a profile as soon as the API server serves the kind."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await _create(cluster, PROFILES, obj, KUEUE)
            except ApiError as error:
                if error.status not in (404, 503):
                    raise
            await asyncio.sleep(0.2)


@pytest.fixture
def gateway(accounts: Accounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    with GkeServer().running(tmp_path), Gateway(accounts) as gateway:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        monkeypatch.setenv(GATEWAY, gateway.url)
        yield gateway


def test_a_job_runs_and_its_log_is_read_through_the_gateway_as_ourselves(
    accounts, profiles, gateway, monkeypatch, caplog
):
    connection = {"conn_type": "multikueue", "extra": accounts.extra()}
    monkeypatch.setenv("AIRFLOW_CONN_FLEET", json.dumps(connection))
    hook = MultiKueueHook("fleet")
    identity = Identity(deployment="rights", dag_id="d", run_id=uuid.uuid4().hex, task_id="t", map_index=-1)
    job = hook.submit(
        manifest("echo hello from the pod; sleep 1"), identity=identity, regions=list(accounts.sandbox.regions)
    )
    lines: list[str] = []
    monkeypatch.setattr(hook.log, "log", lambda _level, _format, text: lines.append(text))
    report = hook.wait(job, logs="all")
    hook.delete(job)
    assert report["phase"] == "SUCCEEDED"
    assert report["placement"]["region"] in accounts.sandbox.regions
    assert any("hello from the pod" in line for line in lines), lines
    assert all(caller.startswith("Bearer ya29.") for caller in gateway.callers)
    assert gateway.callers
