"""What an API server counts of the requests that it answers."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from airflow_provider_multikueue.clusters.credentials import KubeconfigFile

__all__ = ["Counted", "counted", "difference", "of_jobs"]

LINE = re.compile(r"^apiserver_request_total\{(?P<labels>[^}]*)\} (?P<value>[0-9.e+]+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
OF_JOBS = frozenset({"jobs", "pods", "workloads", "provisioningrequests"})


class Counted(NamedTuple):
    """A kind of request."""

    verb: str
    resource: str
    subresource: str


async def counted(kubeconfig: Path, *contexts: str) -> Counter[Counted]:
    """Return how many requests of each kind API servers have answered so far; watches count when they end."""
    text = "\n".join([await asyncio.to_thread(_metrics, kubeconfig, context) for context in contexts])
    found: Counter[Counted] = Counter()
    for match in LINE.finditer(text):
        labels = dict(LABEL.findall(match["labels"]))
        kind = Counted(labels.get("verb", ""), labels.get("resource", ""), labels.get("subresource", ""))
        found[kind] += int(float(match["value"]))
    return found


def difference(after: Counter[Counted], before: Counter[Counted]) -> Counter[Counted]:
    """Return what was counted in between."""
    return Counter({kind: count - before[kind] for kind, count in after.items() if count > before[kind]})


def of_jobs(counts: Counter[Counted]) -> int:
    """Return how many of them were about jobs and what belongs to them: other components ask for leases and nodes."""
    return sum(count for kind, count in counts.items() if kind.resource in OF_JOBS)


def _metrics(kubeconfig: Path, context: str) -> str:
    access = KubeconfigFile(path=str(kubeconfig), context=context).load()
    with urllib.request.urlopen(f"{access.server}/metrics", context=access.tls, timeout=60) as answer:
        text: bytes = answer.read()
    return text.decode()
