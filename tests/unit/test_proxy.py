"""The misbehaving network, with a plain TCP server behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from airflow_provider_multikueue.sandbox.proxy import Fault, FaultProxy

PAYLOAD = bytes(range(256)) * 400


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echo lines; for ``send`` send the payload and close."""
    while line := await reader.readline():
        if line == b"send\n":
            writer.write(PAYLOAD)
            break
        writer.write(line)
        await writer.drain()
    writer.close()


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    async with FaultProxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        yield proxy
    server.close()


@asynccontextmanager
async def _client(proxy: FaultProxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, within: float = 2.0) -> bytes:
    writer.write(b"hello\n")
    return await asyncio.wait_for(reader.readline(), within)


async def test_a_healthy_network_passes_everything_and_closes_in_order(proxy: FaultProxy) -> None:
    async with _client(proxy) as (reader, writer):
        assert await _echo(reader, writer) == b"hello\n"
        writer.write(b"send\n")
        assert await reader.read() == PAYLOAD


async def test_a_connection_is_cut_at_the_very_byte(proxy: FaultProxy) -> None:
    async with _client(proxy) as (reader, writer):
        assert await _echo(reader, writer) == b"hello\n"
        await proxy.set_fault(Fault(cut_after=12_345))
        writer.write(b"send\n")
        received = bytearray()

        async def receive() -> None:
            while chunk := await reader.read(1000):
                received.extend(chunk)

        with pytest.raises(ConnectionResetError):
            await receive()
        assert PAYLOAD.startswith(received)
        assert len(received) <= 12_345
    await proxy.set_fault(Fault())
    async with _client(proxy) as (reader, writer):
        assert await _echo(reader, writer) == b"hello\n"


async def test_open_connections_are_cut_on_command(proxy: FaultProxy) -> None:
    async with _client(proxy) as (reader, writer):
        await _echo(reader, writer)
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            await reader.read()
    async with _client(proxy) as (reader, writer):
        assert await _echo(reader, writer) == b"hello\n"


async def test_a_black_hole_holds_back_what_passes_when_it_is_over(proxy: FaultProxy) -> None:
    async with _client(proxy) as (reader, writer):
        await _echo(reader, writer)
        await proxy.set_fault(Fault(mode="blackhole"))
        async with _client(proxy) as (new_reader, new_writer):
            for each in ((reader, writer), (new_reader, new_writer)):
                with pytest.raises(TimeoutError):
                    await _echo(*each, within=0.1)
            await proxy.set_fault(Fault())
            assert await asyncio.wait_for(reader.readline(), 2) == b"hello\n"
            assert await asyncio.wait_for(new_reader.readline(), 2) == b"hello\n"


async def test_refused_connections_find_the_same_port_again(proxy: FaultProxy) -> None:
    port = proxy.port
    async with _client(proxy) as (reader, writer):
        await _echo(reader, writer)
        await proxy.set_fault(Fault(mode="refuse"))
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        assert await _echo(reader, writer) == b"hello\n"
    await proxy.set_fault(Fault())
    assert proxy.port == port
    async with _client(proxy) as (reader, writer):
        assert await _echo(reader, writer) == b"hello\n"


async def test_delay_and_rate_take_their_time(proxy: FaultProxy) -> None:
    await proxy.set_fault(Fault(delay=0.1))
    async with _client(proxy) as (reader, writer):
        start = time.monotonic()
        await _echo(reader, writer)
        assert time.monotonic() - start >= 0.2
    await proxy.set_fault(Fault(rate=len(PAYLOAD) * 2))
    async with _client(proxy) as (reader, writer):
        start = time.monotonic()
        writer.write(b"send\n")
        assert await reader.read() == PAYLOAD
        assert time.monotonic() - start >= 0.4


async def test_a_server_that_is_gone_resets_the_client() -> None:
    closed = await asyncio.start_server(_serve, "127.0.0.1", 0)
    port = closed.sockets[0].getsockname()[1]
    closed.close()
    await closed.wait_closed()
    async with FaultProxy("127.0.0.1", port) as proxy, _client(proxy) as (reader, _):
        with pytest.raises(ConnectionResetError):
            await reader.read()


@pytest.mark.parametrize("data", [{"mode": "broken"}, {"rate": 0}, {"delay": -1}, {"speed": 1}])
def test_a_wrong_fault_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="fault"):
        Fault.from_json(data)


def test_a_fault_survives_its_json() -> None:
    fault = Fault(mode="pass", cut_after=1, delay=2.0, rate=3.0)
    assert Fault.from_json(fault.to_json()) == fault
