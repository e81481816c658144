"""Makes a fleet out of nothing: certificates, programs, Kueue's installation, queues, and how to reach it all.

All clusters come up side by side. Each step starts as soon as what it needs is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_multikueue.sandbox import egress, manifests, objects
from airflow_provider_multikueue.sandbox.access import KUBECONFIG, access_files
from airflow_provider_multikueue.sandbox.bare import POD_MONITORING, KueueNode, write_accounts
from airflow_provider_multikueue.sandbox.binaries import Binaries
from airflow_provider_multikueue.sandbox.clusters import (
    KUEUE_CERTIFICATE,
    PORTS_OF_CLUSTER,
    PORTS_OF_CONTROLLER,
    Cluster,
    Etcd,
    Ports,
)
from airflow_provider_multikueue.sandbox.files import write_private
from airflow_provider_multikueue.sandbox.fleet_file import FLEET_FILE, RELEASE, fleet_file
from airflow_provider_multikueue.sandbox.job_kinds import chosen, installation, point_webhooks
from airflow_provider_multikueue.sandbox.pki import Authority
from airflow_provider_multikueue.sandbox.ports import claim_ports
from airflow_provider_multikueue.sandbox.release import release
from airflow_provider_multikueue.sandbox.rest import Rest, until
from airflow_provider_multikueue.sandbox.services import Program
from airflow_provider_multikueue.sandbox.spec import MANAGER, FleetSpec, Worker

__all__ = ["BringUp"]

Object = dict[str, Any]

_PATIENCE = 120.0


class _Starter(Protocol):
    async def start(self, programs: Iterable[Program]) -> None: ...
    async def end(self, name: str) -> None: ...
    def say(self, text: str) -> None: ...


class BringUp:
    """One start of a fleet in ``folder``, its programs handed to ``starter``."""

    def __init__(self, folder: Path, spec: FleetSpec, binaries: Binaries, starter: _Starter) -> None:
        self._folder, self._spec, self._binaries, self._starter = folder, spec, binaries, starter
        self._bundle: Object = manifests.bundle(
            kueue=binaries.manifests("kueue"), autoscaler=binaries.manifests("autoscaler")
        )
        # The one program that reads only the older form of RSA keys is the part of Kueue that checks its certificate.
        self._kueue_authority = Authority("kueue-ca", folder / "pki" / "kueue", classic=True)
        self._webhook = self._kueue_authority.server("webhook", names=[KUEUE_CERTIFICATE])
        self._kueue_overrides = objects.kueue_configuration(spec)
        self._kinds = chosen(spec.kinds)
        self._installations = [
            installation(kinds, binaries.manifests(kinds.name)) for kinds in self._kinds if kinds.definitions
        ]
        self._clusters: dict[str, Cluster] = {}
        self._kueue_nodes: dict[str, tuple[KueueNode, asyncio.Task[None]]] = {}
        self._emptying = asyncio.Lock()
        self._accounts = write_accounts(folder) if spec.bare else None

    async def run(self) -> None:
        """Return when a job that is submitted to the manager would run; when all answer, if they are to be bare."""
        self._clusters = clusters = await self._start_servers()
        if self._spec.bare:
            await self._leave_bare(clusters)
            return
        async with asyncio.TaskGroup() as tasks:
            manager = tasks.create_task(self._install(clusters[MANAGER]))
            workers = [
                tasks.create_task(self._worker(worker, clusters[worker.region])) for worker in self._spec.workers
            ]
        self._starter.say("all clusters run Kueue")
        await self._start_agent(clusters)
        await self._join(clusters, [task.result() for task in workers])
        manager.result()
        await asyncio.gather(*(self._until_nodes(clusters[worker.region]) for worker in self._spec.workers))
        access_files(self._folder, self._spec, clusters)

    async def _leave_bare(self, clusters: dict[str, Cluster]) -> None:
        await asyncio.gather(*map(self._make_bare, clusters.values()))
        await self._start_agent(clusters)
        await asyncio.gather(*(self._until_nodes(clusters[worker.region]) for worker in self._spec.workers))
        access_files(self._folder, self._spec, clusters)
        content = fleet_file(self._spec, self._folder / KUBECONFIG)
        write_private(self._folder / FLEET_FILE, json.dumps(content, indent=1))
        kueue = release(self._bundle, kueue=self._binaries.manifests("kueue"), version=self._spec.kueue)
        write_private(self._folder / RELEASE, "\n---\n".join(json.dumps(each) for each in kueue))

    async def _make_bare(self, cluster: Cluster) -> None:
        """Return when a cluster answers that has all that a cloud gives it, and someone who would run Kueue."""
        async with self._rest(cluster) as rest:
            await until(rest.ready, seconds=_PATIENCE, what=f"The API server of {cluster.key} did not become ready")
            asked = [each for each in self._bundle["definitions"] if each["spec"]["group"] == "autoscaling.x-k8s.io"]
            await rest.create([*asked, POD_MONITORING])
            await self._until_served(rest, [*asked, POD_MONITORING], cluster)
        await self._starter.start([cluster.controller_manager(), cluster.scheduler()])
        node = KueueNode(cluster, self._rest(cluster), self._starter, version=self._spec.kueue)
        self._kueue_nodes[cluster.key] = (node, asyncio.create_task(node.run()))

    async def empty(self, key: str) -> None:
        """Make a bare cluster anew, as if it had been deleted and created: nothing of what it had is left."""
        cluster = self._clusters[key]
        async with self._emptying:
            if key != MANAGER:  # only regions have nodes, and those of the new cluster are to be the new agent's
                await self._starter.end("agent")
            node, running = self._kueue_nodes.pop(key)
            running.cancel()
            await asyncio.wait([running])
            await node.stop()
            for program in ("scheduler", "controller-manager", "apiserver"):
                await self._starter.end(f"{key}-{program}")
            await Etcd.forget(self._folder, key)
            await self._starter.start([self._api_server(cluster)])
            await self._make_bare(cluster)
            if key != MANAGER:
                await self._start_agent(self._clusters)
                await self._until_nodes(cluster)

    def _api_server(self, cluster: Cluster) -> Program:
        if not self._spec.bare:
            return cluster.api_server()
        selector = egress.configuration(self._folder / "pki" / cluster.key)
        return cluster.api_server(f"--egress-selector-config-file={selector}", f"--token-auth-file={self._accounts}")

    async def namespace(self, name: str) -> None:
        """Make the namespace ``name`` with a queue on all clusters."""

        async def make(cluster: Cluster) -> None:
            async with self._rest(cluster) as rest:
                await rest.create([objects.namespace(name)])
                await rest.create([objects.queue(objects.LOCAL_QUEUE, name)])

        await asyncio.gather(*map(make, self._clusters.values()))

    async def forget_namespace(self, name: str) -> None:
        """Delete the namespace ``name``, and what is in it, on all clusters, the manager first."""
        for cluster in self._clusters.values():
            async with self._rest(cluster) as rest:
                await rest.request("DELETE", f"/api/v1/namespaces/{name}")

    async def _start_servers(self) -> dict[str, Cluster]:
        keys = self._spec.clusters
        controllers = [kinds.controller.program for kinds in self._kinds if kinds.controller]
        count = (PORTS_OF_CLUSTER + PORTS_OF_CONTROLLER * len(controllers)) * len(keys)
        ports = claim_ports(self._folder, count)
        await self._starter.start([Etcd(self._folder, self._binaries).program])
        contexts = {worker.region: worker.context for worker in self._spec.workers} | {
            MANAGER: self._spec.manager_context
        }
        clusters = {}
        for key in keys:
            clusters[key] = Cluster(
                key,
                context=contexts[key],
                folder=self._folder,
                binaries=self._binaries,
                ports=Ports.take(ports, controllers),
            )
            await self._starter.start([self._api_server(clusters[key])])
        self._starter.say(f"started etcd and {len(keys)} API servers")
        return clusters

    async def _install(self, cluster: Cluster) -> None:
        """Return when the cluster's Kueue is ready."""
        async with self._rest(cluster) as rest:
            await until(rest.ready, seconds=_PATIENCE, what=f"The API server of {cluster.key} did not become ready")
            definitions, rest_of_it = manifests.render(
                self._bundle,
                url=f"https://127.0.0.1:{cluster.ports.webhook}",
                authority=self._kueue_authority.pair.certificate.read_bytes(),
                managed=["pods"] if "pod" in self._spec.kinds else (),
            )
            definitions += [each for installed in self._installations for each in installed["definitions"]]
            await rest.create([objects.namespace(manifests.NAMESPACE), *definitions])
            secret = objects.kueue_certificate_secret(self._kueue_authority.pair, self._webhook)
            await rest.create([secret, *(each for each in rest_of_it if "webhooks" not in each)])
            await self._until_served(rest, definitions, cluster)
            kueue = cluster.kueue(self._bundle["configuration"], self._kueue_overrides, self._webhook)
            await self._starter.start([kueue, cluster.controller_manager(), cluster.scheduler()])
            await self._install_controllers(cluster, rest)
            # The webhooks come last: until Kueue listens, they would refuse everything.
            await self._until_ready(cluster, "Kueue", cluster.ports.health)
            await rest.create([each for each in rest_of_it if "webhooks" in each])

    async def _install_controllers(self, cluster: Cluster, rest: Rest) -> None:
        """Return when the cluster's controllers of further kinds of jobs are ready."""
        controllers = [kinds.controller for kinds in self._kinds if kinds.controller]
        await rest.create(each for installed in self._installations for each in installed["rights"])
        await self._starter.start(cluster.job_controller(each, self._webhook) for each in controllers)
        for kinds, installed in zip((k for k in self._kinds if k.definitions), self._installations, strict=True):
            if kinds.controller is None:
                continue
            ports = cluster.ports.controllers[kinds.controller.program]
            await self._until_ready(cluster, kinds.controller.program, ports.health)
            authority = self._kueue_authority.pair.certificate.read_bytes()
            url = f"https://127.0.0.1:{ports.webhook}"
            await rest.create(point_webhooks(installed["webhooks"], url=url, authority=authority))

    async def _until_served(self, rest: Rest, definitions: Iterable[Object], cluster: Cluster) -> None:
        for each in definitions:
            version = next(version["name"] for version in each["spec"]["versions"] if version["storage"])
            path = f"/apis/{each['spec']['group']}/{version}/{each['spec']['names']['plural']}?limit=1"

            async def served(path: str = path) -> bool:
                status, _ = await rest.request("GET", path)
                return status == 200

            await until(served, seconds=_PATIENCE, what=f"{cluster.key} did not serve {each['metadata']['name']}")

    async def _until_ready(self, cluster: Cluster, what: str, port: int) -> None:
        import aiohttp

        async def ready() -> bool:
            try:
                async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
                    return answer.status == 200
            except (OSError, aiohttp.ClientError):
                return False

        async with aiohttp.ClientSession() as session:
            await until(ready, seconds=_PATIENCE, what=f"{what} of {cluster.key} did not become ready")

    async def _worker(self, worker: Worker, cluster: Cluster) -> list[Object]:
        """Return what to tell the manager of a worker that is ready for its jobs."""
        await self._install(cluster)
        async with self._rest(cluster) as rest:
            await rest.create([*objects.worker_access(self._spec), *objects.worker_objects(self._spec)])
            path = f"/api/v1/namespaces/{manifests.NAMESPACE}/serviceaccounts/{objects.MULTIKUEUE_ACCOUNT}/token"
            _, answer = await rest.request("POST", path, {"spec": {"expirationSeconds": 365 * 86400}})
        return objects.manager_cluster(worker, cluster.token_kubeconfig(answer["status"]["token"]))

    async def _join(self, clusters: dict[str, Cluster], workers: list[list[Object]]) -> None:
        async with self._rest(clusters[MANAGER]) as rest:
            joined = [each for worker in workers for each in worker]
            await rest.create([*joined, *objects.manager_objects(self._spec)])
            for each in joined:
                if each["kind"] == "MultiKueueCluster":
                    await self._until_active(rest, each)
            queue = objects.manager_objects(self._spec)
            await self._until_active(rest, next(each for each in queue if each["kind"] == "ClusterQueue"))

    async def _until_active(self, rest: Rest, each: Object) -> None:
        async def active() -> bool:
            conditions = (await rest.get(each)).get("status", {}).get("conditions", [])
            return any(condition["type"] == "Active" and condition["status"] == "True" for condition in conditions)

        await until(
            active, seconds=_PATIENCE, what=f"The {each['kind']} {each['metadata']['name']} did not become active"
        )

    async def _until_nodes(self, cluster: Cluster) -> None:
        async def ready() -> bool:
            _, answer = await rest.request("GET", "/api/v1/nodes")
            states = [each["status"].get("conditions", []) for each in answer.get("items", [])]
            good = [any(each["type"] == "Ready" and each["status"] == "True" for each in state) for state in states]
            return sum(good) == self._spec.nodes

        async with self._rest(cluster) as rest:
            await until(ready, seconds=_PATIENCE, what=f"The nodes of {cluster.key} did not become ready")

    async def _start_agent(self, clusters: dict[str, Cluster]) -> None:
        workers = []
        for worker in self._spec.workers:
            cluster = clusters[worker.region]
            kubelet = cluster.kubelet_tls()
            access = json.dumps(cluster.admin_kubeconfig())
            workers.append(
                {
                    "region": worker.region,
                    "zones": worker.zones,
                    "gpus": self._spec.gpus,
                    "nodes": self._spec.nodes,
                    "kubeconfig": str(write_private(self._folder / "pki" / worker.region / "agent.kubeconfig", access)),
                    "certificate": str(kubelet.certificate),
                    "key": str(kubelet.key),
                    "client_authority": str(kubelet.client_authority),
                    "port": cluster.ports.kubelet,
                    "state_dir": str(self._folder / "run" / "nodes" / worker.region),
                }
            )
        kinds = [each.name for each in self._kinds]
        configuration = {"socket": str(self._folder / "agent.sock"), "workers": workers, "kinds": kinds}
        path = write_private(self._folder / "pki" / "agent.json", json.dumps(configuration))
        command = [sys.executable, "-m", "airflow_provider_multikueue.sandbox.agent", str(path)]
        log, home = self._folder / "logs" / "agent.log", self._folder / "run" / "agent"
        paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        await self._starter.start([Program(name="agent", command=command, log=log, folder=home, environment=paths)])

    def _rest(self, cluster: Cluster) -> Rest:
        return Rest(server=cluster.server, authority=cluster.authority, pair=cluster.admin)
