"""``multikueue reap``: look for jobs that nobody waits for any more, and delete them when told to."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

__all__ = ["add_arguments", "run"]

_DESCRIPTION = """\
Find this Airflow's jobs on the manager whose task or DAG run is over or gone. Without --delete nothing is deleted: it
is said what would be. Connections are Airflow's, by id: from the environment (AIRFLOW_CONN_...), from a secrets
backend, or from a JSON file. The answer of an Airflow that knows none of the tasks is taken for another Airflow's."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.description = _DESCRIPTION
    parser.add_argument("--delete", action="store_true", help="delete them")
    parser.add_argument(
        "--older-than", type=float, default=5.0, metavar="MINUTES", help="keep younger jobs (default 5)"
    )
    parser.add_argument("--namespace", help="only this namespace of the manager")
    parser.add_argument("--deployment", help="whose jobs; default: the connection's, else from Airflow's base URL")
    parser.add_argument("--multikueue-conn-id", default="multikueue_default", metavar="ID", help="the fleet")
    parser.add_argument("--multikueue-connection", type=Path, metavar="FILE", help="the fleet: a connection as JSON")
    parser.add_argument("--airflow-conn-id", default="airflow_api", metavar="ID", help="Airflow's REST API")
    parser.add_argument(
        "--airflow-connection", type=Path, metavar="FILE", help="Airflow's REST API: host, login, password as JSON"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list")


def run(arguments: argparse.Namespace, answer: TextIO) -> int:
    """Sweep once, print to ``answer``; return 0, or 1 when something failed."""
    try:
        _use(arguments.multikueue_connection, arguments.multikueue_conn_id, "multikueue")
        _use(arguments.airflow_connection, arguments.airflow_conn_id, "http")
    except (OSError, ValueError) as error:
        print(f"multikueue reap: {error}", file=sys.stderr)
        return 2
    return _sweep(arguments, answer)


def _sweep(arguments: argparse.Namespace, answer: TextIO) -> int:
    # By name, so that the command's help does without Airflow.
    reaping = import_module("airflow_provider_multikueue.reaping")
    errors = (
        import_module("airflow_provider_multikueue.exceptions").MultiKueueError,
        import_module("airflow_provider_multikueue.clusters.client").ApiError,
    )
    printer = _Printer(sys.stderr if arguments.json else answer)
    try:
        entries = _entries(reaping, arguments, printer)
    except errors as error:
        print(f"multikueue reap: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(entries, indent=2), file=answer)
    else:
        reaping.tell(entries, printer)
        print(reaping.summary(entries), file=answer)
    return 1 if any(entry["action"] == "failed" for entry in entries) else 0


def _entries(reaping: ModuleType, arguments: argparse.Namespace, printer: _Printer) -> list[dict[str, Any]]:
    sweep = reaping.reap(
        multikueue_conn_id=arguments.multikueue_conn_id,
        airflow_conn_id=arguments.airflow_conn_id,
        sink=printer,
        dry_run=not arguments.delete,
        older_than=timedelta(minutes=arguments.older_than),
        namespace=arguments.namespace,
        deployment=arguments.deployment,
    )
    return asyncio.run(sweep)


class _Printer:
    """Shows what happens: with the answer, or on standard error where that is JSON."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def record(self, level: int, text: str) -> None:
        """Print the line, unless it is a detail."""
        if level >= logging.INFO:
            print(text, file=self._stream, flush=True)


def _use(path: Path | None, conn_id: str, conn_type: str) -> None:
    """Make the connection in a file the one of that id, in this process alone.

    The file has a connection with its type, or what is left when type and, for a fleet, ``extra`` go without saying.
    """
    if path is None:
        return
    connection = json.loads(path.read_text("utf-8"))
    if not isinstance(connection, dict):
        raise ValueError(f"{path} does not hold a JSON object")
    if "conn_type" not in connection:
        connection = {"extra": connection} if conn_type == "multikueue" and "extra" not in connection else connection
        connection = connection | {"conn_type": conn_type}
    os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(connection)
