"""``make bench``: all measurements in one run on one fleet; a table here, JSON and plots in a folder."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from airflow_provider_multikueue.sandbox.api import Sandbox
from bench.context import Context, Results
from bench.machine import describe
from bench.report import table, write

BENCHMARKS = (
    "imports",
    "events",
    "submission",
    "logs",
    "end_to_end",
    "asked",
    "triggerer",
    "waiting",
)
"""Modules of this folder, in this order: each has ``run(context) -> Results`` (see ``context.py``).

``asked``, ``triggerer`` and ``waiting`` come last: they stop Kueue, and the last two leave thousands of jobs behind on
a fleet of their own.
"""

SIZES = (100, 500, 2_000, 10_000)
PEER_SIZES = (100, 500, 2_000)
QUICK_SIZES = (100, 500)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for, and print and write the results."""
    asked = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was taken from a fleet is given back
    machine = describe()
    results: dict[str, Results] = {}
    with fleet(asked.fleet) as sandbox:
        context = Context(
            sandbox=sandbox,
            folder=asked.out.absolute(),
            sizes=asked.sizes or (QUICK_SIZES if asked.quick else SIZES),
            peer_sizes=asked.peer_sizes or (QUICK_SIZES if asked.quick else PEER_SIZES),
            quick=asked.quick,
            attached=asked.fleet is not None,
        )
        context.folder.mkdir(parents=True, exist_ok=True)
        for name in asked.only or BENCHMARKS:
            context.say(f"== {name}")
            results[name] = import_module(f"bench.{name}").run(context)
            write(context.folder, machine, results)  # after each, so that a later one's failure loses nothing
    print("\n".join(table(machine, results)))
    print(f"\n{context.folder}/results.json has all figures; the plots are beside it.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 and 500 waiting tasks, shorter looks")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, help="these parts only")
    parser.add_argument("--sizes", nargs="+", type=int, help="waiting tasks of ours")
    parser.add_argument("--peer-sizes", nargs="+", type=int, help="waiting tasks of the peer's")
    parser.add_argument("--fleet", help="measure on this running sandbox instead of one of its own")
    parser.add_argument("--out", type=Path, default=Path("bench-results"), help="folder for JSON and plots")
    return parser


@contextlib.contextmanager
def fleet(name: str | None) -> Iterator[Sandbox]:
    """Give the running sandbox of that name, or one of our own."""
    if name is not None:
        yield Sandbox.attach(name)
        return
    with Sandbox.start_local(progress=lambda text: print(text, file=sys.stderr)) as sandbox:
        yield sandbox


if __name__ == "__main__":
    sys.exit(main())
