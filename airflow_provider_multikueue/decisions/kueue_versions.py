"""Which Kueue a cluster runs, and what is known to go wrong with it.

Kueue tells its version nowhere: it is in its Deployment's image, where that may be read, and otherwise narrowed down by
what its API has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_provider_multikueue.decisions.kinds import get_at

__all__ = ["Version", "known_problems", "version_of_image", "version_of_schema"]


@dataclass(frozen=True, slots=True)
class Version:
    """A version, or what it lies between: at least ``low``, below ``high`` where that is known."""

    low: tuple[int, ...]
    high: tuple[int, ...] | None
    text: str


PROBLEMS: tuple[tuple[tuple[int, ...] | None, str], ...] = (
    (
        (0, 18),
        "two workers can be admitted for one job at the same moment, which wastes a round of waiting. Update to 0.18.",
    ),
    (
        (0, 18),
        "a Job of the same name that someone else has on a worker is deleted when a job is dispatched. Give jobs on "
        "the workers other names, or update.",
    ),
    (
        (0, 18),
        "a job that was lost on its worker is noticed only workerLostTimeout after its admission (15 minutes by "
        "default). Update.",
    ),
    (
        (0, 18),
        "a job whose capacity was revoked can stay behind for ever. Set execution_timeout or max_dispatches, or "
        "update.",
    ),
    (
        None,
        "a region whose ProvisioningRequest has failed once does not ask again for that job. heal=True makes it, with "
        "the rights of worker-heal.yaml.",
    ),
)
"""The first version without the problem, where one is known, and the problem."""

SCHEMA_MARK = "concurrentAdmissionPolicy"
"""A field that the ClusterQueue has since 0.18."""


def known_problems(version: Version | None) -> list[str]:
    """Return what is known to go wrong with a version; with an unknown one, what goes wrong with all."""
    return [text for fixed, text in PROBLEMS if fixed is None or (version is not None and version.low < fixed)]


def version_of_image(deployment: Mapping[str, Any]) -> Version | None:
    """Return the version that the manager's Deployment of Kueue names."""
    containers = get_at(deployment, ("spec", "template", "spec", "containers"))
    for container in containers if isinstance(containers, list) else ():
        match = re.search(r"kueue[^:@]*:v(\d{1,4})\.(\d{1,4})\.(\d{1,4})", str(get_at(container, ("image",))))
        if match:
            numbers = tuple(int(part) for part in match.groups())
            return Version(numbers, numbers, ".".join(match.groups()))
    return None


def version_of_schema(schema: Mapping[str, Any]) -> Version | None:
    """Return what the ClusterQueue's fields say of the version."""
    schemas = get_at(schema, ("components", "schemas"))
    for name, entry in schemas.items() if isinstance(schemas, Mapping) else ():
        if str(name).endswith(".ClusterQueue") and isinstance(entry, Mapping):
            if get_at(entry, ("properties", "spec", "properties", SCHEMA_MARK)) is not None:
                return Version((0, 18), None, "0.18 or newer")
            return Version((0, 0), (0, 18), "0.17 or older")
    return None
