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
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["NAMESPACE", "SERVICE_ACCOUNT", "bundle", "keep", "render", "terse", "yaml_objects"]

NAMESPACE = "kueue-system"
SERVICE_ACCOUNT = "kueue-controller-manager"
_PREFIX = "kueue-"
# The fleet's Kueue cares for jobs; what it has no say in need not wait for it.
_NOT_MANAGED = {"pods", "deployments", "statefulsets"}

Object = dict[str, Any]


def bundle(*, kueue: Path, autoscaler: Path) -> Object:
    """Return Kueue's installation, its shipped configuration and the definition of ProvisioningRequests, as plain JSON.

    ``kueue`` and ``autoscaler`` are the copies from the two modules.
    """
    return keep(kueue.parent, "bundle", made_by=Path(__file__), make=lambda: _collect(kueue, autoscaler))


def keep(folder: Path, name: str, *, made_by: Path, make: Callable[[], Object]) -> Object:
    """Return what ``make`` returns, read from a file in ``folder`` after the first time; anew once the code changed."""
    version = hashlib.sha256(made_by.read_bytes()).hexdigest()[:10]
    kept = folder / f"{name}-{version}.json"
    if not kept.exists():
        partial = kept.with_name(f"{kept.name}.{os.getpid()}")
        partial.write_text(json.dumps(make()))
        partial.replace(kept)
    content: Object = json.loads(kept.read_bytes())
    return content


def _collect(kueue: Path, autoscaler: Path) -> Object:
    return {
        "definitions": [terse(each) for each in (*_definitions(kueue / "crd"), *yaml_objects(autoscaler))],
        "rights": [_named(each) for each in _listed(kueue / "rbac")],
        "webhooks": _webhooks(kueue / "webhook"),
        "configuration": next(yaml_objects(kueue / "manager", only="controller_manager_config")),
    }


def render(
    bundle: dict[str, Any], *, url: str, authority: bytes, managed: Collection[str] = ()
) -> tuple[list[Object], list[Object]]:
    """Return the definitions and what Kueue needs besides, with webhooks at ``url`` that ``authority`` vouches for.

    ``managed`` names resources that Kueue has a say in here, though it usually has none.
    """
    ca = base64.b64encode(authority).decode()
    definitions, webhooks = (json.loads(json.dumps(bundle[part])) for part in ("definitions", "webhooks"))
    for each in definitions:
        if hook := each["spec"].get("conversion", {}).get("webhook"):
            hook["clientConfig"] = {"url": f"{url}/convert", "caBundle": ca}
    unmanaged = _NOT_MANAGED - set(managed)
    for each in webhooks:
        each["webhooks"] = [hook for hook in each["webhooks"] if not unmanaged & set(_resources(hook))]
        for hook in each["webhooks"]:
            hook["clientConfig"] = {"url": url + hook["clientConfig"]["service"]["path"], "caBundle": ca}
    return definitions, [*bundle["rights"], *webhooks]


def _resources(hook: Object) -> Iterator[str]:
    return (resource for rule in hook["rules"] for resource in rule["resources"])


def _definitions(folder: Path) -> Iterator[Object]:
    patches = {each["metadata"]["name"]: each["spec"] for each in _patches(folder)}
    for each in yaml_objects(folder / "bases"):
        each["spec"].update(patches.get(each["metadata"]["name"], {}))
        yield each


def terse(schema: Any) -> Any:
    """Return a definition without the texts that explain its fields: most of its size and of the time it costs."""
    if isinstance(schema, list):
        return [terse(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # A field may be named "description"; then it maps to a schema, not to a text.
    return {key: terse(part) for key, part in schema.items() if key != "description" or not isinstance(part, str)}


def _patches(folder: Path) -> Iterator[Object]:
    for patch in next(yaml_objects(folder, only="kustomization"))["patches"]:
        yield from yaml_objects((folder / patch["path"]).parent, only=Path(patch["path"]).name)


def _listed(folder: Path) -> Iterator[Object]:
    for name in next(yaml_objects(folder, only="kustomization"))["resources"]:
        yield from yaml_objects(folder, only=name)


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
    found = [_named(each) for each in yaml_objects(folder, only="manifests")]
    for hook in (hook for each in found for hook in each["webhooks"] if hook["name"] in sparing):
        hook["namespaceSelector"] = {"matchExpressions": [selector]}
    return found


def yaml_objects(folder: Path, *, only: str = "") -> Iterator[Object]:
    """Yield the objects in the YAML files of ``folder``, or in those whose names begin with ``only``."""
    for path in sorted(folder.glob("*.yaml")):
        if path.name.startswith(only):
            yield from _documents(path)


def _documents(path: Path) -> Iterable[Object]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [each for each in yaml.load_all(path.read_text(), Loader=loader) if each]
