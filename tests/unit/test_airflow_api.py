"""What the reaper learns from Airflow's REST API, over HTTP, from both versions of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_multikueue.airflow_api import AirflowAddress, open_airflow
from airflow_provider_multikueue.decisions.names import Identity
from airflow_provider_multikueue.decisions.reap import GONE, AirflowState
from airflow_provider_multikueue.exceptions import FleetConfigurationError, MultiKueueError
from tests.unit.apiserver import Answer, ApiServer

V2 = "/api/v2/dags/~/dagRuns/~/taskInstances/list"
V1 = "/api/v1/dags/~/dagRuns/~/taskInstances/list"
TASK = Identity(deployment="prod", dag_id="d", run_id="manual__2026-03-01T00:00:00+00:00", task_id="t")
MAPPED = Identity(deployment="prod", dag_id="d", run_id="r/2", task_id="t", map_index=3)
ONE = "/api/v2/dags/d/dagRuns/manual__2026-03-01T00%3A00%3A00%2B00%3A00/taskInstances/t"
ONE_MAPPED = "/api/v2/dags/d/dagRuns/r%2F2/taskInstances/t/3"
NOT_FOUND = Answer({"detail": "The Task Instance was not found"}, 404)


def connection(host: str | None, **more: Any) -> Any:
    fields = {"conn_id": "airflow_api", "schema": None, "port": None, "login": None, "password": None, "extra": None}
    return SimpleNamespace(**fields | {"host": host} | more)


def address(url: str, **more: Any) -> AirflowAddress:
    return AirflowAddress.from_connection(connection(url, **more or {"extra": '{"token": "secret-token"}'}))


def row(identity: Identity, state: str | None, **more: Any) -> dict[str, Any]:
    keys = {"dag_id": identity.dag_id, "dag_run_id": identity.run_id, "task_id": identity.task_id}
    return keys | {"map_index": identity.map_index, "state": state, "try_number": 1, **more}


def rows(*found: dict[str, Any], total: int | None = None) -> Answer:
    return Answer({"task_instances": list(found), "total_entries": len(found) if total is None else total})


@pytest.fixture
async def server():
    async with ApiServer().running() as running:
        running.on("GET", "/api/v2/version", {"version": "3.3.2"})
        yield running


@pytest.mark.parametrize(
    ("fields", "url"),
    [
        ({"host": "https://airflow.example/team/"}, "https://airflow.example/team"),
        ({"host": "airflow.example"}, "http://airflow.example"),
        ({"host": "airflow.example", "schema": "https", "port": 8443}, "https://airflow.example:8443"),
        ({"host": "http://airflow.example/team", "port": 8080}, "http://airflow.example:8080/team"),
        ({"host": "http://127.0.0.1:9000", "port": 8080}, "http://127.0.0.1:9000"),
    ],
)
def test_the_address_of_a_connection(fields: dict[str, Any], url: str):
    assert address(**{"url": fields.pop("host"), "password": "only", **fields}).url == url


def test_a_password_without_a_login_is_a_token():
    assert address("h", password="some-token").token == "some-token"


@pytest.mark.parametrize(
    "fields",
    [{"host": None, "password": "x"}, {"host": "h"}, {"host": "h", "login": "me"}, {"host": "h", "extra": "["}],
)
def test_an_incomplete_connection_is_an_error_that_names_it(fields: dict[str, Any]):
    with pytest.raises(FleetConfigurationError, match="airflow_api"):
        AirflowAddress.from_connection(connection(**fields))


def test_an_address_shows_no_secret():
    found = address("h", login="me", password="hush")
    assert "hush" not in repr(found)
    assert found.secrets() == ["hush"]


async def test_one_list_answers_for_many_task_instances(server: ApiServer):
    server.on("POST", V2, rows(row(TASK, "failed", id="uuid"), row(MAPPED, "running", id="uuid-2")))
    async with open_airflow(address(server.url)) as airflow:
        found = await airflow.tasks([TASK, MAPPED])
    assert found[TASK] == AirflowState(state="failed", ti="uuid", attempt=1)
    assert found[MAPPED].state == "running"
    [asked] = [seen for seen in server.seen if seen.path == V2]
    assert asked.headers["Authorization"] == "Bearer secret-token"
    assert asked.body["dag_run_ids"] == sorted([TASK.run_id, MAPPED.run_id])


async def test_lists_are_read_to_their_end(server: ApiServer):
    server.on("POST", V2, rows(row(TASK, "failed"), total=2), rows(row(MAPPED, None), total=2))
    async with open_airflow(address(server.url)) as airflow:
        found = await airflow.tasks([TASK, MAPPED])
    assert (found[TASK].state, found[MAPPED]) == ("failed", AirflowState(attempt=1))
    assert [seen.body["page_offset"] for seen in server.seen if seen.path == V2] == [0, 1]


async def test_what_a_list_leaves_out_is_gone_only_if_airflow_says_so(server: ApiServer):
    server.on("POST", V2, rows())
    server.on("GET", ONE, NOT_FOUND)
    server.on("GET", ONE_MAPPED, Answer({"detail": "Forbidden"}, 403))
    async with open_airflow(address(server.url)) as airflow:
        found = await airflow.tasks([TASK, MAPPED])
    assert found[TASK] == GONE
    assert not found[MAPPED].known
    assert "403 Forbidden" in found[MAPPED].why


@pytest.mark.parametrize("answer", [Answer("<html>", 404), Answer("<html>", 200), Answer({"detail": "broken"}, 500)])
async def test_an_answer_that_is_not_airflows_makes_nothing_gone(server: ApiServer, answer: Answer):
    server.on("POST", V2, Answer({"detail": "broken"}, 500))
    server.on("GET", ONE, answer)
    async with open_airflow(address(server.url)) as airflow:
        assert not (await airflow.tasks([TASK]))[TASK].known


async def test_runs_are_asked_for_once_each(server: ApiServer):
    path = "/api/v2/dags/d/dagRuns/r%2F2"
    server.on("GET", path, {"dag_run_id": "r/2", "state": "success"})
    async with open_airflow(address(server.url)) as airflow:
        assert await airflow.runs([MAPPED, MAPPED]) == {("d", "r/2"): AirflowState(state="success")}
    assert server.count("GET", path) == 1


async def test_with_a_login_a_token_is_asked_for(server: ApiServer):
    server.on("POST", "/auth/token", Answer({"access_token": "made"}, 201))
    server.on("POST", V2, rows(row(TASK, "success")))
    async with open_airflow(address(server.url, login="me", password="hush")) as airflow:
        await airflow.tasks([TASK])
    [login] = [seen for seen in server.seen if seen.path == "/auth/token"]
    assert login.body == {"username": "me", "password": "hush"}
    assert server.seen[-1].headers["Authorization"] == "Bearer made"


async def test_airflow_2_is_asked_by_its_own_api():
    async with ApiServer().running() as server:
        server.on("GET", "/api/v1/version", {"version": "2.11.2"})
        server.on("POST", V1, rows(row(TASK, "up_for_retry")))
        async with open_airflow(address(server.url, login="me", password="hush")) as airflow:
            assert (await airflow.tasks([TASK]))[TASK].state == "up_for_retry"
    assert server.seen[-1].headers["Authorization"].startswith("Basic ")


async def test_a_refused_login_says_which_connection_to_correct(server: ApiServer):
    server.on("POST", "/auth/token", Answer({"detail": "Invalid credentials"}, 401))
    with pytest.raises(FleetConfigurationError, match=r"airflow_api.*401 Invalid credentials") as raised:
        async with open_airflow(address(server.url, login="me", password="hush")):
            pass
    assert "hush" not in str(raised.value)


async def test_nobody_at_the_address_can_be_tried_again():
    with pytest.raises(MultiKueueError, match="does not answer") as raised:
        async with open_airflow(address("http://127.0.0.1:9")):
            pass
    assert not isinstance(raised.value, FleetConfigurationError)
