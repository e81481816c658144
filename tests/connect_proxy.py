"""A proxy that lets nothing but CONNECT through."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["ConnectProxy"]


class ConnectProxy:
    """Leads names to ports of this machine, and refuses whatever is no CONNECT to one of them.

    ``asked`` has what was asked for, ``heads`` the whole heads of these requests. With ``tls`` it is at ``https://``.
    """

    def __init__(self, leads: Callable[[str, int], int | None], *, tls: ssl.SSLContext | None = None) -> None:
        self._leads = leads
        self._tls = tls
        self.asked: list[str] = []
        self.heads: list[str] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._tasks: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> ConnectProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # closed writers close their sockets in the next round

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            verb, target, *_ = head.split()
            self.asked.append(f"{verb} {target}")
            host, _, port = target.rpartition(":")
            there = self._leads(host, int(port)) if verb == "CONNECT" else None
            if there is None:
                writer.write(b"HTTP/1.1 405 Only CONNECT\r\nContent-Length: 0\r\n\r\n")
                return
            back, forth = await asyncio.open_connection("127.0.0.1", there)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await asyncio.gather(_pump(reader, forth), _pump(back, writer), return_exceptions=True)
        finally:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()
