"""Makes the metadata database of a private Airflow, from a template that is kept for each version.

Airflow takes 10 to 25 seconds for an empty SQLite schema; copying one takes none.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_multikueue.sandbox.airflow_component import log_tail
from airflow_provider_multikueue.sandbox.paths import SandboxError, cache_root

if TYPE_CHECKING:
    from airflow_provider_multikueue.sandbox.airflow_config import Layout

__all__ = ["Installation", "inspect_installation", "password_hash", "prepare"]

_TEMPLATE_REVISION = 1
_PACKAGES = ("apache-airflow", "apache-airflow-providers-fab")
_ASK_VERSIONS = """
import importlib.metadata as metadata, json, sys
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """An environment with Airflow in it."""

    python: Path
    version: str
    fingerprint: str

    @property
    def major(self) -> int:
        """Return 2 or 3."""
        return int(self.version.split(".")[0])


async def inspect_installation(python: Path) -> Installation:
    """Return which Airflow an interpreter has; SandboxError when it has none."""
    try:
        process = await asyncio.create_subprocess_exec(
            python, "-c", _ASK_VERSIONS, *_PACKAGES, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        output, _ = await process.communicate()
        versions: dict[str, str | None] = json.loads(output)
    except (OSError, ValueError) as error:
        raise SandboxError(f"{python} is no Python interpreter that can be started: {error}") from error
    version = versions["apache-airflow"]
    if version is None:
        raise SandboxError(
            f"{python} has no Airflow. Give the interpreter of an environment with apache-airflow in it."
        )
    fingerprint = hashlib.sha256(json.dumps([_TEMPLATE_REVISION, versions]).encode()).hexdigest()[:12]
    return Installation(python=python, version=version, fingerprint=fingerprint)


async def prepare(layout: Layout, installation: Installation, environment: Mapping[str, str]) -> None:
    """Put an empty database, and the one user's password, into the Airflow's home."""
    folder = cache_root() / "airflow"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    template = folder / f"{installation.version}-{installation.fingerprint}.db"
    if not await asyncio.to_thread(template.exists):
        await _make_template(template, installation, environment)
    shutil.copyfile(template, layout.database)
    layout.database.chmod(0o600)
    if installation.major == 2:
        await asyncio.to_thread(_set_password, layout)
    else:
        _write_private(layout.passwords, json.dumps({layout.username: layout.password}))


def password_hash(password: str) -> str:
    """Return ``password`` hashed as Flask's user database keeps it (Werkzeug's pbkdf2 form)."""
    salt, rounds = secrets.token_hex(8), 10_000
    digest = hashlib.pbkdf2_hmac("sha256", password.encode(), salt.encode(), rounds).hex()
    return f"pbkdf2:sha256:{rounds}${salt}${digest}"


async def _make_template(template: Path, installation: Installation, environment: Mapping[str, str]) -> None:
    with _locked(template.with_suffix(".lock")):
        if await asyncio.to_thread(template.exists):
            return
        with tempfile.TemporaryDirectory(prefix="airflow-template-") as home:
            database = Path(home) / "airflow.db"
            own = {
                **environment,
                "AIRFLOW_HOME": home,
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{database}",
                "AIRFLOW__LOGGING__BASE_LOG_FOLDER": f"{home}/logs",
            }
            await _airflow(installation, own, "db", "migrate")
            if installation.major == 2:
                await _airflow(
                    installation, own, "users", "create", "--role", "Admin", "--username", "admin",
                    "--password", secrets.token_hex(16), "--email", "admin@localhost",
                    "--firstname", "Local", "--lastname", "Airflow",
                )  # fmt: skip
            await asyncio.to_thread(_finish, database)
            part = template.with_suffix(f".{os.getpid()}.part")
            shutil.copyfile(database, part)
            part.replace(template)


async def _airflow(installation: Installation, environment: Mapping[str, str], *arguments: str) -> None:
    log = Path(environment["AIRFLOW_HOME"]) / "command.log"
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            installation.python, "-m", "airflow", *arguments, env=dict(environment), stdout=output, stderr=output
        )
        code = await process.wait()
    if code != 0:
        raise SandboxError(f"airflow {' '.join(arguments[:2])} ended with {code}:\n{log_tail(log)}")


def _finish(database: Path) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        # Readers and one writer at a time, instead of one or the other; the file remembers it.
        connection.execute("PRAGMA journal_mode = WAL")


def _set_password(layout: Layout) -> None:
    with contextlib.closing(sqlite3.connect(layout.database)) as connection, connection:
        connection.execute(
            "UPDATE ab_user SET username = ?, password = ?", (layout.username, password_hash(layout.password))
        )


def _write_private(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
