"""Every line that differs between Airflow versions; each entry says when it can go.

It is also the provider's one door to Airflow for names that moved. Only the two exception classes, which the error tree
derives from, are imported with this module; all other names are looked up when they are first asked for.

The coroutines work in a triggerer, in a worker inside ``asyncio.run``, and under both Airflow versions.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

from airflow import __version__ as _airflow_version
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import (
        AirflowNotFoundException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTaskTimeout,
        BaseHook,
        BaseOperator,
        BaseOperatorLink,
        BaseSensorOperator,
        Connection,
        Context,
        ObjectStoragePath,
        PokeReturnValue,
        Stats,
        TaskDeferred,
        conf,
    )
    from airflow.triggers.base import BaseTrigger, TriggerEvent

__all__ = [
    "AIRFLOW_2",
    "NO_STATUS",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AirflowTaskTimeout",
    "BaseHook",
    "BaseOperator",
    "BaseOperatorLink",
    "BaseSensorOperator",
    "BaseTrigger",
    "Connection",
    "Context",
    "ObjectStoragePath",
    "PokeReturnValue",
    "Stats",
    "TaskDeferred",
    "TaskInstanceKeys",
    "TriggerEvent",
    "base_url",
    "conf",
    "connection_form_widgets",
    "get_connection",
    "initialize_metrics",
    "log_output",
    "mask_secrets",
    "push_xcom",
    "stored_xcom",
    "task_instance_id",
    "task_state",
    "unmask",
]

AIRFLOW_2: Final = _airflow_version.startswith("2.")  # until 2.11 goes
NO_STATUS: Final = "no_status"
"""What :func:`task_state` says of a task instance that is there and was not scheduled yet."""

_TRIGGER_NAMES: Final = frozenset({"BaseTrigger", "TriggerEvent"})


def __getattr__(name: str) -> Any:
    """Import ``name`` at its first use and keep it, so that pure modules do not pay for Airflow's operators."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    source = "airflow.triggers.base" if name in _TRIGGER_NAMES else "airflow.providers.common.compat.sdk"
    value = getattr(import_module(source), name)
    globals()[name] = value
    return value


class TaskInstanceKeys(Protocol):
    """What a trigger and a worker both know of a task instance, in every version."""

    dag_id: Any
    run_id: Any
    task_id: Any
    map_index: Any


def task_instance_id(ti: TaskInstanceKeys) -> str:
    """Return the id of the task instance: another one when its row was deleted and made anew, on 3.x.

    Airflow 2.11 has no such id, so there it is derived from the names and is the same for every try.
    """
    if not AIRFLOW_2:
        return str(getattr(ti, "id"))  # noqa: B009 - absent from the 2.11 class
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{ti.dag_id}/{ti.run_id}/{ti.task_id}/{ti.map_index}"))


def log_output() -> Any:
    """Return the file that this process' records are written to, which may be the way to a supervisor; None if unknown.

    It is no public name of Airflow 3. Airflow 2.11 has no supervisor.
    """
    if AIRFLOW_2:  # until 2.11 goes
        return None
    return getattr(import_module("structlog").get_config().get("logger_factory"), "io", None)


async def task_state(ti: TaskInstanceKeys) -> str | None:
    """Return the task instance's state in Airflow now: ``NO_STATUS`` if it has none yet, ``None`` if it is gone.

    Raises what Airflow raises when it does not answer: unknown is not the same as gone.
    """
    if AIRFLOW_2:  # until 2.11 goes
        from asgiref.sync import sync_to_async

        states = await sync_to_async(_states_from_database)(ti)
    else:
        states = await _states_from_supervisor(ti)
    return (states[0] or NO_STATUS) if states else None


def _states_from_database(ti: TaskInstanceKeys) -> list[str | None]:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    keys = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": ti.map_index}
    with create_session() as session:
        return [state for (state,) in session.query(TaskInstance.state).filter_by(**keys)]


async def _states_from_supervisor(ti: TaskInstanceKeys) -> list[str | None]:
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import GetTaskStates

    question = GetTaskStates(dag_id=ti.dag_id, run_ids=[ti.run_id], task_ids=[ti.task_id], map_index=ti.map_index)
    answer = await task_runner.SUPERVISOR_COMMS.asend(question)
    return list(answer.task_states.get(ti.run_id, {}).values())  # type: ignore[union-attr]


async def push_xcom(ti: TaskInstanceKeys, key: str, value: Any) -> bool:
    """Write an XCom of the task instance, also while it is deferred; ``False`` if it can't be written now.

    It asks before it writes, since on 3.x a write that fails, as for a task instance that is gone, is tried again for
    12 seconds and holds up every trigger of the process. Ids beyond ASCII fail always: the triggerer's own API server
    reads them wrongly. What the worker pushes at the end is not affected.
    """
    if not (AIRFLOW_2 or f"{ti.dag_id}{ti.run_id}{ti.task_id}".isascii()):
        return False
    if await task_state(ti) is None:
        return False
    keys = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": ti.map_index}
    if AIRFLOW_2:  # until 2.11 goes
        from airflow.models.xcom import XCom as StoredXCom
        from asgiref.sync import sync_to_async

        await sync_to_async(StoredXCom.set)(key=key, value=value, **keys)
    else:
        from airflow.sdk.execution_time.xcom import XCom

        await XCom.aset(key=key, value=value, **keys)
    return True


def stored_xcom(ti_key: Any, key: str) -> Any:
    """Return an XCom of a task instance as a link's ``get_link`` gets it, or None.

    On 3.x that is the running task instance itself, on 2.11 its key, in the web server.
    """
    if AIRFLOW_2:  # until 2.11 goes
        from airflow.models.xcom import XCom as StoredXCom

        return StoredXCom.get_value(ti_key=ti_key, key=key)
    return ti_key.xcom_pull(task_ids=ti_key.task_id, key=key, map_indexes=ti_key.map_index)


async def get_connection(conn_id: str) -> Connection:
    """Return the Airflow connection; raises ``AirflowNotFoundException``."""
    from airflow.providers.common.compat.sdk import BaseHook

    if AIRFLOW_2:  # until 2.11 goes
        from asgiref.sync import sync_to_async

        return await sync_to_async(BaseHook.get_connection)(conn_id)
    return await BaseHook.aget_connection(conn_id)


async def mask_secrets(secrets: Iterable[str]) -> None:
    """Hide each of the texts in every log of this process, and of its supervisor."""
    if AIRFLOW_2:  # until 2.11 goes
        from airflow.utils.log.secrets_masker import mask_secret

        for secret in secrets:
            mask_secret(secret)
    else:
        from airflow.sdk.log import amask_secret

        for secret in secrets:
            await amask_secret(secret)


def unmask(secret: str) -> None:
    """Let Airflow's masker forget a text that it was told: it has no way to say that itself, and would slow down."""
    if AIRFLOW_2:  # until 2.11 goes
        from airflow.utils.log.secrets_masker import _secrets_masker
    else:
        from airflow.sdk._shared.secrets_masker import _secrets_masker
    with contextlib.suppress(AttributeError):
        # The expression that is searched for is made anew with the next secret.
        _secrets_masker().patterns.discard(re.escape(secret))


@cache
def initialize_metrics() -> None:
    """Let ``Stats`` work in a triggerer, once a process.

    Airflow 3.3 configures the metrics of its core in a triggerer, and in a task's process those of its SDK, which is
    where ``Stats`` of both leads; until a triggerer configures both.
    """
    if AIRFLOW_2:  # until 2.11 goes
        return
    from airflow.providers.common.compat.sdk import conf
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils

    stats.initialize(
        factory=stats_utils.get_stats_factory(),
        export_legacy_names=conf.getboolean("metrics", "legacy_names_on", fallback=True),
    )


def base_url() -> str | None:
    """Return the address at which people reach this Airflow, without a final slash, if it is configured."""
    from airflow.providers.common.compat.sdk import conf

    section = "webserver" if AIRFLOW_2 else "api"  # until 2.11 goes
    url: str = conf.get(section, "base_url", fallback="") or ""
    return url.rstrip("/") or None


def connection_form_widgets(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the form fields for the metadata's ``conn-fields``, which 3.x reads itself; until 2.11 goes."""
    from flask_appbuilder.fieldwidgets import BS3PasswordFieldWidget, BS3TextAreaFieldWidget, BS3TextFieldWidget
    from wtforms import BooleanField, PasswordField, StringField, TextAreaField

    def widget(schema: Mapping[str, Any], words: dict[str, str]) -> Any:
        if "boolean" in schema["type"]:
            return BooleanField(**words)
        if "object" in schema["type"]:
            return TextAreaField(**words, widget=BS3TextAreaFieldWidget())
        if schema.get("format") == "password":
            return PasswordField(**words, widget=BS3PasswordFieldWidget())
        return StringField(**words, widget=BS3TextFieldWidget())

    return {
        name: widget(field["schema"], {"label": field["label"], "description": field["description"]})
        for name, field in fields.items()
    }
