"""Just enough of a Kubernetes client to set up a fleet while its API servers are still coming up."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Self

import aiohttp

from airflow_provider_multikueue.sandbox.paths import SandboxError
from airflow_provider_multikueue.sandbox.pki import Pair

__all__ = ["Rest", "until"]

Object = dict[str, Any]

# 404: the namespace or the kind is about to appear. 500: a webhook is about to listen.
_RETRIED = (404, 429, 500, 502, 503, 504)


async def until(done: Callable[[], Awaitable[bool]], *, seconds: float, what: str) -> None:
    """Wait until ``done()`` is true; SandboxError that says ``what`` did not happen after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not await done():
        if time.monotonic() > deadline:
            raise SandboxError(f"{what} within {seconds:.0f} s")
        await asyncio.sleep(0.1)


class Rest:
    """Requests to one API server in the name of the holder of a client certificate."""

    def __init__(self, *, server: str, authority: Path, pair: Pair) -> None:
        self._server = server
        context = ssl.create_default_context(cafile=authority)
        context.load_cert_chain(pair.certificate, pair.key)
        self._connector = aiohttp.TCPConnector(ssl=context)
        self._session = aiohttp.ClientSession(connector=self._connector, timeout=aiohttp.ClientTimeout(total=30))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def ready(self, path: str = "/readyz") -> bool:
        """Return whether the server answers well at ``path``."""
        try:
            async with self._session.get(self._server + path) as answer:
                return answer.status == 200
        except (OSError, aiohttp.ClientError, TimeoutError):
            return False

    async def request(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json"
    ) -> tuple[int, Object]:
        """Return the status and the JSON of an answer."""
        headers = {"Content-Type": kind}
        async with self._session.request(method, self._server + path, json=body, headers=headers) as answer:
            text = await answer.read()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            # A path that is not served yet, and a server that is about to end, answer in words.
            return answer.status, {"message": text.decode(errors="replace")}

    async def create(self, objects: Iterable[Object]) -> None:
        """Create all ``objects`` side by side; what is there already stays as it is."""
        async with asyncio.TaskGroup() as tasks:
            for each in objects:
                tasks.create_task(self._create(each))

    async def _create(self, each: Object) -> None:
        status, answer = 0, Object()
        for attempt in range(30):
            try:
                status, answer = await self.request("POST", path_of(each), each)
            except (OSError, aiohttp.ClientError) as error:
                answer = {"message": str(error)}
            if status in (200, 201, 409):
                return
            if status and status not in _RETRIED:
                break
            await asyncio.sleep(0.1 + 0.02 * attempt)
        name = f"{each['kind']} {each['metadata']['name']}"
        raise SandboxError(f"{self._server} refused the {name}: {status} {answer.get('message')}")

    async def get(self, each: Object) -> Object:
        """Return the present state of an object; an empty one if it isn't there."""
        status, answer = await self.request("GET", f"{path_of(each)}/{each['metadata']['name']}")
        return answer if status == 200 else {}


def path_of(each: Object) -> str:
    """Return the path of the collection that an object belongs to."""
    version, kind, namespace = each["apiVersion"], each["kind"], each["metadata"].get("namespace")
    lower = kind.lower()
    plural = f"{lower}es" if lower.endswith("s") else f"{lower}s"
    prefix = "/api/v1" if version == "v1" else f"/apis/{version}"
    return f"{prefix}/namespaces/{namespace}/{plural}" if namespace else f"{prefix}/{plural}"
