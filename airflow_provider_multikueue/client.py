"""One API server, asynchronously: requests, lists, watches and log streams on plain JSON. Knows no Kueue.

A `Cluster` belongs to one event loop. Every request has timeouts; requests that are safe to repeat are repeated a few
times; credentials are renewed before they end, and once when the server refuses them. Whatever goes wrong is an
`ApiError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Literal, Self
from urllib.parse import quote

from airflow_provider_multikueue.api_error import ApiError
from airflow_provider_multikueue.credentials import InCluster, InlineKubeconfig, KubeconfigFile, Source
from airflow_provider_multikueue.resources import (
    ACCESS_REVIEWS,
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
from airflow_provider_multikueue.resources import call as about
from airflow_provider_multikueue.sending import Sender
from airflow_provider_multikueue.transport import LOG, LOG_FOLLOW, PROBE, WATCH, Transport

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
LIST_RESTARTS = 3
PATIENCE = 25.0
"""Seconds of silence after which a server is asked whether it is there."""
PROBE_PAUSE = 5.0
LINE_LIMIT = 64 * 1024 * 1024
PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}


class Cluster:
    """One API server, seen with one account."""

    def __init__(self, name: str, source: Source) -> None:
        self.name = name
        self.source = source
        self._transport = Transport(name, source)
        self._sender = Sender(self._transport)
        self._discovered: dict[tuple[str, str], Resource] = {}
        self._discovery = asyncio.Lock()
        self._probing = asyncio.Lock()
        self._silence: ApiError | None = None
        self._silent_at = 0.0

    @classmethod
    async def from_kubeconfig(
        cls, name: str, *, path: str | None = None, context: str | None = None, config: Object | None = None
    ) -> Self:
        """Return the cluster that a kubeconfig's context (None: the current one) leads to.

        Raises FleetConfigurationError when the file, the context or its credentials cannot be used.
        """
        source: Source = (
            InlineKubeconfig(config=config, context=context)
            if config is not None
            else KubeconfigFile(path=path or "~/.kube/config", context=context)
        )
        return await cls.connect(name, source)

    @classmethod
    async def from_in_cluster(cls, name: str) -> Self:
        """Return the cluster that this process runs in as a pod."""
        return await cls.connect(name, InCluster())

    @classmethod
    async def connect(cls, name: str, source: Source) -> Self:
        """Return the cluster that ``source`` leads to, its credentials loaded; nothing is sent to it yet."""
        cluster = cls(name, source)
        await cluster._transport.access()
        return cluster

    async def close(self) -> None:
        """Close all connections; streams that are open end with an error."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        """Return the cluster itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it."""
        await self.close()

    @property
    def server(self) -> str:
        """The address of the API server, or "" before the credentials were loaded."""
        return self._transport.server

    @property
    def expires(self) -> float | None:
        """Epoch seconds at which the present credentials end, if that is known."""
        return self._transport.expires

    # -- single objects

    async def get(self, res: Resource, name: str, namespace: str | None = None) -> Object:
        """Return one object."""
        return await self._sender.repeat(about("get", res, name, namespace), "GET")

    async def create(
        self, res: Resource, obj: Object, namespace: str | None = None, *, dry_run: bool = False
    ) -> Object:
        """Return the object as created. Never repeated: after an error of status 0 or 5xx it may exist or not."""
        query = {"dryRun": "All"} if dry_run else {}
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
    ) -> Object:
        """Return the object as patched; repeated on passing errors unless ``kind`` is "json"."""
        call = about("patch", res, name, namespace, subresource)
        query = {"fieldManager": field_manager} if field_manager else {}
        if force:
            query["force"] = "true"
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
        """Yield each page's objects with the list's resourceVersion; 410 when the list expired in between."""
        call = about("list", res, None, namespace)
        query = _selectors(labels, fields) | {"limit": str(limit)}
        send = self._sender.repeat if repeat else self._sender.once
        while True:
            answer = await send(call, "GET", query=query)
            meta = answer.get("metadata")
            items = answer.get("items") or []
            if not isinstance(meta, dict) or not isinstance(items, list):
                raise self._sender.broken(ValueError("not a list of objects"), call)
            yield [item for item in items if isinstance(item, dict)], str(meta.get("resourceVersion", ""))
            if not meta.get("continue"):
                return
            query = query | {"continue": str(meta["continue"])}

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
                    yield self._event(line, call)
            except EOFError as error:
                raise self._sender.broken(error, call) from error

    def _event(self, line: bytes, call: Call) -> tuple[str, Object]:
        try:
            event = json.loads(line)
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

    # -- about the server

    async def version(self) -> Object:
        """Return the server's version information (``gitVersion`` and more)."""
        return await self._sender.repeat(Call("get", None, "/version"), "GET")

    async def probe(self, patience: float = PATIENCE) -> None:
        """Return when the server was heard within ``patience`` seconds or answers now; else raise `ApiError`.

        Many may ask at once: the server is asked once.
        """
        async with self._probing:
            now = time.monotonic()
            if now - self._transport.heard < patience:
                return
            if self._silence is not None and now - self._silent_at < PROBE_PAUSE:
                raise self._silence
            try:
                await self._sender.once(Call("get", None, "/version"), "GET", timeouts=PROBE)
            except ApiError as error:
                if error.status == 0:
                    self._silence, self._silent_at = error, time.monotonic()
                    raise
            self._silence = None

    @property
    def heard(self) -> float:
        """Monotonic seconds at which the server last sent anything; 0 before it ever did."""
        return self._transport.heard

    async def resource(self, group: str, plural: str, *, fresh: bool = False) -> Resource:
        """Return the resource in the version that the server prefers; remembered unless ``fresh``.

        Raises `ApiError` of status 404 when the server does not serve it.
        """
        async with self._discovery:
            if fresh or (group, plural) not in self._discovered:
                self._discovered[group, plural] = await self._discover(group, plural)
            return self._discovered[group, plural]

    async def _discover(self, group: str, plural: str) -> Resource:
        call = Call("get", Resource(group, "", plural), f"/apis/{quote(group, safe='')}")
        answer = await self._sender.repeat(call, "GET")
        preferred = answer.get("preferredVersion", {}).get("version")
        versions = [entry["version"] for entry in answer.get("versions", [])]
        for version in sorted(versions, key=lambda version: version != preferred):
            found = await self._sender.repeat(
                Call("get", call.resource, f"{call.path}/{quote(version, safe='')}"), "GET"
            )
            for entry in found.get("resources", []):
                if entry.get("name") == plural:
                    return Resource(group, version, plural, bool(entry.get("namespaced")))
        raise self._sender.refused(404, {"message": f"the server does not serve {plural}.{group}"}, call, {})

    async def access(
        self,
        verb: str,
        res: Resource,
        namespace: str | None = None,
        *,
        name: str | None = None,
        subresource: str | None = None,
    ) -> bool:
        """Return whether our account may do this (namespace None: in all of them)."""
        attributes = {
            "verb": verb,
            "group": res.group,
            "resource": res.plural,
            "namespace": namespace,
            "name": name,
            "subresource": subresource,
        }
        body = {
            "apiVersion": ACCESS_REVIEWS.api_version,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
        }
        answer = await self._sender.repeat(about("create", ACCESS_REVIEWS, None, None), "POST", body=body)
        return bool(answer.get("status", {}).get("allowed"))


def _selectors(labels: str | None, fields: str | None) -> dict[str, str]:
    selectors = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in selectors.items() if value}


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield complete lines of (almost) any length; an EOFError says that the last one was cut off."""
    pending: list[bytes] = []
    size = 0
    async for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        pending.append(first)
        size += len(first)
        if size > LINE_LIMIT:
            raise EOFError(f"an event is larger than {LINE_LIMIT >> 20} MiB")
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
