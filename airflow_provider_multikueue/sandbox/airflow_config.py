"""The configuration of a private Airflow: one machine, two cores, quick to start, nothing shared with any other.

Airflow reads it from the environment alone. What differs between Airflow 2 and 3 is decided here and in
:mod:`.airflow_rest`, nowhere else.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["HOME_MARK", "Layout", "commands", "connection_environment", "environment"]

HOME_MARK = "MULTIKUEUE_LOCAL_AIRFLOW"
"""Environment variable that all processes of one Airflow carry, so that none of them can be lost."""

WORKERS = 8

PATIENCE = 90
"""Seconds for what takes one: a busy machine, with a fleet beside the Airflow, must not make tasks fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where one Airflow lives and who may enter."""

    home: Path
    dags: Path
    port: int
    username: str = "admin"
    password: str = field(default_factory=lambda: secrets.token_urlsafe(12), repr=False)
    mark: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def url(self) -> str:
        """Return the address of the UI and of the REST API."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        """Return the SQLite file."""
        return self.home / "airflow.db"

    @property
    def passwords(self) -> Path:
        """Return the file from which Airflow 3's simple auth manager reads its users' passwords."""
        return self.home / "passwords.json"


def commands(major: int) -> dict[str, tuple[str, ...]]:
    """Return the components of an Airflow and the arguments that start each, the slowest first."""
    if major == 2:
        return {
            "webserver": ("webserver", "--workers", "1"),
            "scheduler": ("scheduler", "--skip-serve-logs"),
            "triggerer": ("triggerer", "--skip-serve-logs"),
        }
    return {
        "api-server": ("api-server",),
        "dag-processor": ("dag-processor",),
        "scheduler": ("scheduler", "--skip-serve-logs"),
        "triggerer": ("triggerer", "--skip-serve-logs"),
    }


def connection_environment(connections: Mapping[str, str | Mapping[str, Any]]) -> dict[str, str]:
    """Return the variables that define ``connections``, given by id as a URI, as JSON text or as a mapping."""
    return {
        f"AIRFLOW_CONN_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in connections.items()
    }


def environment(layout: Layout, major: int, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the whole environment of the Airflow's processes.

    ``settings`` adds to or overrides the configuration, as ``{"section.option": value}``. Of the caller's environment
    everything stays but what configures another Airflow.
    """
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW_", "_AIRFLOW_"))}
    chosen = {**_common(layout), **(_airflow_2(layout) if major == 2 else _airflow_3(layout)), **settings}
    configured = {_variable(option): str(value) for option, value in chosen.items()}
    return {
        **inherited,
        "AIRFLOW_HOME": str(layout.home),
        HOME_MARK: layout.mark,
        # Airflow's processes rename themselves, which would otherwise overwrite the mark in /proc.
        "SPT_NOENV": "1",
        "PYTHONUNBUFFERED": "1",
        # Airflow 2 otherwise refuses SQLite with parallel tasks; in its WAL mode, and with patience, it is good enough.
        "_AIRFLOW__SKIP_DATABASE_EXECUTOR_COMPATIBILITY_CHECK": "1",
        **configured,
    }


def _variable(option: str) -> str:
    section, _, name = option.partition(".")
    return f"AIRFLOW__{section.upper()}__{name.upper()}"


def _common(layout: Layout) -> dict[str, Any]:
    return {
        "core.dagbag_import_timeout": PATIENCE,
        "core.dags_folder": layout.dags,
        "core.dags_are_paused_at_creation": False,
        "core.executor": "LocalExecutor",
        "core.fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "core.load_examples": False,
        "core.parallelism": WORKERS,
        "core.test_connection": "Enabled",
        # The database is made from a template of exactly this Airflow.
        "database.check_migrations": False,
        # Several processes write to it: wait for each other rather than fail.
        "database.sql_alchemy_conn": f"sqlite:///{layout.database}?timeout=60",
        "logging.base_log_folder": layout.home / "logs",
        "logging.colored_console_log": False,
        "scheduler.scheduler_heartbeat_sec": 1,
        "scheduler.scheduler_idle_sleep_time": 0.5,
    }


def _airflow_3(layout: Layout) -> dict[str, Any]:
    return {
        "api.base_url": layout.url,
        "api.host": "127.0.0.1",
        "api.port": layout.port,
        "api.secret_key": secrets.token_urlsafe(32),
        "api.workers": 1,
        "api_auth.jwt_secret": secrets.token_urlsafe(48),
        "core.execution_api_server_url": f"{layout.url}/execution/",
        "core.simple_auth_manager_passwords_file": layout.passwords,
        "core.simple_auth_manager_users": f"{layout.username}:admin",
        "dag_processor.bundle_refresh_check_interval": 1,
        "dag_processor.dag_file_processor_timeout": 2 * PATIENCE,
        "dag_processor.parsing_processes": 1,
        # New and changed files are seen by the scan of the folder; unchanged ones need no second look.
        "dag_processor.min_file_process_interval": 120,
        "dag_processor.refresh_interval": 2,
        "workers.execution_api_timeout": PATIENCE,
    }


def _airflow_2(layout: Layout) -> dict[str, Any]:
    return {
        "api.auth_backends": "airflow.providers.fab.auth_manager.api.auth.backend.basic_auth,"
        "airflow.api.auth.backend.session",
        "core.dag_file_processor_timeout": 2 * PATIENCE,
        "core.internal_api_secret_key": secrets.token_urlsafe(32),
        "database.load_default_connections": False,
        "scheduler.dag_dir_list_interval": 2,
        "scheduler.min_file_process_interval": 120,
        "scheduler.parsing_processes": 1,
        "webserver.base_url": layout.url,
        "webserver.secret_key": secrets.token_urlsafe(32),
        "webserver.web_server_host": "127.0.0.1",
        "webserver.web_server_port": layout.port,
        "webserver.worker_refresh_interval": 0,
    }
