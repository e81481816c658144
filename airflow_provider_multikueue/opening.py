"""Opens the fleet of an Airflow connection, once for all tasks of an event loop that want it."""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue._compat import get_connection, mask_secrets
from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.masking import mask_tokens
from airflow_provider_multikueue.metrics import reporting

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.connection import FleetConfig
    from airflow_provider_multikueue.fleets.fleet import Fleet

__all__ = ["load_config", "open_connection", "resolve_config"]

CONFIG_SECONDS = 10.0
"""How long tasks of an event loop that open a connection after each other share what was read of it."""


def open_connection(conn_id: str) -> AbstractAsyncContextManager[tuple[Fleet, FleetConfig]]:
    """Open the fleet of an Airflow connection: its tokens are masked as they come, and rotated ones looked up again.

    What the process counts is reported meanwhile.
    """
    return _Opened(conn_id)


class _Opened:
    """An opened connection. Thousands of triggers are inside of one: as generators they would take 4 KiB each."""

    __slots__ = ("_conn_id", "_lease", "_reporting")

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id

    async def __aenter__(self) -> tuple[Fleet, FleetConfig]:
        from airflow_provider_multikueue.fleets.fleet import Lease

        conn_id, self._lease = self._conn_id, Lease()
        config = await _shared_config(conn_id)
        fleet = await self._lease.take(config, look_up=lambda: load_config(conn_id), mask=mask_tokens)
        self._reporting = reporting()
        self._reporting.__enter__()
        return fleet, fleet.config if fleet.config == config else config

    async def __aexit__(self, *_: object) -> None:
        self._lease.release()
        self._reporting.__exit__(None, None, None)


async def _shared_config(conn_id: str) -> FleetConfig:
    """Return what `load_config` returns, some seconds old at most.

    A triggerer that starts with thousands of tasks would otherwise ask its supervisor, one by one, for each.
    """
    loop = asyncio.get_running_loop()
    known = _configs.setdefault(loop, {})
    at, looking = known.get(conn_id, (0.0, None))
    failed = looking is not None and looking.done() and (looking.cancelled() or looking.exception() is not None)
    if looking is None or failed or loop.time() - at > CONFIG_SECONDS:
        looking = loop.create_task(load_config(conn_id), context=contextvars.Context())  # it is no trigger's own
        known[conn_id] = (loop.time(), looking)
    return await asyncio.shield(looking)


Looking = tuple[float, "asyncio.Task[FleetConfig]"]
_configs: MutableMapping[asyncio.AbstractEventLoop, dict[str, Looking]] = weakref.WeakKeyDictionary()


async def load_config(conn_id: str) -> FleetConfig:
    """Return the fleet that an Airflow connection describes; its secrets are masked in all logs from here on.

    Raises:
        FleetConfigurationError: there is no such connection, or it is wrong.
    """
    connection = await _look_up(conn_id, "Create one of type multikueue, or set multikueue_conn_id= to yours")
    return await resolve_config(connection.extra, conn_id=conn_id)


async def resolve_config(extra: Any, *, conn_id: str) -> FleetConfig:
    """Return the fleet that an extra describes, with what the Airflow connections say that it names."""
    from airflow_provider_multikueue.airflow_connections import resolve_connections
    from airflow_provider_multikueue.decisions.connection import FleetConfig

    config = FleetConfig.from_extra(extra, conn_id=conn_id)
    config = await resolve_connections(config, _look_up)
    await mask_secrets(await asyncio.to_thread(config.secrets))  # reads an inline kubeconfig of any size
    return config


async def _look_up(conn_id: str, remedy: str = "Create it, or correct the id in the fleet's connection") -> Any:
    from airflow_provider_multikueue._compat import AirflowNotFoundException

    try:
        return await get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise FleetConfigurationError(f"Airflow has no connection {conn_id!r}. {remedy}.") from error
