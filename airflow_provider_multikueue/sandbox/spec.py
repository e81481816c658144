"""What a sandbox is asked to be: regions, GPUs, versions. The names follow Google's DWS MultiKueue example."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.sandbox.components import DEFAULT_KUEUE, KUEUE_VERSIONS
from airflow_provider_multikueue.sandbox.job_kinds import chosen
from airflow_provider_multikueue.sandbox.paths import SandboxError

__all__ = ["DEFAULT_REGIONS", "MANAGER", "FleetSpec", "Worker"]

MANAGER = "manager"
DEFAULT_REGIONS = ("europe-west4", "us-east4", "asia-southeast1")
_SHORT = {"europe-west4": "eu", "us-east4": "us", "asia-southeast1": "asia"}
_REGION = re.compile(r"[a-z]([a-z0-9-]{0,28}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker cluster, named after its region."""

    region: str

    @property
    def cluster(self) -> str:
        """The name of its MultiKueueCluster."""
        return f"multikueue-dws-worker-{_SHORT.get(self.region, self.region)}"

    @property
    def secret(self) -> str:
        """The Secret on the manager with the credentials for it."""
        return f"worker-{self.region}-secret"

    @property
    def context(self) -> str:
        """Its context in the kubeconfig file."""
        return f"worker-{self.region}"

    @property
    def zones(self) -> tuple[str, ...]:
        """The zones that its nodes are spread over."""
        return tuple(f"{self.region}-{letter}" for letter in "abc")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """A fleet: one manager and a worker in each of ``regions``.

    ``gpus`` and ``nodes`` count for each region; ``worker_lost_timeout`` is in seconds; ``kinds`` are the kinds of jobs
    besides the batch Job, by their names in ``job_kinds.py``; ``bare`` clusters come without Kueue.
    """

    name: str = "default"
    regions: tuple[str, ...] = DEFAULT_REGIONS
    gpus: int = 64
    nodes: int = 4
    kueue: str = DEFAULT_KUEUE
    worker_lost_timeout: float = 900.0
    backoff_limit: int = 3
    kinds: tuple[str, ...] = ()
    bare: bool = False

    def __post_init__(self) -> None:
        """Refuse what can't work, naming the value; add the kinds that the chosen ones are made of."""
        if not self.regions or len(set(self.regions)) != len(self.regions):
            raise SandboxError(
                f"A sandbox needs at least one region, each named once; not {', '.join(self.regions) or 'none'}."
            )
        for region in self.regions:
            if not _REGION.fullmatch(region) or region == MANAGER:
                raise SandboxError(
                    f"{region!r} cannot name a region: use lower-case letters, digits and hyphens, like us-east4."
                )
        if self.kueue not in KUEUE_VERSIONS:
            raise SandboxError(f"The sandbox has no Kueue {self.kueue!r}; it has {' and '.join(KUEUE_VERSIONS)}.")
        object.__setattr__(self, "kinds", tuple(kinds.name for kinds in chosen(self.kinds)))
        if self.nodes < 1 or self.gpus < 0 or self.worker_lost_timeout < 1:
            raise SandboxError(
                "A region needs a node, no negative number of GPUs, and a worker-lost timeout of a second or more."
            )

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The worker of each region."""
        return tuple(Worker(region) for region in self.regions)

    @property
    def clusters(self) -> tuple[str, ...]:
        """The keys of all clusters: ``manager``, then the regions."""
        return (MANAGER, *self.regions)

    @property
    def manager_context(self) -> str:
        """The manager's context in the kubeconfig file."""
        return "manager-europe-west4"

    def dump(self) -> dict[str, Any]:
        """Return the plain form."""
        return dataclasses.asdict(self)

    @classmethod
    def load(cls, path: Path) -> FleetSpec:
        """Return the spec whose plain form is in ``path``."""
        return cls.from_plain(json.loads(path.read_text()))

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> FleetSpec:
        """Return the spec with this plain form."""
        lists: dict[str, Sequence[str]] = {"regions": plain["regions"], "kinds": plain.get("kinds", ())}
        return cls(**plain | {name: tuple(parts) for name, parts in lists.items()})
