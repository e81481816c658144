"""Airflow's REST API, as far as following DAG runs needs it: version 2 for Airflow 3, version 1 for Airflow 2."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import aiohttp

__all__ = ["AirflowApi", "AirflowApiError", "LogRecord", "parse_text_log"]

_TIMEOUT = aiohttp.ClientTimeout(total=60)
# [2026-03-01T00:00:00.000+0000] {file.py:12} INFO - text
_TEXT_RECORD = re.compile(
    r"\[(?P<timestamp>\d{4}-\d\d-\d\dT[^\]]+)\] \{[^}]*\} (?P<level>[A-Z]+) - (?P<event>.*)", re.S
)


class AirflowApiError(Exception):
    """The REST API refused a request; ``status`` is the HTTP status, or 0 when there was no answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of a task's log; ``event`` may have several lines. ``timestamp`` is ISO 8601 or empty."""

    timestamp: str
    level: str
    event: str
    logger: str = ""


def parse_text_log(text: str) -> list[LogRecord]:
    """Return the records of a log as Airflow 2 shows it; a line without a head belongs to the record before it."""
    records: list[LogRecord] = []
    # Only "\n" ends a line: what a pod printed may hold any other separator.
    for line in text.removesuffix("\n").split("\n"):
        if found := _TEXT_RECORD.fullmatch(line):
            records.append(LogRecord(found["timestamp"], found["level"].lower(), found["event"]))
        elif records:
            last = records[-1]
            records[-1] = LogRecord(last.timestamp, last.level, f"{last.event}\n{line}")
        elif line:
            records.append(LogRecord("", "info", line))
    return records


class AirflowApi:
    """One user's session at one Airflow. Its methods raise `AirflowApiError`."""

    def __init__(self, url: str, *, major: int, username: str, password: str) -> None:
        self.url = url
        self.major = major
        self._username = username
        self._password = password
        self._session: aiohttp.ClientSession | None = None
        self._token: str | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def health(self) -> dict[str, Any]:
        """Return Airflow's own view of its components, by name; needs no login."""
        path = "/health" if self.major == 2 else "/api/v2/monitor/health"
        health: dict[str, Any] = json.loads(await self._send("GET", path, login=False))
        return health

    async def get(self, path: str, **query: Any) -> Any:
        """Return what is at ``path`` below ``/api/v1`` or ``/api/v2``."""
        return json.loads(await self._send("GET", self._path(path), query=query))

    async def post(self, path: str, body: Any) -> Any:
        """Post ``body`` and return the answer."""
        return json.loads(await self._send("POST", self._path(path), body=body))

    async def patch(self, path: str, body: Any) -> Any:
        """Patch with ``body`` and return the answer."""
        return json.loads(await self._send("PATCH", self._path(path), body=body))

    async def delete(self, path: str) -> None:
        """Delete what is at ``path``."""
        await self._send("DELETE", self._path(path))

    async def trigger(self, dag_id: str, conf: Mapping[str, Any], run_id: str | None) -> str:
        """Start a run now and return its id."""
        body: dict[str, Any] = {"conf": dict(conf)}
        if run_id is not None:
            body["dag_run_id"] = run_id
        if self.major != 2:
            body["logical_date"] = None
        answer = await self.post(f"/dags/{quote(dag_id)}/dagRuns", body)
        return str(answer["dag_run_id"])

    async def xcom(self, instance: str, key: str, map_index: int) -> Any:
        """Return a value that a task pushed; KeyError when there is none."""
        try:
            entry = await self.get(
                f"{instance}/xcomEntries/{quote(key)}", map_index=map_index, deserialize="false", stringify="false"
            )
        except AirflowApiError as error:
            if error.status == 404:
                raise KeyError(key) from error
            raise
        return entry["value"]

    async def log(self, instance: str, try_number: int, map_index: int) -> list[LogRecord]:
        """Return the records of one try, in the order of their times."""
        path = self._path(f"{instance}/logs/{try_number}")
        query = {"map_index": map_index, "full_content": "true"}
        accept = "text/plain" if self.major == 2 else "application/x-ndjson"
        text = await self._send("GET", path, query=query, accept=accept)
        if self.major == 2:
            return parse_text_log(text)
        return [_record(json.loads(line)) for line in text.split("\n") if line]

    def _path(self, path: str) -> str:
        return f"/api/v{1 if self.major == 2 else 2}{path}"

    async def _send(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        accept: str = "application/json",
        login: bool = True,
    ) -> str:
        headers = {"Accept": accept, **(await self._login() if login else {})}
        try:
            async with self._open().request(
                method, self.url + path, params=dict(query or {}), json=body, headers=headers
            ) as response:
                status, text = response.status, await response.text(errors="replace")
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = str(error) or f"nothing within {_TIMEOUT.total:g} s"
            raise AirflowApiError(0, f"{method} {self.url}{path} was not answered: {reason}") from error
        if status >= 400:
            raise AirflowApiError(status, f"{method} {path}: {status} {text[:1000]}")
        return text

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=_TIMEOUT)
        return self._session

    async def _login(self) -> dict[str, str]:
        if self.major == 2:
            return {"Authorization": aiohttp.BasicAuth(self._username, self._password).encode()}
        if self._token is None:
            body = {"username": self._username, "password": self._password}
            answer = await self._send("POST", "/auth/token", body=body, login=False)
            self._token = json.loads(answer)["access_token"]
        return {"Authorization": f"Bearer {self._token}"}


def _record(each: Mapping[str, Any]) -> LogRecord:
    return LogRecord(
        timestamp=each.get("timestamp") or "",
        level=each.get("level") or "info",
        event="\n".join([str(each.get("event", "")), *_errors(each.get("error_detail"))]),
        logger=each.get("logger") or "",
    )


def _errors(detail: Any) -> list[str]:
    """Return the exceptions that Airflow 3 stores beside a record, a line each."""
    return [f"{each.get('exc_type')}: {each.get('exc_value')}" for each in detail or () if isinstance(each, dict)]
