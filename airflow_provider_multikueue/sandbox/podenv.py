"""The environment and command line of a container, as its pod's specification says. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

__all__ = ["ConfigError", "Place", "Sources", "environment", "expand", "parse_quantity", "references", "rewrite"]

Object = Mapping[str, Any]

_SUFFIXES = {
    **{
        suffix: Decimal(1000) ** power
        for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)([A-Za-z]{0,2})")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")
_VARIABLE_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_REFERENCE = re.compile(r"\$(\$|\(([^)]*)\))")


class ConfigError(Exception):
    """A container that cannot be made as its specification says; the text is a kubelet's."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Decoded ConfigMaps and Secrets of the pod's namespace by name; one that does not exist is absent."""

    configmaps: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    secrets: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a pod runs: what its downward API tells beyond its own object."""

    ip: str
    host_ip: str
    allocatable: Mapping[str, str]


def parse_quantity(text: object) -> Decimal:
    """Return the number of a Kubernetes quantity such as ``100m``, ``1Gi`` or ``2e3``."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None or match[2] not in _SUFFIXES:
        raise ValueError(f"{text!r} is not a quantity")
    try:
        return Decimal(match[1]) * _SUFFIXES[match[2]]
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is not a quantity") from error


def references(pod: Object) -> tuple[set[str], set[str]]:
    """Return the names of the ConfigMaps and Secrets that the pod's containers and volumes read."""
    configmaps: set[str] = set()
    secrets: set[str] = set()
    spec = pod["spec"]
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        for item in container.get("envFrom", ()):
            configmaps.update(_name(item.get("configMapRef")))
            secrets.update(_name(item.get("secretRef")))
        for item in container.get("env", ()):
            source = item.get("valueFrom") or {}
            configmaps.update(_name(source.get("configMapKeyRef")))
            secrets.update(_name(source.get("secretKeyRef")))
    for volume in spec.get("volumes", ()):
        configmaps.update(_name(volume.get("configMap")))
        if volume.get("secret"):
            secrets.add(volume["secret"]["secretName"])
    return configmaps, secrets


def _name(reference: Object | None) -> Iterable[str]:
    return [reference["name"]] if reference and reference.get("name") else []


def environment(
    pod: Object, container: Object, sources: Sources, place: Place, base: Mapping[str, str]
) -> dict[str, str]:
    """Return the container's environment on top of ``base``.

    Later entries see earlier ones as ``$(NAME)``. Raises ConfigError when an object or key is missing and not optional.
    """
    env = dict(base)
    namespace = pod["metadata"]["namespace"]
    for item in container.get("envFrom", ()):
        env.update(_whole_object(item, sources))
    for item in container.get("env", ()):
        source = item.get("valueFrom")
        if source is None:
            env[item["name"]] = expand(item.get("value", ""), env)
            continue
        value = _sourced(pod, container, source, sources, place, namespace)
        if value is not None:
            env[item["name"]] = value
    return env


def _whole_object(item: Object, sources: Sources) -> Iterator[tuple[str, str]]:
    kind, reference, objects = (
        ("configmap", item["configMapRef"], sources.configmaps)
        if item.get("configMapRef")
        else ("secret", item["secretRef"], sources.secrets)
    )
    data = objects.get(reference["name"])
    if data is None:
        if reference.get("optional"):
            return
        raise ConfigError(f'{kind} "{reference["name"]}" not found')
    for key, value in data.items():
        name = f"{item.get('prefix', '')}{key}"
        if _VARIABLE_NAME.fullmatch(name):
            yield name, value.decode("utf-8", "surrogateescape")


def _sourced(
    pod: Object, container: Object, source: Object, sources: Sources, place: Place, namespace: str
) -> str | None:
    if "fieldRef" in source:
        return pod_field(pod, source["fieldRef"]["fieldPath"], place)
    if "resourceFieldRef" in source:
        return _resource(pod, container, source["resourceFieldRef"], place)
    if "configMapKeyRef" in source:
        return _key(source["configMapKeyRef"], sources.configmaps, "configmap", "ConfigMap", namespace)
    if "secretKeyRef" in source:
        return _key(source["secretKeyRef"], sources.secrets, "secret", "Secret", namespace)
    raise ConfigError(f"unsupported source of an environment variable: {', '.join(source)}")


def _key(
    reference: Object, objects: Mapping[str, Mapping[str, bytes]], word: str, kind: str, namespace: str
) -> str | None:
    name, key = reference.get("name", ""), reference["key"]
    data = objects.get(name)
    if data is not None and key in data:
        return data[key].decode("utf-8", "surrogateescape")
    if reference.get("optional"):
        return None
    if data is None:
        raise ConfigError(f'{word} "{name}" not found')
    raise ConfigError(f"couldn't find key {key} in {kind} {namespace}/{name}")


def pod_field(pod: Object, path: str, place: Place) -> str:
    """Return what the downward API gives for a field path."""
    metadata, spec = pod["metadata"], pod["spec"]
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript:
        return str(metadata.get(subscript[1], {}).get(subscript[2], ""))
    if path in {"metadata.labels", "metadata.annotations"}:
        entries = metadata.get(path.removeprefix("metadata."), {})
        return "\n".join(f'{key}="{value}"' for key, value in sorted(entries.items()))
    values = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.hostIP": place.host_ip,
        "status.hostIPs": place.host_ip,
        "status.podIP": place.ip,
        "status.podIPs": place.ip,
    }
    if path not in values:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return str(values[path])


def _resource(pod: Object, container: Object, reference: Object, place: Place) -> str:
    """Return a request or limit in units of the divisor, rounded up; without a limit the node's allocatable."""
    name = reference.get("containerName")
    if name:
        every = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
        container = next((entry for entry in every if entry["name"] == name), container)
    section, _, resource = reference["resource"].partition(".")
    value = container.get("resources", {}).get(section, {}).get(resource)
    if value is None:
        value = place.allocatable.get(resource, "0") if section == "limits" else "0"
    divisor = parse_quantity(reference.get("divisor") or "1") or Decimal(1)
    return str(math.ceil(parse_quantity(value) / divisor))


def expand(text: str, env: Mapping[str, str]) -> str:
    """Return ``text`` with each ``$(NAME)`` replaced where NAME is known; ``$$`` is a dollar sign."""

    def value(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return env.get(match[2], match[0])

    return _REFERENCE.sub(value, text)


def rewrite(text: str, paths: Mapping[str, str]) -> str:
    """Return ``text`` with each path of the container replaced by the local one that stands for it, longest first.

    A path counts where it stands for itself or as the beginning of a longer one, not within another name.
    """
    if not paths:
        return text
    ordered = sorted(paths, key=len, reverse=True)
    pattern = rf"(?<![\w./-])(?:{'|'.join(re.escape(path) for path in ordered)})(?![\w.-])"
    return re.sub(pattern, lambda match: paths[match[0]], text)
