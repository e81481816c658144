"""The node's HTTPS endpoint, where the API server fetches containers' logs.

Whoever does not show the API server's certificate is refused.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from aiohttp import web

from airflow_provider_multikueue.sandbox.container import LogUnavailable
from airflow_provider_multikueue.sandbox.containerlog import LogOptions

if TYPE_CHECKING:
    from airflow_provider_multikueue.sandbox.pki import ServerTls
    from airflow_provider_multikueue.sandbox.pod import Pod

__all__ = ["Endpoint", "log_options"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LOOPBACK = "127.0.0.1"
API_SERVER = "kube-apiserver"
"""The name in the certificate that the API server shows to its kubelets."""


class Endpoint:
    """Serves the logs of all pods that ``find(namespace, name)`` knows."""

    def __init__(self, find: Callable[[str, str], Pod | None], *, tls: ServerTls, port: int) -> None:
        self._port = port
        self._find = find
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(tls.certificate, tls.key)
        self._tls.load_verify_locations(tls.client_authority)
        self._tls.verify_mode = ssl.CERT_REQUIRED
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen on the loopback interface."""
        app = web.Application(middlewares=[self._only_api_server])
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, self._port, ssl_context=self._tls).start()

    async def close(self) -> None:
        """Stop listening, and end the streams."""
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _only_api_server(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse other holders of a certificate of the same authority, such as the cluster's users."""
        certificate = request.get_extra_info("peercert") or {}
        names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
        if names != [API_SERVER]:
            return web.Response(status=403, text="Forbidden\n")
        return await handler(request)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        namespace, name, container = (request.match_info[key] for key in ("namespace", "pod", "container"))
        try:
            options = log_options(request.query, now=time.time_ns())
        except ValueError as error:
            return web.Response(status=400, text=str(error))
        pod = self._find(namespace, name)
        if pod is None:
            return web.Response(status=404, text=f'pod "{name}" does not exist\n')
        try:
            record = pod.container_log(container, previous=request.query.get("previous") == "true")
        except KeyError:
            return web.Response(status=404, text=f'container "{container}" not found in pod "{name}"\n')
        except LogUnavailable as error:
            return web.Response(status=400, text=str(error))
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        async for data in record.read(options):
            await response.write(data)
        await response.write_eof()
        return response


def log_options(query: Mapping[str, str], *, now: int) -> LogOptions:
    """Return what a request for a log asks for; ValueError when that makes no sense. ``now``: nanoseconds."""
    since = None
    if query.get("sinceTime"):
        since = _nanoseconds(query["sinceTime"])
    elif query.get("sinceSeconds"):
        since = now - _whole(query, "sinceSeconds", least=1) * 1_000_000_000
    return LogOptions(
        follow=query.get("follow") == "true",
        timestamps=query.get("timestamps") == "true",
        since=since,
        tail_lines=_whole(query, "tailLines", least=0) if query.get("tailLines") else None,
        limit_bytes=_whole(query, "limitBytes", least=1) if query.get("limitBytes") else None,
    )


def _whole(query: Mapping[str, str], name: str, *, least: int) -> int:
    text = query[name]
    if not text.isdigit() or int(text) < least:
        raise ValueError(f"{name}: {text!r} must be a whole number, at least {least}")
    return int(text)


def _nanoseconds(text: str) -> int:
    """Return nanoseconds since the epoch; Python's own parser has only six decimals."""
    head, point, rest = text.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    zone = rest[digits:] if point else ""
    try:
        moment = datetime.fromisoformat(head + zone)
        fraction = int(rest[:digits].ljust(9, "0")[:9]) if digits else 0
    except ValueError as error:
        raise ValueError(f"sinceTime: {text!r} is not an RFC 3339 time") from error
    if moment.tzinfo is None:
        raise ValueError(f"sinceTime: {text!r} has no time zone")
    return int(moment.timestamp()) * 1_000_000_000 + fraction
