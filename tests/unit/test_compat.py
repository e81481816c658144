"""The door to Airflow, through what stands behind it: the supervisor's socket on 3.x, the database on 2.11."""

import asyncio
import importlib
import socket
import struct
import threading
import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_multikueue import _compat

airflow_2 = pytest.mark.skipif(not _compat.AIRFLOW_2, reason="what 2.11 does")
airflow_3 = pytest.mark.skipif(_compat.AIRFLOW_2, reason="what 3.x does")

TI = SimpleNamespace(
    id=uuid.UUID(int=7), dag_id="training", run_id="manual__1", task_id="train", map_index=-1, try_number=1
)


class Supervisor:
    """A supervisor at the other end of a real socket: answers by message type, and remembers what it was told."""

    def __init__(self, answers: dict[str, dict[str, Any]]) -> None:
        self.answers = answers
        self.messages: list[dict[str, Any]] = []
        self.task_side, self._socket = socket.socketpair()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> "Supervisor":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.task_side.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self.task_side.close()
        self._socket.close()

    def _serve(self) -> None:
        import msgspec

        while header := self._socket.recv(4):
            request = msgspec.msgpack.decode(self._socket.recv(struct.unpack(">I", header)[0]))
            self.messages.append(request[1])
            answer = self.answers.get(request[1]["type"], {"body": {"ok": True, "type": "OKResponse"}})
            frame = msgspec.msgpack.encode([request[0], answer.get("body"), answer.get("error")])
            self._socket.sendall(struct.pack(">I", len(frame)) + frame)


def state_answer(states: dict[str, Any]) -> dict[str, Any]:
    return {"body": {"task_states": states, "type": "TaskStatesResult"}}


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch):
    from airflow.sdk.execution_time import task_runner
    from airflow.sdk.execution_time.comms import CommsDecoder

    with Supervisor({"GetTaskStates": state_answer({"manual__1": {"train": "deferred"}})}) as supervisor:
        comms = CommsDecoder(socket=supervisor.task_side)
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", comms, raising=False)
        yield supervisor


@airflow_3
class TestOnAirflow3:
    async def test_state_of_a_deferred_task(self, supervisor: Supervisor):
        assert await _compat.task_state(TI) == "deferred"
        assert supervisor.messages == [
            {
                "type": "GetTaskStates",
                "dag_id": "training",
                "run_ids": ["manual__1"],
                "task_ids": ["train"],
                "map_index": -1,
                "task_group_id": None,
                "logical_dates": None,
            }
        ]

    async def test_state_of_a_mapped_task(self, supervisor: Supervisor):
        supervisor.answers["GetTaskStates"] = state_answer({"manual__1": {"train_3": "running"}})
        assert await _compat.task_state(SimpleNamespace(**vars(TI) | {"map_index": 3})) == "running"

    async def test_a_cleared_task_is_there_without_a_status(self, supervisor: Supervisor):
        supervisor.answers["GetTaskStates"] = state_answer({"manual__1": {"train": None}})
        assert await _compat.task_state(TI) == _compat.NO_STATUS

    async def test_a_deleted_task_is_gone(self, supervisor: Supervisor):
        supervisor.answers["GetTaskStates"] = state_answer({})
        assert await _compat.task_state(TI) is None

    async def test_no_answer_is_not_gone(self, supervisor: Supervisor):
        from airflow.sdk.exceptions import AirflowRuntimeError

        supervisor.answers["GetTaskStates"] = {
            "error": {"error": "GENERIC_ERROR", "detail": {"status": 500}, "type": "ErrorResponse"}
        }
        with pytest.raises(AirflowRuntimeError):
            await _compat.task_state(TI)

    async def test_an_xcom_is_pushed(self, supervisor: Supervisor):
        assert await _compat.push_xcom(TI, "placement", {"region": "us-east4"}) is True
        told = supervisor.messages[-1]
        assert told["type"] == "SetXCom"
        assert (told["dag_id"], told["run_id"], told["task_id"], told["map_index"]) == (
            "training", "manual__1", "train", -1,
        )  # fmt: skip
        assert (told["key"], told["value"]) == ("placement", {"region": "us-east4"})

    async def test_no_xcom_is_pushed_for_a_task_that_is_gone(self, supervisor: Supervisor):
        supervisor.answers["GetTaskStates"] = state_answer({})
        assert await _compat.push_xcom(TI, "placement", {}) is False
        assert [message["type"] for message in supervisor.messages] == ["GetTaskStates"]

    def test_a_second_loop_can_ask_too(self, supervisor: Supervisor):
        assert asyncio.run(_compat.task_state(TI)) == "deferred"
        assert asyncio.run(_compat.task_state(TI)) == "deferred"

    def test_the_id_is_the_task_instances_own(self):
        assert _compat.task_instance_id(TI) == str(TI.id)

    def test_base_url(self, monkeypatch: pytest.MonkeyPatch):
        assert _compat.base_url() is None
        monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.com/prod/")
        assert _compat.base_url() == "https://airflow.example.com/prod"


@pytest.fixture(scope="module")
def stored_task():
    """A task instance in a real database of Airflow 2.11, deferred."""
    from airflow.providers.common.compat.sdk import DAG
    from airflow.providers.standard.operators.empty import EmptyOperator
    from airflow.utils.db import initdb
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from airflow.utils.timezone import datetime
    from airflow.utils.types import DagRunType

    initdb(load_connections=False)
    start = datetime(2026, 1, 1)
    with DAG("training", start_date=start, schedule=None) as dag:
        EmptyOperator(task_id="train")
    with create_session() as session:
        dag.sync_to_db(session=session)
        run = dag.create_dagrun(
            run_id="manual__1", state=DagRunState.RUNNING, execution_date=start, run_type=DagRunType.MANUAL,
            data_interval=(start, start), session=session,
        )  # fmt: skip
        [ti] = run.get_task_instances(session=session)
        ti.state = "deferred"
    return TI


@airflow_2
class TestOnAirflow2:
    async def test_state_of_a_deferred_task(self, stored_task):
        assert await _compat.task_state(stored_task) == "deferred"

    async def test_a_deleted_task_is_gone(self, stored_task):
        assert await _compat.task_state(SimpleNamespace(**vars(stored_task) | {"run_id": "manual__2"})) is None

    async def test_an_xcom_is_pushed(self, stored_task):
        from airflow.models.xcom import XCom

        assert await _compat.push_xcom(stored_task, "placement", {"region": "us-east4"}) is True
        value = XCom.get_one(run_id="manual__1", dag_id="training", task_id="train", key="placement")
        assert value == {"region": "us-east4"}

    async def test_no_xcom_is_pushed_for_a_task_that_is_gone(self, stored_task):
        assert (
            await _compat.push_xcom(SimpleNamespace(**vars(stored_task) | {"task_id": "x"}), "placement", {}) is False
        )

    def test_the_id_is_the_same_for_every_try(self):
        again = SimpleNamespace(**{k: v for k, v in vars(TI).items() if k != "id"} | {"try_number": 2})
        assert _compat.task_instance_id(again) == _compat.task_instance_id(TI)

    def test_base_url(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setenv("AIRFLOW__WEBSERVER__BASE_URL", "https://airflow.example.com/prod/")
        assert _compat.base_url() == "https://airflow.example.com/prod"


async def test_a_connection_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AIRFLOW_CONN_FLEET", '{"conn_type": "multikueue", "extra": {"namespace": "team-a"}}')
    connection = await _compat.get_connection("fleet")
    assert (connection.conn_type, connection.extra_dejson) == ("multikueue", {"namespace": "team-a"})


async def test_masked_secrets_do_not_reach_the_log():
    from airflow.providers.common.compat.sdk import redact

    await _compat.mask_secrets(["s3cret-token-one", "s3cret-token-two"])
    assert "s3cret" not in str(redact("uses s3cret-token-one and s3cret-token-two"))


def test_every_name_is_there():
    for name in _compat.__all__:
        assert getattr(_compat, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Nothing"):
        importlib.import_module("airflow_provider_multikueue._compat").Nothing  # noqa: B018
