"""What a sandbox tells about itself: one JSON file in its folder, replaced as a whole at each change."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.sandbox.files import write_private
from airflow_provider_multikueue.sandbox.paths import SandboxError

__all__ = ["hold_folder", "holder", "read_state", "write_state"]

_STATE, _LOCK = "state.json", "lock"


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Replace the state."""
    write_private(folder / _STATE, json.dumps(state, indent=1))


def read_state(folder: Path) -> dict[str, Any]:
    """Return the state; an empty one before the first was written."""
    try:
        content: dict[str, Any] = json.loads((folder / _STATE).read_text())
    except FileNotFoundError:
        return {}
    return content


def hold_folder(folder: Path) -> int:
    """Claim the folder for this process until it ends, and return the lock's descriptor, which must stay open.

    The claim goes with the process, however it ends, so that it can't be mistaken for another one with the same number.
    """
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SandboxError(f"A sandbox runs in {folder} already. Stop it, or choose another name.") from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, str(os.getpid()).encode())
    return descriptor


def holder(folder: Path) -> int | None:
    """Return the process that runs the sandbox in ``folder``; None if it isn't running."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.read(descriptor, 20) or b"0") or None
    finally:
        os.close(descriptor)
    return None
