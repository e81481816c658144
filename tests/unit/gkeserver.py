"""GKE's ClusterManager API and Google's token endpoint, as far as clients of clusters need them, on loopback."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import grpc
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.cloud import container_v1 as gke

from airflow_provider_multikueue.sandbox.pki import Pair

SERVICE = "google.container.v1.ClusterManager"
ACCOUNT = "airflow@team.iam.gserviceaccount.com"


@dataclass
class GkeServer:
    """A project's clusters by resource name; what a test changes holds for the next call."""

    clusters: dict[str, gke.Cluster] = field(default_factory=dict)
    refusal: tuple[grpc.StatusCode, str] | None = None
    calls: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    """The credentials of each call."""
    tokens: Callable[[str], str] = lambda _: f"ya29.{time.monotonic_ns()}"
    """The next token of an account."""
    lifetime: int = 3600
    token_status: int = 200
    grants: list[dict[str, Any]] = field(default_factory=list)
    address: str = ""
    tls_port: int = 0
    token_uri: str = ""

    def add(self, name: str, endpoint: str, authority: bytes = b"", **fields: Any) -> gke.Cluster:
        """Have a cluster of that resource name."""
        _, _, _, location, _, short = name.split("/")
        cluster = gke.Cluster(name=short, location=location, endpoint=endpoint, status="RUNNING", **fields)
        cluster.self_link = f"https://container.googleapis.com/v1/{name}"
        cluster.master_auth.cluster_ca_certificate = base64.b64encode(authority).decode()
        self.clusters[name] = cluster
        return cluster

    def key_file(self) -> dict[str, Any]:
        """Return a new service account's key whose tokens come from here."""
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return {
            "type": "service_account",
            "project_id": "team",
            "private_key_id": "one",
            "private_key": pem.decode(),
            "client_email": ACCOUNT,
            "token_uri": self.token_uri,
        }

    def get(self, request: gke.GetClusterRequest, context: grpc.ServicerContext) -> gke.Cluster:
        self._begin(f"get {request.name}", context)
        if request.name not in self.clusters:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Not found: {request.name}.")
        return self.clusters[request.name]

    def list(self, request: gke.ListClustersRequest, context: grpc.ServicerContext) -> gke.ListClustersResponse:
        self._begin(f"list {request.parent}", context)
        prefix = request.parent.removesuffix("-")
        return gke.ListClustersResponse(clusters=[c for name, c in self.clusters.items() if name.startswith(prefix)])

    def _begin(self, call: str, context: grpc.ServicerContext) -> None:
        self.calls.append(call)
        self.shown.append(str(dict(context.invocation_metadata()).get("authorization", "")))
        if self.refusal is not None:
            context.abort(*self.refusal)

    @contextmanager
    def running(self, folder: Path, tls: Pair | None = None) -> Iterator[GkeServer]:
        """Serve both until the end of the block; ``folder`` gets a key file ``key.json``.

        With ``tls`` the API is served on a port with that certificate too.
        """
        server = grpc.server(futures.ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._methods()),))
        self._open(server, folder)
        if tls is not None:
            certificate, key = tls.texts
            credentials = grpc.ssl_server_credentials([(key, certificate)])
            self.tls_port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        tokens = ThreadingHTTPServer(("127.0.0.1", 0), self._token_handler())
        thread = threading.Thread(target=tokens.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        self.token_uri = f"http://127.0.0.1:{tokens.server_address[1]}/token"
        (folder / "key.json").write_text(json.dumps(self.key_file()))
        try:
            yield self
        finally:
            tokens.shutdown()
            thread.join()
            tokens.server_close()
            server.stop(None).wait()

    def _open(self, server: grpc.Server, _folder: Path) -> None:
        self.address = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"

    def _methods(self) -> dict[str, grpc.RpcMethodHandler]:
        return {
            "GetCluster": method(self.get, gke.GetClusterRequest, gke.Cluster),
            "ListClusters": method(self.list, gke.ListClustersRequest, gke.ListClustersResponse),
        }

    def _token_handler(outer) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Tokens(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                assertion = parse_qs(body)["assertion"][0].split(".")[1]
                outer.grants.append(json.loads(base64.urlsafe_b64decode(assertion + "==")))
                good = {
                    "access_token": outer.tokens(outer.grants[-1]["iss"]),
                    "expires_in": outer.lifetime,
                    "token_type": "Bearer",
                }
                answer = good if outer.token_status == 200 else {"error": "invalid_grant"}
                self.send_response(outer.token_status)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: object) -> None:
                """Be silent."""

        return Tokens


def method(answer: Callable[..., Any], request: Any, response: Any) -> grpc.RpcMethodHandler:
    """Return what serves one method of the API by ``answer``."""
    return grpc.unary_unary_rpc_method_handler(answer, request.deserialize, response.serialize)
