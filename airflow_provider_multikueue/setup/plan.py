"""A plan: what would be made, changed and deleted on a cluster, as data and as text. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

__all__ = ["Action", "Change", "Difference", "Plan", "compare", "deletion_order", "is_ours", "making_order"]

Object = Mapping[str, Any]

HIDDEN: Final = "(secret)"
_SERVER_MADE: Final = frozenset(
    {"managedFields", "resourceVersion", "generation", "creationTimestamp", "uid", "selfLink"}
)
_ORDER: Final = (
    "Namespace",
    "CustomResourceDefinition",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ConfigMap",
    "Secret",
    "Service",
    "Deployment",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "APIService",
    "PodMonitoring",
    "WorkloadPriorityClass",
    "ResourceFlavor",
    "Cohort",
    "ProvisioningRequestConfig",
    "MultiKueueCluster",
    "MultiKueueConfig",
    "AdmissionCheck",
    "ClusterQueue",
    "LocalQueue",
)
"""What is needed comes before what needs it."""
_LAST_SEEN: Final = ("CustomResourceDefinition", "APIService")
"""Deleted before what serves it: its objects have finalizers that the running Kueue takes off."""


class Action(StrEnum):
    """What becomes of an object."""

    CREATE = "create"
    CHANGE = "change"
    DELETE = "delete"
    UNCHANGED = "unchanged"
    FOREIGN = "foreign"
    """Someone else's: it stays as it is, and the plan is not carried out, unless by force."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One field, and what becomes of it."""

    path: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What becomes of one object."""

    action: Action
    cluster: str
    kind: str
    name: str
    namespace: str | None = None
    differences: tuple[Difference, ...] = ()
    reason: str = ""
    desired: Object | None = field(default=None, repr=False, compare=False)
    live: Object | None = field(default=None, repr=False, compare=False)

    @property
    def object_name(self) -> str:
        """Kind, namespace and name, as people write them."""
        return f"{self.kind} {f'{self.namespace}/' if self.namespace else ''}{self.name}"

    def plain(self) -> dict[str, Any]:
        """Return plain JSON types, without the objects themselves."""
        shown = {"action": str(self.action), "cluster": self.cluster, "kind": self.kind, "name": self.name}
        more = {"namespace": self.namespace, "reason": self.reason}
        shown |= {key: value for key, value in more.items() if value}
        if self.differences:
            shown["differences"] = [asdict(each) for each in self.differences]  # type: ignore[assignment]
        return shown


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, in order."""

    changes: tuple[Change, ...] = ()

    def __add__(self, other: Plan) -> Plan:
        return Plan((*self.changes, *other.changes))

    def having(self, *actions: Action) -> tuple[Change, ...]:
        """Return the changes with one of these actions."""
        return tuple(change for change in self.changes if change.action in actions)

    @property
    def foreign(self) -> tuple[Change, ...]:
        """What is someone else's."""
        return self.having(Action.FOREIGN)

    @property
    def work(self) -> tuple[Change, ...]:
        """What there is to do."""
        return self.having(Action.CREATE, Action.CHANGE, Action.DELETE)

    @property
    def summary(self) -> str:
        """Such as ``3 to create, 1 to change, 20 unchanged``."""
        counts = Counter(change.action for change in self.changes)
        words = {Action.UNCHANGED: "unchanged", Action.FOREIGN: "of someone else"}
        parts = [f"{counts[each]} {words.get(each, f'to {each}')}" for each in Action if counts[each]]
        return ", ".join(parts) or "nothing to do"

    def lines(self) -> Iterator[str]:
        """Yield what a person reads: a line each, and one for each field that changes."""
        signs = {Action.CREATE: "+", Action.CHANGE: "~", Action.DELETE: "-", Action.FOREIGN: "!"}
        for change in self.changes:
            if change.action in signs:
                reason = f": {change.reason}" if change.reason else ""
                yield f"{signs[change.action]} {change.cluster}: {change.object_name}{reason}"
                for each in change.differences:
                    yield f"    {each.path}: {_short(each.old)} -> {_short(each.new)}"
        yield self.summary

    def plain(self) -> list[dict[str, Any]]:
        """Return plain JSON types."""
        return [change.plain() for change in self.changes]


def compare(
    cluster: str,
    desired: Object,
    live: Object | None,
    applied: Object | None,
    *,
    label: tuple[str, str],
    force: bool = False,
    conflict: str = "",
) -> Change:
    """Return what becomes of one object.

    ``applied`` is what the server says that the object would be after it was applied. None when it could not say: then
    only the desired fields are compared. ``label`` is the fleet's, key and value; ``conflict`` says which fields
    someone else holds, if any.
    """
    metadata = desired["metadata"]
    about = {"cluster": cluster, "kind": desired["kind"], "name": metadata["name"]}
    rest = {"namespace": metadata.get("namespace"), "desired": desired, "live": live}
    if live is None:
        return Change(action=Action.CREATE, **about, **rest)
    ours = is_ours(live, label)
    if not ours and desired["kind"] == "Namespace":  # used by many, and none the worse for it
        return Change(action=Action.UNCHANGED, **about, **rest)
    differences = tuple(_differences(_comparable(live), _comparable(applied or desired), subset=applied is None))
    reason = conflict if ours else _owner(live, label[0])
    if reason and not force:
        return Change(action=Action.FOREIGN, differences=differences, reason=reason, **about, **rest)
    action = Action.CHANGE if differences else Action.UNCHANGED
    return Change(
        action=action, differences=differences, reason=f"by force, {reason}" if reason else "", **about, **rest
    )


def is_ours(live: Object, label: tuple[str, str]) -> bool:
    """Whether the object carries the label (key and value) of this fleet."""
    return (live["metadata"].get("labels") or {}).get(label[0]) == label[1]


def making_order(objects: Iterable[Object]) -> list[Object]:
    """Return the objects with what is needed before what needs it."""
    return sorted(objects, key=lambda each: _rank(each["kind"]))


def deletion_order(objects: Iterable[Object]) -> list[Object]:
    """Return the objects in the order in which they can go."""

    def when(each: Object) -> tuple[int, int]:
        kind = each["kind"]
        custom = each.get("apiVersion", "").startswith(("kueue.x-k8s.io", "monitoring."))
        return (0 if custom else 1 if kind in _LAST_SEEN else 2, -_rank(kind))

    return sorted(objects, key=when)


def _rank(kind: str) -> int:
    return _ORDER.index(kind) if kind in _ORDER else _ORDER.index("Deployment")


def _owner(live: Object, label: str) -> str:
    metadata = live["metadata"]
    if other := (metadata.get("labels") or {}).get(label):
        return f"it belongs to the fleet {other}"
    managers = sorted({str(each.get("manager")) for each in metadata.get("managedFields") or []})
    return f"it was not made for this fleet (managed by {', '.join(managers) or 'nobody known'})"


def _comparable(each: Object) -> dict[str, Any]:
    """Return the object without what the server and the controllers write, its secrets hidden but told apart."""
    shown = {key: value for key, value in each.items() if key not in ("status", "metadata", "apiVersion", "kind")}
    kept = {key: value for key, value in each["metadata"].items() if key not in _SERVER_MADE}
    shown["metadata"] = kept
    if each["kind"] == "Secret":
        shown["data"] = {key: _Hidden(str(value)) for key, value in (each.get("data") or {}).items()}
    return shown


class _Hidden(str):
    """A text that is compared and never shown."""

    __slots__ = ()


def _differences(old: Any, new: Any, path: str = "", *, subset: bool = False) -> Iterator[Difference]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*(key for key in old if key in new or not subset), *(key for key in new if key not in old)]:
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else str(key), subset=subset)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(one, other, f"{path}[{index}]", subset=subset)
    elif old != new and not _both_empty(old, new):
        hidden = isinstance(old, _Hidden) or isinstance(new, _Hidden)
        yield Difference(path, HIDDEN, HIDDEN) if hidden else Difference(path, old, new)


def _both_empty(old: Any, new: Any) -> bool:
    return old in (None, {}, []) and new in (None, {}, [])


def _short(value: Any) -> str:
    text = "(nothing)" if value is None else value if value == HIDDEN else json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
