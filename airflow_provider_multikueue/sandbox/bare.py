"""Clusters without Kueue, as a cloud hands them out, for what installs Kueue itself.

Kueue's Deployment has no node here that could pull its image. When somebody installs one, this module does what node
and kubelet would: it starts the Kueue that was built, with the ConfigMap's configuration and the Secret's certificate,
starts it again when the pod template changes, ends it with the Deployment, and reports the Deployment's status.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_multikueue.sandbox import egress
from airflow_provider_multikueue.sandbox.clusters import Cluster
from airflow_provider_multikueue.sandbox.files import write_private
from airflow_provider_multikueue.sandbox.manifests import NAMESPACE
from airflow_provider_multikueue.sandbox.release import CONFIG_KEY, DEPLOYMENT, IMAGE
from airflow_provider_multikueue.sandbox.rest import Rest
from airflow_provider_multikueue.sandbox.services import Program

__all__ = ["POD_MONITORING", "KueueNode", "accounts", "write_accounts"]

log = logging.getLogger(__name__)

Object = dict[str, Any]

LOOK = 0.7
_ACCOUNTS = "pki/accounts.csv"
_DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{DEPLOYMENT}"
_CORE = f"/api/v1/namespaces/{NAMESPACE}"

POD_MONITORING: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitorings.monitoring.googleapis.com"},
    "spec": {
        "group": "monitoring.googleapis.com",
        "scope": "Namespaced",
        "names": {
            "kind": "PodMonitoring",
            "listKind": "PodMonitoringList",
            "plural": "podmonitorings",
            "singular": "podmonitoring",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["endpoints", "selector"],
                                "x-kubernetes-preserve-unknown-fields": True,
                            },
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}
"""As GKE has it, in short: nothing here collects what it asks for."""


def write_accounts(folder: Path) -> Path:
    """Write the accounts that all clusters know, as a cloud's clusters know the cloud's, with new tokens."""
    lines = [f"{secrets.token_urlsafe()},admin,admin,system:masters", f"{secrets.token_urlsafe()},nobody,nobody"]
    return write_private(folder / _ACCOUNTS, "\n".join(lines))


def accounts(folder: Path) -> dict[str, str]:
    """Return the token of each account: ``admin``, who may do everything, and ``nobody``, who may do nothing."""
    lines = (line.split(",") for line in (folder / _ACCOUNTS).read_text().splitlines())
    return {user: token for token, user, *_ in lines}


class _Starter(Protocol):
    async def start(self, programs: Iterable[Program]) -> None: ...
    async def end(self, name: str) -> None: ...


class KueueNode:
    """Runs Kueue on one cluster for as long as a Deployment asks for it."""

    def __init__(self, cluster: Cluster, rest: Rest, starter: _Starter, *, version: str) -> None:
        self._cluster, self._rest, self._starter = cluster, rest, starter
        self._image = f"{IMAGE}:v{version}"
        self._running: str | None = None
        self._home = cluster.home("kueue")

    async def run(self) -> None:
        """Serve the way to Kueue's webhooks, and look at the Deployment again and again, until cancelled."""
        async with self._rest, egress.serve(self._cluster.home("apiserver") / "egress", self._port_of):
            while True:
                try:
                    await self._look()
                except Exception:  # the API server may be away for any reason, and comes back
                    log.exception("Kueue's Deployment on %s could not be looked after", self._cluster.key)
                await asyncio.sleep(LOOK)

    async def stop(self) -> None:
        """End Kueue, whatever the Deployment says."""
        if self._running is not None:
            self._running = None
            await self._starter.end(f"{self._cluster.key}-kueue")
        shutil.rmtree(self._home, ignore_errors=True)

    async def _look(self) -> None:
        status, deployment = await self._rest.request("GET", _DEPLOYMENT)
        if status == 404:
            await self.stop()
            return
        if status != 200:
            return
        template = deployment["spec"]["template"]
        digest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()
        image = template["spec"]["containers"][0]["image"]
        if image != self._image:
            await self.stop()
            await self._report(deployment, ready=False, why=f'Failed to pull image "{image}": there is {self._image}.')
            return
        if digest != self._running:
            await self._start(digest, template)
        await self._mount_certificate()
        await self._report(deployment, ready=await self._ready(), why="Kueue is not ready.")

    async def _start(self, digest: str, template: Object) -> None:
        import yaml

        status, config_map = await self._rest.request("GET", f"{_CORE}/configmaps/kueue-manager-config")
        if status != 200:
            return  # as a pod whose volume is not there yet
        await self.stop()
        configuration = yaml.safe_load(config_map["data"][CONFIG_KEY])
        arguments = [each for each in template["spec"]["containers"][0].get("args", []) if "--config" not in each]
        await self._starter.start([self._cluster.installed_kueue(configuration, arguments)])
        self._running = digest

    async def _mount_certificate(self) -> None:
        status, secret = await self._rest.request("GET", f"{_CORE}/secrets/kueue-webhook-server-cert")
        data = secret.get("data") or {}
        if status == 200 and data.get("tls.crt"):
            for name, text in data.items():
                path = self._home / "webhook" / name
                content = base64.b64decode(text).decode()
                if not path.exists() or path.read_text() != content:
                    write_private(path, content)

    async def _ready(self) -> bool:
        import aiohttp

        url = f"http://127.0.0.1:{self._cluster.ports.health}/readyz"
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return answer.status == 200
        except (OSError, aiohttp.ClientError):
            return False

    async def _report(self, deployment: Object, *, ready: bool, why: str) -> None:
        count = int(ready)
        condition = {"type": "Available", "status": "True" if ready else "False", "reason": "Sandbox"}
        condition["message"] = "Kueue is ready." if ready else why
        status = {
            "observedGeneration": deployment["metadata"]["generation"],
            "replicas": 1,
            "updatedReplicas": 1,
            "readyReplicas": count,
            "availableReplicas": count,
            "conditions": [condition],
        }
        now = deployment.get("status", {})
        said = [{key: each.get(key) for key in condition} for each in now.get("conditions", [])]
        if {**now, "conditions": said} != {
            **now,
            **{k: v for k, v in status.items() if v != 0},
            "conditions": [condition],
        }:
            patch = {"status": status}
            await self._rest.request("PATCH", f"{_DEPLOYMENT}/status", patch, kind="application/merge-patch+json")

    async def _port_of(self, address: str) -> int | None:
        """Return the port on loopback of the program behind a service."""
        with contextlib.suppress(Exception):
            _, services = await self._rest.request("GET", "/api/v1/services")
            for each in services.get("items", []):
                if each["spec"].get("clusterIP") == address and each["metadata"]["name"] == "kueue-webhook-service":
                    return self._cluster.ports.webhook
        return None
