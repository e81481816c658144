"""Kueue's release manifests, configured for a fleet and labelled as its own. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.setup.desired import KUEUE_NAMESPACE, Part, owned

if TYPE_CHECKING:
    from airflow_provider_multikueue.setup.description import FleetDescription

__all__ = ["CONFIG_ANNOTATION", "DEPLOYMENT", "documents", "kueue_objects", "release_version"]

Object = dict[str, Any]

DEPLOYMENT: Final = "kueue-controller-manager"
CONFIG_ANNOTATION: Final = "airflow-provider-multikueue/configuration"
CONFIG_MAP: Final = "kueue-manager-config"
CONFIG_KEY: Final = "controller_manager_config.yaml"
GATES: Final = ("MultiKueue", "ProvisioningACC")
"""Feature gates that a fleet needs; they are on unless somebody switched them off."""
PROFILE_GATE: Final = "MultiKueueClusterProfile"
"""The one for ClusterProfiles; it is off unless somebody switched it on, up to Kueue 0.19 at least."""


def documents(text: str, *, where: str) -> list[Object]:
    """Return the objects of a YAML text."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        found = [each for each in yaml.load_all(text, Loader=loader) if each]
    except yaml.YAMLError as error:
        raise FleetConfigurationError(f"{where} is not YAML ({_first_line(error)}). Give Kueue's manifests.") from error
    if not found or not all(isinstance(each, dict) and "kind" in each and "metadata" in each for each in found):
        raise FleetConfigurationError(f"{where} does not hold Kubernetes objects. Give Kueue's release manifests.")
    return found


def kueue_objects(release: Iterable[Object], fleet: FleetDescription) -> list[Object]:
    """Return what installs Kueue as the fleet needs it.

    Raises FleetConfigurationError when the manifests are of another version, or not Kueue's at all.
    """
    objects = [json.loads(json.dumps(each)) for each in release]
    found = release_version(objects)
    if found != fleet.kueue.version:
        raise FleetConfigurationError(
            f"{fleet.where}: `kueue.manifests` ({fleet.kueue.manifests}) are of Kueue {found or 'no version at all'}, "
            f"but `kueue.version` is {fleet.kueue.version}. Correct one of them."
        )
    text = _configure(objects, fleet)
    _configuration_in_deployment(objects, hashlib.sha256(text.encode()).hexdigest()[:16])
    _check_gates(objects, text, fleet)
    if not any(each["kind"] == "Namespace" for each in objects):  # Helm makes it itself
        objects.insert(0, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": KUEUE_NAMESPACE}})
    return [owned(each, fleet=fleet.name, part=Part.KUEUE) for each in objects]


def release_version(objects: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the version of the Kueue that the Deployment among ``objects`` runs."""
    for each in objects:
        if each["kind"] == "Deployment" and each["metadata"]["name"] == DEPLOYMENT:
            for container in each["spec"]["template"]["spec"]["containers"]:
                if match := re.search(r":v?(\d+\.\d+\.\d+)(?:@.*)?$", str(container.get("image"))):
                    return match[1]
    return None


def _configure(objects: list[Object], fleet: FleetDescription) -> str:
    """Change Kueue's configuration in the manifests and return it as text."""
    import yaml

    for each in objects:
        if each["kind"] == "ConfigMap" and CONFIG_KEY in each.get("data", {}):
            shipped = yaml.safe_load(each["data"][CONFIG_KEY]) or {}
            ours = _settings(fleet, by_argument="--feature-gates" in _arguments(objects))
            merged = _merged(_merged(shipped, ours), fleet.kueue.configuration)
            each["data"][CONFIG_KEY] = text = yaml.safe_dump(merged, sort_keys=True)
            return text
    raise FleetConfigurationError(
        f"{fleet.where}: `kueue.manifests` have no ConfigMap with {CONFIG_KEY}. Give the manifests of a Kueue release."
    )


def _settings(fleet: FleetDescription, *, by_argument: bool) -> Object:
    """Return what a fleet sets in Kueue's configuration; the fleet file's own settings go first.

    ``by_argument`` says that the manifests give feature gates as an argument: Kueue refuses to be told in both ways.
    """
    settings: Object = {
        "integrations": {"frameworks": sorted(fleet.kueue.frameworks)},
        "metrics": {"enableClusterQueueResources": True},  # without it the dashboards' quota panels are empty
    }
    if fleet.by_profile and not by_argument:
        settings["featureGates"] = {PROFILE_GATE: True}
    return settings


def _configuration_in_deployment(objects: list[Object], digest: str) -> None:
    """Let another configuration be another pod template: Kueue reads its configuration when it starts."""
    for each in objects:
        if each["kind"] == "Deployment" and each["metadata"]["name"] == DEPLOYMENT:
            metadata = each["spec"]["template"].setdefault("metadata", {})
            metadata["annotations"] = {**(metadata.get("annotations") or {}), CONFIG_ANNOTATION: digest}


def _check_gates(objects: list[Object], configuration: str, fleet: FleetDescription) -> None:
    import yaml

    arguments = _arguments(objects)
    gates = yaml.safe_load(configuration).get("featureGates") or {}
    for gate in GATES:
        if gates.get(gate) is False or f"{gate}=false" in arguments:
            raise FleetConfigurationError(
                f"{fleet.where}: Kueue's feature gate {gate} is switched off, and a fleet does not work without it. "
                "Leave it out of the manifests and of `kueue.configuration`."
            )
    if fleet.by_profile and not (gates.get(PROFILE_GATE) or f"{PROFILE_GATE}=true" in arguments):
        raise FleetConfigurationError(
            f"{fleet.where}: `credentials.form: cluster_profile` needs Kueue's feature gate {PROFILE_GATE}, which is "
            "off by default. Switch it on where the others are set: in the manifests' --feature-gates, or in "
            "`kueue.configuration` under featureGates."
        )


def _arguments(objects: Iterable[Object]) -> str:
    """Return the containers of the Deployments as text, to look for arguments in."""
    return json.dumps(
        [each["spec"]["template"]["spec"]["containers"] for each in objects if each["kind"] == "Deployment"]
    )


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> Object:
    """Return ``one`` with what ``other`` says, mappings merged, all else replaced."""
    merged = dict(one)
    for key, value in other.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _merged(merged[key], value) if both else value
    return merged


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
