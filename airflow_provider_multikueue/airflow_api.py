"""Airflow's REST API, as far as the reaper asks it: what became of task instances and of DAG runs.

Nothing here repeats a request: who asks in vain is told so, and the next sweep asks again. "Gone" is said only of what
Airflow itself, asked for that one object, does not have; a list leaves out what the user may not read.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_provider_multikueue.decisions.reap import GONE, AirflowState
from airflow_provider_multikueue.exceptions import FleetConfigurationError, MultiKueueError

if TYPE_CHECKING:
    import aiohttp

    from airflow_provider_multikueue.decisions.names import Identity

__all__ = ["AirflowAddress", "AirflowApi", "open_airflow"]

PAGE = 100
"""Airflow gives no more at once by default."""
BATCH = 50
TIMEOUT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowAddress:
    """Where an Airflow is, and who asks; its repr holds no secret."""

    conn_id: str
    url: str
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @classmethod
    def from_connection(cls, connection: Any) -> AirflowAddress:
        """Return the address that a connection of type ``http`` or ``generic`` gives.

        The host may be a URL with a path. The token is the extra's ``token``, or a password without a login.
        Raises FleetConfigurationError.
        """
        where = f"Connection {connection.conn_id!r}"
        if not connection.host:
            raise FleetConfigurationError(f"{where} has no host. Give the address of Airflow's API server there.")
        token = _extra(connection.extra, where).get("token")
        password = connection.password or None
        if not token and password and not connection.login:
            token, password = password, None
        if not token and not (connection.login and password):
            raise FleetConfigurationError(
                f"{where} has no credentials. Give a login and a password, or a `token` in the extra."
            )
        return cls(
            conn_id=connection.conn_id,
            url=_url(connection.host, connection.schema, connection.port),
            login=connection.login or None,
            password=password,
            token=str(token) if token else None,
        )

    def secrets(self) -> list[str]:
        """Return the texts that must be masked wherever they appear."""
        return [text for text in (self.password, self.token) if text]


class AirflowApi:
    """One Airflow that has answered."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def tasks(self, identities: Iterable[Identity]) -> dict[Identity, AirflowState]:
        """Return what Airflow says of each task instance; one that it does not answer for is unknown."""
        found: dict[Identity, AirflowState] = {}
        for some in _batches(identities):
            listed = await self._listed(some[0].dag_id, some[0].task_id, sorted({each.run_id for each in some}))
            for each in some:
                found[each] = listed.get((each.run_id, each.map_index)) or await self._one(_task_path(each))
        return found

    async def runs(self, identities: Iterable[Identity]) -> dict[tuple[str, str], AirflowState]:
        """Return what Airflow says of each DAG run, by DAG and run."""
        wanted = sorted({(each.dag_id, each.run_id) for each in identities})
        return {(dag_id, run_id): await self._one(_run_path(dag_id, run_id)) for dag_id, run_id in wanted}

    async def _listed(self, dag_id: str, task_id: str, run_ids: Sequence[str]) -> dict[tuple[str, int], AirflowState]:
        """Return the states of one task by run and map index; empty where Airflow gives no list."""
        query: dict[str, Any] = {"dag_ids": [dag_id], "task_ids": [task_id], "dag_run_ids": list(run_ids)}
        found: dict[tuple[str, int], AirflowState] = {}
        offset = 0
        while True:
            body = query | {"page_limit": PAGE, "page_offset": offset}
            try:
                answer = await self._send("POST", "/dags/~/dagRuns/~/taskInstances/list", body)
            except _Refused:
                return found
            rows = answer.get("task_instances") or []
            # An API that does not know one of these filters ignores it.
            ours = (row for row in rows if (row["dag_id"], row["task_id"]) == (dag_id, task_id))
            found.update(((str(row["dag_run_id"]), int(row["map_index"])), _state(row)) for row in ours)
            offset += len(rows)
            if not rows or offset >= int(answer.get("total_entries") or 0):
                return found

    async def _one(self, path: str) -> AirflowState:
        try:
            return _state(await self._send("GET", path))
        except _Refused as refused:
            gone = refused.status == 404 and refused.by_airflow
            return GONE if gone else AirflowState(known=False, why=str(refused))

    async def _send(self, method: str, path: str, body: Any = None) -> Mapping[str, Any]:
        return await _ask(self._session, method, self._url + path, body)


@asynccontextmanager
async def open_airflow(address: AirflowAddress) -> AsyncIterator[AirflowApi]:
    """Find out which API is served at the address (v2 of 3.x, v1 of 2.x) and log in.

    Raises MultiKueueError when nobody answers, FleetConfigurationError when it is no Airflow or refuses the login.
    """
    import aiohttp

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT)) as session:
        try:
            version = await _version(session, address)
            session.headers.update(await _authorization(session, address, version))
        except _Refused as refused:
            if refused.status in (0, 429) or refused.status >= 500:
                raise MultiKueueError(f"Airflow does not answer at {address.url}: {refused}. Try again.") from refused
            raise FleetConfigurationError(
                f"Airflow at {address.url} refuses connection {address.conn_id!r}: {refused}. Correct its host, login "
                "and password, or give a token in its extra."
            ) from refused
        yield AirflowApi(session, f"{address.url}/api/{version}")


async def _version(session: aiohttp.ClientSession, address: AirflowAddress) -> str:
    try:
        await _ask(session, "GET", f"{address.url}/api/v2/version")
    except _Refused as refused:
        if refused.status != 404:
            raise
        await _ask(session, "GET", f"{address.url}/api/v1/version")
        return "v1"
    return "v2"


async def _authorization(session: aiohttp.ClientSession, address: AirflowAddress, version: str) -> dict[str, str]:
    import aiohttp

    token = address.token
    if token is None and version == "v1":
        return {"Authorization": aiohttp.BasicAuth(address.login or "", address.password or "").encode()}
    if token is None:
        who = {"username": address.login, "password": address.password}
        token = str((await _ask(session, "POST", f"{address.url}/auth/token", who)).get("access_token"))
    return {"Authorization": f"Bearer {token}"}


class _Refused(Exception):  # noqa: N818 - never leaves this module
    """A request that got no good answer; ``status`` 0: none at all. ``by_airflow``: it says why, as Airflow does."""

    def __init__(self, status: int, text: str, *, by_airflow: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.by_airflow = by_airflow


async def _ask(session: aiohttp.ClientSession, method: str, url: str, body: Any = None) -> Mapping[str, Any]:
    import aiohttp
    from yarl import URL

    try:
        async with session.request(method, URL(url, encoded=True), json=body, allow_redirects=False) as response:
            answer = _json(await response.text(errors="replace"))
            status = response.status
    except (aiohttp.ClientError, TimeoutError) as error:
        raise _Refused(0, f"{method} {url}: {str(error) or type(error).__name__}") from error
    if status >= 300:
        detail = str((answer or {}).get("detail") or "")
        raise _Refused(status, f"{method} {url}: {status} {detail[:300]}".rstrip(), by_airflow=bool(detail))
    if answer is None:
        # A login page or a proxy, which says nothing about Airflow.
        raise _Refused(-1, f"{method} {url}: the answer is not Airflow's")
    return answer


def _batches(identities: Iterable[Identity]) -> Iterator[list[Identity]]:
    """Yield what one list can answer for: instances of one task, in a bounded number of runs."""
    wanted = sorted(set(identities), key=lambda each: (each.dag_id, each.task_id, each.run_id, each.map_index))
    for _, group in groupby(wanted, key=lambda each: (each.dag_id, each.task_id)):
        some = list(group)
        yield from (some[start : start + BATCH] for start in range(0, len(some), BATCH))


def _json(text: str) -> Mapping[str, Any] | None:
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _state(row: Mapping[str, Any]) -> AirflowState:
    """Return the state in a task instance or a DAG run as the API gives it."""
    attempt = row.get("try_number")
    return AirflowState(
        state=row.get("state") or None,
        ti=str(row["id"]) if row.get("id") else None,
        attempt=attempt if isinstance(attempt, int) else None,
    )


def _run_path(dag_id: str, run_id: str) -> str:
    return f"/dags/{quote(dag_id, safe='')}/dagRuns/{quote(run_id, safe='')}"


def _task_path(identity: Identity) -> str:
    path = f"{_run_path(identity.dag_id, identity.run_id)}/taskInstances/{quote(identity.task_id, safe='')}"
    return f"{path}/{identity.map_index}" if identity.map_index >= 0 else path


def _url(host: str, schema: str | None, port: int | None) -> str:
    base = host if "://" in host else f"{schema or 'http'}://{host}"
    scheme, _, rest = base.partition("://")
    name, slash, path = rest.partition("/")
    if port and ":" not in name:
        name = f"{name}:{port}"
    return f"{scheme}://{name}{slash}{path}".rstrip("/")


def _extra(extra: object, where: str) -> Mapping[str, Any]:
    values = _json(extra) if isinstance(extra, str) and extra.strip() else extra or {}
    if not isinstance(values, Mapping):
        raise FleetConfigurationError(f"{where}: the extra is not a JSON object. Correct it.")
    return values
