"""Which fleet a command is about: an Airflow connection by its id, or a file that holds one."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.connection import FleetConfig

__all__ = ["add_connection_arguments", "chosen_fleet"]


def add_connection_arguments(parser: argparse.ArgumentParser, conn_id: str) -> None:
    """Add the argument ``conn_id``, positional or an option as it is spelled, and ``--file``."""
    parser.add_argument(
        conn_id,
        default="multikueue_default",
        help="Airflow connection (also AIRFLOW_CONN_...)",
        **({"metavar": "ID"} if conn_id.startswith("-") else {"nargs": "?"}),  # type: ignore[arg-type]
    )
    parser.add_argument("--file", type=Path, help="a JSON file with the connection, or its extra, instead")


async def chosen_fleet(arguments: argparse.Namespace) -> FleetConfig:
    """Return the fleet that the arguments name.

    Raises:
        FleetConfigurationError: the file or the connection can't be used.
    """
    from airflow_provider_multikueue.opening import load_config, resolve_config

    if arguments.file is None:
        return await load_config(arguments.conn_id)
    return await resolve_config(_extra(arguments.file), conn_id=str(arguments.file))


def _extra(file: Path) -> dict[str, Any]:
    """Return the extra of the connection in a file; the file's own words are never quoted."""
    from airflow_provider_multikueue.exceptions import FleetConfigurationError

    try:
        content = json.loads(file.read_text("utf-8"))
        extra = content.get("extra", content) if isinstance(content, dict) else None
        extra = json.loads(extra) if isinstance(extra, str) else extra
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise FleetConfigurationError(f"{file} can't be read: {reason}.") from None
    if not isinstance(extra, dict):
        raise FleetConfigurationError(f"{file} must hold a JSON object: a connection, or its extra.")
    return extra
