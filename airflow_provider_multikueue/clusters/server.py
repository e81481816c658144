"""What an API server says of itself: that it is there, its version, what it serves, and what we may do.

The ground that `airflow_provider_multikueue.clusters.client.Cluster` stands on; nothing else should use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, Self
from urllib.parse import quote

from airflow_provider_multikueue.clusters.api_error import ApiError
from airflow_provider_multikueue.clusters.credentials import InCluster, InlineKubeconfig, KubeconfigFile, Source
from airflow_provider_multikueue.clusters.resources import ACCESS_REVIEWS, JOBS, Call, Resource
from airflow_provider_multikueue.clusters.resources import call as about
from airflow_provider_multikueue.clusters.sending import Sender
from airflow_provider_multikueue.clusters.transport import PROBE, Mask, SourceAnew, Transport

__all__ = ["Server"]

Object = dict[str, Any]

PATIENCE = 12.0
"""Seconds of silence after which a server is asked whether it is there."""
PROBE_PAUSE = 5.0


class Server:
    """The connection to one API server."""

    def __init__(
        self, name: str, source: Source, *, mask: Mask | None = None, source_anew: SourceAnew | None = None
    ) -> None:
        self.name = name
        self._transport = Transport(name, source, mask=mask, source_anew=source_anew)
        self._sender = Sender(self._transport)
        self._discovered: dict[tuple[str, str], Resource] = {(JOBS.group, JOBS.plural): JOBS}  # has been v1 for ever
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
    async def connect(
        cls, name: str, source: Source, *, mask: Mask | None = None, source_anew: SourceAnew | None = None
    ) -> Self:
        """Return the cluster that ``source`` leads to, its credentials loaded; nothing is sent to it yet.

        ``mask`` is told the secrets of each load. After a refusal ``source_anew`` is asked for another source.

        Where who gives the credentials does not answer now, the first request meets that, as it would meet the
        cluster's own silence.
        """
        cluster = cls(name, source, mask=mask, source_anew=source_anew)
        with contextlib.suppress(ConnectionError):
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

    async def version(self) -> Object:
        """Return the server's version information (``gitVersion`` and more)."""
        return await self._sender.repeat(Call("get", None, "/version"), "GET")

    async def versions(self, group: str) -> list[str]:
        """Return the versions that the server serves of an API group, the preferred one first; empty: none."""
        try:
            answer = await self._sender.repeat(Call("get", None, f"/apis/{quote(group, safe='')}"), "GET")
        except ApiError as error:
            if error.status == 404:
                return []
            raise
        preferred = answer.get("preferredVersion")
        first = preferred.get("version") if isinstance(preferred, dict) else None
        names = [str(entry.get("version")) for entry in _entries(answer, "versions")]
        return sorted(names, key=lambda name: name != first)

    async def schema(self, group: str, version: str) -> Object:
        """Return the OpenAPI document of an API group's version."""
        path = f"/openapi/v3/apis/{quote(group, safe='')}/{quote(version, safe='')}"
        return await self._sender.repeat(Call("get", None, path), "GET")

    async def probe(self, patience: float = PATIENCE) -> None:
        """Return when the server was heard within ``patience`` seconds or answers now; else raise `ApiError`.

        Many may ask at once: the server is asked once.
        """
        async with self._probing:
            now = time.monotonic()
            if now - self._transport.heard < patience:
                return
            if self._silence is not None and now - self._silent_at < PROBE_PAUSE:
                raise self._silence.with_traceback(None)
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
        call = Call("get", Resource(group, "", plural), f"/apis/{quote(group, safe='')}" if group else "/api")
        answer = await self._sender.repeat(call, "GET")
        # The core group lists its versions in another form, and has had one for ever.
        versions = [str(entry.get("version")) for entry in _entries(answer, "versions")] if group else ["v1"]
        preferred = answer.get("preferredVersion")
        if isinstance(preferred, dict):
            versions.sort(key=lambda version: version != preferred.get("version"))
        for version in versions:
            path = f"{call.path}/{quote(version, safe='')}"
            found = await self._sender.repeat(Call("get", call.resource, path), "GET")
            served = {
                str(entry.get("name")): Resource(group, version, str(entry.get("name")), bool(entry.get("namespaced")))
                for entry in _entries(found, "resources")
            }
            # Whoever asks for one of Kueue's kinds soon asks for the next.
            self._discovered = {(group, name): resource for name, resource in served.items()} | self._discovered
            if plural in served:
                return served[plural]
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
        status = answer.get("status")
        return isinstance(status, dict) and status.get("allowed") is True


def _entries(answer: Object, key: str) -> list[Object]:
    entries = answer.get(key)
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
