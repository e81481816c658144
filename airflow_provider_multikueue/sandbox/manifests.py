"""The objects that installing Kueue creates, taken from the Kueue module's own ``config/components``.

A build copies these files beside the programs. ``bundle`` does for them, once, what the module's kustomization does:
prefix, namespace, patches. ``render`` runs at each start and points the webhooks at the loopback port of Kueue.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["NAMESPACE", "SERVICE_ACCOUNT", "bundle", "copy_sources", "render"]

NAMESPACE = "kueue-system"
SERVICE_ACCOUNT = "kueue-controller-manager"
_PREFIX = "kueue-"
# The fleet's Kueue cares for jobs; what it has no say in need not wait for it.
_NOT_MANAGED = {"pods", "deployments", "statefulsets"}

Object = dict[str, Any]


def copy_sources(*, kueue: Path, autoscaler: Path, target: Path) -> None:
    """Copy what ``bundle`` reads from the two modules to the folder ``target``."""
    shutil.copytree(kueue / "config" / "components", target / "kueue", copy_function=shutil.copyfile)
    shutil.copytree(autoscaler / "config" / "crd", target / "autoscaler", copy_function=shutil.copyfile)


def bundle(sources: Path) -> Object:
    """Return Kueue's installation, its shipped configuration and the definition of ProvisioningRequests, as plain JSON.

    The result is kept beside ``sources``, under a name that changes with this module.
    """
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:10]
    kept = sources / f"bundle-{version}.json"
    if not kept.exists():
        partial = kept.with_name(f"{kept.name}.{os.getpid()}")
        partial.write_text(json.dumps(_collect(sources / "kueue", sources / "autoscaler")))
        partial.replace(kept)
    content: Object = json.loads(kept.read_bytes())
    return content


def _collect(kueue: Path, autoscaler: Path) -> Object:
    return {
        "definitions": [_terse(each) for each in (*_definitions(kueue / "crd"), *_load(autoscaler))],
        "rights": [_named(each) for each in _listed(kueue / "rbac")],
        "webhooks": _webhooks(kueue / "webhook"),
        "configuration": next(_load(kueue / "manager", only="controller_manager_config")),
    }


def render(bundle: dict[str, Any], *, url: str, authority: bytes) -> tuple[list[Object], list[Object]]:
    """Return the definitions and what Kueue needs besides, with webhooks at ``url`` that ``authority`` vouches for."""
    ca = base64.b64encode(authority).decode()
    definitions, webhooks = (json.loads(json.dumps(bundle[part])) for part in ("definitions", "webhooks"))
    for each in definitions:
        if hook := each["spec"].get("conversion", {}).get("webhook"):
            hook["clientConfig"] = {"url": f"{url}/convert", "caBundle": ca}
    for each in webhooks:
        each["webhooks"] = [hook for hook in each["webhooks"] if not _NOT_MANAGED & set(_resources(hook))]
        for hook in each["webhooks"]:
            hook["clientConfig"] = {"url": url + hook["clientConfig"]["service"]["path"], "caBundle": ca}
    return definitions, [*bundle["rights"], *webhooks]


def _resources(hook: Object) -> Iterator[str]:
    return (resource for rule in hook["rules"] for resource in rule["resources"])


def _definitions(folder: Path) -> Iterator[Object]:
    patches = {each["metadata"]["name"]: each["spec"] for each in _patches(folder)}
    for each in _load(folder / "bases"):
        each["spec"].update(patches.get(each["metadata"]["name"], {}))
        yield each


def _terse(schema: Any) -> Any:
    """Return a definition without the texts that explain its fields: most of its size and of the time it costs."""
    if isinstance(schema, list):
        return [_terse(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # A field may be named "description"; then it maps to a schema, not to a text.
    return {key: _terse(part) for key, part in schema.items() if key != "description" or not isinstance(part, str)}


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
    """Return the two webhook configurations; for jobs they spare the system's namespaces, as in the kustomization."""
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
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [each for each in yaml.load_all(path.read_text(), Loader=loader) if each]
