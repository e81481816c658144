"""How a cluster is reached and how credentials are renewed: scripted servers, real files, plugins and proxies."""

from __future__ import annotations

import asyncio
import base64
import datetime
import ipaddress
import json
import socket
import ssl
import stat
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from airflow_provider_multikueue.clusters import exec_plugin, tls, transport
from airflow_provider_multikueue.clusters.client import JOBS, ApiError, Cluster
from airflow_provider_multikueue.clusters.credentials import InCluster
from airflow_provider_multikueue.exceptions import FleetConfigurationError
from tests.connect_proxy import ConnectProxy
from tests.unit.apiserver import Answer, ApiServer, kubeconfig, obj, status, until

if TYPE_CHECKING:
    from aiohttp import web

PATH = "/apis/batch/v1/namespaces/default/jobs"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as running:
        yield running


def accepting(server: ApiServer, *tokens: str) -> None:
    """Let the server answer whoever brings one of ``tokens``, which may be changed while it runs."""

    async def answer(request: web.Request) -> web.StreamResponse:
        good = request.headers.get("Authorization") in {f"Bearer {token}" for token in server.tokens}
        return await (Answer(obj("train")) if good else status(401, "Unauthorized"))(request)

    server.tokens = list(tokens)
    server.on("GET", f"{PATH}/train", answer)


def written(path: Path, config: dict) -> str:
    path.write_text(yaml.safe_dump(config))
    return str(path)


def plugin(folder: Path, script: str) -> dict:
    """Return an exec section whose command is a shell script that notes each of its runs in ``runs``."""
    command = folder / "plugin"
    command.write_text(f'#!/bin/sh\necho run >> "{folder}/runs"\n{script}\n')
    command.chmod(0o755)
    return {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin", "interactiveMode": "Never"}


def credential(token: str, expires: str = "") -> str:
    """Return a script that prints a credential; ``expires`` is a shell expression."""
    expiry = f',"expirationTimestamp":"{expires}"' if expires else ""
    body = f'{{"token":"{token}"{expiry}}}'
    return (
        'cat <<END\n{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":' + body + "}\nEND"
    )


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines())


async def get(cluster: Cluster) -> str:
    return (await cluster.get(JOBS, "train", "default"))["metadata"]["name"]


async def refusal(**how) -> str:
    with pytest.raises(FleetConfigurationError) as caught:
        await Cluster.from_kubeconfig("manager", **how)
    return str(caught.value)


# -- kubeconfig files


async def test_a_missing_file_is_named_with_key_host_and_both_processes(tmp_path):
    text = await refusal(path=str(tmp_path / "absent"))
    assert str(tmp_path / "absent") in text
    assert "kube_config_path" in text
    assert socket.gethostname() in text
    assert "worker and the triggerer" in text


@pytest.mark.parametrize("content", ["", "[]", "a: [", "\tx", "clusters: 7\ncontexts: {}", "a: &a [*a]", "x" * 100])
async def test_files_that_are_no_kubeconfig_are_refused_without_being_quoted(tmp_path, content):
    (tmp_path / "config").write_text(content)
    assert "xxxxx" not in await refusal(path=str(tmp_path / "config"))


async def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "config").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in await refusal(path=str(tmp_path / "config"))


async def test_an_unknown_context_is_answered_with_those_there_are(tmp_path):
    path = written(tmp_path / "config", kubeconfig("https://127.0.0.1:1"))
    text = await refusal(path=path, context="worker-us-east4")
    assert "worker-us-east4" in text
    assert "here" in text


async def test_each_context_of_one_file_leads_to_its_own_server(tmp_path):
    async with ApiServer().running() as one, ApiServer().running() as two:
        config = kubeconfig(one.url, token="first-token")
        other = kubeconfig(two.url, token="second-token")
        config["contexts"].append({"name": "there", "context": {"cluster": "c2", "user": "u2"}})
        config["clusters"].append({**other["clusters"][0], "name": "c2"})
        config["users"].append({**other["users"][0], "name": "u2"})
        path = written(tmp_path / "config", config)
        accepting(one, "first-token")
        accepting(two, "second-token")
        for context in ("here", "there", None):
            async with await Cluster.from_kubeconfig("x", path=path, context=context) as cluster:
                assert await get(cluster) == "train"


async def test_several_files_are_merged_and_the_first_wins(tmp_path, server):
    accepting(server, "right-token")
    first = written(tmp_path / "one", kubeconfig(server.url, token="right-token"))
    second = written(tmp_path / "two", kubeconfig("https://192.0.2.1", token="wrong-token"))
    async with await Cluster.from_kubeconfig("x", path=f"{first}:{second}") as cluster:
        assert await get(cluster) == "train"


async def test_a_token_file_is_found_beside_the_kubeconfig_and_read_anew_after_a_401(tmp_path, server, monkeypatch):
    monkeypatch.setattr(transport, "RENEWAL_PAUSE", 0.0)
    accepting(server, "old-token")
    (tmp_path / "token").write_text("old-token")
    path = written(tmp_path / "config", kubeconfig(server.url, tokenFile="token"))
    async with await Cluster.from_kubeconfig("x", path=path) as cluster:
        await get(cluster)
        (tmp_path / "token").write_text("new-token")
        server.tokens = ["new-token"]
        assert await get(cluster) == "train"
        assert len(server.seen) == 3


async def test_a_rotated_kubeconfig_is_read_anew_after_a_401(tmp_path, server, monkeypatch):
    monkeypatch.setattr(transport, "RENEWAL_PAUSE", 0.0)
    accepting(server, "old-token")
    path = written(tmp_path / "config", kubeconfig(server.url, token="old-token"))
    async with await Cluster.from_kubeconfig("x", path=path) as cluster:
        await get(cluster)
        written(tmp_path / "config", kubeconfig(server.url, token="new-token"))
        server.tokens = ["new-token"]
        assert await get(cluster) == "train"


async def test_a_single_401_right_after_the_first_load_is_survived(tmp_path, server):
    server.on("GET", f"{PATH}/train", status(401), obj("train"))
    path = written(tmp_path / "config", kubeconfig(server.url, token="good-token"))
    async with await Cluster.from_kubeconfig("x", path=path) as cluster:
        assert await get(cluster) == "train"


async def test_credentials_that_stay_bad_are_loaded_once_for_each_attempt(tmp_path, server, monkeypatch):
    monkeypatch.setattr(transport, "RENEWAL_PAUSE", 0.05)
    server.on("GET", f"{PATH}/train", status(401))
    section = plugin(tmp_path, credential("bad-token"))
    path = written(tmp_path / "config", kubeconfig(server.url, exec=section))
    async with await Cluster.from_kubeconfig("x", path=path) as cluster:
        with pytest.raises(ApiError, match="401"):
            await get(cluster)
    assert (runs(tmp_path), len(server.seen)) == (2, 2)


async def test_a_file_that_vanished_meanwhile_is_a_passing_trouble(tmp_path, server, monkeypatch):
    monkeypatch.setattr(transport, "RENEWAL_PAUSE", 0.0)
    accepting(server, "old-token")
    path = written(tmp_path / "config", kubeconfig(server.url, token="old-token"))
    async with await Cluster.from_kubeconfig("x", path=path) as cluster:
        await get(cluster)
        server.tokens = []
        Path(path).unlink()
        server.on("PUT", f"{PATH}/train", status(401))
        with pytest.raises(ApiError) as caught:
            await cluster.replace(JOBS, "train", {}, "default")
    assert caught.value.status == 0
    assert "could not be renewed" in str(caught.value)


# -- exec plugins


async def test_one_run_of_the_plugin_serves_all_who_are_refused_at_once(tmp_path, server, monkeypatch):
    monkeypatch.setattr(transport, "RENEWAL_PAUSE", 0.0)
    (tmp_path / "current").write_text("first-token")
    section = plugin(tmp_path, credential(f"$(cat {tmp_path}/current)"))
    path = written(tmp_path / "config", kubeconfig(server.url, exec=section))
    accepting(server, "first-token")
    async with await Cluster.from_kubeconfig("x", path=path) as cluster:
        assert await get(cluster) == "train"
        assert runs(tmp_path) == 1
        (tmp_path / "current").write_text("second-token")
        server.tokens = ["second-token"]
        await asyncio.gather(*(get(cluster) for _ in range(20)))
    assert runs(tmp_path) == 2


async def test_a_token_is_renewed_before_it_ends(tmp_path, server, monkeypatch):
    monkeypatch.setattr(transport, "EARLY_RENEWAL_PAUSE", 0.0)
    real = time.time
    section = plugin(tmp_path, credential("good-token", "$(date -u -d '+10 seconds' +%Y-%m-%dT%H:%M:%SZ)"))
    path = written(tmp_path / "config", kubeconfig(server.url, exec=section))
    accepting(server, "good-token")
    async with await Cluster.from_kubeconfig("x", path=path) as cluster:
        ends = cluster.expires
        assert 8 <= ends - time.time() <= 10
        monkeypatch.setattr(time, "time", lambda: real() + 9)
        await get(cluster)
        await cluster._transport._loading
        await get(cluster)
    assert runs(tmp_path) == 2
    assert len(server.seen) == 2


async def test_a_token_that_has_ended_is_renewed_before_the_request(tmp_path, server):
    section = plugin(tmp_path, credential("good-token", "2020-01-01T00:00:00Z"))
    path = written(tmp_path / "config", kubeconfig(server.url, exec=section))
    accepting(server, "good-token")
    async with await Cluster.from_kubeconfig("x", path=path) as cluster:
        await get(cluster)
    assert runs(tmp_path) == 2
    assert len(server.seen) == 1


async def test_a_plugin_that_fails_is_quoted(tmp_path):
    section = plugin(tmp_path, "echo please run gcloud auth login >&2; exit 3")
    text = await refusal(path=written(tmp_path / "config", kubeconfig("https://127.0.0.1:1", exec=section)))
    assert "please run gcloud auth login" in text


async def test_a_plugin_that_is_missing_is_named(tmp_path):
    section = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin"}
    text = await refusal(path=written(tmp_path / "config", kubeconfig("https://127.0.0.1:1", exec=section)))
    assert "no-such-plugin" in text


async def test_a_plugin_that_asks_for_ever_is_given_up_and_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(exec_plugin, "TIMEOUT", 0.5)
    section = plugin(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600")
    text = await refusal(path=written(tmp_path / "config", kubeconfig("https://127.0.0.1:1", exec=section)))
    assert "gave nothing within" in text
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


async def test_the_loop_goes_on_while_a_plugin_runs(tmp_path):
    """The plugin waits for what the loop does meanwhile."""
    section = plugin(tmp_path, f"until [ -e {tmp_path}/go ]; do sleep 0.01; done; {credential('a-token')}")
    path = written(tmp_path / "config", kubeconfig("https://127.0.0.1:1", exec=section))
    connecting = asyncio.create_task(Cluster.from_kubeconfig("x", path=path))
    await until((tmp_path / "runs").exists)
    (tmp_path / "go").touch()
    await (await connecting).close()


# -- inline


@pytest.mark.parametrize(
    ("user", "cluster"),
    [
        ({"exec": {"command": "touch", "args": ["owned"], "apiVersion": "client.authentication.k8s.io/v1"}}, {}),
        ({"auth-provider": {"name": "gcp"}}, {}),
        ({"tokenFile": "/etc/passwd"}, {}),
        ({"client-certificate": "/x", "client-key": "/y"}, {}),
        ({"token": "some-token"}, {"certificate-authority": "/etc/passwd"}),
    ],
)
async def test_inline_configurations_run_nothing_and_read_nothing(user, cluster):
    text = await refusal(config=kubeconfig("https://127.0.0.1:1", cluster=cluster, **user))
    assert "inline" in text


async def test_an_error_in_an_inline_configuration_quotes_no_secret():
    config = kubeconfig("https://127.0.0.1:1", **{"client-certificate-data": "c2VjcmV0", "token": "secret-token"})
    text = await refusal(config=config)
    assert "secret" not in text
    assert "c2VjcmV0" not in text


async def test_a_server_that_is_no_url_is_refused():
    assert "https://" in await refusal(config=kubeconfig("file:///etc/passwd"))


# -- plain http


@pytest.mark.parametrize("server", ["http://10.0.0.5:8080", "http://api.fleet.test", "http://127.0.0.1@api.fleet.test"])
@pytest.mark.parametrize(
    "user",
    [
        {"token": "some-token"},
        {"tokenFile": "/there"},
        {"username": "u", "password": "some-token"},
        {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": ["owned"]}},
        {"auth-provider": {"name": "gcp"}},
        {"client-certificate-data": "eA=="},
    ],
    ids=lambda user: next(iter(user)),
)
async def test_credentials_are_not_sent_without_tls(tmp_path, server, user):
    text = await refusal(path=written(tmp_path / "config", kubeconfig(server, **user)))
    assert "https://" in text
    assert "some-token" not in text


async def test_a_password_in_a_plain_address_is_not_sent_either():
    assert "a-word" not in await refusal(config=kubeconfig("http://u:a-word@10.0.0.5"))


async def test_plain_http_on_loopback_through_a_proxy_elsewhere_is_not_loopback():
    cluster = {"proxy-url": "http://10.0.0.5:3128"}
    assert "https://" in await refusal(config=kubeconfig("http://127.0.0.1:1", cluster=cluster, token="t"))


async def test_plain_http_without_credentials_is_taken():
    async with await Cluster.from_kubeconfig("x", config=kubeconfig("http://10.0.0.5:8080")) as cluster:
        assert cluster.server == "http://10.0.0.5:8080"


# -- TLS


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> dict[str, Path]:
    """A certificate authority, and a server certificate for api.fleet.test."""
    from cryptography import x509

    return authority_for(x509.DNSName("api.fleet.test"), tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory) -> dict[str, Path]:
    """Another certificate authority, and a server certificate for 127.0.0.1."""
    from cryptography import x509

    return authority_for(x509.IPAddress(ipaddress.ip_address("127.0.0.1")), tmp_path_factory.mktemp("other"))


def authority_for(host, folder: Path) -> dict[str, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)

    def certificate(name, key, issuer, issuer_key, *extensions):
        builder = x509.CertificateBuilder(
            issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]),
            subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - datetime.timedelta(hours=1),
            not_valid_after=now + datetime.timedelta(hours=1),
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        return builder.sign(issuer_key, hashes.SHA256())

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = certificate("ca", ca_key, "ca", ca_key, x509.BasicConstraints(ca=True, path_length=None))
    server = certificate("api", key, "ca", ca_key, x509.SubjectAlternativeName([host]))
    (folder / "ca.pem").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "api.pem").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    (folder / "api.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return {name: folder / name for name in ("ca.pem", "api.pem", "api.key")}


def serving(authority: dict[str, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority["api.pem"], authority["api.key"])
    return context


@asynccontextmanager
async def secured(authority: dict[str, Path], *, clients: bool = False) -> AsyncIterator[ApiServer]:
    context = serving(authority)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority["ca.pem"])
    async with ApiServer().running(context) as server:
        server.on("GET", f"{PATH}/train", obj("train"))
        yield server


def data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


async def test_the_kubeconfigs_authority_and_server_name_are_used(authority):
    async with secured(authority) as server:
        trust = {"certificate-authority-data": data(authority["ca.pem"]), "tls-server-name": "api.fleet.test"}
        async with await Cluster.from_kubeconfig("x", config=kubeconfig(server.url, cluster=trust)) as cluster:
            assert await get(cluster) == "train"


async def test_a_certificate_for_another_name_is_refused(authority):
    async with secured(authority) as server:
        trust = {"certificate-authority-data": data(authority["ca.pem"])}
        async with await Cluster.from_kubeconfig("x", config=kubeconfig(server.url, cluster=trust)) as cluster:
            with pytest.raises(ApiError, match=r"(?i)certificate"):
                await cluster.create(JOBS, {}, "default")


async def test_an_unknown_authority_is_refused(authority):
    async with (
        secured(authority) as server,
        await Cluster.from_kubeconfig("x", config=kubeconfig(server.url)) as cluster,
    ):
        with pytest.raises(ApiError, match=r"(?i)certificate"):
            await cluster.create(JOBS, {}, "default")


async def test_skipping_verification_is_obeyed_with_a_warning(authority, caplog):
    async with secured(authority) as server:
        config = kubeconfig(server.url, cluster={"insecure-skip-tls-verify": True})
        async with await Cluster.from_kubeconfig("x", config=config) as cluster:
            assert await get(cluster) == "train"
            await cluster._transport._load()
    assert caplog.text.count("TLS is not verified") == 1


async def test_client_certificates_leave_no_file_behind(authority, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trust = {"certificate-authority-data": data(authority["ca.pem"]), "tls-server-name": "api.fleet.test"}
    user = {"client-certificate-data": data(authority["api.pem"]), "client-key-data": data(authority["api.key"])}
    async with secured(authority, clients=True) as server:
        for _ in range(2):
            config = kubeconfig(server.url, cluster=trust, **user)
            async with await Cluster.from_kubeconfig("x", config=config) as cluster:
                assert await get(cluster) == "train"
    assert list(tmp_path.iterdir()) == []


async def test_changed_trust_gives_new_connections_and_lets_old_streams_end(authority, tmp_path, monkeypatch):
    monkeypatch.setattr(transport, "RENEWAL_PAUSE", 0.0)
    async with secured(authority) as server:
        trust = {"certificate-authority-data": data(authority["ca.pem"]), "tls-server-name": "api.fleet.test"}
        path = written(tmp_path / "config", kubeconfig(server.url, cluster=trust, token="one-token"))
        async with await Cluster.from_kubeconfig("x", path=path) as cluster:
            await get(cluster)
            old = cluster._transport._session
            changed = {"insecure-skip-tls-verify": True}
            written(tmp_path / "config", kubeconfig(server.url, cluster=changed, token="two-token"))
            server.on("GET", f"{PATH}/train", status(401), obj("train"))
            assert await get(cluster) == "train"
            assert cluster._transport._session is not old
            assert not old.closed
        assert old.closed


# -- in the cluster


async def test_the_pods_own_account_is_used(authority, tmp_path, monkeypatch):
    async with secured(authority) as server:
        port = server.url.rpartition(":")[2]
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        (tmp_path / "token").write_text("pod-token")
        (tmp_path / "ca.crt").write_bytes(authority["ca.pem"].read_bytes())
        async with await Cluster.connect("manager", InCluster(folder=tmp_path)) as cluster:
            assert cluster.server == f"https://127.0.0.1:{port}"
            assert cluster._transport._access.authorization == "Bearer pod-token"


async def test_being_in_no_pod_is_said(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(FleetConfigurationError, match="inside the cluster"):
        await Cluster.from_in_cluster("manager")


# -- proxies


async def test_everything_goes_through_the_kubeconfigs_proxy(authority):
    with ConnectProxy(lambda _, port: port) as proxy:
        async with secured(authority) as server:
            trust = {
                "certificate-authority-data": data(authority["ca.pem"]),
                "tls-server-name": "api.fleet.test",
                "proxy-url": proxy.url.replace("//", "//user:pass-word@"),
            }
            async with await Cluster.from_kubeconfig("x", config=kubeconfig(server.url, cluster=trust)) as cluster:
                assert await get(cluster) == "train"
        assert proxy.heads[0].startswith(f"CONNECT {server.url.removeprefix('https://')} ")
        assert base64.b64encode(b"user:pass-word").decode() in proxy.heads[0]


@pytest.mark.parametrize("trust", ["authority", "skip"])
@pytest.mark.parametrize("known", [True, False], ids=["known proxy", "unknown proxy"])
async def test_a_proxy_with_tls_is_verified_by_itself(authority, other_authority, monkeypatch, trust, known):
    """Its certificate is of an authority that the system trusts or not, and the cluster's is of another one."""
    if known:
        monkeypatch.setenv("SSL_CERT_FILE", str(other_authority["ca.pem"]))
    cluster = {"insecure-skip-tls-verify": True}
    if trust == "authority":
        cluster = {"certificate-authority-data": data(authority["ca.pem"]), "tls-server-name": "api.fleet.test"}
    user = {"client-certificate-data": data(authority["api.pem"]), "client-key-data": data(authority["api.key"])}
    with ConnectProxy(lambda _, port: port, tls=serving(other_authority)) as proxy:
        async with secured(authority, clients=True) as server:
            config = kubeconfig(server.url, cluster={**cluster, "proxy-url": proxy.url}, **user)
            async with await Cluster.from_kubeconfig("x", config=config) as made:
                if known:
                    assert await get(made) == "train"
                    return
                with pytest.raises(ApiError, match=r"(?i)certificate"):
                    await made.create(JOBS, {}, "default")
        assert proxy.asked == []


async def test_a_server_behind_a_proxy_with_tls_is_verified_as_well(authority, other_authority, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(other_authority["ca.pem"]))
    with ConnectProxy(lambda _, port: port, tls=serving(other_authority)) as proxy:
        async with secured(authority) as server:
            config = kubeconfig(server.url, cluster={"proxy-url": proxy.url})
            async with await Cluster.from_kubeconfig("x", config=config) as made:
                with pytest.raises(ApiError, match=r"(?i)certificate"):
                    await made.create(JOBS, {}, "default")
        assert proxy.asked == [f"CONNECT {server.url.removeprefix('https://')}"]


async def test_a_dead_proxy_is_an_error_without_its_password(authority):
    trust = {"certificate-authority-data": data(authority["ca.pem"]), "proxy-url": "http://user:pass-word@127.0.0.1:9"}
    config = kubeconfig("https://127.0.0.1:1", cluster=trust)
    async with await Cluster.from_kubeconfig("x", config=config) as cluster:
        with pytest.raises(ApiError) as caught:
            await cluster.create(JOBS, {}, "default")
    assert "pass-word" not in str(caught.value) + repr(caught.value)


async def test_other_kinds_of_proxy_are_refused():
    assert "HTTP proxy" in await refusal(
        config=kubeconfig("https://127.0.0.1:1", cluster={"proxy-url": "socks5://user:pass-word@127.0.0.1:9"})
    )


def test_a_key_is_on_disk_only_while_it_is_read_and_only_for_us():
    with tls._files(b"certificate", b"key") as (_, key):
        assert key.read_bytes() == b"key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    assert not key.parent.exists()


async def test_plain_configurations_do_not_cost_the_import_of_the_library():
    code = (
        "import asyncio, json, sys\n"
        "from airflow_provider_multikueue.clusters.client import Cluster\n"
        "asyncio.run(Cluster.from_kubeconfig('x', config=json.loads(sys.argv[1])))\n"
        "assert not {'kubernetes_asyncio', 'airflow'} & set(sys.modules)"
    )
    config = json.dumps(kubeconfig("https://127.0.0.1:1", token="some-token"))
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, config)
    assert await process.wait() == 0


async def test_words_are_not_taken_for_truth():
    config = kubeconfig("https://127.0.0.1:1", cluster={"insecure-skip-tls-verify": "false"})
    assert "insecure-skip-tls-verify" in await refusal(config=config)


async def test_auth_providers_of_a_file_are_left_to_the_library(tmp_path, server):
    section = {"name": "oidc", "config": {"id-token": "a.e30.c"}}
    path = written(tmp_path / "config", kubeconfig(server.url, **{"auth-provider": section}))
    accepting(server, "a.e30.c")
    async with await Cluster.from_kubeconfig("x", path=path) as cluster:
        assert await get(cluster) == "train"
