"""A server that answers what a test has scripted, over real HTTP(S)."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from airflow_provider_multikueue.decisions.connection import FleetConfig

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    at: float


@dataclass(frozen=True)
class Answer:
    """An answer with a status, headers and a JSON body."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        text = self.body if isinstance(self.body, str) else json.dumps(self.body)
        return web.Response(text=text, status=self.status, headers=self.headers, content_type="application/json")


@dataclass(frozen=True)
class Stream:
    """An answer in chunks, which then ends well, is cut, or stays open and silent."""

    chunks: Iterable[bytes]
    end: str = "well"

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in self.chunks:
            await response.write(chunk)
            await asyncio.sleep(0)
        if self.end == "cut":
            request.transport.abort()
        elif self.end == "open":
            await asyncio.sleep(3600)
        return response


@dataclass(frozen=True)
class Feed:
    """A stream of what a test puts into a queue: bytes, an event, or None to end it."""

    queue: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while (item := await self.queue.get()) is not None:
            if item == "cut":
                request.transport.abort()
                break
            await response.write(item if isinstance(item, bytes) else event(*item))
        return response

    def send(self, *items: Any) -> None:
        """Send events, bytes, "cut" or None."""
        for item in items:
            self.queue.put_nowait(item)


async def hang(request: web.Request) -> web.StreamResponse:
    """Never answer."""
    await asyncio.sleep(3600)
    return web.Response()


def status(code: int, message: str = "", *, reason: str = "", **headers: str) -> Answer:
    """Return a Status object as an API server sends it."""
    body = {"kind": "Status", "status": "Failure", "code": code, "message": message, "reason": reason}
    return Answer(body, code, {key.replace("_", "-"): value for key, value in headers.items()})


def listed(*items: dict[str, Any], version: str = "1", more: str = "") -> Answer:
    """Return a page of a list."""
    return Answer({"metadata": {"resourceVersion": version, "continue": more}, "items": list(items)})


def obj(name: str, version: int | str = 1, **more: Any) -> dict[str, Any]:
    """Return an object with a uid made of its name."""
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": meta | more.pop("metadata", {}), **more}


def event(kind: str, thing: dict[str, Any]) -> bytes:
    """Return a line of a watch."""
    return json.dumps({"type": kind, "object": thing}).encode() + b"\n"


class ApiServer:
    """Answers each (method, path) from its script; the last answer is repeated."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.url = ""
        self._scripts: dict[tuple[str, str], list[Handler]] = {}
        self._watches: dict[str, list[Handler]] = {}

    def on(self, method: str, path: str, *answers: Handler | dict[str, Any]) -> None:
        """Script the answers to a method and path."""
        self._scripts[method, path] = [a if callable(a) else Answer(a) for a in answers]

    def on_watch(self, path: str, *answers: Handler) -> None:
        """Script the answers to watches of a path."""
        self._watches[path] = list(answers)

    def count(self, method: str, path: str, *, watch: bool = False) -> int:
        """Return how often a path was asked."""
        return sum(s.method == method and s.path == path and ("watch" in s.query) == watch for s in self.seen)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        seen = Seen(
            request.method,
            request.raw_path.partition("?")[0],
            dict(request.query),
            dict(request.headers),
            json.loads(raw) if raw else None,
            asyncio.get_running_loop().time(),
        )
        self.seen.append(seen)
        script = (
            self._watches.get(seen.path, [hang])
            if "watch" in request.query
            else self._scripts.get((seen.method, seen.path))
        )
        if script is None:
            return await self._unscripted(seen, request)
        return await (script.pop(0) if len(script) > 1 else script[0])(request)

    async def _unscripted(self, _seen: Seen, request: web.Request) -> web.StreamResponse:
        return await status(404, "the server has no such thing")(request)

    @asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None, *, port: int = 0) -> AsyncIterator[ApiServer]:
        """Serve on loopback."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


@contextmanager
def in_thread() -> Iterator[ApiServer]:
    """Serve from a thread, for a test without a loop, or one whose code runs loops of its own."""
    server, ready, done, loop = ApiServer(), threading.Event(), asyncio.Event(), asyncio.new_event_loop()

    async def serve() -> None:
        async with server.running():
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(60)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


def connection(server: ApiServer) -> str:
    """Return an Airflow connection to a manager, as the environment holds it."""
    extra = {"manager_kube_config": json.dumps(kubeconfig(server.url)), "deployment": "test"}
    return json.dumps({"conn_type": "multikueue", "extra": extra})


def kubeconfig(server: str, *, cluster: dict[str, Any] | None = None, **user: Any) -> dict[str, Any]:
    """Return a kubeconfig of one context."""
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
    }


async def until(condition: Callable[[], Any], *, seconds: float = 10.0) -> None:
    """Return as soon as a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - a test's condition has no event
            await asyncio.sleep(0.002)


def fleet_config(server: ApiServer, folder: Path, **workers: str) -> FleetConfig:
    """Return a fleet whose manager and workers (name=region) are all one server, by a kubeconfig in ``folder``."""
    path = folder / "config"
    path.write_text(yaml.safe_dump(kubeconfig(server.url, token="some-token")))
    listed_workers = {name: {"kube_config_path": str(path), "region": region} for name, region in workers.items()}
    return FleetConfig.from_extra({"manager_kube_config_path": str(path), "workers": listed_workers}, conn_id="fleet")
