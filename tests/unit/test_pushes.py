"""XComs of triggers: how often the supervisor is asked to write, what is replaced, what is dropped, what stays."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_multikueue.decisions.outcome import Outcome
from airflow_provider_multikueue.decisions.report import Dispatches, build_report, parse_job_reference
from airflow_provider_multikueue.decisions.workload import Observation, Phase
from airflow_provider_multikueue.operators import MultiKueueJobOperator
from airflow_provider_multikueue.pushes import PushQueue, shared_pushes
from airflow_provider_multikueue.sensors import MultiKueueAdmissionSensor, MultiKueueJobSensor

JOB = {"api_version": "batch/v1", "kind": "Job", "namespace": "default", "name": "train-1", "uid": "u"}


@dataclass
class Task:
    task_id: str
    dag_id: str = "dag"
    run_id: str = "run"
    map_index: int = -1


class Selector(selectors.DefaultSelector):
    """Nobody waits: the time that a loop would sleep is added to its clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing is left to happen"
        self.now += timeout
        return super().select(0)


def unhurried(work: Coroutine[Any, Any, None]) -> None:
    """Run the work in a time of its own."""

    def make_loop() -> asyncio.AbstractEventLoop:
        selector = Selector()
        loop = asyncio.SelectorEventLoop(selector)
        loop.time = lambda: selector.now  # type: ignore[method-assign]
        return loop

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(work)


@dataclass
class Supervisor:
    """Takes as long for each write as it is told, and keeps what was written."""

    seconds: list[float] = field(default_factory=list)
    begun: list[float] = field(default_factory=list)
    written: list[tuple[str, str, Any]] = field(default_factory=list)
    asked: int = 0

    async def write(self, ti: Any, key: str, value: Any) -> None:
        self.begun.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.seconds.pop(0) if self.seconds else 0.01)
        self.written.append((ti.task_id, key, value))
        if value == "refused":
            raise RuntimeError("refused")

    async def ask(self, _: Any) -> None:
        self.asked += 1
        raise RuntimeError("no answer")

    @property
    def queue(self) -> PushQueue:
        return PushQueue(self.write, self.ask)


@pytest.mark.parametrize("seconds", [0.02, 4.5, 12.0])
def test_writes_take_a_fifth_of_the_time_at_most_however_long_one_is(seconds: float) -> None:
    supervisor = Supervisor([seconds] * 5)

    async def work() -> None:
        queue = supervisor.queue
        for number in range(5):
            queue.of(Task(str(number))).put("placement", number)
        await asyncio.sleep(1_000)

    unhurried(work())
    pauses = [after - before for before, after in zip(supervisor.begun, supervisor.begun[1:], strict=False)]
    assert pauses == pytest.approx([seconds * 5] * 4)


def test_a_value_that_waits_is_replaced_by_a_newer_one_and_one_being_written_is_followed_by_it() -> None:
    supervisor = Supervisor()

    async def work() -> None:
        pushes = supervisor.queue.of(Task("a"))
        pushes.put("placement", "never seen")
        pushes.put("link", "l")
        pushes.put("placement", "first")
        await asyncio.sleep(0.005)  # the first is being written
        pushes.put("placement", "second")
        await asyncio.sleep(1_000)

    unhurried(work())
    assert supervisor.written == [("a", "placement", "first"), ("a", "link", "l"), ("a", "placement", "second")]


def test_a_task_that_is_done_takes_back_its_own_alone_also_from_another_try_of_the_same() -> None:
    supervisor = Supervisor()

    async def work() -> None:
        queue = supervisor.queue
        first, again, other = queue.of(Task("a")), queue.of(Task("a")), queue.of(Task("b"))
        first.put("placement", "old")
        again.put("placement", "new")
        other.put("placement", "other")
        first.drop()
        first.drop()
        await asyncio.sleep(1_000)
        first.put("placement", "late")
        await asyncio.sleep(1_000)

    unhurried(work())
    assert [value for _, _, value in supervisor.written] == ["new", "other", "late"]


def test_a_write_that_fails_and_a_task_that_is_cancelled_cost_the_others_nothing() -> None:
    supervisor = Supervisor([12.0])

    async def work() -> None:
        queue = supervisor.queue

        async def trigger() -> None:
            queue.of(Task("a")).put("placement", "refused")
            await asyncio.sleep(3_600)

        running = asyncio.create_task(trigger())
        await asyncio.sleep(1)
        queue.of(Task("b")).put("placement", "b")
        running.cancel()
        await asyncio.sleep(1_000)

    unhurried(work())
    assert supervisor.written == [("a", "placement", "refused"), ("b", "placement", "b")]


def test_the_supervisor_is_asked_once_and_nothing_is_written_for_nobody() -> None:
    supervisor = Supervisor()

    async def work() -> None:
        queue = supervisor.queue
        for task in (Task("a"), Task("b"), None):
            queue.of(task).prepare()
        queue.of(None).put("placement", "p")
        queue.of(None).drop()
        await asyncio.sleep(1_000)
        assert shared_pushes() is shared_pushes()

    unhurried(work())
    assert (supervisor.asked, supervisor.written) == (1, [])


@pytest.mark.parametrize("cls", [MultiKueueJobOperator, MultiKueueJobSensor, MultiKueueAdmissionSensor])
def test_what_the_trigger_had_no_turn_to_write_the_tasks_process_writes(
    cls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed: dict[str, Any] = {}

    class Instance(Task):
        def xcom_push(self, key: str, value: Any) -> None:
            pushed[key] = value

    seen = Observation(phase=Phase.SUCCEEDED, cluster="us", region="us-east4", admitted=None)
    report = build_report(seen, job=parse_job_reference(JOB), dispatches=Dispatches(), nodes=[], zones=[])
    placement = {"cluster": "us", "region": "us-east4", "zones": [], "nodes": [], "flavors": {}}
    event = Outcome(report={**report, "placement": placement}, ended=False).to_event()
    monkeypatch.setattr(MultiKueueJobOperator, "_settle", lambda *_, **__: None)  # for which a manager is needed
    cls(task_id="t", job="default/train-1").execute_complete({"ti": Instance("t")}, event)
    assert pushed == {"placement": placement}
