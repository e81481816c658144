"""One API server, asynchronously: requests, lists, watches and log streams on plain JSON. Knows no Kueue.

A `Cluster` belongs to one event loop. Every request has timeouts; requests that are safe to repeat are repeated a few
times; credentials are renewed before they end, and once when the server refuses them. Whatever goes wrong is an
`ApiError`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Literal

from airflow_provider_multikueue.clusters.api_error import ApiError, TooLargeError
from airflow_provider_multikueue.clusters.resources import (
    CONFIGMAPS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    PROVISIONING_REQUESTS,
    SECRETS,
    Call,
    Resource,
)
from airflow_provider_multikueue.clusters.resources import call as about
from airflow_provider_multikueue.clusters.sending import decoded
from airflow_provider_multikueue.clusters.server import Server
from airflow_provider_multikueue.clusters.transport import LOG, LOG_FOLLOW, WATCH

__all__ = [
    "CONFIGMAPS",
    "EVENTS",
    "JOBS",
    "LEASES",
    "NAMESPACES",
    "NODES",
    "PODS",
    "PROVISIONING_REQUESTS",
    "SECRETS",
    "ApiError",
    "Cluster",
    "Resource",
]

Object = dict[str, Any]
Objects = list[Object]

PAGE = 500
MAX_PAGES = 2_000  # a million objects, past what an API server's storage holds; a list that goes on is none
LIST_RESTARTS = 3
LINE_LIMIT = 8 * 1024 * 1024
"""An event of a watch holds one object, of which etcd takes at most 1.5 MiB unless its limit was raised."""
PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Cluster(Server):
    """One API server, seen with one account."""

    # -- single objects

    async def get(self, res: Resource, name: str, namespace: str | None = None) -> Object:
        """Return one object."""
        return await self._sender.repeat(about("get", res, name, namespace), "GET")

    async def create(
        self, res: Resource, obj: Object, namespace: str | None = None, *, dry_run: bool = False, strict: bool = False
    ) -> Object:
        """Return the object as created. Never repeated: after an error of status 0 or 5xx it may exist or not.

        ``strict`` refuses fields that the server does not know (400), which it drops otherwise.
        """
        query = {"dryRun": "All"} if dry_run else {}
        if strict:
            query["fieldValidation"] = "Strict"
        return await self._sender.once(about("create", res, None, namespace), "POST", query=query, body=obj)

    async def replace(
        self, res: Resource, name: str, obj: Object, namespace: str | None = None, *, subresource: str | None = None
    ) -> Object:
        """Return the object as replaced; 409 when ``obj``'s resourceVersion is not the newest. Never repeated."""
        return await self._sender.once(about("update", res, name, namespace, subresource), "PUT", body=obj)

    async def patch(
        self,
        res: Resource,
        name: str,
        body: Object | Objects,
        namespace: str | None = None,
        *,
        kind: Literal["merge", "strategic", "json", "apply"] = "merge",
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> Object:
        """Return the object as patched; repeated on passing errors unless ``kind`` is "json"."""
        call = about("patch", res, name, namespace, subresource)
        query = {"fieldManager": field_manager} if field_manager else {}
        if force:
            query["force"] = "true"
        if dry_run:
            query["dryRun"] = "All"
        send = self._sender.once if kind == "json" else self._sender.repeat
        return await send(call, "PATCH", query=query, body=body, content_type=PATCHES[kind])

    async def delete(
        self,
        res: Resource,
        name: str,
        namespace: str | None = None,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        propagation: Literal["Background", "Foreground", "Orphan"] = "Background",
        grace: int | None = None,
    ) -> None:
        """Delete one object, only while it has that uid and resourceVersion (else 409); 404 when there is none."""
        preconditions = {"uid": uid, "resourceVersion": resource_version}
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        body["preconditions"] = {key: value for key, value in preconditions.items() if value}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        await self._sender.repeat(about("delete", res, name, namespace), "DELETE", body=body)

    # -- many objects

    async def list(
        self,
        res: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        limit: int = PAGE,
    ) -> tuple[Objects, str]:
        """Return all objects and the resourceVersion that a watch can go on from; read in pages of ``limit``.

        When the list expires between two pages it is begun anew.
        """
        for attempt in range(LIST_RESTARTS):
            items: Objects = []
            version = ""
            try:
                async for page, current in self.pages(res, namespace, labels=labels, fields=fields, limit=limit):
                    items += page
                    version = current
            except ApiError as error:
                if error.status != 410 or attempt == LIST_RESTARTS - 1:
                    raise
                continue
            return items, version
        raise AssertionError("unreachable")

    async def pages(
        self,
        res: Resource,
        namespace: str | None = None,
        *,
        labels: str | None = None,
        fields: str | None = None,
        limit: int = PAGE,
        repeat: bool = True,
    ) -> AsyncGenerator[tuple[Objects, str], None]:
        """Yield each page's objects with the list's resourceVersion; 410 when the list expired in between.

        A list that leads back to one of its own pages, or has more than ``MAX_PAGES``, is a broken answer.
        """
        call = about("list", res, None, namespace)
        query = _selectors(labels, fields) | {"limit": str(limit)}
        send = self._sender.repeat if repeat else self._sender.once
        begun: set[str] = set()
        while True:
            answer = await send(call, "GET", query=query)
            meta = answer.get("metadata")
            items = answer.get("items") or []
            if not isinstance(meta, dict) or not isinstance(items, list):
                raise self._sender.broken(ValueError("not a list of objects"), call)
            yield [item for item in items if isinstance(item, dict)], str(meta.get("resourceVersion", ""))
            if not meta.get("continue"):
                return
            token = str(meta["continue"])
            if token in begun or len(begun) == MAX_PAGES:
                raise self._sender.broken(ValueError("the list does not end"), call)
            begun.add(token)
            query = query | {"continue": token}

    async def watch(
        self,
        res: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        labels: str | None = None,
        fields: str | None = None,
        timeout_seconds: int = 300,
        accepted: Callable[[], None] | None = None,
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """Yield (ADDED, MODIFIED, DELETED or BOOKMARK, object) until the server ends the watch in good order.

        ``accepted`` is called when the server has taken the watch on, which may be long before the first event.

        Raises `ApiError`: 410 when ``resource_version`` is too old, 0 when the stream broke or fell silent.
        """
        call = about("watch", res, None, namespace)
        query = _selectors(labels, fields) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_seconds),
        }
        async with self._sender.stream(call, query, WATCH) as chunks:
            if accepted is not None:
                accepted()
            try:
                async for line in _lines(chunks):
                    yield await self._event(line, call)
            except (EOFError, TooLargeError) as error:
                raise self._sender.broken(error, call) from error

    async def _event(self, line: bytes, call: Call) -> tuple[str, Object]:
        try:
            event = await decoded(line)
            kind, obj = event["type"], event["object"]
            if kind == "ERROR":
                raise self._sender.refused(int(obj.get("code") or 500), obj, call, {})
            return kind, obj
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
            raise self._sender.broken(error, call) from error

    @contextlib.asynccontextmanager
    async def log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        follow: bool,
        since_time: str | None = None,
        previous: bool = False,
        timestamps: bool = True,
        limit_bytes: int | None = None,
        tail_lines: int | None = None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a container's log and give its bytes as they come, cut anywhere.

        The iterator ends when the server ended the log in good order, and raises `ApiError` of status 0 when the stream
        broke. A followed log may be silent for ever; a peer that vanished is noticed by TCP keepalive within a minute.
        """
        call = about("get", PODS, pod, namespace, "log")
        query = {"container": container, "follow": str(follow).lower(), "timestamps": str(timestamps).lower()}
        options = {"sinceTime": since_time, "limitBytes": limit_bytes, "tailLines": tail_lines}
        query |= {key: str(value) for key, value in options.items() if value is not None}
        if previous:
            query["previous"] = "true"
        async with self._sender.stream(call, query, LOG_FOLLOW if follow else LOG) as chunks:
            yield chunks


def _selectors(labels: str | None, fields: str | None) -> dict[str, str]:
    selectors = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in selectors.items() if value}


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield complete lines; an EOFError says that the last one was cut off, a TooLargeError that one is too long."""
    pending: list[bytes] = []
    size = 0
    async for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        pending.append(first)
        size += len(first)
        if size > LINE_LIMIT:
            raise TooLargeError(f"an event is larger than {LINE_LIMIT >> 20} MiB")
        if not rest:
            continue
        if line := b"".join(pending):
            yield line
        for line in rest[:-1]:
            if line:
                yield line
        pending, size = [rest[-1]], len(rest[-1])
    if any(pending):
        raise EOFError("the stream ended in the middle of an event")
