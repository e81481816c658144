"""GKE on this machine: the real API, by gRPC and TLS under Google's own name, whose clusters are a bare sandbox's.

Clients need no change: their environment leads them here (`GkeCloud.environment`), through a proxy, as companies do it,
and names the authority that vouches for the server. A cluster that is deleted is wiped before it can be had again.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socketserver
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
from google.cloud import container_v1 as gke
from google.rpc import code_pb2, status_pb2

from airflow_provider_multikueue.sandbox.api import Sandbox
from airflow_provider_multikueue.sandbox.pki import Authority
from tests.unit.gkeserver import GkeServer, method

HOST = "container.googleapis.com"
PROJECT = "team"

Status = gke.Cluster.Status


@dataclass
class GkeCloud(GkeServer):
    """The clusters of the bare sandbox, each to be had by the name of its context, in its region."""

    sandbox: Sandbox = field(kw_only=True)
    seconds: float = 6.0
    """How long an operation takes at least: real ones take minutes.

    Airflow's scheduler fails a deferred task that runs again before it has noticed that the process which deferred it
    ended (apache/airflow#72716), and processes with Google's libraries take seconds to end.
    """
    refused: dict[str, tuple[grpc.StatusCode, str]] = field(default_factory=dict)
    """How GKE answers to the creation of a cluster of that name."""
    half_made: dict[str, str] = field(default_factory=dict)
    """Why clusters of that name are of status ERROR when their creation has ended."""
    operations: dict[str, gke.Operation] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Leads Google's libraries here; known while it runs."""
    connection: dict[str, Any] = field(default_factory=dict)
    """An Airflow connection for Google's provider, and ours."""
    _working: list[threading.Thread] = field(default_factory=list)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def create(self, request: gke.CreateClusterRequest, context: grpc.ServicerContext) -> gke.Operation:
        """Begin to make a cluster."""
        asked = request.cluster
        name = f"{request.parent}/clusters/{asked.name}"
        self._enter(f"create {name}", context)
        with self._lock:
            if name in self.clusters:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, f"Already exists: {name}.")
            if asked.name in self.refused:
                context.abort(*self.refused[asked.name])
            server, authority = self._stock(asked.name, context)
            cluster = self.add(name, server, authority)
            cluster.resource_labels = dict(asked.resource_labels)
            cluster.status = Status.PROVISIONING
            return self._begin_operation("CREATE_CLUSTER", name, lambda operation: self._made(cluster, operation))

    def delete(self, request: gke.DeleteClusterRequest, context: grpc.ServicerContext) -> gke.Operation:
        """Begin to delete a cluster."""
        self._enter(f"delete {request.name}", context)
        with self._lock:
            cluster = self.get(request, context)
            for each in self.operations.values():
                if each.target_link == cluster.self_link and each.status == gke.Operation.Status.RUNNING:
                    said = f"Cluster is running incompatible operation {each.name}."
                    context.abort(grpc.StatusCode.FAILED_PRECONDITION, said)
            cluster.status = Status.STOPPING
            return self._begin_operation("DELETE_CLUSTER", request.name, lambda _: self._wipe(request.name))

    def operation(self, request: gke.GetOperationRequest, context: grpc.ServicerContext) -> gke.Operation:
        """Return how far an operation is."""
        self._enter(f"operation {request.name}", context)
        name = request.name.rpartition("/")[2]
        if name not in self.operations:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Not found: {request.name}.")
        return self.operations[name]

    def list_operations(
        self, request: gke.ListOperationsRequest, context: grpc.ServicerContext
    ) -> gke.ListOperationsResponse:
        """Return all operations."""
        self._enter(f"operations {request.parent}", context)
        return gke.ListOperationsResponse(operations=list(self.operations.values()))

    def names(self) -> list[str]:
        """Return the clusters that there are, by their short names."""
        return sorted(name.rpartition("/")[2] for name in self.clusters)

    def clear(self) -> None:
        """Delete what a test has left, when all that goes on has ended."""
        self.refused.clear()
        self.half_made.clear()
        for thread in self._working:
            thread.join()
        for name in list(self.clusters):
            self._wipe(name)

    # -- what happens meanwhile

    def _begin_operation(self, kind: str, name: str, work: Any) -> gke.Operation:
        _, project, _, location, *_ = name.split("/")
        operation = gke.Operation(
            name=f"operation-{uuid.uuid4()}",
            operation_type=kind,
            status="RUNNING",
            location=location,
            target_link=self.clusters[name].self_link,
            progress={"metrics": [{"name": "CLUSTER_CONFIGURING", "int_value": 0}]},
        )
        operation.self_link = f"https://{HOST}/v1/projects/{project}/locations/{location}/operations/{operation.name}"
        self.operations[operation.name] = operation
        thread = threading.Thread(target=self._work, args=(operation, work))
        self._working.append(thread)
        thread.start()
        return operation

    def _work(self, operation: gke.Operation, work: Any) -> None:
        threading.Event().wait(self.seconds)
        operation.progress.metrics[0].int_value = 50
        work(operation)
        operation.status = gke.Operation.Status.DONE

    def _made(self, cluster: gke.Cluster, operation: gke.Operation) -> None:
        if reason := self.half_made.get(cluster.name):
            operation.error = status_pb2.Status(code=code_pb2.RESOURCE_EXHAUSTED, message=reason)
            cluster.status, cluster.status_message = Status.ERROR, reason
        else:
            cluster.status = Status.RUNNING

    def _wipe(self, name: str) -> None:
        short = name.rpartition("/")[2]
        self.sandbox.empty("manager" if short.startswith("manager-") else short.removeprefix("worker-"))
        del self.clusters[name]

    def _stock(self, name: str, context: grpc.ServicerContext) -> tuple[str, bytes]:
        for each in json.loads(self.sandbox.kubeconfig.read_text())["clusters"]:
            if each["name"] == name:
                cluster = each["cluster"]
                address = urlsplit(cluster["server"]).netloc
                return address, base64.b64decode(cluster["certificate-authority-data"])
        said = f"Insufficient regional quota to satisfy request: there is no {name}."
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, said)
        raise AssertionError(name)

    # -- how it is reached

    def _enter(self, call: str, context: grpc.ServicerContext) -> None:
        self._begin(call, context)
        if not dict(context.invocation_metadata()).get("authorization", "").startswith("Bearer "):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "Request had no credentials.")

    @contextmanager
    def running(self, folder: Path) -> Iterator[GkeCloud]:
        """Serve until the end of the block; ``folder`` gets certificates and a key file."""
        with super().running(folder), _Proxy(("127.0.0.1", 0), _Tunnel) as proxy:
            proxy.target = ("127.0.0.1", int(self.address.rpartition(":")[2]))
            thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            self.environment = {
                "grpc_proxy": f"http://127.0.0.1:{proxy.server_address[1]}",
                "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(folder / "gke-authority/ca.crt"),
            }
            extra = {"project": PROJECT, "key_path": str(folder / "key.json")}
            self.connection = {"conn_type": "google_cloud_platform", "extra": extra}
            try:
                yield self
            finally:
                self.clear()
                proxy.shutdown()
                thread.join()

    def _open(self, server: grpc.Server, folder: Path) -> None:
        pair = Authority("gke-ca", folder / "gke-authority").server("gke", names=[HOST])
        certificate, key = pair.texts
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key, certificate)]))
        self.address = f"https://127.0.0.1:{port}"

    def _methods(self) -> dict[str, grpc.RpcMethodHandler]:
        return {
            **super()._methods(),
            "CreateCluster": method(self.create, gke.CreateClusterRequest, gke.Operation),
            "DeleteCluster": method(self.delete, gke.DeleteClusterRequest, gke.Operation),
            "GetOperation": method(self.operation, gke.GetOperationRequest, gke.Operation),
            "ListOperations": method(self.list_operations, gke.ListOperationsRequest, gke.ListOperationsResponse),
        }


class _Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True
    target = ("127.0.0.1", 0)


class _Tunnel(socketserver.StreamRequestHandler):
    """Lets CONNECT to GKE's API through, and nothing else."""

    server: _Proxy

    def handle(self) -> None:
        """Pass bytes on in both directions until either side ends."""
        import socket

        asked = self.rfile.readline().decode().split()
        while self.rfile.readline() not in (b"\r\n", b""):
            pass
        if asked[:2] != ["CONNECT", f"{HOST}:443"]:
            self.wfile.write(b"HTTP/1.1 403 This way leads to GKE alone\r\nContent-Length: 0\r\n\r\n")
            return
        with socket.create_connection(self.server.target) as there:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_pass_on, args=(there, self.connection), daemon=True)
            back.start()
            _pass_on(self.connection, there)
            back.join()


def _pass_on(one: Any, other: Any) -> None:
    import socket

    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_WR)
