"""Google's own hosts behind a proxy that lets nothing but CONNECT through: the API, tokens, and who acts as whom."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_multikueue.clusters.gke import API_ENDPOINT
from airflow_provider_multikueue.sandbox.pki import Authority, Pair
from tests.connect_proxy import ConnectProxy
from tests.unit.gkeserver import GkeServer

NAME = "projects/team/locations/us-east4/clusters/worker-us"
API, IAM = "container.googleapis.com", "iamcredentials.googleapis.com"
LOAD = """
import json, sys
from airflow_provider_multikueue.clusters.gke import GkeCluster
from airflow_provider_multikueue.clusters.google_account import google_account
account = google_account(json.loads(sys.argv[2]), conn_id="google")
access = GkeCluster(name=sys.argv[1], account=account).load()
print(json.dumps([access.server, access.authorization]))
"""


@dataclass
class Iam:
    """The IAM Credentials API: gives each account a token that says whose it is."""

    asked: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0

    def handler(outer) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Tokens(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                account = self.path.rpartition("/")[2].partition(":")[0]
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append({"account": account, "by": self.headers["Authorization"], **body})
                answer = {"accessToken": f"token-of-{account}", "expireTime": "2099-01-01T00:00:00Z"}
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: object) -> None:
                """Be silent."""

        return Tokens


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Google's certificate; that of its authority is ``ca.crt``."""
    return Authority("google", tmp_path).server("google", names=[API, IAM])


@pytest.fixture
def google(tmp_path: Path, pair: Pair) -> Iterator[GkeServer]:
    with GkeServer(tokens=lambda account: f"token-of-{account}").running(tmp_path, pair) as server:
        server.add(NAME, "34.1.1.1")
        yield server


@pytest.fixture
def iam(pair: Pair) -> Iterator[Iam]:
    iam = Iam()
    server = ThreadingHTTPServer(("127.0.0.1", 0), iam.handler())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    iam.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield iam
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def proxy(google: GkeServer, iam: Iam) -> Iterator[ConnectProxy]:
    ports = {API: google.tls_port, IAM: iam.port}
    with ConnectProxy(lambda host, _: ports.get(host)) as running:
        yield running


def load(folder: Path, extra: dict[str, Any], **environment: str) -> list[str]:
    """Load a cluster's access in a process of its own, since gRPC reads whom to trust once; address and header."""
    authority = str(folder / "ca.crt")
    trust = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": authority, "REQUESTS_CA_BUNDLE": authority}
    command = [sys.executable, "-c", LOAD, NAME, json.dumps(extra)]
    done = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin", **trust, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded: list[str] = json.loads(done.stdout)
    return loaded


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy"])
def test_the_whole_chain_of_accounts_is_walked_through_the_proxy(tmp_path, google, iam, proxy, variable):
    extra = {"key_path": str(tmp_path / "key.json"), "impersonation_chain": "first@team, last@team"}
    environment = {variable: proxy.url, "NO_PROXY": "10.0.0.0/8,127.0.0.0/8,.svc"}
    assert load(tmp_path, extra, **environment) == ["https://34.1.1.1", "Bearer token-of-last@team"]
    (asked,) = iam.asked
    assert asked["account"] == "last@team"
    assert asked["delegates"] == ["first@team"]
    assert asked["by"] == "Bearer token-of-airflow@team.iam.gserviceaccount.com"
    assert google.shown == ["Bearer token-of-last@team"]
    assert set(proxy.asked) == {f"CONNECT {API}:443", f"CONNECT {IAM}:443"}


def test_what_needs_no_proxy_takes_none(tmp_path, google, proxy):
    """Not even the one for plain HTTP, to which gRPC by itself would fall back."""
    address = f"https://127.0.0.1:{google.tls_port}"
    environment = {"HTTPS_PROXY": proxy.url, "http_proxy": proxy.url, API_ENDPOINT: address}
    environment |= {"NO_PROXY": "127.0.0.1"}  # for the token, which is asked for by plain HTTP here
    assert load(tmp_path, {"key_path": str(tmp_path / "key.json")}, **environment)[0] == "https://34.1.1.1"
    assert google.calls == [f"get {NAME}"]
    assert proxy.asked == []
