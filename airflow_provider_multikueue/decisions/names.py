"""Who a job belongs to, and the names and labels that follow from it: the same for the same task, valid, readable."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from airflow_provider_multikueue.decisions.kinds import HASH_SUFFIX, LABEL_LIMIT, Kind, get_at, walk

__all__ = [
    "CURSORS",
    "DEPLOYMENT_LABEL",
    "DISPATCHES",
    "DOMAIN",
    "HANDED_OVER",
    "HELD",
    "IDENTITY",
    "IDENTITY_LABEL",
    "JOB_LABEL",
    "JOINED",
    "LIFETIME",
    "MANIFEST",
    "OWNER",
    "REPORTED",
    "Identity",
    "Lifetime",
    "Owner",
    "Reported",
    "cursors_of",
    "identity_selector",
    "job_name",
    "label_value",
    "name_budget",
]

DOMAIN: Final = "airflow-provider-multikueue"
JOB_LABEL: Final = f"{DOMAIN}/job"
DEPLOYMENT_LABEL: Final = f"{DOMAIN}/deployment"
IDENTITY_LABEL: Final = f"{DOMAIN}/id"
IDENTITY: Final = f"{DOMAIN}/identity"
OWNER: Final = f"{DOMAIN}/owner"
MANIFEST: Final = f"{DOMAIN}/manifest"
LIFETIME: Final = f"{DOMAIN}/lifetime"
REPORTED: Final = f"{DOMAIN}/reported"
HANDED_OVER: Final = f"{DOMAIN}/handed-over"
DISPATCHES: Final = f"{DOMAIN}/dispatches"
CURSORS: Final = f"{DOMAIN}/cursors"
JOINED: Final = f"{DOMAIN}/joined-queue"
HELD: Final = f"{DOMAIN}/held-for-queue"

_DIGEST: Final = 10  # base32 characters: 50 bits
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The task instance that a job belongs to, whatever its try: raw ids."""

    deployment: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    def to_json(self) -> str:
        """Return the text of the identity annotation."""
        return _compact(
            {
                "deployment": self.deployment,
                "dag_id": self.dag_id,
                "run_id": self.run_id,
                "task_id": self.task_id,
                "map_index": self.map_index,
            }
        )

    @classmethod
    def from_json(cls, text: object) -> Identity | None:
        """Return the identity in ``text``, or None if there is none to read."""
        data = _mapping(text)
        names = ("deployment", "dag_id", "run_id", "task_id")
        if data is None or not all(isinstance(data.get(name), str) for name in names):
            return None
        if not isinstance(data.get("map_index"), int):
            return None
        return cls(**{name: data[name] for name in names}, map_index=data["map_index"])

    @property
    def digest(self) -> str:
        """Return ten characters of ``a-z2-7`` that stand for this identity."""
        return _hash(self.to_json(), _DIGEST)


def cursors_of(reader: str) -> str:
    """Return the annotation with the places in the logs up to which ``reader`` has shown them."""
    return f"{CURSORS}-{_hash(reader, _DIGEST)}" if reader else CURSORS


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The try that may delete the job: the task instance's uuid, which a cleared task gets anew, and its try number."""

    ti: str
    attempt: int
    max_tries: int | None = field(default=None, compare=False)
    """Airflow's own count: a clear raises it, a retry does not. It says nothing of whose the job is."""

    def to_json(self) -> str:
        """Return the text of the owner annotation: ``{"ti", "try", "max_tries"}``."""
        tries = {"max_tries": self.max_tries} if self.max_tries is not None else {}
        return _compact({"ti": self.ti, "try": self.attempt, **tries})

    @classmethod
    def from_json(cls, text: object) -> Owner | None:
        """Return the owner in ``text``, or None if there is none to read."""
        data = _mapping(text)
        if data is None or not isinstance(data.get("ti"), str) or not isinstance(data.get("try"), int):
            return None
        tries = data.get("max_tries")
        return cls(ti=data["ti"], attempt=data["try"], max_tries=tries if isinstance(tries, int) else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """That a job's end was reported: whether it was a success, and whether the job is to stay on the manager."""

    at: str
    succeeded: bool
    kept: bool

    def to_json(self) -> str:
        """Return the text of the annotation: ``{"at", "succeeded", "kept"}``."""
        return _compact({"at": self.at, "succeeded": self.succeeded, "kept": self.kept})

    @classmethod
    def from_json(cls, text: object) -> Reported | None:
        """Return what ``text`` says; of a text that nobody can read only that it is there."""
        if not text:
            return None
        data = _mapping(text) or {}
        return cls(
            at=str(data.get("at", "")), succeeded=data.get("succeeded") is True, kept=data.get("kept") is not False
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """When a job that nobody waits for may be removed: with its task, with its run, or never."""

    kind: Literal["task", "run", "detached"]
    deadline: datetime | None = None

    def to_json(self) -> str:
        """Return the text of the lifetime annotation: ``{"kind", "deadline"}``."""
        deadline = self.deadline.astimezone(UTC).isoformat(timespec="seconds") if self.deadline else None
        return _compact({"kind": self.kind, "deadline": deadline})

    @classmethod
    def from_json(cls, text: object) -> Lifetime | None:
        """Return the lifetime in ``text``, or None if there is none to read."""
        data = _mapping(text)
        if data is None or data.get("kind") not in ("task", "run", "detached"):
            return None
        try:
            deadline = datetime.fromisoformat(data["deadline"]) if data.get("deadline") else None
        except (TypeError, ValueError):
            return None
        if deadline is not None and deadline.tzinfo is None:
            deadline = deadline.replace(tzinfo=UTC)
        return cls(kind=cast("Literal['task', 'run', 'detached']", data["kind"]), deadline=deadline)


def identity_selector(identity: Identity) -> str:
    """Return the label selector of every job of ``identity``, whatever its generation or manifest."""
    return f"{IDENTITY_LABEL}={identity.digest}"


def label_value(text: object) -> str:
    """Return ``text`` as a label value: unchanged where it is one, else readable with a hash that keeps it unique.

    Empty text stays empty, which is a valid value.
    """
    raw = str(text)
    if not raw or _LABEL.fullmatch(raw):
        return raw
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", _ascii(raw))
    digest = _hash(raw, 8)
    kept = readable[: LABEL_LIMIT - len(digest) - 1].strip("-_.")
    return f"{kept}-{digest}" if kept else digest


def job_name(
    identity: Identity, generation: int, kind: Kind, *, prefix: str = "", manifest: Mapping[str, Any] | None = None
) -> str:
    """Return the job's name: prefix, dag and task in words, the identity's digest, the generation.

    It is a DNS label that starts with a letter and stays within the budget of the kind and of ``manifest``.
    """
    suffix = f"{identity.digest}-{generation}"
    room = name_budget(kind, manifest) - len(suffix) - 1
    return f"{_readable(prefix, identity, room)}-{suffix}"


def name_budget(kind: Kind, manifest: Mapping[str, Any] | None = None) -> int:
    """Return the longest name of a job made from ``manifest`` that leaves room for what its controller appends."""
    budget = kind.name_budget
    if kind.kind == "Job" and get_at(manifest, ("spec", "completionMode")) == "Indexed":
        budget = min(budget, LABEL_LIMIT - 1 - _digits(get_at(manifest, ("spec", "completions"))))
    if kind.kind == "JobSet":
        replicated = walk(manifest, ("spec", "replicatedJobs", "*"))
        budget = min([budget, *(LABEL_LIMIT - _jobset_suffix(job) for _, job in replicated)])
    return max(budget, _DIGEST + 8)


def _jobset_suffix(replicated: Any) -> int:
    """Return the length of what follows a JobSet's name in a pod's name: job, its index, pod's index, five letters."""
    pods = get_at(replicated, ("template", "spec", "completions")) or get_at(
        replicated, ("template", "spec", "parallelism")
    )
    name = str(get_at(replicated, ("name",)) or "")
    return 1 + len(name) + 1 + _digits(get_at(replicated, ("replicas",))) + 1 + _digits(pods) + HASH_SUFFIX


def _digits(count: object) -> int:
    return len(str(max(int(count) - 1, 0))) if isinstance(count, (int, str)) and str(count).isdigit() else 1


def _readable(prefix: str, identity: Identity, room: int) -> str:
    """Return prefix, dag and task as one slug of at most ``room`` characters; what is cut is cut evenly."""
    parts = [_slug(prefix), _slug(identity.dag_id), _slug(identity.task_id)]
    parts = [part for i, part in enumerate(parts) if part and part not in parts[:i]]
    while parts and len("-".join(parts)) > room:
        longest = max(range(len(parts)), key=lambda i: len(parts[i]))
        parts[longest] = parts[longest][:-1].rstrip("-")
        parts = [part for part in parts if part]
    text = "-".join(parts)
    if not text[:1].isalpha():
        text = f"j-{text}"[:room].rstrip("-")
    return text


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", _ascii(text).lower()).strip("-")


def _ascii(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def _hash(text: str, length: int) -> str:
    raw = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return base64.b32encode(raw).decode().lower()[:length]


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _mapping(text: object) -> dict[str, Any] | None:
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
