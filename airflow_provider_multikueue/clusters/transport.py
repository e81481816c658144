"""The connections to one API server and the credentials they are used with: aiohttp, driven for Kubernetes.

Not kubernetes_asyncio's client over the same aiohttp: that one has a single TLS context for its life, where rotated
certificates and authorities need new connections beside the old ones, knows no CIDR in NO_PROXY, renews tokens in pods
alone or every minute, and retries nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_multikueue import __version__

if TYPE_CHECKING:
    import ssl

    from aiohttp import ClientRequest, ClientResponse, ClientSession, TCPConnector

    from airflow_provider_multikueue.clusters.credentials import Access, Source

__all__ = ["LOG", "LOG_FOLLOW", "PROBE", "UNARY", "WATCH", "Mask", "SourceAnew", "Timeouts", "Transport"]

Mask = Callable[[Iterable[str], object], Awaitable[None]]
"""Hides texts in all logs of this process, at least while the object that uses them is there and has no others."""
SourceAnew = Callable[[], Awaitable["Source | None"]]
"""Asks whoever gave the source whether there is another one by now."""

REQUESTS_AT_ONCE = 32
RENEWAL_PAUSE = 1.0
"""Seconds between two loads because of a refusal, so that bad credentials do not run a plugin without end."""
EARLY_RENEWAL_PAUSE = 5.0
"""Seconds between attempts to renew credentials that are still good."""
LINGER = 75.0
"""Seconds that old connections may finish their requests after the certificates changed."""
READ_BUFFER = 256 * 1024
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds for one request; None is no limit."""

    connect: float = 10.0
    answer: float | None = None
    """Until the answer begins; a followed log may begin as late as the container's first line."""
    silence: float | None
    total: float | None = None


UNARY = Timeouts(silence=35.0, total=60.0)
PROBE = Timeouts(connect=5.0, silence=5.0, total=10.0)
WATCH = Timeouts(answer=30.0, silence=90.0)  # servers send a bookmark about every minute
LOG = Timeouts(silence=60.0)
LOG_FOLLOW = Timeouts(silence=None)


class Transport:
    """Sends requests with credentials that are good; knows HTTP, but no Kubernetes."""

    def __init__(
        self, name: str, source: Source, *, mask: Mask | None = None, source_anew: SourceAnew | None = None
    ) -> None:
        self.slots = asyncio.Semaphore(REQUESTS_AT_ONCE)
        self.name = name
        self._source = source
        self._mask = mask
        self._source_anew = source_anew
        self._access: Access | None = None
        self._loaded = 0.0
        self._loading: asyncio.Task[Access] | None = None
        self._session: ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self.heard = 0.0
        """Monotonic seconds at which the server last sent anything."""

    @property
    def server(self) -> str:
        """The address, or "" before it was loaded."""
        return self._access.server if self._access else ""

    @property
    def expires(self) -> float | None:
        """When the credentials end, if that is known."""
        return self._access.expires if self._access else None

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What a request can raise when the way to the server is at fault."""
        import aiohttp

        # The RuntimeError is aiohttp's for a connection or session that was closed meanwhile.
        return (aiohttp.ClientError, OSError, TimeoutError, RuntimeError)

    async def send(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str], timeouts: Timeouts
    ) -> ClientResponse:
        """Return the response to a request, its body unread; once more with new credentials after a 401."""
        access = await self.access()
        response = await self._send(access, method, path, data, headers, timeouts)
        if response.status != 401:
            return response
        response.release()
        renewed = await self._renewed(access)
        return await self._send(renewed, method, path, data, headers, timeouts)

    async def _send(
        self,
        access: Access,
        method: str,
        path: str,
        data: bytes | None,
        headers: Mapping[str, str],
        timeouts: Timeouts,
    ) -> ClientResponse:
        from aiohttp import ClientTimeout
        from yarl import URL

        sent = {"Accept": "application/json", **headers}
        if access.authorization:
            sent["Authorization"] = access.authorization
        response = await self._open_session(access).request(
            method,
            URL(access.server + path, encoded=True),
            data=data,
            headers=sent,
            proxy=access.proxy,
            server_hostname=access.tls_server_name,
            allow_redirects=False,  # a redirect would carry the credentials elsewhere
            timeout=ClientTimeout(
                total=timeouts.total,
                connect=timeouts.connect,
                sock_connect=timeouts.connect,
                sock_read=timeouts.silence,
            ),
        )
        self.heard = time.monotonic()
        if timeouts.total is None:
            _keep_alive(response)
        return response

    def _open_session(self, access: Access) -> ClientSession:
        """Return the session."""
        if self._closed:
            raise ConnectionError("the client was closed")
        if self._session is None or self._session.closed:
            from aiohttp import ClientSession, DummyCookieJar

            self._session = ClientSession(
                connector=_connector(access),
                cookie_jar=DummyCookieJar(),
                headers={"User-Agent": f"airflow-provider-multikueue/{__version__}"},
                read_bufsize=READ_BUFFER,
                trust_env=False,  # the proxy was chosen with the credentials; ~/.netrc is not for API servers
            )
        return self._session

    # -- credentials

    async def access(self) -> Access:
        """Return good credentials; those about to end are renewed behind the request's back."""
        access, now = self._access, time.time()
        if access is None or (access.expires is not None and access.expires <= now):
            return await self._load()
        if access.renew_at is not None and access.renew_at <= now and now - self._loaded > EARLY_RENEWAL_PAUSE:
            self._start_loading()
        return access

    async def _renewed(self, refused: Access) -> Access:
        """Return other credentials than ``refused``; one load serves all who were refused at once."""
        if self._access is refused:
            await asyncio.sleep(self._loaded + RENEWAL_PAUSE - time.time())
        if self._access is refused or self._access is None:
            return await self._load(refused=True)
        return self._access

    async def _load(self, *, refused: bool = False) -> Access:
        return await asyncio.shield(self._start_loading(refused=refused))

    def _start_loading(self, *, refused: bool = False) -> asyncio.Task[Access]:
        """Return the one load that is under way, for all who need it."""
        if self._loading is None or self._loading.done():
            self._loading = asyncio.create_task(self._load_once(refused=refused), name=f"credentials of {self.name}")
            self._loading.add_done_callback(_consume)
        return self._loading

    async def _load_once(self, *, refused: bool) -> Access:
        try:
            if refused and self._source_anew is not None:
                self._source = await self._source_anew() or self._source
            access = await asyncio.to_thread(self._source.load)
            if self._mask is not None:
                await self._mask(access.secrets, self)
        except Exception as error:
            if self._access is None:
                raise
            # What worked before will work again: no reason to call the configuration wrong.
            raise ConnectionError(f"the credentials could not be renewed: {error}") from error
        finally:
            self._loaded = time.time()
        if self._access is not None and self._access.fingerprint != access.fingerprint:
            self._retire_session()
        self._access = access
        return access

    def _retire_session(self) -> None:
        """Let running requests end on the old connections, and close those after a while."""
        session, self._session = self._session, None
        if session is None:
            return

        async def close_later() -> None:
            try:
                await asyncio.sleep(LINGER)
            finally:
                await session.close()

        task = asyncio.create_task(close_later(), name=f"old connections to {self.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        for task in (*self._tasks, self._loading):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
        if self._session is not None:
            await self._session.close()


def _connector(access: Access) -> TCPConnector:
    """Return what connects; without a limit, since each watch and each followed log holds a connection."""
    from aiohttp import TCPConnector

    if access.proxy_tls is None:
        return TCPConnector(ssl=access.tls if access.tls is not None else True, limit=0)

    class TunnelConnector(TCPConnector):
        """Gives the proxy a context of its own, where aiohttp uses the server's for both.

        It overrides what is private in aiohttp. Were it not called any more, the proxy's context would serve both: it
        verifies, and knows no client certificate.
        """

        def _get_ssl_context(self, req: ClientRequest) -> ssl.SSLContext | None:
            return access.tls if req.proxy else access.proxy_tls

    return TunnelConnector(ssl=access.proxy_tls, limit=0)


def _consume(task: asyncio.Task[Access]) -> None:
    """Take note of a failed renewal that nobody awaited; the next request meets the cause itself."""
    if not task.cancelled():
        task.exception()


def _keep_alive(response: ClientResponse) -> None:
    """Have the kernel notice a peer that vanished from a stream that may be silent for hours."""
    transport = response.connection.transport if response.connection else None
    sock = transport.get_extra_info("socket") if transport else None
    if sock is None:
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
