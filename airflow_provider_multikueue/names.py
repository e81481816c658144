"""Who a job belongs to, and the names and labels that follow from it: the same for the same task, valid, readable."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from airflow_provider_multikueue.kinds import Kind

__all__ = [
    "CURSORS",
    "DEPLOYMENT_LABEL",
    "DISPATCHES",
    "DOMAIN",
    "IDENTITY",
    "IDENTITY_LABEL",
    "JOB_LABEL",
    "LIFETIME",
    "MANIFEST",
    "OWNER",
    "REPORTED",
    "Identity",
    "Lifetime",
    "Owner",
    "identity_selector",
    "job_name",
    "label_value",
]

DOMAIN = "airflow-provider-multikueue"
JOB_LABEL = f"{DOMAIN}/job"
DEPLOYMENT_LABEL = f"{DOMAIN}/deployment"
IDENTITY_LABEL = f"{DOMAIN}/id"
IDENTITY = f"{DOMAIN}/identity"
OWNER = f"{DOMAIN}/owner"
MANIFEST = f"{DOMAIN}/manifest"
LIFETIME = f"{DOMAIN}/lifetime"
REPORTED = f"{DOMAIN}/reported"
DISPATCHES = f"{DOMAIN}/dispatches"
CURSORS = f"{DOMAIN}/cursors"


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
        raise NotImplementedError

    @classmethod
    def from_json(cls, text: str) -> Identity | None:
        """Return the identity in ``text``, or None if there is none to read."""
        raise NotImplementedError

    @property
    def digest(self) -> str:
        """Return 12 characters of ``a-z2-7`` that stand for this identity."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The try that may delete the job: the task instance's uuid (changes with each try on Airflow 3) and try number."""

    ti: str
    attempt: int

    def to_json(self) -> str:
        """Return the text of the owner annotation: ``{"ti", "try"}``."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, text: str) -> Owner | None:
        """Return the owner in ``text``, or None if there is none to read."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """When a job that nobody waits for may be removed: with its task, with its run, or never."""

    kind: Literal["task", "run", "detached"]
    deadline: datetime | None = None

    def to_json(self) -> str:
        """Return the text of the lifetime annotation: ``{"kind", "deadline"}``."""
        raise NotImplementedError

    @classmethod
    def from_json(cls, text: str) -> Lifetime | None:
        """Return the lifetime in ``text``, or None if there is none to read."""
        raise NotImplementedError


def identity_selector(identity: Identity) -> str:
    """Return the label selector of every job of ``identity``, whatever its generation or manifest."""
    raise NotImplementedError


def label_value(text: Any) -> str:
    """Return ``text`` as a valid label value: unchanged where it is one, else readable with a hash that keeps it unique."""
    raise NotImplementedError


def job_name(identity: Identity, generation: int, kind: Kind, *, prefix: str = "", manifest: Any = None) -> str:
    """Return the job's name: prefix, dag and task in words, the identity's digest, the generation; a DNS label within the kind's budget."""
    raise NotImplementedError
