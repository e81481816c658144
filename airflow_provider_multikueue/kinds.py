"""The kinds of jobs that MultiKueue dispatches: one row a kind, and the few questions asked of a row.

A kind that has no row and comes with a Workload still works, by its Workload alone (``Kind.known`` is False).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "KINDS",
    "MULTIKUEUE",
    "Kind",
    "Outcome",
    "find_kind",
    "kind_of",
    "outcome",
    "pod_templates",
    "refusal",
]

MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""The value of ``managedBy`` that hands a job to MultiKueue."""

Path = tuple[str, ...]
"""Keys from the object's root; ``*`` stands for each item of a list or each value of a mapping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of job.

    ``name_budget`` is the longest name that leaves room for what the kind's controller appends. ``pod_label`` is the label of
    its pods whose value is the job's name. ``success`` and ``failure`` are condition types, or values at ``state``.
    """

    api_version: str
    kind: str
    plural: str
    name_budget: int = 63
    templates: tuple[Path, ...] = ()
    pod_label: str | None = None
    role_label: str | None = None
    leader: str | None = None
    success: tuple[str, ...] = ()
    failure: tuple[str, ...] = ()
    state: Path = ()
    reason: Path = ()
    message: Path = ()
    suspend: Path | None = ("spec", "suspend")
    managed_by: Path | None = ("spec", "managedBy")
    known: bool = True

    @property
    def group(self) -> str:
        """The API group, empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The API version without its group."""
        return self.api_version.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended, by its own status."""

    succeeded: bool
    reason: str
    message: str
    at: str | None


KINDS: tuple[Kind, ...] = ()


def find_kind(api_version: str, kind: str) -> Kind:
    """Return the row of a kind, or a row made for a kind that is not in the table."""
    raise NotImplementedError


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """Return the row for the kind of ``manifest``."""
    raise NotImplementedError


def refusal(api_version: str, kind: str) -> str | None:
    """Say why MultiKueue does not dispatch this kind; None if it may."""
    raise NotImplementedError


def pod_templates(kind: Kind, manifest: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each pod template in ``manifest`` with its path in words, such as ``spec.template``."""
    raise NotImplementedError


def outcome(kind: Kind, job: Mapping[str, Any] | None) -> Outcome | None:
    """Return how ``job`` ended by its own status; None while it has not, or for a kind without a row."""
    raise NotImplementedError
