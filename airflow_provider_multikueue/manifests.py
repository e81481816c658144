"""What the user wrote, read safely into one job-like object, or refused with the place and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["manifest_hash", "parse_manifest"]


def parse_manifest(
    source: object,
    *,
    sanitize: Callable[[Any], Any] | None = None,
    note: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Return the one job-like object in ``source`` as a dict of its own.

    ``source`` is YAML or JSON text, a dict, or an object that ``sanitize`` turns into a dict (a client model). ``note`` is told of each
    document that is left out. Raises ``ManifestError``.
    """
    raise NotImplementedError


def manifest_hash(manifest: dict[str, Any], **parameters: object) -> str:
    """Return the SHA-256 of the manifest as the user rendered it and of the parameters that change the job."""
    raise NotImplementedError
