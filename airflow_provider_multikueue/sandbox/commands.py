"""``multikueue sandbox ...``: a fleet from the command line."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.sandbox import launch
from airflow_provider_multikueue.sandbox.api import Sandbox
from airflow_provider_multikueue.sandbox.binaries import ensure_binaries
from airflow_provider_multikueue.sandbox.components import DEFAULT_KUEUE, KUEUE_VERSIONS
from airflow_provider_multikueue.sandbox.from_file import kueue_of, read_fleet, regions_of, set_up
from airflow_provider_multikueue.sandbox.job_kinds import JOB_KINDS, chosen
from airflow_provider_multikueue.sandbox.network_command import add_options, change
from airflow_provider_multikueue.sandbox.paths import SandboxError, fleet_folder, fleet_names
from airflow_provider_multikueue.sandbox.services import log_tail
from airflow_provider_multikueue.sandbox.spec import DEFAULT_REGIONS, FleetSpec
from airflow_provider_multikueue.sandbox.state import holder, read_state

if TYPE_CHECKING:
    from collections.abc import Callable

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  (there is no public name for it)

__all__ = ["add_commands", "run"]

_MODES = ("grant", "starve", "fail")
_ACTS = ("revoke", "expire", "fail-waiting")
_FAULTS = ("pause", "resume", "stop", "start", "restart")


def add_commands(subparsers: Subparsers) -> None:
    """Add the sandbox's commands; `run` does the one that was chosen."""
    _add_up(subparsers)
    _add(subparsers, "down", _down, "end it; nothing of it is left")
    _add(subparsers, "status", _status, "what runs, and how to reach it").add_argument("--json", action="store_true")
    _add_env(subparsers)
    _add_capacity(subparsers)
    add_options(
        _add(subparsers, "network", change, "how the way to a cluster misbehaves, for those on `env --network`")
    )
    logs = _add(subparsers, "logs", _logs, "the log of a component; without one, the names of all")
    logs.add_argument("component", nargs="?")
    logs.add_argument("--lines", "-n", type=int, default=50)
    logs.add_argument("--follow", "-f", action="store_true")
    for fault, text in zip(_FAULTS, ("freeze", "unfreeze", "kill", "start anew", "kill and start"), strict=True):
        parser = _add(subparsers, fault, _fault, f"{text} a component, such as manager-kueue or us-east4-apiserver")
        parser.add_argument("component")
        parser.set_defaults(fault=fault)
    build = subparsers.add_parser("build", help="build the programs ahead of the first `up`")
    build.add_argument("--kueue", choices=KUEUE_VERSIONS, default=DEFAULT_KUEUE)
    _add_kinds(build)
    build.set_defaults(act=_build)


def run(arguments: argparse.Namespace) -> int:
    """Do the command and return its exit code; what went wrong goes to standard error."""
    try:
        code: int = arguments.act(arguments)
    except SandboxError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    return code


def _add(
    subparsers: Subparsers, command: str, act: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser = subparsers.add_parser(command, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("--name", default="default", help="which sandbox (default: %(default)s)")
    parser.set_defaults(act=act)
    return parser


def _add_up(subparsers: Subparsers) -> None:
    up = _add(subparsers, "up", _up, "start a fleet: one manager, and a worker in each region")
    up.add_argument("--regions", default=",".join(DEFAULT_REGIONS), help="comma-separated (default: %(default)s)")
    up.add_argument("--gpus", type=int, default=64, help="GPUs in each region (default: %(default)s)")
    up.add_argument("--nodes", type=int, default=4, help="nodes in each region (default: %(default)s)")
    up.add_argument("--kueue", choices=KUEUE_VERSIONS, default=DEFAULT_KUEUE, help="version (default: %(default)s)")
    up.add_argument(
        "--worker-lost-timeout",
        type=float,
        default=900.0,
        metavar="SECONDS",
        help="how long Kueue waits for an unreachable worker (default: %(default)s)",
    )
    _add_kinds(up)
    whose = up.add_mutually_exclusive_group()
    whose.add_argument("--bare", action="store_true", help="clusters without Kueue, for `multikueue fleet` to set up")
    whose.add_argument("--fleet", type=Path, metavar="FILE", help="the fleet of this file, its regions and all")
    up.add_argument("--folder", type=Path, help="where to keep it (default: in the user's cache)")


def _add_kinds(parser: argparse.ArgumentParser) -> None:
    text = f"kinds of jobs besides the batch Job, comma-separated, of {', '.join(JOB_KINDS)} (default: none)"
    parser.add_argument("--kinds", default="", metavar="KINDS", help=text)


def _kinds(arguments: argparse.Namespace) -> tuple[str, ...]:
    return tuple(part.strip() for part in arguments.kinds.split(",") if part.strip())


def _add_env(subparsers: Subparsers) -> None:
    env = _add(subparsers, "env", _env, "shell variables with the Airflow connection and the kubeconfig")
    env.add_argument("--conn-id", default="multikueue_default", help="the connection's id (default: %(default)s)")
    env.add_argument("--json", action="store_true", help="the connection alone, as JSON")
    env.add_argument(
        "--network", action="store_true", help="reach the clusters on the way that `network` misbehaves on"
    )


def _add_capacity(subparsers: Subparsers) -> None:
    text = "how a region answers requests for capacity; without a mode, what it was asked and how it answers now"
    parser = _add(subparsers, "capacity", _capacity, text)
    parser.add_argument("region", help="a region, or `all`")
    parser.add_argument(
        "mode",
        nargs="?",
        choices=(*_MODES, *_ACTS),
        help="from now on grant, starve (accept, never answer) or fail; "
        "or once: revoke what was granted, expire its booking, fail what waits",
    )
    parser.add_argument("--after", type=float, metavar="SECONDS", help="grant or fail so long after the request")
    parser.add_argument("--gpus", type=int, help="grant only while so many last")
    parser.add_argument("--text", help="what a failure or a revocation says")
    parser.add_argument("--eta", type=float, metavar="SECONDS", help="how far ahead the estimate is that is told")
    parser.add_argument("--booking", type=float, metavar="SECONDS", help="how long a granted booking lasts")
    parser.add_argument("--request", metavar="NAMESPACE/NAME", help="revoke, expire or fail this one alone")


def _build(arguments: argparse.Namespace) -> int:
    kinds = _kinds(arguments)
    chosen(kinds)
    ensure_binaries(kueue=arguments.kueue, kinds=kinds, progress=_say)
    return 0


def _up(arguments: argparse.Namespace) -> int:
    fleet = read_fleet(arguments.fleet) if arguments.fleet else None
    named = tuple(part.strip() for part in arguments.regions.split(",") if part.strip())
    spec = FleetSpec(
        name=arguments.name,
        regions=regions_of(fleet) if fleet else named,
        gpus=arguments.gpus,
        nodes=arguments.nodes,
        kueue=(fleet and kueue_of(fleet)) or arguments.kueue,
        worker_lost_timeout=arguments.worker_lost_timeout,
        kinds=_kinds(arguments),
        bare=arguments.bare or fleet is not None,
    )
    launch.bring_up(spec, folder=arguments.folder, progress=_say)
    sandbox = Sandbox.attach(arguments.name)
    if fleet:
        set_up(sandbox, fleet, progress=_say)
    name = "" if arguments.name == "default" else f" --name {arguments.name}"
    print(
        f"The sandbox {sandbox.name!r} is up: a manager, and workers in {', '.join(sandbox.regions)}.\n"
        f'  eval "$(multikueue sandbox env{name})"    the Airflow connection multikueue_default, and KUBECONFIG\n'
        f"  multikueue sandbox capacity{name} {sandbox.regions[0]} grant --after 5\n"
        f"  multikueue sandbox status{name}\n"
        f"  multikueue sandbox down{name}\n"
        "Pods' commands run as local processes, with your rights."
    )
    return 0


def _down(arguments: argparse.Namespace) -> int:
    folder = fleet_folder(arguments.name)
    ran = launch.bring_down(folder)
    existed = folder.exists()
    launch.forget(arguments.name)
    print(
        f"The sandbox {arguments.name!r} " + ("is down." if ran else "was not running." if existed else "is unknown.")
    )
    return 0


def _status(arguments: argparse.Namespace) -> int:
    folder = fleet_folder(arguments.name)
    state = read_state(folder)
    running = holder(folder) is not None
    phase = state.get("phase", "starting") if running else "down"
    if arguments.json:
        print(json.dumps({**state, "phase": phase, "folder": str(folder)}, indent=1))
    else:
        _print_status(arguments.name, phase, state, folder)
    return 0 if phase == "up" else 3


def _print_status(name: str, phase: str, state: dict[str, Any], folder: Path) -> None:
    print(f"The sandbox {name!r} is {phase}.")
    if error := state.get("error"):
        print(error)
    others = [other for other in fleet_names() if other != name and holder(fleet_folder(other)) is not None]
    if others:
        print(f"Others that run: {', '.join(others)}.")
    if phase == "down":
        return
    print(f"up for {time.time() - state['started']:.0f} s in {folder}, Kueue {state['spec']['kueue']}")
    for component, each in state["components"].items():
        print(f"  {component:40} {each['state']:10} pid {each['pid'] or '-'}")


def _env(arguments: argparse.Namespace) -> int:
    sandbox = Sandbox.attach(arguments.name)
    if arguments.json:
        print(json.dumps(sandbox.connection(network=arguments.network), indent=1))
    else:
        for variable, text in sandbox.env(conn_id=arguments.conn_id, network=arguments.network).items():
            print(f"export {variable}={shlex.quote(text)}")
    return 0


def _capacity(arguments: argparse.Namespace) -> int:
    sandbox = Sandbox.attach(arguments.name)
    region = None if arguments.region == "all" else arguments.region
    if arguments.mode is None:
        for each in sandbox.regions if region is None else [region]:
            print(json.dumps({"region": each, **sandbox.requests(each)}, indent=1))
    elif arguments.mode in _ACTS:
        act = {"revoke": sandbox.revoke, "expire": sandbox.expire, "fail-waiting": sandbox.fail}[arguments.mode]
        done = act(region, request=arguments.request, text=arguments.text)
        print("\n".join(done) if done else "No request that it applies to.")
    else:
        given = {key: getattr(arguments, key) for key in ("after", "gpus", "text", "eta", "booking")}
        sandbox.capacity(
            region, mode=arguments.mode, **{key: value for key, value in given.items() if value is not None}
        )
    return 0


def _logs(arguments: argparse.Namespace) -> int:
    folder = fleet_folder(arguments.name)
    logs = folder / "logs"
    names = sorted(path.stem for path in logs.glob("*.log"))
    if arguments.component is None:
        print("\n".join(names))
        return 0
    if arguments.component not in names:
        has = ", ".join(names) or "none"
        text = f"The sandbox {arguments.name!r} has no log of {arguments.component!r}; it has {has}."
        raise SandboxError(text)
    path = logs / f"{arguments.component}.log"
    print(log_tail(path, arguments.lines))
    if arguments.follow:
        _follow(path)
    return 0


def _follow(path: Path) -> None:
    with path.open(errors="replace") as file:
        file.seek(0, 2)
        while path.exists():
            if line := file.readline():
                print(line, end="", flush=True)
            else:
                time.sleep(0.2)


def _fault(arguments: argparse.Namespace) -> int:
    getattr(Sandbox.attach(arguments.name), arguments.fault)(arguments.component)
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
