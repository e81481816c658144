"""The way from an API server to services in its cluster, whose addresses lead nowhere on this machine.

As in managed clusters, the API server reaches its nodes and services through a proxy (HTTP CONNECT, here on a socket).
Services lead to the ports of the programs that stand in for their pods; all else is passed on as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_address, ip_network
from pathlib import Path

from airflow_provider_multikueue.sandbox.files import write_private

__all__ = ["SERVICE_RANGE", "configuration", "serve"]

SERVICE_RANGE = "10.96.0.0/16"
Resolve = Callable[[str], Awaitable[int | None]]


def configuration(folder: Path) -> Path:
    """Write the API server's configuration for the proxy; sockets need short names, so relative to where it runs."""
    selection = {
        "name": "cluster",
        "connection": {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": "egress"}}},
    }
    content = {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [selection],
    }
    return write_private(folder / "egress.json", json.dumps(content))


@contextlib.asynccontextmanager
async def serve(socket: Path, resolve: Resolve) -> AsyncIterator[None]:
    """Serve at ``socket``; ``resolve`` gives the port on loopback of a service's address, None if it has none."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await _connect(reader, writer, resolve)
        writer.close()

    socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    socket.unlink(missing_ok=True)
    folder = os.open(socket.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        # By way of the folder's descriptor, since the names of sockets must be short.
        async with await asyncio.start_unix_server(handle, f"/proc/self/fd/{folder}/{socket.name}"):
            yield
    finally:
        os.close(folder)


async def _connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, resolve: Resolve) -> None:
    request = await reader.readuntil(b"\r\n\r\n")
    host, _, port = request.split()[1].decode().rpartition(":")
    host = host.strip("[]")
    target: tuple[str, int | None] = (host, int(port))
    if ip_address(host) in ip_network(SERVICE_RANGE):
        target = ("127.0.0.1", await resolve(host))
    if target[1] is None:
        writer.write(b"HTTP/1.1 502 Nothing listens there\r\n\r\n")
        return
    try:
        there, there_writer = await asyncio.open_connection(*target)
    except OSError:
        writer.write(b"HTTP/1.1 502 Connection refused\r\n\r\n")
        return
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    try:
        await asyncio.gather(_pass_on(reader, there_writer), _pass_on(there, writer))
    finally:
        there_writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(65536):
        writer.write(chunk)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
