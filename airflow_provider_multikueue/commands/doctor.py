"""``multikueue doctor``: whether a fleet is well, as seen from this host with the connection's accounts."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from airflow_provider_multikueue.commands.connection import add_connection_arguments, chosen_fleet

__all__ = ["add_arguments", "lines", "run"]

HEALTHY, UNHEALTHY, UNUSABLE = 0, 1, 2
SIGNS = {"error": "✗", "warning": "!", "note": "·"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Asks each cluster of a fleet what jobs need of it, changes nothing. Exit code: 0 healthy, 1 jobs can't run or "
        "be followed, 2 the connection can't be used."
    )
    add_connection_arguments(parser, "conn_id")
    parser.add_argument("--namespace", help="of the jobs; default: the connection's")
    parser.add_argument("--json", action="store_true", help="all that was found, for programs")


def run(arguments: argparse.Namespace, answer: TextIO) -> int:
    """Examine the fleet, print what was found to ``answer``, and return the exit code."""
    from airflow_provider_multikueue.commands.host import host_limits
    from airflow_provider_multikueue.exceptions import MultiKueueError
    from airflow_provider_multikueue.fleets.doctor import examine

    async def work() -> dict[str, Any]:
        found = await examine(await chosen_fleet(arguments), namespace=arguments.namespace)
        return {**found, "limits": host_limits()}

    try:
        found = asyncio.run(work())
    except MultiKueueError as error:
        print(json.dumps({"healthy": False, "error": str(error)}) if arguments.json else error, file=sys.stderr)
        return UNUSABLE
    print(json.dumps(found, indent=1) if arguments.json else "\n".join(lines(found)), file=answer)
    return HEALTHY if found["healthy"] else UNHEALTHY


def lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield what a person reads."""
    yield f"Connection {found['connection']} from host {found['host']}, jobs in namespace {found['namespace']}"
    for cluster in found["clusters"]:
        yield ""
        yield from _cluster(cluster)
    yield ""
    regions = {cluster["name"]: cluster["region"] for cluster in found["clusters"]}
    for queue in found["queues"]:
        named = [f"{name} ({regions.get(name) or 'region unknown'})" for name in queue["clusters"] or []]
        reach = ", ".join(named) or "no cluster that can be seen"
        yield f"queue {queue['name']} -> {queue['cluster_queue'] or '?'} -> {reach}"
    for finding in found.get("limits", {}).get("findings", ()):
        yield f"{SIGNS[finding['level']]} {finding['text']}"
    yield "healthy" if found["healthy"] else "NOT healthy: see the lines with ✗"


def _cluster(cluster: dict[str, Any]) -> Iterator[str]:
    region = f", {cluster['region'] or 'region unknown'}" if cluster["role"] == "worker" else ""
    yield f"{cluster['name']}{region}: {cluster['server'] or 'no address'}"
    if cluster["reached"]:
        versions = ", ".join(cluster["apis"].get("kueue.x-k8s.io", [])) or "none"
        yield f"  Kubernetes {cluster['kubernetes']}, Kueue {cluster['kueue'] or 'of unknown version'} (API {versions})"
    if cluster["active"]:
        yield "  the manager's Kueue is connected to it"
    if cluster["credentials"]:
        yield from _credentials(cluster["credentials"])
    if cluster["rights"]:
        good = sum(right["allowed"] for right in cluster["rights"])
        missing = "" if good == len(cluster["rights"]) else ", what is missing is below"
        yield f"  rights: {good} of {len(cluster['rights'])}{missing}"
    for finding in cluster["findings"]:
        yield f"  {SIGNS[finding['level']]} {finding['text']}"


def _credentials(credentials: dict[str, Any]) -> Iterator[str]:
    from airflow_provider_multikueue.decisions.narrate import duration

    seconds = credentials["expires_in_seconds"]
    end = "" if seconds is None else f", ends in {duration(seconds)}" if seconds > 0 else ", has ended"
    yield f"  credentials: {credentials['source']}"
    yield f"    {credentials['sort']}{end}; renewal: {credentials['renewal']}"
    if credentials["proxy"]:
        yield f"    through the proxy {credentials['proxy']}"
