"""A gateway in front of one API server that ends TLS, as those of clouds do, and misbehaves on command.

Whoever comes with a certificate of the cluster's authority is passed on under that name (by impersonation), whoever
comes with a token as its holder. It speaks HTTP/1.1 and passes no upgrades on.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import random
import re
import ssl
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from airflow_provider_multikueue.sandbox.files import write_private
from airflow_provider_multikueue.sandbox.pki import Pair

__all__ = ["Answers", "Gateway"]

# What concerns one connection alone, or says who asks.
_OWN = ("Connection", "Content-Encoding", "Host", "Keep-Alive", "Transfer-Encoding", "Upgrade")
_REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 429: "TooManyRequests", 503: "ServiceUnavailable"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """How the gateway answers; without arguments it passes all on as it is.

    ``status`` is what it answers instead of the API server, with ``retry_after`` seconds: to the ``share`` of requests,
    at most so many ``times``. ``buffer`` holds an answer back until it is complete, so that what is followed or watched
    stays silent. ``end_after`` ends answers, in good order, after so many seconds. All this holds for the paths in
    which the regular expression ``path`` is found.
    """

    status: int | None = None
    retry_after: float | None = None
    share: float = 1.0
    times: int | None = None
    buffer: bool = False
    end_after: float | None = None
    path: str = ""

    def __post_init__(self) -> None:
        if self.status is not None and not 400 <= self.status < 600:
            raise ValueError(f"A gateway's own answer is an error, from 400 to 599, not {self.status}.")
        if not 0 <= self.share <= 1:
            raise ValueError(f"A share of requests is from 0 to 1, not {self.share}.")
        try:
            re.compile(self.path)
        except re.error as error:
            raise ValueError(f"The path {self.path!r} is no regular expression: {error}.") from error

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return asdict(self)

    @classmethod
    def names(cls) -> frozenset[str]:
        """Return the names of all fields."""
        return frozenset(each.name for each in fields(cls))


class Gateway:
    """Listens on a free ``port`` of 127.0.0.1; ``access`` is the kubeconfig of one cluster's admin, all inline."""

    def __init__(self, access: Mapping[str, Any], *, pair: Pair, folder: Path) -> None:
        cluster, user = access["clusters"][0]["cluster"], access["users"][0]["user"]
        self._server = URL(cluster["server"])
        self._authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(pair.certificate, pair.key)
        self._tls.load_verify_locations(cadata=self._authority)
        self._tls.verify_mode = ssl.CERT_OPTIONAL
        certificate, key = (base64.b64decode(user[f"client-{name}-data"]) for name in ("certificate", "key"))
        self._admin = Pair(
            certificate=write_private(folder / "admin.crt", certificate), key=write_private(folder / "admin.key", key)
        )
        self.answers = Answers()
        self._answered = 0
        self._runner: web.AppRunner | None = None
        self._sessions: list[aiohttp.ClientSession] = []

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._runner is not None  # noqa: S101  (it is for those who entered it)
        port: int = self._runner.addresses[0][1]
        return port

    def answer(self, answers: Answers) -> None:
        """Answer so from now on."""
        self.answers, self._answered = answers, 0

    async def __aenter__(self) -> Self:
        """Listen."""
        self._sessions = [self._session(admin=False), self._session(admin=True)]
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Stop listening, and end all answers."""
        if self._runner is not None:
            await self._runner.cleanup()
        for session in self._sessions:
            await session.close()

    def _session(self, *, admin: bool) -> aiohttp.ClientSession:
        context = ssl.create_default_context(cadata=self._authority)
        if admin:
            context.load_cert_chain(self._admin.certificate, self._admin.key)
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        answers = self.answers if re.search(self.answers.path, request.path) else Answers()
        if answers.status is not None and self._is_struck(answers):
            return _error(answers)
        try:
            async with self._pass_on(request) as upstream:
                return await self._give_back(request, upstream, answers)
        except (OSError, aiohttp.ClientError):
            # As if nothing stood in between: the API server is away, or has broken its answer off.
            if request.transport is not None:
                request.transport.abort()
            raise

    def _is_struck(self, answers: Answers) -> bool:
        spent = answers.times is not None and self._answered >= answers.times
        if spent or random.random() >= answers.share:  # noqa: S311
            return False
        self._answered += 1
        return True

    def _pass_on(self, request: web.Request) -> aiohttp.client._RequestContextManager:
        headers = CIMultiDict(request.headers)
        for name in _OWN:
            headers.popall(name, None)
        session = self._sessions[0]
        if "Authorization" not in headers and (who := request.get_extra_info("peercert")):
            session = self._sessions[1]
            names = [(key, value) for part in who["subject"] for key, value in part]
            headers.setdefault("Impersonate-User", next(value for key, value in names if key == "commonName"))
            for key, value in names:
                if key == "organizationName":
                    headers.add("Impersonate-Group", value)
        url = URL(f"{str(self._server).rstrip('/')}{request.raw_path}", encoded=True)
        body = request.content if request.can_read_body else None
        return session.request(request.method, url, headers=headers, data=body, allow_redirects=False)

    async def _give_back(
        self, request: web.Request, upstream: aiohttp.ClientResponse, answers: Answers
    ) -> web.StreamResponse:
        headers = CIMultiDict(upstream.headers)
        for name in ("Connection", "Keep-Alive", "Transfer-Encoding"):
            headers.popall(name, None)
        response = web.StreamResponse(status=upstream.status, headers=headers)
        whole = await self._until_complete(upstream, answers) if answers.buffer else None
        await response.prepare(request)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(answers.end_after):
                if whole is not None:
                    await response.write(whole)
                async for chunk in upstream.content.iter_any():
                    await response.write(chunk)
        await response.write_eof()
        return response

    async def _until_complete(self, upstream: aiohttp.ClientResponse, answers: Answers) -> bytes:
        parts: list[bytes] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(answers.end_after):
                async for chunk in upstream.content.iter_any():
                    parts.append(chunk)  # noqa: PERF401  (what came before the end counts)
        return b"".join(parts)


def _error(answers: Answers) -> web.Response:
    assert answers.status is not None  # noqa: S101  (the caller has looked)
    headers = {} if answers.retry_after is None else {"Retry-After": f"{answers.retry_after:g}"}
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "The sandbox's network was told to answer so.",
        "reason": _REASONS.get(answers.status, ""),
        "code": answers.status,
    }
    return web.json_response(body, status=answers.status, headers=headers)
