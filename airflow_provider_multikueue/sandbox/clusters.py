"""How each program of a fleet is started: command lines, certificates, configuration files.

Everything listens on loopback with TLS and asks for credentials that are made anew at each start.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from airflow_provider_multikueue.sandbox.binaries import Binaries
from airflow_provider_multikueue.sandbox.files import write_private
from airflow_provider_multikueue.sandbox.job_kinds import Controller
from airflow_provider_multikueue.sandbox.manifests import NAMESPACE, SERVICE_ACCOUNT
from airflow_provider_multikueue.sandbox.pki import Authority, Pair, ServerTls, kubeconfig, signing_key
from airflow_provider_multikueue.sandbox.services import Program

__all__ = ["PORTS_OF_CLUSTER", "PORTS_OF_CONTROLLER", "Cluster", "ControllerPorts", "Etcd", "Ports"]

PORTS_OF_CLUSTER = 5
PORTS_OF_CONTROLLER = 2
KUEUE_CERTIFICATE = "kueue-webhook-service.kueue-system.svc"

# What jobs, their pods and their clean-up need; a fleet without services, volumes and certificates is smaller.
_CONTROLLERS = (
    "job-controller",
    "namespace-controller",
    "garbage-collector-controller",
    "pod-garbage-collector-controller",
    "ttl-after-finished-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",
    "clusterrole-aggregation-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
)
# Collecting garbage less often takes a third off the time to start; the limit keeps that from costing memory for good.
_THRIFT = {"GOGC": "800", "GOMEMLIMIT": "500MiB"}
_NO_ADMISSION = ("DefaultStorageClass", "StorageObjectInUseProtection", "PersistentVolumeClaimResize")


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports on loopback of one cluster; ``controllers`` are those of its jobs' controllers, by their names."""

    api: int
    webhook: int
    metrics: int
    health: int
    kubelet: int
    controllers: Mapping[str, ControllerPorts] = field(default_factory=dict)

    @classmethod
    def take(cls, free: list[int], controllers: Iterable[str]) -> Self:
        """Return the ports of a cluster, taken from ``free``."""
        names = ("api", "webhook", "metrics", "health", "kubelet")
        ports = {name: ControllerPorts(free.pop(), free.pop()) for name in controllers}
        return cls(**{name: free.pop() for name in names}, controllers=ports)


@dataclass(frozen=True, slots=True)
class ControllerPorts:
    """The ports on loopback of a controller of jobs."""

    webhook: int
    health: int


class Etcd:
    """The one etcd that holds all clusters, each below a prefix.

    It listens on sockets in the sandbox's private folder: safer than ports, and cheaper than TLS, since each API server
    opens a connection for each kind of object. Programs name them relative to where they run, as the names of sockets
    must be short.
    """

    url = "unix://../etcd/client:0"

    def __init__(self, folder: Path, binaries: Binaries) -> None:
        self.program = Program(
            name="etcd",
            log=folder / "logs" / "etcd.log",
            folder=folder / "run" / "etcd",
            command=[
                str(binaries.program("etcd")),
                "--name=sandbox",
                "--data-dir=data",
                "--unsafe-no-fsync",  # the data does not survive the fleet anyway
                "--auto-compaction-retention=5m",
                "--quota-backend-bytes=4294967296",
                "--listen-client-urls=unix://client:0",
                "--advertise-client-urls=unix://client:0",
                "--listen-peer-urls=unix://peer:0",
                "--initial-advertise-peer-urls=unix://peer:0",
                "--initial-cluster=sandbox=unix://peer:0",
                "--log-level=warn",
            ],
        )

    @staticmethod
    async def forget(folder: Path, key: str) -> None:
        """Delete all that a cluster has kept."""
        import aiohttp

        def text(key: str) -> str:
            return base64.b64encode(key.encode()).decode()

        home = os.open(folder / "run" / "etcd", os.O_PATH | os.O_DIRECTORY)
        try:
            connector = aiohttp.UnixConnector(f"/proc/self/fd/{home}/client:0")
            async with aiohttp.ClientSession(connector=connector, raise_for_status=True) as session:
                # All keys that begin with the cluster's own, up to the character after the slash.
                body = {"key": text(f"/{key}/"), "range_end": text(f"/{key}0")}
                await session.post("http://etcd/v3/kv/deleterange", json=body)
        finally:
            os.close(home)


class Cluster:
    """One cluster of the fleet: an API server, its controllers and scheduler, and Kueue."""

    def __init__(self, key: str, *, context: str, folder: Path, binaries: Binaries, ports: Ports) -> None:
        self.key, self.context, self.ports = key, context, ports
        self.server = f"https://127.0.0.1:{ports.api}"
        self._root, self._binaries = folder, binaries
        self._pki = folder / "pki" / key
        self._authority = Authority(f"{key}-ca", self._pki)
        self._kubelet_clients = Authority(f"{key}-kubelet-client-ca", self._pki / "kubelet-clients")
        self.authority = self._authority.pair.certificate
        self.admin = self._authority.client("admin", "sandbox-admin", groups=["system:masters"])
        self._signing_key = signing_key(self._pki / "service-account.key")

    def home(self, program: str) -> Path:
        """Return the folder that a program of this cluster runs in."""
        return self._root / "run" / f"{self.key}-{program}"

    def kubelet_tls(self) -> ServerTls:
        """Issue what the node agent serves pods' logs with, to the API server and to nobody else."""
        pair, clients = self._authority.server("kubelet-server"), self._kubelet_clients.pair.certificate
        return ServerTls(certificate=pair.certificate, key=pair.key, client_authority=clients)

    def admin_kubeconfig(self) -> dict[str, Any]:
        """Return a kubeconfig with all rights."""
        return kubeconfig(server=self.server, authority=self.authority, context=self.context, pair=self.admin)

    def token_kubeconfig(self, token: str) -> dict[str, Any]:
        """Return a kubeconfig for the holder of ``token``."""
        return kubeconfig(server=self.server, authority=self.authority, context=self.context, token=token)

    def api_server(self, *extra: str) -> Program:
        """Return how to start the API server, with what a fleet wants besides."""
        serving = self._authority.server("apiserver", names=["kubernetes.default.svc", "kubernetes.default"])
        kubelet = self._kubelet_clients.client("client", "kube-apiserver")
        return self._program(
            "kube-apiserver",
            f"--etcd-servers={Etcd.url}",
            "--etcd-count-metric-poll-period=0",
            "--etcd-db-metric-poll-interval=0",
            f"--etcd-prefix=/{self.key}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",  # it would publish the address, and a loopback one is refused
            f"--secure-port={self.ports.api}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--client-ca-file={self.authority}",
            "--authorization-mode=Node,RBAC",
            f"--disable-admission-plugins={','.join(_NO_ADMISSION)}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._signing_key}",
            f"--service-account-signing-key-file={self._signing_key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--kubelet-client-certificate={kubelet.certificate}",
            f"--kubelet-client-key={kubelet.key}",
            f"--kubelet-certificate-authority={self.authority}",
            "--kubelet-preferred-address-types=InternalIP",
            "--enable-priority-and-fairness=false",
            "--profiling=false",
            *extra,
        )

    def controller_manager(self) -> Program:
        """Return how to start the controllers of Kubernetes."""
        return self._program(
            "kube-controller-manager",
            f"--kubeconfig={self._kubeconfig('controller-manager', 'system:kube-controller-manager')}",
            f"--controllers={','.join(_CONTROLLERS)}",
            f"--service-account-private-key-file={self._signing_key}",
            f"--root-ca-file={self.authority}",
            "--leader-elect=false",
            "--secure-port=0",
            "--profiling=false",
            "--use-service-account-credentials=true",
            "--kube-api-qps=100",
            "--kube-api-burst=200",
        )

    def scheduler(self) -> Program:
        """Return how to start the scheduler."""
        return self._program(
            "kube-scheduler",
            f"--kubeconfig={self._kubeconfig('scheduler', 'system:kube-scheduler')}",
            "--leader-elect=false",
            "--secure-port=0",
            "--profiling=false",
        )

    def kueue(self, shipped: dict[str, Any], overrides: dict[str, Any], webhook: Pair) -> Program:
        """Return how to start Kueue with its shipped configuration, changed by ``overrides`` and for loopback."""
        home = self._root / "run" / f"{self.key}-kueue"
        for name, text in zip(("tls.crt", "tls.key"), webhook.texts, strict=True):
            write_private(home / "webhook" / name, text)
        ours = self._kueue_configuration(home, {"enableClusterQueueResources": True})
        configuration = shipped | ours | overrides
        write_private(home / "configuration.json", json.dumps(configuration))
        user = f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}")
        return self._program(
            "kueue",
            "--config=configuration.json",
            f"--kubeconfig={self._kubeconfig('kueue', user, *groups)}",
            # Its server for pending workloads is of no use here: there is no aggregated API.
            "--feature-gates=VisibilityOnDemand=false",
            "--zap-log-level=2",
        )

    def installed_kueue(self, configuration: dict[str, Any], arguments: Iterable[str]) -> Program:
        """Return how to start a Kueue that somebody else installed, so configured, but for what loopback needs."""
        home = self.home("kueue")
        ours = self._kueue_configuration(home, configuration.get("metrics", {}))
        write_private(home / "configuration.json", json.dumps(configuration | ours))
        user = f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}")
        return self._program(
            "kueue",
            "--config=configuration.json",
            f"--kubeconfig={self._kubeconfig('kueue', user, *groups)}",
            *arguments,
            "--feature-gates=VisibilityOnDemand=false",  # it would need a folder at the root of the file system
        )

    def job_controller(self, controller: Controller, webhook: Pair) -> Program:
        """Return how to start a controller of jobs; on the manager it leaves to MultiKueue what that manages."""
        home = self._root / "run" / f"{self.key}-{controller.program}"
        for name, text in zip(("tls.crt", "tls.key"), webhook.texts, strict=True):
            write_private(home / "webhook" / name, text)
        ports = self.ports.controllers[controller.program]
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{controller.account.partition(':')[0]}")
        access = self._kubeconfig(controller.program, controller.user, *groups)
        prepare = {"jobset": _jobset_arguments, "training-operator": _training_arguments}[controller.program]
        return self._program(controller.program, f"--kubeconfig={access}", *prepare(home, ports))

    def _kueue_configuration(self, home: Path, metrics: dict[str, Any]) -> dict[str, Any]:
        ports = self.ports
        return {
            "health": {"healthProbeBindAddress": f"127.0.0.1:{ports.health}"},
            "metrics": {**metrics, "bindAddress": f"127.0.0.1:{ports.metrics}"},
            "webhook": {"host": "127.0.0.1", "port": ports.webhook, "certDir": str(home / "webhook")},
            "leaderElection": {"leaderElect": False},
        }

    def _kubeconfig(self, file: str, user: str, *groups: str) -> Path:
        pair = self._authority.client(file, user, groups=groups)
        content = kubeconfig(server=self.server, authority=self.authority, context=self.context, pair=pair)
        return write_private(self._pki / f"{file}.kubeconfig", json.dumps(content))

    def _program(self, name: str, *arguments: str) -> Program:
        full = f"{self.key}-{name.removeprefix('kube-')}"
        return Program(
            environment=_THRIFT,
            name=full,
            command=[str(self._binaries.program(name)), *arguments],
            log=self._root / "logs" / f"{full}.log",
            folder=self._root / "run" / full,
        )


def _jobset_arguments(home: Path, ports: ControllerPorts) -> list[str]:
    configuration = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{ports.health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": ports.webhook, "certDir": str(home / "webhook")},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }
    write_private(home / "configuration.json", json.dumps(configuration))
    return ["--config=configuration.json", "--zap-log-level=info"]


def _training_arguments(home: Path, ports: ControllerPorts) -> list[str]:
    # A worker would look its master up by name first, and there is no name service here.
    nothing = write_private(home / "init-containers.yaml", "[]")
    return [
        f"--cert-dir={home / 'webhook'}",
        f"--webhook-port={ports.webhook}",
        f"--health-probe-bind-address=127.0.0.1:{ports.health}",
        f"--pytorch-init-container-template-file={nothing}",
    ]
