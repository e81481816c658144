"""Starts and ends the processes of a sandbox, and waits for either."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from airflow_provider_multikueue.sandbox.binaries import ensure_binaries
from airflow_provider_multikueue.sandbox.files import write_private
from airflow_provider_multikueue.sandbox.paths import SandboxError, fleet_folder, register_folder
from airflow_provider_multikueue.sandbox.spec import FleetSpec
from airflow_provider_multikueue.sandbox.state import holder, read_state
from airflow_provider_multikueue.sandbox.watches import check_watches

__all__ = ["bring_down", "bring_up", "folder_of", "forget"]

Progress = Callable[[str], None]

_UP_SECONDS = 180.0
_DOWN_SECONDS = 30.0


def folder_of(name: str) -> Path:
    """Return the folder of a sandbox that runs; SandboxError if none with this name does."""
    folder = fleet_folder(name)
    if holder(folder) is None:
        raise SandboxError(f"The sandbox {name!r} is not running. Start it with `multikueue sandbox up --name {name}`.")
    return folder


def bring_up(spec: FleetSpec, *, progress: Progress, folder: Path | None = None, owner: int | None = None) -> Path:
    """Start a sandbox and return its folder when jobs can be submitted.

    It ends with the process ``owner``, if one is given, however that ends.
    """
    if holder(fleet_folder(spec.name)) is not None:
        text = (
            f"The sandbox {spec.name!r} is running already. Use it, end it with "
            f"`multikueue sandbox down --name {spec.name}`, or choose another name."
        )
        raise SandboxError(text)
    check_watches(clusters=len(spec.clusters))
    ensure_binaries(kueue=spec.kueue, kinds=spec.kinds, progress=progress)
    place = register_folder(spec.name, folder)
    _empty(place)
    write_private(place / "spec.json", json.dumps(spec.dump()))
    try:
        _spawn(place, owner)
        _wait_until_up(place, progress)
    except BaseException:
        bring_down(place)
        raise
    return place


def bring_down(folder: Path) -> bool:
    """End the sandbox in ``folder`` and wait until nothing is left of it; returns whether it ran."""
    guardian = holder(folder)
    if guardian is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(guardian, signal.SIGTERM)
    deadline = time.monotonic() + _DOWN_SECONDS
    while holder(folder) is not None:
        if time.monotonic() > deadline:
            raise SandboxError(
                f"The sandbox in {folder} did not end within {_DOWN_SECONDS:.0f} s; its first process is {guardian}."
            )
        time.sleep(0.05)
    return True


def forget(name: str) -> None:
    """Remove the folder of a sandbox that has ended; one that the user chose is emptied of what is the sandbox's."""
    place = fleet_folder(name)
    if place.is_symlink():
        _empty(place)
        place.unlink()
    elif place.exists():
        # Another `down` of the same sandbox may be at it.
        shutil.rmtree(place, ignore_errors=True)


def _empty(folder: Path) -> None:
    """Remove what an earlier sandbox of this name left, and nothing that isn't the sandbox's."""
    for part in ("logs", "pki", "run"):
        shutil.rmtree(folder / part, ignore_errors=True)
    for part in (
        "state.json",
        "progress.log",
        "ports.json",
        "kubeconfig",
        "connection.json",
        "fleet.yaml",
        "kueue.yaml",
    ):
        (folder / part).unlink(missing_ok=True)


def _spawn(folder: Path, owner: int | None) -> None:
    """Start the guardian, which is in the background and has claimed the folder when this returns."""
    (folder / "logs").mkdir(mode=0o700, exist_ok=True)
    command = [sys.executable, "-m", "airflow_provider_multikueue.sandbox.guardian", str(folder)]
    command += [] if owner is None else [str(owner)]
    path = folder / "logs" / "supervisor.log"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": _import_path()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=False,
        )
    if done.returncode:
        raise SandboxError(_last_words(folder))


def _import_path() -> str:
    """Return a search path on which the sandbox's processes find this very package, installed or not."""
    root = str(Path(__file__).parents[2])
    return os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])


def _wait_until_up(folder: Path, progress: Progress) -> None:
    said, deadline = 0, time.monotonic() + _UP_SECONDS
    while True:
        state = read_state(folder)
        lines = (folder / "progress.log").read_text().splitlines() if (folder / "progress.log").exists() else []
        for line in lines[said:]:
            progress(line)
        said = len(lines)
        if state.get("phase") == "up":
            return
        if state.get("phase") == "failed" or holder(folder) is None:
            raise SandboxError(state.get("error") or _last_words(folder))
        if time.monotonic() > deadline:
            raise SandboxError(
                f"The sandbox did not come up within {_UP_SECONDS:.0f} s; its logs are in {folder / 'logs'}."
            )
        time.sleep(0.05)


def _last_words(folder: Path) -> str:
    log = folder / "logs" / "supervisor.log"
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else ""
    return f"The sandbox ended while it was starting; the last lines of {log}:\n{tail}"
