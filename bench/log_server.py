"""An API server that serves the logs of pods which do what their names say.

It is a process of its own, so that what it costs is not counted.

``tick-N`` prints a line a second, ``fast-N`` 25, ``flood`` 200 MB as fast as they are taken, ``block`` has ended after
200,000 lines: those of a training run, 100 bytes long on average. Lines of ``tick`` and ``fast`` begin with the time.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from datetime import UTC, datetime

from aiohttp import web

__all__ = ["BLOCK_LINES", "FAST_LINES", "FLOOD_BYTES"]

BLOCK_LINES = 200_000
FAST_LINES = 25
FLOOD_BYTES = 200_000_000
CHUNK_LINES = 300


def stamped(text: str, nanoseconds: int | None = None) -> str:
    """Return a line as the log API gives it."""
    at = nanoseconds or time.time_ns()
    return f"{datetime.fromtimestamp(at // 10**9, UTC):%Y-%m-%dT%H:%M:%S}.{at % 10**9:09d}Z {text}\n"


def block(lines: int) -> bytes:
    """Return so many lines that were written just now."""
    chosen, now = random.Random(1), time.time_ns() - lines * 1000
    return "".join(
        stamped(
            f"epoch {number // 5000} step {number} loss {chosen.random():.6f} "
            f"{chosen.choice(('tokens/s', 'samples/s'))} {'x' * chosen.randrange(80)}",
            now + 1000 * number,
        )
        for number in range(lines)
    ).encode()


class Logs:
    """The server."""

    def __init__(self) -> None:
        self._block: bytes = b""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Serve the log of one pod."""
        kind, _, number = request.match_info["pod"].partition("-")
        response = web.StreamResponse()
        await response.prepare(request)
        if kind == "block":
            self._block = self._block or block(BLOCK_LINES)
            await response.write(self._block)
        elif request.query.get("follow") == "true":
            # a pod that prints ends with its reader
            await (self._flood(response) if kind == "flood" else self._print(response, kind, int(number)))
        elif kind == "tick":
            await response.write(_last(int(number), float(request.query.get("sinceSeconds", "10"))))
        return response

    async def _print(self, response: web.StreamResponse, kind: str, number: int) -> None:
        pause = 1.0 if kind == "tick" else 1 / FAST_LINES
        await asyncio.sleep(_phase(number) * pause)
        due = asyncio.get_running_loop().time()
        while True:
            await response.write(stamped(_tick(kind, number, time.time())).encode())
            due += pause
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    async def _flood(self, response: web.StreamResponse) -> None:
        sent = 0
        while sent < FLOOD_BYTES:
            data = "".join(stamped(f"flood {number} " + "y" * 80) for number in range(CHUNK_LINES)).encode()
            await response.write(data)
            sent += len(data)
        await asyncio.Event().wait()


def _phase(number: int) -> float:
    """Return at which part of a second a pod prints."""
    return (number * 0.618) % 1


def _last(number: int, seconds: float) -> bytes:
    """Return what a pod that prints once a second has printed in the last seconds."""
    now = time.time()
    times = (int(now) - back + _phase(number) for back in range(int(seconds) + 1, -1, -1))
    return "".join(
        stamped(_tick("tick", number, at), int(at * 1e9)) for at in times if now - seconds <= at <= now
    ).encode()


def _tick(kind: str, number: int, at: float) -> str:
    return f"{kind} {number} {at:.6f} " + "x" * 40


async def main() -> None:
    """Serve until the standard input ends; print the port first."""
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/{namespace}/pods/{pod}/log", Logs().answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
