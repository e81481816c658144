"""The objects that installing Kueue creates, taken from the Kueue module's own ``config/components``.

``collect`` runs at build time and does for these files what the module's kustomization does: prefix, namespace, patches.
``render`` runs at each start and points the webhooks at the loopback port that Kueue listens on.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["FILE", "NAMESPACE", "SERVICE_ACCOUNT", "collect", "render"]

FILE = "kueue.json"
NAMESPACE = "kueue-system"
SERVICE_ACCOUNT = "kueue-controller-manager"
_PREFIX = "kueue-"
_CONFIGURATION = "configuration"

Object = dict[str, Any]


def collect(*, kueue: Path, autoscaler: Path, target: Path) -> None:
    """Write Kueue's installation, its shipped configuration and the ProvisioningRequest definition to ``target``."""
    parts = kueue / "config" / "components"
    bundle = {
        "definitions": [*_definitions(parts / "crd"), *_load(autoscaler / "config" / "crd")],
        "rights": [_named(each) for each in _listed(parts / "rbac")],
        "webhooks": _webhooks(parts / "webhook"),
        "visibility": [_placed(each) for each in _load(parts / "visibility", only="apiservice_")],
        _CONFIGURATION: next(_load(parts / "manager", only="controller_manager_config")),
    }
    target.write_text(json.dumps(bundle))


def render(bundle: dict[str, Any], *, url: str, authority: bytes) -> tuple[list[Object], list[Object]]:
    """Return the definitions, and then what Kueue needs besides, with webhooks at ``url`` that ``authority`` vouches for."""
    ca = base64.b64encode(authority).decode()
    definitions, webhooks = (json.loads(json.dumps(bundle[part])) for part in ("definitions", "webhooks"))
    for each in definitions:
        if hook := each["spec"].get("conversion", {}).get("webhook"):
            hook["clientConfig"] = {"url": f"{url}/convert", "caBundle": ca}
    for each in webhooks:
        for hook in each["webhooks"]:
            hook["clientConfig"] = {"url": url + hook["clientConfig"]["service"]["path"], "caBundle": ca}
    return definitions, [*bundle["rights"], *webhooks]


def _definitions(folder: Path) -> Iterator[Object]:
    patches = {each["metadata"]["name"]: each["spec"] for each in _patches(folder)}
    for each in _load(folder / "bases"):
        each["spec"].update(patches.get(each["metadata"]["name"], {}))
        yield each


def _patches(folder: Path) -> Iterator[Object]:
    for patch in next(_load(folder, only="kustomization"))["patches"]:
        yield from _load((folder / patch["path"]).parent, only=Path(patch["path"]).name)


def _listed(folder: Path) -> Iterator[Object]:
    for name in next(_load(folder, only="kustomization"))["resources"]:
        yield from _load(folder, only=name)


def _named(each: Object) -> Object:
    _placed(each)
    each["metadata"]["name"] = _PREFIX + each["metadata"]["name"]
    for reference in [each.get("roleRef"), *each.get("subjects", [])]:
        if reference:
            reference["name"] = _PREFIX + reference["name"]
    for rule in each.get("rules", []):
        names = rule.get("resourceNames", [])
        rule.update(
            {"resourceNames": [_PREFIX + name if "webhook-configuration" in name else name for name in names]}
            if names
            else {}
        )
    return each


def _placed(each: Object) -> Object:
    for place in [each["metadata"], *each.get("subjects", [])]:
        if place.get("namespace") == "system":
            place["namespace"] = NAMESPACE
    return each


def _webhooks(folder: Path) -> list[Object]:
    """Return the two webhook configurations; those of job kinds spare the system's namespaces, as the kustomization says."""
    text = (folder / "kustomization.yaml").read_text()
    sparing = set(re.findall(r"webhooks\.\[name=([\w.]+)\]", text)) | set(re.findall(r"- name: (v\w+\.kb\.io)", text))
    selector = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]}
    found = [_named(each) for each in _load(folder, only="manifests")]
    for hook in (hook for each in found for hook in each["webhooks"] if hook["name"] in sparing):
        hook["namespaceSelector"] = {"matchExpressions": [selector]}
    return found


def _load(folder: Path, *, only: str = "") -> Iterator[Object]:
    for path in sorted(folder.glob("*.yaml")):
        if path.name.startswith(only):
            yield from _documents(path)


def _documents(path: Path) -> Iterable[Object]:
    import yaml  # noqa: PLC0415  (only a build reads YAML)

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [each for each in yaml.load_all(path.read_text(), Loader=loader) if each]  # noqa: S506  (a safe loader, in C where there is one)
