"""Linux gives each user few inotify instances, and Kueue does not start without one: say so before a start fails."""

from __future__ import annotations

import os
from pathlib import Path

from airflow_provider_multikueue.sandbox.paths import SandboxError

__all__ = ["check_watches"]

_OF_CLUSTER = 5
_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")


def check_watches(*, clusters: int) -> None:
    """Raise SandboxError when this user has too few inotify instances left for so many clusters."""
    try:
        limit = int(_LIMIT.read_text())
    except OSError:
        return
    used, needed = _used(), clusters * _OF_CLUSTER
    if used + needed > limit:
        text = (
            f"The sandbox needs {needed} inotify instances, and {used} of this user's {limit} are taken. End other "
            "sandboxes (`multikueue sandbox status` names them), or as root: sysctl fs.inotify.max_user_instances=1024"
        )
        raise SandboxError(text)


def _used() -> int:
    """Count the inotify instances of this user's processes."""
    found = 0
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and process.stat().st_uid == os.getuid():
                found += sum(str(entry.readlink()) == "anon_inode:inotify" for entry in (process / "fd").iterdir())
        except OSError:
            continue
    return found
