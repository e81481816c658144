"""Logs of pods, through real HTTP, with the faults that streams have."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from airflow_provider_multikueue.decisions import podview
from airflow_provider_multikueue.logs import patience, reader
from airflow_provider_multikueue.logs import stream as logstream
from airflow_provider_multikueue.logs.lines import Mark
from airflow_provider_multikueue.logs.reader import PodLogs
from airflow_provider_multikueue.logs.sinks import DirectSink
from airflow_provider_multikueue.logs.text import Block
from tests.unit.kubelet import Pod, stamp


class Recorded:
    """A task's log."""

    def __init__(self) -> None:
        self.records: list[tuple[int, str]] = []

    def record(self, level: int, text: str) -> None:
        self.records.append((level, text))

    @property
    def lines(self) -> list[str]:
        return [line for _, text in self.records for line in text.split("\n") if not line.startswith("──")]

    @property
    def remarks(self) -> list[str]:
        return [line for _, text in self.records for line in text.split("\n") if line.startswith("──")]


@pytest.fixture
def out() -> Recorded:
    return Recorded()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - whatever the condition is
            await asyncio.sleep(0.01)


async def test_a_running_pod_is_shown_live_and_read_to_its_end(kubelet, cluster, out):
    pod = Pod(kubelet, "train-x7k9p")
    pod.start()
    logs = PodLogs(sink=out)
    logs.update(cluster, "us-east4", [pod.status()])
    pod.write("one", "two")
    await until(lambda: out.lines == ["one", "two"])
    pod.write("three")
    pod.end(3)
    logs.update(cluster, "us-east4", [pod.status()])
    await logs.drain(5)
    assert out.lines == ["one", "two", "three"]
    assert out.remarks == ["── pod train-x7k9p in us-east4 ──"]
    assert logs.tail() == ["one", "two", "three"]


async def test_an_instant_pod_is_read_at_its_first_sight(kubelet, cluster, out):
    pod = Pod(kubelet, "train-x7k9p")
    pod.start()
    pod.write(*(f"line {n}" for n in range(5000)))
    pod.end()
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    await logs.drain(5)
    assert out.lines == [f"line {n}" for n in range(5000)]
    assert "in worker-us" in out.remarks[0]


async def test_a_pod_that_waits_to_start_is_asked_again_soon(kubelet, cluster, out):
    pod = Pod(kubelet, "a")
    seen = pod.start()
    shown = pod.status()
    pod.runs.clear()
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [shown])
    await until(lambda: len(kubelet.requests) >= 2)
    pod.runs.append(seen)
    pod.write("here")
    await until(lambda: out.lines == ["here"])
    await logs.close()


async def test_news_of_a_pod_end_the_pause_after_failures(kubelet, cluster, out, monkeypatch):
    monkeypatch.setattr(logstream, "PAUSE", 3600.0)
    monkeypatch.setattr(logstream, "FAILED_PAUSE", 1800.0)
    kubelet.faults = [500]
    pod = Pod(kubelet, "a")
    pod.start()
    pod.write("here")
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    await until(lambda: kubelet.statuses[500] or not kubelet.faults)
    await until(lambda: not logs.update(cluster, None, [pod.status()]) and out.lines == ["here"])
    await logs.close()


@pytest.mark.parametrize("how", ["cut", "end"])
async def test_streams_that_are_cut_anywhere_give_each_line_once(kubelet, cluster, out, how):
    script = random.Random(7)
    kubelet.faults = [(how, script.randrange(1, 9000)) for _ in range(8)]
    pod = Pod(kubelet, "a")
    pod.start()
    second = 1_767_323_045 * 10**9
    for n in range(1000):
        pod.write(f"line {n} äöü", at=stamp(second + n * 1_000_000 if n < 300 else second + 10**9 + n))
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    await asyncio.sleep(0.3)
    pod.end()
    logs.update(cluster, None, [pod.status()])
    await logs.drain(10)
    assert out.lines == [f"line {n} äöü" for n in range(1000)]


async def test_a_last_line_without_newline_is_a_line(kubelet, cluster, out):
    pod = Pod(kubelet, "a")
    pod.start()
    pod.write("one")
    pod.runs[-1].open_end = b"no newline \xe4"
    pod.end()
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    await logs.drain(5)
    assert out.lines == ["one", "no newline \\xe4"]


@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_refusals_that_pass_are_outlasted(kubelet, cluster, out, status):
    kubelet.faults = [status] * 4
    pod = Pod(kubelet, "a")
    pod.start()
    pod.write("one")
    pod.end()
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    await logs.drain(10)
    assert out.lines == ["one"]


async def test_a_refusal_of_a_server_that_has_just_come_back_is_no_missing_right(kubelet, cluster, out):
    kubelet.faults = [503, 403, 403]
    pod = Pod(kubelet, "a")
    pod.start()
    pod.write("one")
    pod.end()
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    await logs.drain(10)
    assert (out.lines, out.remarks) == (["one"], ["── pod a in worker-us ──"])


async def test_a_silent_stream_does_not_hold_up_the_end(kubelet, cluster, out):
    kubelet.faults = ["silent"]
    pod = Pod(kubelet, "a")
    pod.start()
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    await until(lambda: kubelet.requests)
    pod.write("one")
    pod.end()
    logs.update(cluster, None, [pod.status()])
    await logs.drain(5)
    assert out.lines == ["one"]


async def test_a_silent_stream_of_a_running_container_is_opened_anew(kubelet, cluster, out, monkeypatch):
    monkeypatch.setattr(patience, "FIRST_SILENCE", 0.1)
    kubelet.faults = ["silent"]
    pod = Pod(kubelet, "a")
    pod.start()
    pod.write("one")
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    await until(lambda: out.lines == ["one"])
    await logs.close()


async def test_a_missing_right_is_said_once(kubelet, cluster, out):
    kubelet.faults = [403] * 9
    pods = [Pod(kubelet, f"p-{n}") for n in range(3)]
    for pod in pods:
        pod.start()
        pod.end()
    logs = PodLogs(sink=out)
    logs.update(cluster, "us-east4", [pod.status() for pod in pods])
    await logs.drain(5)
    [(level, text)] = out.records
    assert level == logging.WARNING
    assert "`get` `pods/log`" in text
    assert "worker-us (us-east4)" in text


async def test_a_pod_that_is_gone_before_it_was_read_is_told(kubelet, cluster, out):
    pod = Pod(kubelet, "a")
    pod.start()
    pod.write("one")
    pod.end()
    kubelet.faults = [("cut", 10), 500]
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    await until(lambda: len(kubelet.requests) >= 1)
    pod.delete()
    await logs.drain(5)
    [remark] = out.remarks
    assert "its pod is gone" in remark
    assert "may be missing" in remark


async def test_a_pod_that_was_read_and_is_gone_is_nothing_to_tell(kubelet, cluster, out):
    pod = Pod(kubelet, "a")
    pod.start()
    pod.write("one")
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    await until(lambda: out.lines)
    pod.delete()
    await logs.drain(10)
    assert out.remarks == ["── pod a in worker-us ──"]


async def test_pods_are_told_apart_only_where_there_are_several_at_a_time(kubelet, cluster, out):
    first, second, third = (Pod(kubelet, f"train-{letter * 5}") for letter in "abc")
    first.start()
    first.write("one")
    first.end(1)
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [first.status()])
    await until(lambda: not logs.reading)
    second.start()
    second.write("two")
    logs.update(cluster, None, [first.status(), second.status()])
    await until(lambda: out.lines == ["one", "two"])
    third.start()
    third.write("three")
    logs.update(cluster, None, [first.status(), second.status(), third.status()])
    await until(lambda: out.lines == ["one", "two", "[ccccc] three"])
    for pod in (second, third):
        pod.end()
    logs.update(cluster, None, [first.status(), second.status(), third.status()])
    await logs.drain(5)
    assert out.remarks == [f"── pod train-{letter * 5} in worker-us ──" for letter in "abc"]
    assert logs.tail() == ["one"]


async def test_numbered_pods_are_told_apart_by_number(kubelet, cluster, out):
    pods = [
        Pod(kubelet, f"train-{n}-{n}abcd", **{"batch.kubernetes.io/job-completion-index": str(n)}) for n in range(3)
    ]
    for pod in pods:
        pod.start()
        pod.write("hello")
        pod.end()
    logs = PodLogs(sink=out, several=True)
    logs.update(cluster, None, [pod.status() for pod in pods])
    await logs.drain(5)
    assert sorted(out.lines) == ["[0] hello", "[1] hello", "[2] hello"]


async def test_a_restarted_container_is_read_before_and_after(kubelet, cluster, out):
    pod = Pod(kubelet, "a")
    pod.start()
    pod.write("first run")
    pod.end(1)
    pod.start()
    pod.write("second run")
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    await until(lambda: len(out.lines) == 2)
    pod.end()
    logs.update(cluster, None, [pod.status()])
    await logs.drain(5)
    assert sorted(out.lines) == ["first run", "second run"]
    assert "── main in pod a: restart 1 ──" in out.remarks
    assert logs.tail() == ["first run"]


async def test_a_stream_that_ran_into_the_next_run_repeats_and_loses_nothing(kubelet, cluster, out):
    pod = Pod(kubelet, "a")
    pod.start()
    pod.write("one")
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status(1)])
    await until(lambda: out.lines == ["one"])
    pod.end(1)
    pod.start()
    await asyncio.sleep(0.5)  # the reader, told nothing, has opened the log again
    pod.write("two")
    await until(lambda: len(out.lines) == 2)
    logs.update(cluster, None, [pod.status()])
    pod.write("three")
    await until(lambda: len(out.lines) == 3)
    pod.end()
    logs.update(cluster, None, [pod.status()])
    await logs.drain(5)
    assert out.lines == ["one", "two", "three"]


async def test_policy_first_shows_one_pod_and_keeps_the_tail_of_others_that_fail(kubelet, cluster, out):
    pods = [Pod(kubelet, f"train-{n}", **{"batch.kubernetes.io/job-completion-index": str(n)}) for n in range(2)]
    for pod in pods:
        pod.start()
        pod.write(f"from {pod.name}")
    pods[1].end(7)
    pods[0].end(0)
    logs = PodLogs(sink=out, policy="first")
    logs.update(cluster, None, [pod.status() for pod in pods])
    await logs.drain(5)
    assert out.lines == ["[0] from train-0"]
    assert logs.tail() == ["from train-1"]


@pytest.mark.parametrize(("policy", "shown"), [("failed", ["[bad] bad"]), ("none", [])])
async def test_policies_failed_and_none(kubelet, cluster, out, policy, shown):
    good, bad = Pod(kubelet, "x-good"), Pod(kubelet, "x-bad")
    for pod, code in ((good, 0), (bad, 9)):
        pod.start()
        pod.write(pod.name.removeprefix("x-"))
        pod.end(code)
    logs = PodLogs(sink=out, policy=policy, several=True)
    logs.update(cluster, None, [good.status(), bad.status()])
    await logs.drain(5)
    assert out.lines == shown
    assert logs.tail() == ["bad"]


async def test_only_pods_that_have_changed_are_looked_at_again(kubelet, cluster, out, monkeypatch):
    looked: list[str] = []

    def runs(pod):
        looked.append(pod["metadata"]["name"])
        return podview.runs(pod)

    monkeypatch.setattr(reader, "podview", SimpleNamespace(**{**vars(podview), "runs": runs}))
    pods = [Pod(kubelet, f"x-{name}") for name in "abc"]
    statuses = [pod.status() for pod in pods]
    logs = PodLogs(sink=out, policy="none")
    for _ in range(3):
        logs.update(cluster, None, statuses)
    pods[1].start()
    logs.update(cluster, None, [statuses[0], pods[1].status(), statuses[2]])
    assert looked == ["x-a", "x-b", "x-c", "x-b"]


async def test_the_next_pod_is_shown_when_the_first_has_failed_though_it_has_not_changed_itself(kubelet, cluster, out):
    pods = {name: Pod(kubelet, f"x-{name}") for name in "ab"}
    for name, pod in pods.items():
        pod.start()
        pod.write(f"of {name}")
    logs, b = PodLogs(sink=out, policy="first"), pods["b"].status()
    logs.update(cluster, None, [pods["a"].status(), b])
    await until(lambda: out.lines == ["of a"])
    pods["a"].end(1)
    logs.update(cluster, None, [pods["a"].status(), b])
    await until(lambda: out.lines == ["of a", "of b"])
    await logs.close()


async def test_lines_bear_their_pods_name_while_several_are_read(kubelet, cluster, out):
    pods = [Pod(kubelet, f"x-{name}") for name in "ab"]
    logs = PodLogs(sink=out)
    assert not logs.reading
    for pod in pods:
        pod.start()
        logs.update(cluster, None, [each.status() for each in pods if each.runs])
    assert logs.several
    pods[0].end()
    logs.update(cluster, None, [pod.status() for pod in pods])
    await until(lambda: not logs.several)
    assert logs.reading
    pods[1].end()
    logs.update(cluster, None, [pod.status() for pod in pods])
    await until(lambda: not logs.reading)
    await logs.drain(5)


async def test_a_polite_stop_hands_on_where_it_stood(kubelet, cluster, out):
    done, open_ = Pod(kubelet, "a-done"), Pod(kubelet, "a-open")
    for pod in (done, open_):
        pod.start()
        pod.write(f"one {pod.name}")
    done.end()
    first = PodLogs(sink=out, several=True)
    pods = [done.status(), open_.status()]
    first.update(cluster, None, pods)
    await until(lambda: len(out.lines) == 2)
    await asyncio.sleep(0.1)
    cursors = json.loads(json.dumps(await first.hand_over()))
    open_.write("two")
    open_.end()
    second = PodLogs(sink=out, several=True, cursors=cursors)
    second.update(cluster, None, [done.status(), open_.status()])
    await second.drain(5)
    assert sorted(out.lines) == ["[done] one a-done", "[open] one a-open", "[open] two"]


class Killed(DirectSink):
    """The log of a process whose last lines are lost with it: those from the ``dying``-th on."""

    def __init__(self, sink: Recorded, dying: int) -> None:
        super().__init__(sink)
        self.dying, self.shown = dying, 0
        self.safe: dict[str, Mark] = {}

    def lines(self, source: str, block: Block) -> None:
        super().lines(source, block)
        self.shown += block.lines
        if not self.lost:
            self.safe[source] = block.mark

    def settled(self, source: str) -> Mark | None:
        return self.safe.get(source)

    @property
    def lost(self) -> bool:
        return self.shown > self.dying


@pytest.mark.parametrize("dying", [0, 2])
async def test_what_was_shown_just_before_a_loss_comes_again_under_a_line_that_says_so(kubelet, cluster, out, dying):
    pod = Pod(kubelet, "a")
    pod.start()
    gone = Recorded()
    first = PodLogs(sink=Killed(gone, dying))
    first.update(cluster, None, [pod.status()])
    for number in range(4):
        pod.write(f"line {number}")
        await until(lambda number=number: len(gone.lines) > number)
    cursors = json.loads(json.dumps(await first.hand_over()))
    pod.end()
    again = PodLogs(sink=out, cursors=cursors, resumed_at=datetime.now(UTC))
    again.update(cluster, None, [pod.status()])
    await again.drain(5)
    assert out.lines == [f"line {number}" for number in range(dying, 4)]
    assert "may be here a second time" in out.remarks[0]


async def test_a_pod_that_starts_after_a_loss_is_not_said_to_repeat(kubelet, cluster, out):
    pod = Pod(kubelet, "a")
    logs = PodLogs(sink=out, resumed_at=datetime.now(UTC) - timedelta(seconds=60))
    pod.start()
    pod.write("new")
    pod.end()
    status = pod.status()
    status["status"]["containerStatuses"][0]["state"]["terminated"]["startedAt"] = "2999-01-02T03:04:05Z"
    logs.update(cluster, None, [status])
    await logs.drain(5)
    assert out.lines == ["new"]
    assert not [text for text in out.remarks if "second time" in text]


async def test_a_pod_that_fails_after_a_loss_is_shown_from_its_beginning(kubelet, cluster, out):
    pod = Pod(kubelet, "a")
    pod.start()
    pod.write("cause", at="2026-01-02T03:04:05.000000001Z")
    pod.write("effect")
    pod.end(9)
    logs = PodLogs(sink=out, policy="failed", cursors={"other/main/0": "done"}, resumed_at=datetime.now(UTC))
    logs.update(cluster, None, [pod.status()])
    await logs.drain(5)
    assert out.lines == ["cause", "effect"]


async def test_late_lines_say_once_a_minute_when_they_were_written(kubelet, cluster, out):
    pod = Pod(kubelet, "a")
    pod.start()
    for text, second in (("old", "04:05"), ("WARNING: as old", "04:06"), ("no older", "04:55"), ("later", "05:01")):
        pod.write(text, at=f"2026-01-02T03:{second}.000000001Z")
    pod.end()
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    await logs.drain(5)
    assert "\n".join(text for _, text in out.records[1:]).split("\n") == [
        "── written 2026-01-02 03:04:05 UTC ──",
        "old",
        "WARNING: as old",
        "no older",
        "── written 2026-01-02 03:05:01 UTC ──",
        "later",
    ]


async def test_a_kubelet_that_cannot_read_is_not_a_line(kubelet, cluster, out):
    pod = Pod(kubelet, "a")
    run = pod.start()
    pod.write("one")
    pod.end()
    run.text = lambda since, **_: b"unable to retrieve container logs for fake://a-0"  # type: ignore[method-assign]
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    await logs.drain(12)
    assert out.lines == []
    assert "may be missing" in out.remarks[-1]


@pytest.fixture
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_SILENCE", 0.1)
    monkeypatch.setattr(logstream, "SHORT_PAUSE", 0.05)


@pytest.mark.usefixtures("_brisk")
async def test_a_gateway_that_holds_answers_back_is_read_in_short_reads(kubelet, cluster, out):
    kubelet.buffering = True
    pod = Pod(kubelet, "a")
    pod.start()
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    for n in range(20):
        pod.write(f"line {n}")
        await until(lambda n=n: out.lines[-1:] == [f"line {n}"])
    assert len([query for query in kubelet.requests if query["follow"] == "true"]) <= 3
    pod.end()
    logs.update(cluster, None, [pod.status()])
    await logs.drain(5)
    assert out.lines == [f"line {n}" for n in range(20)]


@pytest.mark.usefixtures("_brisk")
async def test_a_gateway_that_stops_to_hold_answers_back_is_followed_again(kubelet, cluster, out, monkeypatch):
    monkeypatch.setattr(patience, "SHORT_READS", 3)
    kubelet.buffering = True
    pod = Pod(kubelet, "a")
    pod.start()
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    for n in range(5):
        pod.write(f"line {n}")
        await until(lambda n=n: out.lines[-1:] == [f"line {n}"])
    kubelet.buffering = False
    await until(lambda: kubelet.requests[-1]["follow"] == "true")
    before = len(kubelet.requests)
    pod.write("in time")
    await until(lambda: out.lines[-1:] == ["in time"])
    assert len(kubelet.requests) <= before + 2
    await logs.close()
    assert out.lines == [*(f"line {n}" for n in range(5)), "in time"]


@pytest.mark.usefixtures("_brisk")
async def test_a_quiet_container_is_followed_and_seldom_asked(kubelet, cluster, out):
    pod = Pod(kubelet, "a")
    pod.start()
    logs = PodLogs(sink=out)
    logs.update(cluster, None, [pod.status()])
    await asyncio.sleep(1.0)
    assert len(kubelet.requests) < 12
    pod.write("one")
    await until(lambda: out.lines == ["one"])
    await logs.close()
