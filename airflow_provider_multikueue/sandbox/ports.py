"""Finds free ports on loopback for several sandboxes at once."""

from __future__ import annotations

import contextlib
import fcntl
import json
import random
import socket
from collections.abc import Collection
from pathlib import Path

from airflow_provider_multikueue.sandbox.paths import SandboxError, cache_root, fleet_folder, fleet_names

__all__ = ["claim_ports"]

_FILE = "ports.json"

# Below the range from which Linux takes the local ports of outgoing connections, else one of those may come in between.
_FIRST, _LAST = 20000, 32000


def claim_ports(folder: Path, count: int) -> list[int]:
    """Return ``count`` ports that nobody listens on, and note in ``folder`` that they are its sandbox's from now on."""
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (root / "ports.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        others = [place / _FILE for place in map(fleet_folder, fleet_names()) if place.resolve() != folder.resolve()]
        taken = {port for file in others if file.exists() for port in json.loads(file.read_text())}
        ports = _free_ports(count, taken)
        (folder / _FILE).write_text(json.dumps(ports))
    return ports


def _free_ports(count: int, taken: Collection[int]) -> list[int]:
    found: list[int] = []
    for port in random.sample(range(_FIRST, _LAST), _LAST - _FIRST):
        if port not in taken and _is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    text = (
        f"Only {len(found)} of {count} ports between {_FIRST} and {_LAST} are free on 127.0.0.1. Stop what uses them."
    )
    raise SandboxError(text)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return True
    return False
