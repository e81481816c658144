"""The ``multikueue`` command. It runs without Airflow, so a sandbox can be had before anything else is installed."""

from __future__ import annotations

import argparse
import atexit
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from types import ModuleType

from airflow_provider_multikueue import __version__

__all__ = ["main"]

_COMMANDS = {
    "doctor": "whether a fleet is well, seen from here with the connection's accounts",
    "explain": "what a job does, where, and what it waits for; or the jobs of a namespace",
    "fleet": "make the fleet that a file describes, change it, take it down",
    "reap": "find jobs whose task or DAG run is over or gone, and delete them",
}
"""Commands beside the sandbox's, each in a module of its own, which is imported by name: it may need Airflow to run."""

_SANDBOX_EXTRA = frozenset({"aiohttp", "cryptography"})
_SANDBOX_MISSING = """\
multikueue sandbox needs {module}, which comes with the extra of that name:
    pip install 'airflow-provider-multikueue[sandbox]'"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv``, by default this process's own, and return its exit code."""
    parser = argparse.ArgumentParser(prog="multikueue", description="Run GPU jobs on a MultiKueue fleet from Airflow.")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    modules = {name: import_module(f"airflow_provider_multikueue.commands.{name}") for name in _COMMANDS}
    for name, module in modules.items():
        module.add_arguments(commands.add_parser(name, help=_COMMANDS[name]))
    sandbox = commands.add_parser("sandbox", help="a real MultiKueue fleet on this machine, to try and test DAGs on")
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in modules:
        return _answer(modules[words[0]], parser.parse_args(words))
    try:
        implementation = import_module("airflow_provider_multikueue.sandbox.commands")
    except ModuleNotFoundError as error:
        return _without_sandbox(parser, words, error)
    return _run(parser, sandbox, words, implementation)


def _answer(module: ModuleType, arguments: argparse.Namespace) -> int:
    """Run a command on a standard output of its own: Airflow logs to what it finds there, until the process ends."""
    answer = sys.stdout
    with redirect_stdout(sys.stderr):
        code: int = module.run(arguments, answer)
    # What is registered after Airflow's own runs before it.
    atexit.register(lambda: setattr(sys, "stdout", sys.stderr))
    return code


def _run(
    parser: argparse.ArgumentParser, sandbox: argparse.ArgumentParser, words: list[str], implementation: ModuleType
) -> int:
    implementation.add_commands(sandbox.add_subparsers(dest="sandbox_command", metavar="COMMAND", required=True))
    arguments = parser.parse_args(words)
    code: int | None = implementation.run(arguments)
    return code or 0


def _without_sandbox(parser: argparse.ArgumentParser, words: list[str], error: ModuleNotFoundError) -> int:
    """Serve ``--version`` and ``--help``; for all else say which package is missing and how to get it."""
    module = (error.name or "").partition(".")[0]
    if module not in _SANDBOX_EXTRA:
        raise error
    parser.parse_known_args(words)
    print(_SANDBOX_MISSING.format(module=module), file=sys.stderr)
    return 2
