"""Where the sandbox keeps things: binaries and fleets, below one directory of the user's cache."""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["SandboxError", "binaries_root", "cache_root", "fleet_folder", "fleet_names", "register_folder"]

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


class SandboxError(Exception):
    """Something about the sandbox went wrong; the text says what, where, and what to do next."""


def cache_root() -> Path:
    """Return the directory of this user that everything of the sandbox is below."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "airflow-provider-multikueue"


def binaries_root() -> Path:
    """Return the directory that holds one folder for each built set of programs."""
    return cache_root() / "binaries"


def fleet_folder(name: str) -> Path:
    """Return the folder of the sandbox ``name``, whether it exists or not."""
    if not _NAME.fullmatch(name):
        text = f"{name!r} cannot name a sandbox: use at most 40 lower-case letters, digits and inner hyphens."
        raise SandboxError(text)
    return cache_root() / "fleets" / name


def fleet_names() -> list[str]:
    """Return the names of all sandboxes that left a folder, running or not."""
    root = cache_root() / "fleets"
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir()) if root.is_dir() else []


def register_folder(name: str, folder: Path | None) -> Path:
    """Make the empty private folder of the sandbox ``name`` and return it.

    With ``folder`` the sandbox lives there, and only a link with its name is kept in the cache.
    """
    place = fleet_folder(name)
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder is None:
        place.mkdir(mode=0o700, exist_ok=True)
        return place
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    if place.is_symlink():
        place.unlink()
    place.symlink_to(folder, target_is_directory=True)
    return folder
