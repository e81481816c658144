"""The gateway that misbehaves, between real clients and a small server, over TLS with certificates of a cluster's."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from airflow_provider_multikueue.sandbox.gateway import Answers, Gateway
from airflow_provider_multikueue.sandbox.pki import Authority, Pair, kubeconfig


async def _echo(request: web.Request) -> web.Response:
    """Tell who asks and what: the certificate's name, the headers, the path, the body."""
    who = dict(part[0] for part in (request.get_extra_info("peercert") or {}).get("subject", ()))
    asked = {
        "certificate": who.get("commonName"),
        "user": request.headers.get("Impersonate-User"),
        "groups": request.headers.getall("Impersonate-Group", []),
        "authorization": request.headers.get("Authorization"),
        "path": request.raw_path,
        "body": (await request.read()).decode(),
    }
    return web.json_response(asked, headers={"X-Passed": "yes"})


async def _ticks(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for number in range(int(request.query["count"])):
        await response.write(f"tick {number}\n".encode())
        await asyncio.sleep(0.02)
    return response


class Site:
    """A cluster's certificates, its server, and the gateway before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority("cluster-ca", folder / "cluster")
        self.outside = Authority("network-ca", folder / "network")
        self.admin = self.authority.client("admin", "admin", groups=["system:masters"])
        self.gateway: Gateway = None  # type: ignore[assignment]

    async def server(self) -> web.AppRunner:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pair = self.authority.server("apiserver")
        tls.load_cert_chain(pair.certificate, pair.key)
        tls.load_verify_locations(self.authority.pair.certificate)
        tls.verify_mode = ssl.CERT_OPTIONAL
        app = web.Application()
        app.router.add_get("/ticks", _ticks)
        app.router.add_route("*", "/{path:.*}", _echo)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        return runner

    def access(self, port: int) -> dict[str, Any]:
        ca = self.authority.pair.certificate
        return kubeconfig(server=f"https://127.0.0.1:{port}", authority=ca, context="worker", pair=self.admin)

    @asynccontextmanager
    async def client(self, pair: Pair | None = None) -> AsyncIterator[aiohttp.ClientSession]:
        context = ssl.create_default_context(cafile=self.outside.pair.certificate)
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        base = f"https://127.0.0.1:{self.gateway.port}"
        connector = aiohttp.TCPConnector(ssl=context)
        async with aiohttp.ClientSession(base, connector=connector) as session:
            yield session


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    runner = await site.server()
    access = site.access(runner.addresses[0][1])
    async with Gateway(access, pair=site.outside.server("gateway"), folder=tmp_path / "gateway") as site.gateway:
        yield site
    await runner.cleanup()


async def test_all_passes_as_it_is_under_the_name_of_the_clients_certificate(site: Site) -> None:
    train = site.authority.client("train", "trainer", groups=["teams", "ml"])
    async with site.client(train) as client, client.post("/a%2Fb?watch=1&c=%20", data=b"body") as answer:
        asked = await answer.json()
        assert answer.headers["X-Passed"] == "yes"
    assert asked == {
        "certificate": "admin",
        "user": "trainer",
        "groups": ["teams", "ml"],
        "authorization": None,
        "path": "/a%2Fb?watch=1&c=%20",
        "body": "body",
    }


async def test_a_token_is_passed_on_and_nobody_is_admin_by_the_way(site: Site) -> None:
    async with site.client() as client, client.get("/", headers={"Authorization": "Bearer invented"}) as answer:
        asked = await answer.json()
    assert (asked["authorization"], asked["certificate"], asked["user"]) == ("Bearer invented", None, None)
    async with site.client() as client, client.get("/") as answer:
        assert (await answer.json())["certificate"] is None


async def test_a_status_strikes_so_many_requests_of_a_path(site: Site) -> None:
    site.gateway.answer(Answers(status=429, retry_after=2, times=2, path="/log$"))
    async with site.client() as client:
        found = []
        for path in ("/log", "/pods", "/log", "/log"):
            async with client.get(path) as answer:
                found.append((answer.status, answer.headers.get("Retry-After")))
    assert found == [(429, "2"), (200, None), (429, "2"), (200, None)]


async def test_what_is_buffered_comes_at_once_and_what_is_ended_ends_in_order(site: Site) -> None:
    whole = b"".join(b"tick %d\n" % number for number in range(20))
    site.gateway.answer(Answers(buffer=True))
    async with site.client() as client, client.get("/ticks?count=20") as answer:
        assert await answer.content.readany() == whole
    site.gateway.answer(Answers(end_after=0.1))
    async with site.client() as client, client.get("/ticks?count=500") as answer:
        shortened = await answer.read()
    assert whole.startswith(shortened[:80])
    assert 0 < len(shortened.splitlines()) < 500


async def test_a_stream_passes_piece_by_piece(site: Site) -> None:
    async with site.client() as client, client.get("/ticks?count=500") as answer:
        assert await answer.content.readline() == b"tick 0\n"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"status": 200}, "400 to 599"), ({"share": 2}, "from 0 to 1"), ({"path": "("}, "no regular expression")],
    ids=["status", "share", "path"],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Answers(**wrong)
