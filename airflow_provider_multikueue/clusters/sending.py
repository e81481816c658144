"""Requests and streams to one API server: repeated where that is safe, and every failure an `ApiError`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow_provider_multikueue.clusters.api_error import ApiError, TooLargeError, from_answer, from_exception
from airflow_provider_multikueue.clusters.transport import UNARY, Timeouts, Transport

if TYPE_CHECKING:
    from aiohttp import ClientResponse

    from airflow_provider_multikueue.clusters.resources import Call

__all__ = ["Sender", "decoded"]

Object = dict[str, Any]

ATTEMPTS = 5
BUDGET = 30.0
"""Seconds after which no further attempt of a request is begun."""
ERROR_BODY = 64 * 1024
ANSWER_LIMIT = 64 * 1024 * 1024
"""A page of a list: 500 objects of 128 KiB, where most have 10, and etcd takes none of more than 1.5 MiB."""
STARTING = 15.0
"""Seconds after an outage in which a refusal may be that of a server that is still starting."""
LARGE = 1024 * 1024
"""Bytes of JSON that would hold up the event loop for longer than a moment."""


class Sender:
    """Sends what `Call`s describe."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._away_at = -math.inf
        """Monotonic seconds at which the server last gave no answer, or none of use."""

    def broken(self, error: BaseException, call: Call) -> ApiError:
        """Return the error for an answer that did not come, or not whole."""
        self._away_at = time.monotonic()
        return from_exception(error, self.transport.name, self.transport.server, call)

    def refused(
        self, status: int, answer: bytes | Mapping[str, Any], call: Call, headers: Mapping[str, str]
    ) -> ApiError:
        """Return the error for an answer that refuses."""
        if status >= 500:
            self._away_at = time.monotonic()
        error = from_answer(status, answer, headers, self.transport.name, call)
        error.starting = status == 403 and time.monotonic() - self._away_at < STARTING
        return error

    async def repeat(self, call: Call, method: str, **request: Any) -> Object:
        """Send a request that may be sent twice, up to five times, no new attempt after 30 s."""
        until = time.monotonic() + BUDGET
        for attempt in range(ATTEMPTS):
            try:
                return await self.once(call, method, **request)
            except ApiError as error:
                if attempt and call.verb == "delete" and error.status == 404:
                    return {}  # an earlier attempt did it, its answer was lost
                pause = max(error.retry_after or 0.0, 0.2 * 2**attempt * random.uniform(0.5, 1.5))  # noqa: S311
                if not error.passing or attempt == ATTEMPTS - 1 or time.monotonic() + pause > until:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def once(
        self,
        call: Call,
        method: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        timeouts: Timeouts | None = None,
    ) -> Object:
        """Send a request once and return the object that came back."""
        failures: tuple[type[Exception], ...] = (*self.transport.errors, ValueError, RecursionError)
        try:
            async with self.transport.slots:
                response = await self._send(call, method, query or {}, body, content_type, timeouts or UNARY)
                async with response:
                    answer = await decoded(await _body(response))
            if isinstance(answer, dict):
                return answer
            raise ValueError("the answer is not an object")
        except failures as error:
            raise self.broken(error, call) from error

    @contextlib.asynccontextmanager
    async def stream(
        self, call: Call, query: Mapping[str, str], timeouts: Timeouts
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open an answer without an end and give its bytes; iterating raises `ApiError` when it breaks."""
        try:
            async with asyncio.timeout(timeouts.answer):
                response = await self._send(call, "GET", query, None, None, timeouts)
        except self.transport.errors as error:
            raise self.broken(error, call) from error
        async with response:
            yield self._chunks(response, call)

    async def _chunks(self, response: ClientResponse, call: Call) -> AsyncIterator[bytes]:
        try:
            async for chunk in response.content.iter_any():
                self.transport.heard = time.monotonic()
                yield chunk
        except self.transport.errors as error:
            raise self.broken(error, call) from error

    async def _send(
        self,
        call: Call,
        method: str,
        query: Mapping[str, str],
        body: object,
        content_type: str | None,
        timeouts: Timeouts,
    ) -> ClientResponse:
        """Return a 2xx response; once more with new credentials after a 401."""
        path = f"{call.path}?{urlencode(query)}" if query else call.path
        data = json.dumps(body, separators=(",", ":")).encode() if body is not None else None
        headers = {"Content-Type": content_type} if data is not None and content_type else {}
        response = await self.transport.send(method, path, data, headers, timeouts)
        if response.status >= 300:
            async with response:
                text = await response.content.read(ERROR_BODY)
            raise self.refused(response.status, text, call, response.headers)
        return response


async def _body(response: ClientResponse) -> bytes:
    """Return the whole answer, up to a size that no honest one has."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > ANSWER_LIMIT:
            raise TooLargeError(f"the answer is larger than {ANSWER_LIMIT >> 20} MiB")
    return b"".join(chunks)


async def decoded(body: bytes) -> Any:
    """Return what the JSON holds; much of it is read in a thread. Raises ValueError or RecursionError."""
    if len(body) <= LARGE:
        return json.loads(body)
    # The hook gives the loop its turns: without one the decoder keeps Python's lock until it has read everything.
    return await asyncio.to_thread(json.loads, body, object_hook=_same)


def _same(value: Object) -> Object:
    return value
