"""A connection that is changed while its fleet is open: who is refused with the old credentials gets the new ones."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from airflow_provider_multikueue.exceptions import MultiKueueError

if TYPE_CHECKING:
    from airflow_provider_multikueue.decisions.connection import FleetConfig

__all__ = ["LookUp", "Rotation"]

log = logging.getLogger(__name__)

LookUp = Callable[[], Awaitable["FleetConfig"]]

PAUSE = 10.0
"""Seconds between two looks at the connection: all clusters may refuse at once, and again and again."""


class Rotation:
    """The newest that is known of a connection."""

    def __init__(self, config: FleetConfig, look_up: LookUp | None) -> None:
        self.config = config
        self._first = config.digest
        self._look_up = look_up
        self._looked: float | None = None
        self._looking = asyncio.Lock()

    async def look(self) -> bool:
        """Look the connection up again, and return whether it leads to the clusters in another way than at first.

        What can't be looked up now, or became wrong, leaves everything as it was.
        """
        async with self._looking:
            now = time.monotonic()
            before = self.config.digest
            if self._look_up is not None and (self._looked is None or now - self._looked >= PAUSE):
                self._looked = now
                try:
                    self.config = await self._look_up()
                except (MultiKueueError, OSError, TimeoutError) as error:
                    log.warning("The connection %s can't be looked up again: %s", self.config.conn_id, error)
            if self.config.digest != before:
                log.info("The connection %s was changed; its new credentials are used.", self.config.conn_id)
        return self.config.digest != self._first
