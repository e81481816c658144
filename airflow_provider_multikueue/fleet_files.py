"""From a fleet file to its clusters, with what Airflow's connections say; for the command and the operators."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.masking import mask_tokens
from airflow_provider_multikueue.opening import resolve_config

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.google_account import GoogleAccount
    from airflow_provider_multikueue.setup.description import FleetDescription
    from airflow_provider_multikueue.setup.steps import FleetSetup, Options

__all__ = ["describe", "open_fleet_file"]

SECONDS = 600.0


async def describe(
    fleet: str | Path | Mapping[str, Any], project: str | None = None, *, seconds: float = SECONDS
) -> FleetDescription:
    """Return the fleet that a file, or its content, describes; its project from ``project`` or the Google connection.

    Raises FleetConfigurationError that names what is wrong, MultiKueueError when Google does not answer for so long.
    """
    from airflow_provider_multikueue.setup.description import parse
    from airflow_provider_multikueue.setup.source import read_fleet_file

    if isinstance(fleet, Mapping):
        found = parse(fleet, where="the fleet")
    else:
        found = await asyncio.to_thread(read_fleet_file, Path(fleet))
    if project:
        found = replace(found, project=project)
    return replace(found, project=await _project(found, seconds)) if found.needs_project else found


async def _project(fleet: FleetDescription, seconds: float) -> str:
    """Return the project of the Google connection that the fleet file names, or of this host."""
    from airflow_provider_multikueue._compat import AirflowNotFoundException, get_connection
    from airflow_provider_multikueue.clusters.google_account import GoogleAccount, google_account

    account = GoogleAccount(where="application default credentials")
    if fleet.gcp_conn_id:
        try:
            connection = await get_connection(fleet.gcp_conn_id)
        except AirflowNotFoundException as error:
            raise FleetConfigurationError(
                f"{fleet.where}: Airflow has no connection {fleet.gcp_conn_id!r} (`gcp_conn_id`). Create it, of type "
                "google_cloud_platform."
            ) from error
        account = google_account(connection.extra_dejson, conn_id=fleet.gcp_conn_id)
    project = await _answered(account, seconds)
    if project is None:
        raise FleetConfigurationError(
            f"{fleet.where}: clusters are given as LOCATION/NAME, and no project is named. Add `project`, or set it in "
            f"{account.where}."
        )
    return project


async def _answered(account: GoogleAccount, seconds: float) -> str | None:
    """Return the account's project; MultiKueueError when Google's answer does not come in that time."""
    from airflow_provider_multikueue.clusters.gke import default_project
    from airflow_provider_multikueue.setup.carry_out import Patience

    project: str | None = None

    async def known() -> str:
        nonlocal project
        try:
            project = await asyncio.to_thread(default_project, account)
        except ConnectionError as error:
            return str(error)
        return ""

    await Patience(seconds).until(known, what=f"The project of {account.where} was not known")
    return project


@contextlib.asynccontextmanager
async def open_fleet_file(
    fleet: str | Path | Mapping[str, Any], options: Options, *, project: str | None = None
) -> AsyncIterator[FleetSetup]:
    """Give the steps for the fleet of a file, see `describe`; the tokens that they meet are masked in all logs."""
    from airflow_provider_multikueue.setup.steps import open_setup

    described = await describe(fleet, project, seconds=options.seconds)
    config = await resolve_config(described.connection(), conn_id=described.where)
    async with open_setup(described, config, options, mask=mask_tokens) as setup:
        yield setup
