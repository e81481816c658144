"""Starts DAG runs and follows them, by names that mean the same on every Airflow."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from airflow_provider_multikueue.sandbox.airflow_rest import AirflowApi, AirflowApiError, LogRecord

__all__ = ["RUN_ENDS", "TASK_ENDS", "DagImportError", "DagRuns", "poll"]

T = TypeVar("T")

RUN_ENDS = frozenset({"success", "failed"})
TASK_ENDS = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
PARSE_SECONDS = 90.0
BROKEN_SECONDS = 8.0


class DagImportError(Exception):
    """A DAG is not there, and files that may have it cannot be imported; the text has their traces."""


class DagRuns(ABC):
    """What one can do with the DAG runs of an Airflow. ``map_index`` is -1 for a task that is not mapped."""

    @property
    @abstractmethod
    def api(self) -> AirflowApi:
        """The session at the Airflow's REST API."""

    async def trigger(self, dag_id: str, *, conf: Mapping[str, Any] | None = None, run_id: str | None = None) -> str:
        """Start a run and return its id; waits until the DAG is parsed, and says the import error if it cannot be."""
        await self.wait_dag(dag_id)
        return await self.api.trigger(dag_id, conf or {}, run_id)

    async def wait_dag(self, dag_id: str, *, within: float = PARSE_SECONDS) -> None:
        """Wait until the DAG can be run; raises with the import errors that there are instead."""
        failing_since: float | None = None

        async def known_or_broken() -> bool:
            nonlocal failing_since
            if await self._is_known(dag_id):
                return True
            # A file that is being written fails for a moment; one that goes on failing will not get better.
            errors = await self.import_errors()
            failing_since = (failing_since or time.monotonic()) if errors else None
            if failing_since is not None and time.monotonic() - failing_since > BROKEN_SECONDS:
                raise DagImportError("\n".join(f"{name}:\n{trace}" for name, trace in errors.items()))
            return False

        await poll(known_or_broken, bool, within=within, what=f"DAG {dag_id} to be parsed", every=0.5)

    async def _is_known(self, dag_id: str) -> bool:
        try:
            dag = await self.api.get(f"/dags/{quote(dag_id)}")
        except AirflowApiError as error:
            if error.status != 404:
                raise
            return False
        return bool(dag.get("is_active", not dag.get("is_stale", False)))

    async def import_errors(self) -> dict[str, str]:
        """Return the DAG files that could not be imported, and why."""
        answer = await self.api.get("/importErrors")
        return {each["filename"]: each["stack_trace"] for each in answer["import_errors"]}

    async def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the run's state, such as ``running``."""
        return str((await self.api.get(_run(dag_id, run_id)))["state"])

    async def mark_run(self, dag_id: str, run_id: str, state: str) -> None:
        """Set the run, and with it its unfinished tasks, to ``failed`` or ``success``."""
        await self.api.patch(_run(dag_id, run_id), {"state": state})

    async def delete_run(self, dag_id: str, run_id: str) -> None:
        """Delete the run and its task instances."""
        await self.api.delete(_run(dag_id, run_id))

    async def task_instance(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> dict[str, Any]:
        """Return the task instance as the REST API shows it: ``state``, ``try_number`` and more."""
        path = _instance(dag_id, run_id, task_id)
        instance: dict[str, Any] = await self.api.get(path if map_index < 0 else f"{path}/{map_index}")
        return instance

    async def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return all task instances of the run."""
        found: list[dict[str, Any]] = []
        while True:
            page = await self.api.get(f"{_run(dag_id, run_id)}/taskInstances", limit=100, offset=len(found))
            found += page["task_instances"]
            if len(found) >= page["total_entries"] or not page["task_instances"]:
                return found

    async def task_state(self, dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str | None:
        """Return the task's state; None before it is scheduled."""
        state: str | None = (await self.task_instance(dag_id, run_id, task_id, map_index))["state"]
        return state

    async def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        """Return a value that the task pushed; KeyError when there is none."""
        return await self.api.xcom(_instance(dag_id, run_id, task_id), key, map_index)

    async def task_log(
        self, dag_id: str, run_id: str, task_id: str, *, try_number: int | None = None, map_index: int = -1
    ) -> list[LogRecord]:
        """Return the log of one try of the task, the current one by default."""
        if try_number is None:
            instance = await self.task_instance(dag_id, run_id, task_id, map_index)
            try_number = max(1, instance["try_number"])
        return await self.api.log(_instance(dag_id, run_id, task_id), try_number, map_index)

    async def task_text(
        self, dag_id: str, run_id: str, task_id: str, *, try_number: int | None = None, map_index: int = -1
    ) -> str:
        """Return the log of one try of the task as text, without times and levels."""
        records = await self.task_log(dag_id, run_id, task_id, try_number=try_number, map_index=map_index)
        return "\n".join(record.event for record in records)

    async def mark(self, dag_id: str, run_id: str, task_id: str, state: str, map_index: int = -1) -> None:
        """Set a task to ``failed``, ``success`` or (Airflow 3) ``skipped``, as a person does in the UI."""
        path = _instance(dag_id, run_id, task_id) + ("" if map_index < 0 else f"/{map_index}")
        body: dict[str, Any] = {"new_state": state}
        if self.api.major == 2:
            body["dry_run"] = False
        await self.api.patch(path, body)

    async def clear(self, dag_id: str, run_id: str, *task_ids: str) -> None:
        """Clear tasks, so that they run again as another try."""
        body = {
            "dry_run": False,
            "dag_run_id": run_id,
            "task_ids": list(task_ids),
            "only_failed": False,
            "reset_dag_runs": True,
        }
        await self.api.post(f"/dags/{quote(dag_id)}/clearTaskInstances", body)

    async def wait_run(
        self, dag_id: str, run_id: str, states: Collection[str] = RUN_ENDS, *, within: float = 120.0
    ) -> str:
        """Wait until the run is in one of ``states``, by default ended; return the state."""
        return await poll(
            lambda: self.run_state(dag_id, run_id),
            lambda state: state in states,
            within=within,
            what=f"run {run_id} of {dag_id} to be {' or '.join(sorted(states))}",
        )

    async def wait_task(
        self,
        dag_id: str,
        run_id: str,
        task_id: str,
        states: Collection[str] = TASK_ENDS,
        *,
        map_index: int = -1,
        within: float = 120.0,
    ) -> str | None:
        """Wait until the task is in one of ``states``, by default ended; return the state."""
        return await poll(
            lambda: self.task_state(dag_id, run_id, task_id, map_index),
            lambda state: state in states,
            within=within,
            what=f"task {task_id} of {dag_id} to be {' or '.join(sorted(states))}",
        )


async def poll(
    look: Callable[[], Awaitable[T]], enough: Callable[[T], bool], *, within: float, what: str, every: float = 0.25
) -> T:
    """Return the first of what ``look`` returns that is ``enough``; TimeoutError says the last one.

    A look that finds nobody at home is repeated: components are restarted while others wait for them.
    """
    deadline = time.monotonic() + within
    last: object = None
    while time.monotonic() < deadline:
        try:
            seen = await look()
            if enough(seen):
                return seen
            last = seen
        except AirflowApiError as error:
            if error.status != 0:
                raise
            last = error
        await asyncio.sleep(every)
    raise TimeoutError(f"Waited {within:g} s for {what}; last seen: {last!r}.")


def _run(dag_id: str, run_id: str) -> str:
    return f"/dags/{quote(dag_id)}/dagRuns/{quote(run_id, safe='')}"


def _instance(dag_id: str, run_id: str, task_id: str) -> str:
    return f"{_run(dag_id, run_id)}/taskInstances/{quote(task_id)}"
