"""A trigger that measures the lag of the event loop of a real triggerer, from inside, when it is asked to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from bench.waiter import Lag, quantile

__all__ = ["Probe"]

LOOK_SECONDS = 0.5


class Probe(BaseTrigger):
    """Measures as long as the file ``asked`` is there, and leaves what it found in the file ``found``."""

    def __init__(self, *, asked: str, found: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.asked, self.found = asked, found

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the import path and the arguments."""
        return "bench.probe.Probe", {"asked": self.asked, "found": self.found}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Measure once, and fire."""
        lag = Lag()
        await self._until(asked=True)
        lag.start()
        await self._until(asked=False)
        lag.stop()
        found = {
            "lag_p50_ms": 1000 * quantile(lag.seconds, 0.5),
            "lag_p99_ms": 1000 * quantile(lag.seconds, 0.99),
            "lag_max_ms": 1000 * max(lag.seconds, default=0.0),
        }
        await asyncio.to_thread(Path(self.found).write_text, json.dumps(found))
        yield TriggerEvent(True)  # type: ignore[no-untyped-call]

    async def _until(self, *, asked: bool) -> None:
        while Path(self.asked).exists() != asked:  # noqa: ASYNC110, ASYNC240 - looked at from another process
            await asyncio.sleep(LOOK_SECONDS)
