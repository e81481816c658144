"""The kinds of objects that an API server keeps, and the paths that lead to them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

__all__ = [
    "ACCESS_REVIEWS",
    "CONFIGMAPS",
    "EVENTS",
    "JOBS",
    "LEASES",
    "NAMESPACES",
    "NODES",
    "PODS",
    "PROVISIONING_REQUESTS",
    "SECRETS",
    "Call",
    "Resource",
    "call",
]


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object as the API server's paths name it."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def path(self) -> str:
        """The path of its API group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def __str__(self) -> str:
        """Return the name as in RBAC and kubectl, such as ``jobs.batch``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


JOBS = Resource("batch", "v1", "jobs")
PODS = Resource("", "v1", "pods")
NODES = Resource("", "v1", "nodes", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", namespaced=False)
EVENTS = Resource("", "v1", "events")
SECRETS = Resource("", "v1", "secrets")
CONFIGMAPS = Resource("", "v1", "configmaps")
LEASES = Resource("coordination.k8s.io", "v1", "leases")
PROVISIONING_REQUESTS = Resource("autoscaling.x-k8s.io", "v1", "provisioningrequests")
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", namespaced=False)


@dataclass(frozen=True, slots=True)
class Call:
    """What a request is about, for its path and for error texts."""

    verb: str
    resource: Resource | None
    path: str
    namespace: str | None = None
    name: str | None = None


def call(verb: str, res: Resource, name: str | None, namespace: str | None, subresource: str | None = None) -> Call:
    """Return the call with its path; names are quoted, and those that could climb the path are refused."""
    parts = [res.path]
    if namespace and res.namespaced:
        parts += ["namespaces", _segment(namespace)]
    parts.append(res.plural)
    if name is not None:
        parts.append(_segment(name))
    if subresource:
        parts.append(subresource)
    shown = Resource(res.group, res.version, f"{res.plural}/{subresource}") if subresource else res
    return Call(verb, shown, "/".join(parts), namespace if res.namespaced else None, name)


def _segment(name: str) -> str:
    if name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not the name of an object")
    return quote(name, safe="")
