"""Where Kueue's manifests come from: a file beside the fleet file, a URL, an OCI chart by way of Helm."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_multikueue.exceptions import FleetConfigurationError, MultiKueueError
from airflow_provider_multikueue.sandbox.pki import Authority, Pair
from airflow_provider_multikueue.setup import source
from airflow_provider_multikueue.setup.description import FleetDescription, parse
from airflow_provider_multikueue.setup.source import read_release
from tests.connect_proxy import ConnectProxy
from tests.unit.apiserver import until
from tests.unit.test_setup import EXAMPLE, manifests

CHART = "oci://registry.k8s.io/kueue/charts/kueue"
HELM = """#!/bin/sh
echo "$@" >"$(dirname "$0")/asked"
if [ "$6" != "--namespace" ]; then echo "unknown command" >&2; exit 2; fi
case "$3" in *missing*) echo "Error: $3: not found" >&2; exit 1 ;; esac
cat "$(dirname "$0")/rendered"
"""


@pytest.fixture
def helm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `helm` that renders what is in a file, and notes how it was called."""
    program = tmp_path / "bin/helm"
    program.parent.mkdir()
    program.write_text(HELM)
    program.chmod(0o755)
    (program.parent / "rendered").write_text(text())
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return program


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[str]:
    """The address of a server of the files in the test's folder."""

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *_: object) -> None:
            """Be silent."""

    with serving(Handler) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], tls: Pair | None = None) -> Iterator[int]:
    """Serve on a port of loopback, with TLS where a certificate is given."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield int(server.server_address[1])
        server.shutdown()
        thread.join()


class Release(BaseHTTPRequestHandler):
    """The release at ``/kueue.yaml``; ``/to?ADDRESS`` leads on to an address, ``/status?N`` answers N."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        status = {"/to": 302, "/status": int(query) if path == "/status" else 0}.get(path, 200)
        body = text().encode() if status == 200 else b""
        self.send_response(status)
        if path == "/to":
            self.send_header("Location", query)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Be silent."""


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server of `Release` with TLS, trusted by this process, as ``localhost`` and ``kueue.test``."""
    authority = Authority("test", tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.pair.certificate))
    with serving(Release, authority.server("server", names=["kueue.test"])) as port:
        yield port


def text() -> str:
    return "\n---\n".join(map(json.dumps, manifests()))


def described(manifests: str, where: Path = EXAMPLE) -> FleetDescription:
    content = yaml.safe_load(EXAMPLE.read_text())
    content["kueue"]["manifests"] = manifests
    return replace(parse(content, where=str(where)), project="team")


async def test_a_chart_is_rendered_at_the_fleets_version_with_its_definitions(helm: Path):
    found = await read_release(described(CHART))
    assert [each["kind"] for each in found] == ["Deployment", "ConfigMap"]
    asked = (helm.parent / "asked").read_text().split()
    assert asked == ["template", "kueue", CHART, "--version", "0.19.1", "--namespace", "kueue-system", "--include-crds"]


async def test_what_helm_says_of_a_chart_is_passed_on(helm: Path):
    with pytest.raises(FleetConfigurationError, match=r"helm could not render .*missing.*not found"):
        await read_release(described("oci://registry.k8s.io/missing"))


async def test_a_chart_without_helm_says_what_else_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FleetConfigurationError, match="there is no `helm` on this host"):
        await read_release(described(CHART))


async def test_a_file_is_relative_to_the_fleet_file(tmp_path: Path):
    (tmp_path / "kueue.yaml").write_text(text())
    assert len(await read_release(described("kueue.yaml", tmp_path / "fleet.yaml"))) == 2
    with pytest.raises(FleetConfigurationError, match=r"other\.yaml can't be read"):
        await read_release(described("other.yaml", tmp_path / "fleet.yaml"))


async def test_a_url_is_fetched_and_what_is_no_release_is_refused(tmp_path: Path, folder: str):
    (tmp_path / "kueue.yaml").write_text(text())
    (tmp_path / "page.yaml").write_text("<html>sign in</html>")
    assert len(await read_release(described(f"{folder}/kueue.yaml"))) == 2
    with pytest.raises(FleetConfigurationError, match="answered 404"):
        await read_release(described(f"{folder}/none.yaml"))
    with pytest.raises(FleetConfigurationError, match="does not hold Kubernetes objects"):
        await read_release(described(f"{folder}/page.yaml"))
    with pytest.raises(FleetConfigurationError, match="give an https:// URL"):
        await read_release(described("http://example.com/kueue.yaml"))


async def test_a_redirect_is_followed_to_where_it_is_safe(secure: int):
    here = f"https://localhost:{secure}"
    assert len(await read_release(described(f"{here}/to?{here}/kueue.yaml"))) == 2
    assert len(await read_release(described(f"{here}/to?/kueue.yaml"))) == 2
    with pytest.raises(FleetConfigurationError, match="leads on more than 5 times"):
        await read_release(described(f"{here}/to?{here}/to"))


async def test_a_redirect_to_plain_http_is_refused_even_on_loopback(secure: int, folder: str, tmp_path: Path):
    (tmp_path / "kueue.yaml").write_text(text())
    with pytest.raises(FleetConfigurationError, match=rf"leads on from https:// to {folder}/kueue\.yaml"):
        await read_release(described(f"https://localhost:{secure}/to?{folder}/kueue.yaml"))


async def test_a_redirect_from_loopback_to_plain_http_elsewhere_is_refused():
    with serving(Release) as port, pytest.raises(FleetConfigurationError, match=r"not from http://kueue\.test/x"):
        await read_release(described(f"http://127.0.0.1:{port}/to?http://kueue.test/x"))


async def test_the_proxy_is_taken_and_left_out_by_the_rule_of_all_other_calls(
    secure: int, monkeypatch: pytest.MonkeyPatch
):
    with ConnectProxy(lambda host, _: secure if host in ("kueue.test", "0.0.0.0") else None) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        assert len(await read_release(described("https://kueue.test/to?https://kueue.test/kueue.yaml"))) == 2
        assert set(proxy.asked) == {"CONNECT kueue.test:443"}
        # As an address outside of loopback, this host is named in no certificate: what matters is who is asked.
        for rules, asked in (("10.0.0.0/8", True), ("0.0.0.0/8", False)):
            proxy.asked.clear()
            monkeypatch.setenv("NO_PROXY", rules)
            with pytest.raises(MultiKueueError, match=r"kueue\.yaml could not be fetched") as raised:
                await read_release(described(f"https://0.0.0.0:{secure}/kueue.yaml"))
            assert not isinstance(raised.value, FleetConfigurationError)
            assert proxy.asked == ([f"CONNECT 0.0.0.0:{secure}"] if asked else [])


async def test_a_url_that_is_none_is_refused():
    with pytest.raises(FleetConfigurationError, match="is not an address"):
        await read_release(described("https://[kueue"))


async def test_what_is_larger_than_any_release_is_refused_instead_of_cut(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(source, "SIZE_LIMIT", 1 << 20)
    (tmp_path / "kueue.yaml").write_text(text() + "\n#" + "-" * (1 << 20))
    with pytest.raises(FleetConfigurationError, match=r"kueue\.yaml is larger than 1 MiB"):
        await read_release(described(f"{folder}/kueue.yaml"))


async def test_a_server_that_fails_now_can_be_tried_again():
    with serving(Release) as port, pytest.raises(MultiKueueError, match="answered 503") as raised:
        await read_release(described(f"http://127.0.0.1:{port}/status?503"))
    assert not isinstance(raised.value, FleetConfigurationError)


async def test_what_is_no_text_is_refused_wherever_it_is_from(folder: str, tmp_path: Path, helm: Path):
    packed = b"\x1f\x8b\x08\x00kueue"
    for file in (tmp_path / "kueue.yaml", helm.parent / "rendered"):
        file.write_bytes(packed)
    for where in ("kueue.yaml", f"{folder}/kueue.yaml", CHART):
        with pytest.raises(FleetConfigurationError, match=r"not text in UTF-8 \(byte 1\)"):
            await read_release(described(where, tmp_path / "fleet.yaml"))


async def test_a_helm_that_hangs_is_ended_with_what_it_has_started(helm: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(source, "HELM_TIMEOUT", 1.0)
    helm.write_text(f'#!/bin/sh\nsleep 600 &\necho "$$ $!" >{helm.parent / "started"}\nwait\n')
    with pytest.raises(MultiKueueError, match=r"helm did not render .* within 1 s") as raised:
        await read_release(described(CHART))
    assert not isinstance(raised.value, FleetConfigurationError)
    for pid in (helm.parent / "started").read_text().split():
        await until(lambda pid=pid: _is_over(Path(f"/proc/{pid}/stat")))


def _is_over(stat: Path) -> bool:
    """Return whether a process has ended; who should take note of its end may not have done so."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def test_a_server_that_is_not_there_can_be_tried_again():
    with pytest.raises(MultiKueueError, match="could not be fetched") as raised:
        await read_release(described("http://127.0.0.1:1/kueue.yaml"))
    assert not isinstance(raised.value, FleetConfigurationError)
