"""Texts, numbers and booleans as Kubernetes wants them, whatever a template made of them.

Jinja renders every value of a dict as text, and YAML reads ``600`` as a number where an annotation must be text.
"""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["TEXT_LISTS", "TEXT_MAPS", "typed"]

TEXT_MAPS: Final = ("labels", "annotations", "nodeSelector", "matchLabels")
TEXT_LISTS: Final = ("command", "args")

_NUMBERS: Final = frozenset(
    {
        "activeDeadlineSeconds",
        "backoffLimit",
        "backoffLimitPerIndex",
        "completions",
        "containerPort",
        "failureThreshold",
        "fsGroup",
        "initialDelaySeconds",
        "maxFailedIndexes",
        "maxReplicas",
        "maxRestarts",
        "minAvailable",
        "minReplicas",
        "numNodes",
        "numOfHosts",
        "parallelism",
        "periodSeconds",
        "replicas",
        "runAsGroup",
        "runAsUser",
        "slotsPerWorker",
        "terminationGracePeriodSeconds",
        "tolerationSeconds",
        "ttlSecondsAfterFinished",
    }
)
"""Fields that are whole numbers in every kind of job and in its pods."""

_BOOLEANS: Final = frozenset(
    {
        "enableServiceLinks",
        "hostIPC",
        "hostNetwork",
        "hostPID",
        "readOnly",
        "runAsNonRoot",
        "setHostnameAsFQDN",
        "shareProcessNamespace",
        "shutdownAfterJobFinishes",
        "suspend",
    }
)
_TRUTH: Final = {"true": True, "True": True, "false": False, "False": False}


def typed(node: Any) -> Any:
    """Return ``node`` with text where Kubernetes wants text, and numbers and booleans where it wants those.

    Text: labels, annotations, node selectors, ``env`` values, commands and arguments. A text that is no number stays,
    for the API server to refuse by its path.
    """
    if isinstance(node, list):
        return [typed(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {key: _field(key, value) for key, value in node.items()}


def _field(key: str, value: Any) -> Any:
    if key in TEXT_MAPS and isinstance(value, dict):
        return {name: _text(typed(item)) for name, item in value.items()}
    if key in TEXT_LISTS and isinstance(value, list):
        return [_text(typed(item)) for item in value]
    if key == "env" and isinstance(value, list):
        return [_variable(typed(entry)) for entry in value]
    if isinstance(value, str):
        return _parsed(key, value)
    return typed(value)


def _variable(entry: Any) -> Any:
    return {**entry, "value": _text(entry["value"])} if isinstance(entry, dict) and "value" in entry else entry


def _parsed(key: str, value: str) -> Any:
    if key in _NUMBERS and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", value):
        return int(value)
    return _TRUTH.get(value.strip(), value) if key in _BOOLEANS else value


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value
