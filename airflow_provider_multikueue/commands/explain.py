"""``multikueue explain``: what a job does, where, and what it waits for; without a job, those of the namespace."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from airflow_provider_multikueue.commands.connection import add_connection_arguments, chosen_fleet

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.kinds import Kind
    from airflow_provider_multikueue.decisions.workload import Observation
    from airflow_provider_multikueue.fleets.fleet import Fleet

__all__ = ["add_arguments", "run"]

TOLD, NOT_FOUND, UNUSABLE = 0, 1, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.description = (
        "Says of a job on the manager what its task's log would say: its phase, where it runs, and what it waits for "
        "in each region. Without a job, lists those of the namespace. Changes nothing. Exit code: 0 told, 1 there is "
        "no such job, 2 the connection can't be used."
    )
    parser.add_argument("job", nargs="?", help="NAME or NAMESPACE/NAME; or a report, or its job part, as JSON")
    parser.add_argument("--kind", default="Job", help="of the job, such as JobSet (default Job)")
    add_connection_arguments(parser, "--conn-id")
    parser.add_argument("--namespace", help="of the jobs; default: the connection's")
    parser.add_argument("--json", action="store_true", help="the report of the job, or a list of jobs, for programs")


def run(arguments: argparse.Namespace, answer: TextIO) -> int:
    """Print what is known to ``answer``, and return the exit code."""
    from airflow_provider_multikueue.clusters.client import ApiError
    from airflow_provider_multikueue.exceptions import FleetConfigurationError, JobDeletedError, MultiKueueError

    try:
        print("\n".join(asyncio.run(_explain(arguments))), file=answer)
    except (ApiError, MultiKueueError) as error:
        print(f"multikueue explain: {error}", file=sys.stderr)
        nothing_there = isinstance(error, JobDeletedError) or not isinstance(error, FleetConfigurationError | ApiError)
        return NOT_FOUND if nothing_there else UNUSABLE
    return TOLD


async def _explain(arguments: argparse.Namespace) -> list[str]:
    from airflow_provider_multikueue.fleets.fleet import open_fleet

    config = await chosen_fleet(arguments)
    async with open_fleet(config) as fleet:
        namespace = arguments.namespace or config.namespace or "default"
        if arguments.job is None:
            return await _all(fleet, namespace, as_json=arguments.json)
        return await _one(fleet, _reference(arguments, namespace), as_json=arguments.json)


def _reference(arguments: argparse.Namespace, namespace: str) -> object:
    """Return which job is meant: JSON as it is given, a name with what the other arguments say."""
    from airflow_provider_multikueue.decisions.kinds import KINDS
    from airflow_provider_multikueue.exceptions import ManifestError

    text = arguments.job.strip()
    if text.startswith("{"):
        return text
    kind = next((each for each in KINDS if each.kind.lower() == arguments.kind.lower()), None)
    if kind is None:
        known = ", ".join(each.kind for each in KINDS)
        raise ManifestError(
            f"--kind {arguments.kind}: not a kind of job. Jobs are {known}; others can be given as JSON."
        )
    stated, _, name = text.rpartition("/")
    return {"api_version": kind.api_version, "kind": kind.kind, "namespace": stated or namespace, "name": name}


async def _one(fleet: Fleet, job: object, *, as_json: bool) -> list[str]:
    from airflow_provider_multikueue.decisions.orders import LOOK
    from airflow_provider_multikueue.fleets.follow import Following, resolve

    part = await resolve(fleet, job)
    told = _Told()
    following = Following(fleet, part, LOOK, told)
    try:
        outcome = await following.run()
    finally:
        await following.close()
    report = outcome.report or {}
    if as_json:
        return [json.dumps(report, indent=1)]
    return [f"{part['kind']} {part['namespace']}/{part['name']}: {report['phase']}", *_indented(told, report)]


def _indented(told: _Told, report: dict[str, Any]) -> Iterator[str]:
    """Yield what was told, then where the job is and when what happened."""
    yield from (f"  {line}" for line in told.lines)
    placement = report["placement"]
    if placement is not None:
        yield f"  placement: {placement['region'] or 'region unknown'} ({placement['cluster']})"
    times = (f"{name.replace('_', ' ')} {at}" for name, at in report["times"].items() if at)
    yield f"  {', '.join(times)}"


async def _all(fleet: Fleet, namespace: str, *, as_json: bool) -> list[str]:
    from airflow_provider_multikueue.fleets.overview import overview

    jobs = await overview(fleet, namespace)
    if as_json:
        return [json.dumps([_entry(kind, seen) for kind, seen in jobs], indent=1)]
    if not jobs:
        return [f"No job in namespace {namespace} has a Workload on the manager."]
    rows: list[tuple[str, ...]] = [("JOB", "KIND", "QUEUE", "PHASE", "REGION", "SUBMITTED")]
    rows += [_row(kind, seen) for kind, seen in jobs]
    return _aligned(rows)


def _entry(kind: Kind, seen: Observation) -> dict[str, Any]:
    placed = {"cluster": seen.cluster, "region": seen.region} if seen.cluster else None
    submitted = seen.submitted.isoformat() if seen.submitted else None
    return {
        "job": {"api_version": kind.api_version, "kind": kind.kind, "namespace": seen.namespace, "name": seen.name},
        "queue": seen.queue,
        "phase": seen.phase.value,
        "placement": placed,
        "submitted": submitted,
        "waiting": seen.waiting or None,
    }


def _row(kind: Kind, seen: Observation) -> tuple[str, ...]:
    submitted = seen.submitted.strftime("%Y-%m-%d %H:%M:%SZ") if seen.submitted else "-"
    return seen.name, kind.kind, seen.queue or "-", seen.phase.value, seen.where or "-", submitted


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]


class _Told:
    """Keeps the lines that a task's log would show."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def record(self, level: int, text: str) -> None:
        """Keep ``text``, its further lines indented too."""
        del level
        self.lines.extend(text.splitlines())
