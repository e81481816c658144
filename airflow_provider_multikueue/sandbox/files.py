"""Files that only their owner may read."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["write_private"]


def write_private(path: Path, content: bytes | str) -> Path:
    """Write ``content`` to ``path``, at no moment readable by others, and return ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = path.with_name(f".{path.name}.partial")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    partial.replace(path)
    return path
