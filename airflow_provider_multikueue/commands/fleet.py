"""``multikueue fleet``: make the fleet that a file describes, change it, take it down; or say what that would do."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from airflow_provider_multikueue.setup.description import FleetDescription
    from airflow_provider_multikueue.setup.plan import Plan
    from airflow_provider_multikueue.setup.steps import Options

__all__ = ["add_arguments", "run"]

DONE, FAILED, WRONG = 0, 1, 2
PENDING = 3
"""What ``plan`` ends with when there is something to do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command's arguments."""
    parser.description = (
        "plan: say what apply would do (exit code 3 if anything). apply: make the clusters as the file describes them; "
        "may be repeated. delete: take from the clusters what apply has made. connection: print the Airflow connection "
        "for the fleet. schema: print the JSON schema of fleet files."
    )
    parser.add_argument("action", choices=("plan", "apply", "delete", "connection", "schema"))
    parser.add_argument("-f", "--file", type=Path, metavar="FILE", help="the fleet file", default=Path("fleet.yaml"))
    parser.add_argument("--force", action="store_true", help="take over what is someone else's")
    parser.add_argument("--dry-run", action="store_true", help="with delete: only say what would be deleted")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS", help="for each step (default 600)")
    parser.add_argument("--project", help="the Google project of clusters given as LOCATION/NAME")
    parser.add_argument("--json", action="store_true", help="the plan as a JSON list")


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    """Do what the arguments say, print to ``out``, and return the exit code."""
    from airflow_provider_multikueue.exceptions import FleetConfigurationError, MultiKueueError
    from airflow_provider_multikueue.setup.description import schema

    if arguments.action == "schema":
        print(json.dumps(schema(), indent=2), file=out)
        return DONE
    try:
        if arguments.action == "connection":
            fleet = asyncio.run(_describe(arguments))
            print(json.dumps({"conn_type": "multikueue", "extra": fleet.connection()}, indent=1), file=out)
            return DONE
        plan = asyncio.run(_work(arguments, out))
    except FleetConfigurationError as error:
        print(f"multikueue fleet: {error}", file=sys.stderr)
        return WRONG
    except MultiKueueError as error:
        print(f"multikueue fleet: {error}", file=sys.stderr)
        return FAILED
    return _answer(plan, arguments, out)


def _answer(plan: Plan, arguments: argparse.Namespace, out: TextIO) -> int:
    if arguments.json:
        print(json.dumps(plan.plain(), indent=1, default=str), file=out)
    elif arguments.action == "plan" or arguments.dry_run:
        print("\n".join(plan.lines()), file=out)
    else:
        print(plan.summary, file=out)
    only_said = arguments.action == "plan"
    return PENDING if only_said and (plan.work or plan.foreign) else DONE


async def _describe(arguments: argparse.Namespace) -> FleetDescription:
    from airflow_provider_multikueue.fleet_files import describe

    return await describe(arguments.file, arguments.project, seconds=arguments.timeout)


async def _work(arguments: argparse.Namespace, out: TextIO) -> Plan:
    from airflow_provider_multikueue.fleet_files import open_fleet_file

    async with open_fleet_file(arguments.file, _options(arguments, out), project=arguments.project) as setup:
        match arguments.action:
            case "plan":
                return await setup.plan()
            case "apply":
                return await setup.apply()
        return await setup.delete()


def _options(arguments: argparse.Namespace, out: TextIO) -> Options:
    from airflow_provider_multikueue.setup.steps import Options

    def say(text: Any) -> None:
        if not (arguments.json or arguments.dry_run):
            print(text, flush=True, file=out)

    return Options(plan_only=arguments.dry_run, force=arguments.force, seconds=arguments.timeout, say=say)
