"""Client certificates: they are read anew before they end, and the doctor says when that is."""

from __future__ import annotations

import datetime
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from cryptography import x509

from airflow_provider_multikueue.clusters import transport
from airflow_provider_multikueue.clusters.client import JOBS, Cluster
from airflow_provider_multikueue.clusters.credentials import KubeconfigFile
from airflow_provider_multikueue.clusters.expiry import end_of_certificate
from airflow_provider_multikueue.fleets.credential_report import credential_report
from airflow_provider_multikueue.sandbox.pki import Authority
from tests.unit.apiserver import Answer, ApiServer, kubeconfig, obj

PATH = "/apis/batch/v1/namespaces/default/jobs/train"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority("cluster", tmp_path)


@pytest.fixture
async def server(authority: Authority) -> AsyncIterator[tuple[ApiServer, list[str]]]:
    """A server that asks for certificates, and the names on those that it was shown."""
    shown: list[str] = []
    pair = authority.server("api")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.pair.certificate)

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        shown.append(request.transport.get_extra_info("peercert")["subject"][-1][0][1])
        return await Answer(obj("train"))(request)

    async with ApiServer().running(context) as running:
        running.on("GET", PATH, answer)
        yield running, shown


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the clock to that many seconds from now."""
    real = time.time

    def advance(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + seconds)

    return advance


def written(folder: Path, authority: Authority, url: str = "https://127.0.0.1:1") -> str:
    """Write a kubeconfig that names certificate files, as a cluster's own tools keep them."""
    authority.client("client", "first")
    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    config = kubeconfig(url, cluster={"certificate-authority": "ca.crt"}, **user)
    (folder / "config").write_text(yaml.safe_dump(config))
    return str(folder / "config")


def seconds_left(folder: Path) -> float:
    certificate = x509.load_pem_x509_certificate((folder / "client.crt").read_bytes())
    return (certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).total_seconds()


async def test_a_rotated_client_certificate_is_shown_before_the_old_one_ends(
    tmp_path, authority, server, later, monkeypatch
):
    monkeypatch.setattr(transport, "EARLY_RENEWAL_PAUSE", 0.0)
    api, shown = server
    path = written(tmp_path, authority, api.url)
    async with await Cluster.from_kubeconfig("x", path=path) as cluster:
        await cluster.get(JOBS, "train", "default")
        left = seconds_left(tmp_path)
        authority.client("client", "second")
        await cluster.get(JOBS, "train", "default")
        assert shown == ["first", "first"]
        later(left - 30)
        await cluster.get(JOBS, "train", "default")  # which has it read anew behind its back
        await cluster._transport._loading
        await cluster.get(JOBS, "train", "default")
    assert shown[-1] == "second"


def report(path: str) -> tuple[dict[str, Any], list[str]]:
    return credential_report(KubeconfigFile(path=path))


def test_the_end_of_a_client_certificate_is_known(tmp_path, authority):
    path = written(tmp_path, authority)
    found, warnings = report(path)
    assert found["sort"] == "client certificate"
    assert found["expires_in_seconds"] == pytest.approx(seconds_left(tmp_path), abs=5)
    assert warnings == []


@pytest.mark.parametrize(
    ("after_its_end", "words"), [(-3 * 3600 - 30, "client certificate ends in 3 h and"), (7230, "ended 2 h ago")]
)
def test_a_client_certificate_that_ends_within_a_day_or_has_ended_is_a_warning(
    tmp_path, authority, later, after_its_end, words
):
    path = written(tmp_path, authority)
    later(seconds_left(tmp_path) + after_its_end)
    _, warnings = report(path)
    assert [words in warning for warning in warnings] == [True]


def test_what_is_no_certificate_has_no_end(tmp_path):
    assert end_of_certificate(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n") is None
    assert end_of_certificate(b"") is None
