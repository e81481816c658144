"""The control channel: a private unix socket, one line of JSON for a request and one for its answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.sandbox.paths import SandboxError

__all__ = ["call", "serve"]

Handler = Callable[[str, dict[str, Any]], Awaitable[Any]]

_LIMIT = 2**24


@contextlib.asynccontextmanager
async def serve(path: Path, handler: Handler) -> AsyncIterator[None]:
    """Answer requests on ``path`` with what ``handler(operation, arguments)`` returns, or the text of its error."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(json.dumps(await _result(handler, line)).encode() + b"\n")
                await writer.drain()
        writer.close()

    path.unlink(missing_ok=True)
    with _short(path) as short:
        server = await asyncio.start_unix_server(answer, short, limit=_LIMIT)
    path.chmod(0o600)
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


def call(path: Path, operation: str, /, *, timeout: float = 60.0, **arguments: Any) -> Any:
    """Ask who serves ``path`` and return the answer; SandboxError when it is an error, or when nobody answers."""
    request = json.dumps({"operation": operation, "arguments": arguments}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX) as channel, _short(path) as short:
            channel.settimeout(timeout)
            channel.connect(short)
            channel.sendall(request)
            line = channel.makefile("rb").readline()
    except TimeoutError as error:
        raise SandboxError(f"The sandbox did not answer {operation!r} within {timeout:.0f} s.") from error
    except OSError as error:
        raise SandboxError(
            f"Nobody answers at {path}: the sandbox isn't up. Start it with `multikueue sandbox up`."
        ) from error
    answer = json.loads(line or b'{"error": "The sandbox ended before it answered."}')
    if "error" in answer:
        raise SandboxError(answer["error"])
    return answer["result"]


async def _result(handler: Handler, line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
        return {"result": await handler(request["operation"], request["arguments"])}
    except Exception as error:  # noqa: BLE001  (whatever went wrong is for the one who asked)
        return {"error": str(error) if isinstance(error, SandboxError) else f"{type(error).__name__}: {error}"}


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a short name for ``path``, since the address of a unix socket holds little more than 100 characters."""
    folder = os.open(path.parent, os.O_PATH)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
