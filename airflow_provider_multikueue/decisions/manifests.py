"""What the user wrote, read safely into one job-like object, or refused with the place and the remedy."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Any, Final, cast

import yaml

from airflow_provider_multikueue.decisions.field_types import TEXT_LISTS, TEXT_MAPS, typed
from airflow_provider_multikueue.decisions.kinds import refusal
from airflow_provider_multikueue.decisions.plain_yaml import (
    BoundedLoader,
    EndlessError,
    TooDeepError,
    TooManyError,
    check_size,
    children,
)
from airflow_provider_multikueue.exceptions import ManifestError

__all__ = ["manifest_hash", "parse_manifest"]

MAX_BYTES: Final = 1024 * 1024  # an API server takes objects up to about 1.5 MB
MAX_NODES: Final = 50_000  # after aliases are expanded
MAX_DEPTH: Final = 100

Note = Callable[[str], None]


def parse_manifest(
    source: object, *, sanitize: Callable[[Any], Any] | None = None, note: Note | None = None
) -> dict[str, Any]:
    """Return the one job-like object in ``source`` as a dict of its own.

    ``source`` is YAML or JSON text, a dict, or an object that ``sanitize`` turns into a dict (a client model). ``note``
    is told of each document that is left out, since MultiKueue copies nothing but the job to the workers.
    Raises ``ManifestError``.
    """
    if isinstance(source, str):
        documents = _documents(source)
    elif isinstance(source, Mapping):
        documents = [(1, _copied(source))]
    elif sanitize is not None and source is not None:
        documents = [(1, sanitize(source))]
    else:
        raise ManifestError(
            f"job: got {type(source).__name__}; give a .yaml file, YAML text, a dict or a kubernetes client model."
        )
    return cast("dict[str, Any]", typed(_json_types(_one_job(documents, note or (lambda _text: None)), "")))


def _copied(source: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return copy.deepcopy(dict(source))
    except RecursionError as error:
        raise ManifestError("job: the dict is nested too deeply, or contains itself.") from error


def manifest_hash(manifest: Mapping[str, Any], **parameters: object) -> str:
    """Return the SHA-256 of the manifest as the user rendered it and of the parameters that change the job.

    Parameters that are None do not count, so that a parameter added later leaves the hash of older jobs as it was.
    """
    given = {name: _plain(value) for name, value in parameters.items() if value is not None}
    text = json.dumps([manifest, given], sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _plain(value: object) -> object:
    return value.total_seconds() if isinstance(value, timedelta) else value


# -- one object out of several documents


def _one_job(documents: list[tuple[int, Any]], note: Note) -> dict[str, Any]:
    jobs: list[tuple[int, dict[str, Any]]] = []
    refused: list[str] = []
    for number, document in documents:
        api_version, kind = _type_of(number, document)
        why = refusal(api_version, kind)
        if why is None:
            jobs.append((number, document))
        else:
            refused.append(f"document {number} ({kind} {_name_of(document)}): {why}")
    if not jobs:
        raise ManifestError("job: there is no job in the manifest. " + ("; ".join(refused) or "It is empty") + ".")
    if len(jobs) > 1:
        found = ", ".join(f"document {number} ({job['kind']} {_name_of(job)})" for number, job in jobs)
        raise ManifestError(f"job: one task runs one job, and the manifest has {len(jobs)}: {found}. Keep one a task.")
    for text in refused:
        note(f"Not submitted: {text}. What the job needs of it must be on every worker already.")
    return jobs[0][1]


def _type_of(number: int, document: Any) -> tuple[str, str]:
    if not isinstance(document, dict):
        raise ManifestError(
            f"job: document {number} is {_described(document)}, not an object with apiVersion and kind."
        )
    api_version, kind = document.get("apiVersion"), document.get("kind")
    for field, value in (("apiVersion", api_version), ("kind", kind)):
        if not isinstance(value, str) or not value:
            raise ManifestError(f"{field}: missing in document {number}; a job starts with apiVersion and kind.")
    if str(kind).endswith("List") and isinstance(document.get("items"), list):
        raise ManifestError(f"kind: document {number} is a {kind}; give the job itself, not a list.")
    return str(api_version), str(kind)


def _name_of(document: Mapping[str, Any]) -> str:
    metadata = document.get("metadata")
    names = metadata if isinstance(metadata, Mapping) else {}
    return repr(str(names.get("name") or names.get("generateName") or "without a name"))


def _described(value: object) -> str:
    return f"a {type(value).__name__} ({str(value)[:40]!r})"


def _json_types(node: Any, place: str) -> Any:
    """Return ``node`` with text keys and JSON types only; raise for what JSON cannot hold, naming its place."""
    if isinstance(node, dict):
        return {str(key): _json_types(value, f"{place}.{key}".lstrip(".")) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_json_types(value, f"{place}[{index}]") for index, value in enumerate(node)]
    if isinstance(node, date):  # datetime too
        return node.isoformat()
    if isinstance(node, float) and (node != node or node in (float("inf"), float("-inf"))):
        raise ManifestError(f"{place}: {node} is not a number that Kubernetes knows.")
    if node is None or isinstance(node, (str, int, float, bool)):
        return node
    raise ManifestError(f"{place}: {type(node).__name__} has no place in a manifest; give text, a number or a list.")


# -- YAML: the safe subset that Kubernetes itself reads


class _Loader(BoundedLoader):
    """Plain types only: no tags, no dates, no duplicate keys, no clock-like numbers; bounded in depth."""

    most_levels = MAX_DEPTH

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise ManifestError(f"job: {key.value!r} stands twice, the second time {_at(key)}; keep one.")
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("merge", r"<<", "<"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    ("int", r"[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9][0-9_]*)?\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|[-+]?[0-9][0-9_]*\.", "-+0123456789."),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


def _documents(text: str) -> list[tuple[int, Any]]:
    """Return the documents of ``text`` that are not empty, with their numbers from 1."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise ManifestError(f"job: the manifest is larger than {MAX_BYTES // 1024} KiB; no API server would take it.")
    found: list[tuple[int, Any]] = []
    try:
        loader = _Loader(text)
        try:
            number = 0
            while loader.check_node():
                node = loader.get_node()
                number += 1
                _bounded(node)
                _keep_texts(node)
                value = loader.construct_document(node)
                if value is not None:
                    found.append((number, value))
        finally:
            loader.dispose()
    except TooDeepError as error:
        raise ManifestError(f"job: the YAML is nested deeper than {MAX_DEPTH} levels.") from error
    except yaml.YAMLError as error:
        raise ManifestError(f"job: this is not YAML: {_problem(error)}") from error
    except RecursionError as error:
        raise ManifestError("job: the YAML is nested too deeply.") from error
    except (ValueError, TypeError) as error:
        raise ManifestError(f"job: the YAML holds a value that cannot be read: {error}") from error
    return found


def _bounded(root: Any) -> None:
    """Raise for tags, for aliases that contain themselves, and for more nodes than a manifest can have."""
    try:
        check_size(root, most=MAX_NODES, check=_untagged)
    except EndlessError as error:
        raise ManifestError(f"job: an alias {_at(error.node)} contains itself.") from error
    except TooManyError as error:
        raise ManifestError(f"job: with its aliases expanded the manifest has more than {MAX_NODES} values.") from error


def _untagged(node: Any) -> None:
    if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.rpartition(":")[2] in ("binary", "set", "omap"):
        raise ManifestError(f"job: the tag {node.tag!r} {_at(node)} is not allowed; write plain YAML.")


def _keep_texts(node: Any) -> None:
    """Read what Kubernetes wants as text the way it is written: an ``env`` value ``1.10`` or ``no`` stays so."""
    for child in children(node):
        _keep_texts(child)
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value in TEXT_MAPS and isinstance(value, yaml.MappingNode):
            _as_text(*(item for _, item in value.value))
        elif key.value in TEXT_LISTS and isinstance(value, yaml.SequenceNode):
            _as_text(*value.value)
        elif key.value == "env" and isinstance(value, yaml.SequenceNode):
            pairs = [pair for entry in value.value if isinstance(entry, yaml.MappingNode) for pair in entry.value]
            _as_text(*(item for name, item in pairs if name.value == "value"))


def _as_text(*nodes: Any) -> None:
    for node in nodes:
        if isinstance(node, yaml.ScalarNode) and node.tag.rpartition(":")[2] in ("int", "float", "bool"):
            node.tag = "tag:yaml.org,2002:str"


def _at(node: Any) -> str:
    return f"in line {node.start_mark.line + 1}"


def _problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
    return f"{problem} in line {mark.line + 1}, column {mark.column + 1}." if mark else f"{problem}."
