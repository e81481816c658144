"""``multikueue sandbox network``: a way to a cluster that misbehaves, from the command line."""

from __future__ import annotations

import argparse
import json

from airflow_provider_multikueue.sandbox.api import Sandbox

__all__ = ["add_options", "change"]

_OPTIONS = ("mode", "cut_after", "delay", "rate", "status", "share", "times", "retry_after", "end_after", "path")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what can be wrong with a way."""
    parser.description = (
        "Let the way to a cluster misbehave from now on, for those whose environment is that of `env --network`; "
        "without a fault it behaves well. Prints how it behaves."
    )
    parser.add_argument("cluster", help="`manager`, a region, or `all`")
    modes = parser.add_mutually_exclusive_group()
    for mode, text in (("blackhole", "let nothing through"), ("refuse", "refuse new connections")):
        modes.add_argument(f"--{mode}", dest="mode", action="store_const", const=mode, help=text)
    parser.add_argument("--cut-after", type=int, metavar="BYTES", help="reset each connection after so many bytes")
    parser.add_argument("--delay", type=float, metavar="SECONDS", help="hold each piece back")
    parser.add_argument("--rate", type=float, metavar="BYTES", help="let so much through a second, on each connection")
    parser.add_argument("--status", type=int, help="answer requests so, such as 401, 429 or 503")
    parser.add_argument("--share", type=float, help="this part of them alone, such as 0.3")
    parser.add_argument("--times", type=int, help="so many of them alone")
    parser.add_argument("--retry-after", type=float, metavar="SECONDS", help="what such an answer asks for")
    parser.add_argument("--buffer", action="store_true", help="hold each answer back until it is complete")
    parser.add_argument("--end-after", type=float, metavar="SECONDS", help="end each answer then, in good order")
    parser.add_argument("--path", metavar="REGEX", help="these requests alone: what status, buffer and end-after do")
    parser.add_argument("--cut", action="store_true", help="reset all connections that are open, once")
    parser.add_argument("--show", action="store_true", help="change nothing")


def change(arguments: argparse.Namespace) -> int:
    """Change it, and print how it is."""
    sandbox = Sandbox.attach(arguments.name)
    clusters = sandbox.spec.clusters if arguments.cluster == "all" else [arguments.cluster]
    given = {name: value for name in _OPTIONS if (value := getattr(arguments, name)) is not None}
    faults = given | ({"buffer": True} if arguments.buffer else {})
    for cluster in clusters:
        if not arguments.show:
            sandbox.network(cluster, **faults)
        if arguments.cut:
            sandbox.cut(cluster)
        print(json.dumps({"cluster": cluster, **sandbox.network_state(cluster)}))
    return 0
