"""A network that misbehaves on command, in front of one API server.

::

    async with FaultProxy("127.0.0.1", apiserver_port) as proxy:
        kubeconfig = ...  # server: https://127.0.0.1:{proxy.port}
        proxy.set_fault(Fault(cut_after=10_000))

Bytes pass as they are, TLS included: the API server's certificate must be valid for 127.0.0.1, and clients keep using
their own credentials. A fault holds for connections that are open as well as for new ones, from the moment it is set.

What goes on inside of TLS, such as answering with a status code, is for another object with the same address and
the same ``set_fault``: a server that ends TLS with a certificate of the sandbox's authority.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from types import TracebackType
from typing import Any, Literal, Self

__all__ = ["Fault", "FaultProxy"]

CHUNK = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How the network behaves; plain JSON through :meth:`to_json`. Without arguments it is healthy.

    ``mode``: ``pass`` lets bytes through. ``blackhole`` accepts connections and lets nothing through in either
    direction, as when packets are dropped; what was held back passes when the fault is over. ``refuse`` refuses new
    connections, as when nobody listens. ``cut_after`` resets a connection when so many bytes have come to the client on
    it since the fault was set. ``delay`` holds each piece back for so many seconds; ``rate`` lets so many bytes a
    second through to each client.
    """

    mode: Literal["pass", "blackhole", "refuse"] = "pass"
    cut_after: int | None = None
    delay: float = 0.0
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in {"pass", "blackhole", "refuse"}:
            raise ValueError(f"A fault's mode is pass, blackhole or refuse, not {self.mode!r}.")
        if self.delay < 0 or (self.cut_after or 0) < 0 or (self.rate is not None and self.rate <= 0):
            raise ValueError("A fault's numbers cannot be negative, and its rate is more than 0.")

    def to_json(self) -> dict[str, Any]:
        """Return the fault as plain JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Fault:
        """Return the fault that :meth:`to_json` described; keys that are left out have their defaults."""
        unknown = set(data) - {each.name for each in fields(cls)}
        if unknown:
            raise ValueError(f"A fault has no {', '.join(sorted(unknown))}.")
        return cls(**data)


class FaultProxy:
    """Listens on ``127.0.0.1:port`` and passes connections on to ``host:target_port``; port 0 chooses a free one."""

    def __init__(self, host: str, target_port: int, *, port: int = 0) -> None:
        self._host = host
        self._target_port = target_port
        self._fault = Fault()
        self._changed = asyncio.Event()
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        # Bound and never listening, it keeps the port ours while we refuse.
        self._holder = _bound(port)

    @property
    def port(self) -> int:
        """The port to connect to; it stays the same for the life of the proxy."""
        port: int = self._holder.getsockname()[1]
        return port

    @property
    def fault(self) -> Fault:
        """The fault in force."""
        return self._fault

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    async def start(self) -> None:
        """Begin to accept connections."""
        if self._server is None:
            listener = _bound(self.port)
            self._server = await asyncio.start_server(self._serve, sock=listener, backlog=512)

    async def stop(self) -> None:
        """Close the port and all connections."""
        self._refuse()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._holder.close()

    async def set_fault(self, fault: Fault) -> None:
        """Let the network behave so from now on; when this returns, it does."""
        self._fault = fault
        for connection in self._connections:
            connection.received = 0
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if fault.mode == "refuse":
            self._refuse()
        else:
            await self.start()

    def cut(self) -> int:
        """Reset all connections that are open, whatever the fault; return how many."""
        cut = len(self._connections)
        for connection in self._connections:
            connection.reset()
        return cut

    async def __aenter__(self) -> Self:
        """Start it."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        """Stop it."""
        await self.stop()

    def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Only `stop` cancels it, and Python 3.11 complains of a handler that ends so.
        with contextlib.suppress(asyncio.CancelledError):
            await self._pass_on(reader, writer)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (a server calls us in a task)
        self._tasks.add(task)
        connection = _Connection(writer)
        self._connections.add(connection)
        try:
            await self._until_open()
            server = await asyncio.open_connection(self._host, self._target_port)
            connection.writers.append(server[1])
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, server[1], connection, to_client=False))
                pumps.create_task(self._pump(server[0], writer, connection, to_client=True))
        except* OSError:
            connection.reset()
        finally:
            self._connections.discard(connection)
            self._tasks.discard(task)
            for each in connection.writers:
                each.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: _Connection, *, to_client: bool
    ) -> None:
        while chunk := await reader.read(CHUNK):
            await self._until_open()
            if self._fault.delay:
                await asyncio.sleep(self._fault.delay)
                await self._until_open()
            if to_client:
                await self._to_client(chunk, writer, connection)
            else:
                writer.write(chunk)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def _to_client(self, chunk: bytes, writer: asyncio.StreamWriter, connection: _Connection) -> None:
        while chunk:
            fault = self._fault
            size = len(chunk)
            if fault.cut_after is not None:
                size = min(size, fault.cut_after - connection.received)
            if fault.rate is not None:
                # Ten pieces a second, so that a slow line is slow and not jerky.
                size = min(size, max(1, int(fault.rate / 10)))
            piece, chunk = chunk[:size], chunk[size:]
            writer.write(piece)
            await writer.drain()
            connection.received += len(piece)
            if fault.cut_after is not None and connection.received >= fault.cut_after:
                raise ConnectionResetError
            if fault.rate is not None:
                await asyncio.sleep(len(piece) / fault.rate)

    async def _until_open(self) -> None:
        while self._fault.mode == "blackhole":
            await self._changed.wait()


class _Connection:
    """One client's connection and, once it is made, ours to the server."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writers = [writer]
        self.received = 0

    def reset(self) -> None:
        """End both sides as a broken network does, with a reset instead of an orderly close."""
        for writer in self.writers:
            sock = writer.get_extra_info("socket")
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", port))
    return sock
