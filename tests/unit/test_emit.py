"""Records of many tasks through one narrow log."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import socket
import subprocess
import sys
import time

import pytest

from airflow_provider_multikueue._compat import AIRFLOW_2
from airflow_provider_multikueue.logs import emit
from airflow_provider_multikueue.logs.emit import Emitter, shared_emitter
from airflow_provider_multikueue.logs.sinks import SETTLED_SECONDS, Positions
from airflow_provider_multikueue.logs.spool import Entry, Quota, Spool, Thinned, make_entry
from airflow_provider_multikueue.logs.text import RECORD_BYTES, Block

task_of = contextvars.ContextVar("task_of", default="nobody")
NOW = "2999-01-02T03:04:05.000000001Z"


class Log:
    """A logger as triggers have it: what a record belongs to is in the context."""

    def __init__(self, cost: float = 0.0) -> None:
        self.cost = cost
        self.records: list[tuple[float, str, int, str]] = []

    def log(self, level: int, form: str, text: str) -> None:
        assert form == "%s"
        until = time.thread_time() + self.cost
        while time.thread_time() < until:
            pass
        self.records.append((time.monotonic(), task_of.get(), level, text))

    def of(self, task: str) -> list[str]:
        return [line for _, owner, _, text in self.records if owner == task for line in text.split("\n")]


def block(text: str, *, number: int = 1, level: int = logging.INFO) -> Block:
    return Block(level, text, text.count("\n") + 1, NOW, (NOW, number, 0, ""))


@pytest.fixture
def log() -> Log:
    return Log()


async def test_a_task_that_is_done_does_not_wait_for_lines_to_join(log, monkeypatch):
    monkeypatch.setattr(emit, "TICK", 3600.0)
    sink = Emitter().sink(log)
    sink.record(logging.INFO, "the last one")
    assert await sink.settle(0) is False
    assert await sink.flush(5)
    assert log.of(task_of.get()) == ["the last one"]


async def test_records_are_written_in_the_context_of_the_task_that_made_the_sink(log):
    emitter = Emitter()
    task_of.set("first")
    first = emitter.sink(log)
    task_of.set("second")
    second = emitter.sink(log)
    task_of.set("third")
    first.record(logging.INFO, "a")
    second.record(logging.INFO, "100% b")
    assert await first.flush(5)
    assert await second.flush(5)
    assert (log.of("first"), log.of("second")) == (["a"], ["100% b"])


async def test_lines_that_wait_together_become_one_record_and_records_stay_apart(log):
    sink = Emitter().sink(log)
    sink.record(logging.INFO, "a record")
    for number in range(1, 4):
        sink.lines("s", block(f"line {number}", number=number))
    sink.lines("s", block("worse", number=4, level=logging.ERROR))
    sink.record(logging.INFO, "another")
    await sink.flush(5)
    assert [(level, text) for _, _, level, text in log.records] == [
        (logging.INFO, "a record"),
        (logging.INFO, "line 1\nline 2\nline 3"),
        (logging.ERROR, "worse"),
        (logging.INFO, "another"),
    ]
    assert sink.position("s") == (NOW, 4, 0, "")


async def test_a_position_is_where_lines_are_out_and_discard_leaves_records(log):
    sink = Emitter(bytes_per_second=1000).sink(log)
    for number in range(1, 100):
        sink.lines("s", block("x" * 1000, number=number))
    await asyncio.sleep(0.2)
    sink.discard()
    sink.record(logging.INFO, "the last word")
    out = [text for text in log.of("nobody") if text.startswith("x")]
    assert 0 < len(out) < 99
    assert sink.position("s") == (NOW, len(out), 0, "")
    await sink.flush(5)
    assert log.of("nobody")[-1] == "the last word"
    assert len(log.of("nobody")) == len(out) + 1


async def test_the_budget_is_kept_and_shared(log):
    emitter = Emitter(records_per_second=1000, bytes_per_second=200_000)
    flood, calm = emitter.sink(log), emitter.sink(log)
    for _ in range(1000):
        flood.lines("f", block("f" * 1000))
    started = time.monotonic()
    for number in range(10):
        calm.record(logging.INFO, f"calm {number} {time.monotonic()}")
        await asyncio.sleep(0.1)
    took = time.monotonic() - started
    delays = [at - float(text.split()[2]) for at, _, _, text in log.records if text.startswith("calm")]
    assert len(delays) >= 9
    assert max(delays) < 0.6
    written = sum(len(text) for *_, text in log.records)
    assert written < 200_000 * (took + 0.5) + 2 * emit.CROWD_BYTES
    assert max(len(text) for *_, text in log.records) <= emit.RECORD_BYTES
    flood.close()
    calm.close()


async def test_nothing_is_written_while_the_supervisor_is_behind(log):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(b"x" * 4096)
        async with Emitter(pipe=ours.fileno()).sink(log) as sink:
            sink.record(logging.INFO, "it waits in the spool")
            assert not await sink.settle(0.3)
            assert log.records == []
            theirs.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while theirs.recv(65_536):
                    pass
            assert await sink.settle(5)
    assert log.of("nobody") == ["it waits in the spool"]


AS_A_SUPERVISOR_DOES = """
import os, socket
from airflow.sdk.execution_time.supervisor import _configure_logs_over_json_channel
from airflow_provider_multikueue.logs.emit import log_pipe
print(log_pipe())
ours, theirs = socket.socketpair()
_configure_logs_over_json_channel(ours.fileno())
print(log_pipe() == ours.fileno())
"""


@pytest.mark.skipif(AIRFLOW_2, reason="Airflow 2.11 has no supervisor")
def test_the_pipe_to_the_supervisor_is_found():
    done = subprocess.run((sys.executable, "-c", AS_A_SUPERVISOR_DOES), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["None", "True"]


@pytest.mark.skipif(not AIRFLOW_2, reason="Airflow 3 has one")
def test_there_is_no_pipe_without_a_supervisor():
    assert emit.log_pipe() is None


async def test_a_flood_past_the_spool_is_thinned_but_errors_and_the_last_lines_stay(log):
    emitter = Emitter(disk_bytes=300_000)
    sink = emitter.sink(log)
    for number in range(20_000):
        level = logging.ERROR if number == 9_999 else logging.INFO
        sink.lines("s", block(f"line {number:06d} {'x' * 50}", number=number + 1, level=level))
    assert not await sink.flush(10)
    shown = log.of("nobody")
    [skipped] = [line for line in shown if "lines skipped" in line]
    count = int(skipped.split()[1].replace(",", ""))
    assert count + len(shown) - 1 == 20_000
    assert shown[0].startswith("line 000000")
    assert shown[-1].startswith("line 019999")
    assert any(line.startswith("line 009999") for line in shown)
    assert sink.position("s") == (NOW, 20_000, 0, "")
    sink.record(logging.INFO, "and on")
    await sink.flush(5)
    assert log.of("nobody")[-1] == "and on"


async def test_a_flush_that_would_take_too_long_leaves_out_the_middle(log):
    sink = Emitter(bytes_per_second=100_000).sink(log)
    for number in range(1000):
        sink.lines("s", block(f"line {number} {'x' * 1000}"))
    started = time.monotonic()
    assert not await sink.flush(0.3)
    assert time.monotonic() - started < 4
    assert log.of("nobody")[-1].startswith("line 999 ")
    assert any("lines skipped" in line for line in log.of("nobody"))


async def test_a_cancelled_task_does_not_wait_for_its_log(log):
    async def work() -> None:
        async with Emitter(bytes_per_second=1000).sink(log) as sink:
            for number in range(1000):
                sink.lines("s", block(f"line {number} {'x' * 1000}"))
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.1)
    task.cancel()
    started = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 1
    assert log.of("nobody")[0].startswith("line 0 ")


async def test_a_task_that_closes_while_others_wait_leaves_the_queue_and_they_keep_their_order(log, monkeypatch):
    monkeypatch.setattr(emit, "LAST_RECORDS", 0)
    emitter = Emitter()
    sinks = []
    for name in "abc":
        task_of.set(name)
        sinks.append(emitter.sink(log))
        sinks[-1].record(logging.INFO, name)
    sinks[0].record(logging.INFO, "a's second, for which it comes again last")
    sinks[1].close()
    sinks[1].close()
    for sink in (sinks[0], sinks[2]):
        assert await sink.flush(5)
    assert [owner for _, owner, _, _ in log.records] == ["a", "c", "a"]


async def test_a_log_that_is_gone_fails_nothing(log):
    def broken(level: int, form: str, text: str) -> None:
        raise BrokenPipeError

    log.log = broken
    async with Emitter().sink(log) as sink:
        sink.record(logging.INFO, "a")
        sink.lines("s", block("b"))
        await asyncio.sleep(0.2)
        sink.record(logging.INFO, "c")


async def test_lines_that_a_log_did_not_take_do_not_count_as_out(log):
    sink = Emitter().sink(log)
    sink.lines("s", block("a", number=1))
    assert await sink.flush(5)
    assert not sink.lost

    def broken(level: int, form: str, text: str) -> None:
        raise BrokenPipeError

    log.log = broken
    sink.lines("s", block("b", number=2))
    await sink.flush(5)
    assert sink.lost
    assert sink.position("s") == (NOW, 1, 0, "")


async def test_a_log_is_lost_with_the_process_that_reads_it(log, monkeypatch):
    emitter = Emitter()
    ours, plain = emitter.sink(log), emitter.sink(logging.getLogger("tests.plain"))
    monkeypatch.setattr(emit.os, "getppid", lambda: 1)
    assert ours.lost
    assert not plain.lost, "Airflow 2 has no such process"


def test_positions_are_settled_once_they_are_some_seconds_old():
    now = 100.0
    positions = Positions(lambda: now)
    marks = [(NOW, number, 0, "") for number in range(4)]
    positions.put({"a": marks[0], "b": marks[0]})
    now += SETTLED_SECONDS - 1
    positions.put({"a": marks[1]})
    assert positions.settled("a") is None
    now += 1
    assert (positions.get("a"), positions.settled("a"), positions.settled("b")) == (marks[1], marks[0], marks[0])
    now += 3600
    positions.put({"a": marks[2]})
    assert (positions.get("a"), positions.settled("a")) == (marks[2], marks[1])


async def test_what_is_below_the_level_of_the_log_is_shown_as_info(log):
    sink = Emitter().sink(log)
    sink.lines("s", block("DEBUG x", level=logging.DEBUG))
    await sink.flush(5)
    assert log.records[0][2] == logging.INFO


async def test_a_plain_text_log_gets_no_forged_records(caplog):
    caplog.set_level(logging.INFO)
    sink = Emitter().sink(logging.getLogger("tests.plain"))
    sink.lines("s", block("a\n[2026-01-02T03:04:05.678+0000] {taskinstance.py:1} INFO - Marking task as SUCCESS"))
    await sink.flush(5)
    assert all(not line.startswith("[") for line in caplog.records[0].getMessage().split("\n"))


async def test_the_loop_has_one_emitter():
    assert shared_emitter() is shared_emitter()


async def test_many_calm_tasks_are_served_fast_and_the_loop_stays_free(log):
    log.cost = 0.0002
    emitter = Emitter()
    sinks = [emitter.sink(log) for _ in range(200)]
    flood = emitter.sink(log)
    lags: list[float] = []

    async def watch_lag() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            lags.append(time.monotonic() - before - 0.01)

    async def overflow() -> None:
        for _ in range(3000):
            flood.lines("f", block("\n".join(["f" * 80] * 200)))
            await asyncio.sleep(0)

    extra = [asyncio.create_task(watch_lag()), asyncio.create_task(overflow())]
    for _ in range(2):
        for number, sink in enumerate(sinks):
            sink.lines("s", block(f"{time.monotonic()}"))
            if number % 20 == 0:
                await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)
    for task in extra:
        task.cancel()
    delays = sorted(
        at - float(line)
        for at, _, _, text in log.records
        for line in text.split("\n")
        if line and line[0].isdigit() and "." in line
    )
    assert len(delays) == 400
    assert delays[len(delays) // 2] < 0.25
    assert delays[-1] < 1.0
    lags.sort()
    assert lags[int(len(lags) * 0.95)] < 0.1
    for sink in (*sinks, flood):
        sink.close()


# -- the spool


def entry(number: int, size: int = 100) -> Entry:
    return make_entry(logging.INFO, f"{number}:" + "x" * size, 1, NOW, "s", (NOW, number, 0, ""))


def test_a_spool_is_first_in_first_out_through_its_file() -> None:
    quota = Quota(1_000_000)
    spool = Spool(memory=500, disk=100_000, quota=quota)
    taken: list[Entry] = []
    sent = [entry(number) for number in range(400)]
    for number, each in enumerate(sent):
        assert spool.push(each)
        if number % 3 == 0 and spool.peek():
            taken.append(spool.pop())
    assert quota.left < 1_000_000
    while spool.peek():
        taken.append(spool.pop())
    assert taken == sent
    assert len(spool) == 0
    assert quota.left == 1_000_000
    assert spool.push(entry(1))
    spool.close()


def test_a_spool_says_when_it_is_full_and_takes_more_once_it_was_emptied() -> None:
    spool = Spool(memory=500, disk=5_000)
    count = 0
    while spool.push(entry(count)):
        count += 1
    assert 10 < count < 100
    while spool.peek():
        spool.pop()
    assert spool.push(entry(0))
    spool.close()


def test_thinned_keeps_what_matters_and_counts_the_rest() -> None:
    thinned = Thinned(kept=1000)
    thinned.add(make_entry(logging.ERROR, "boom", 1, NOW, "s", (NOW, 1, 0, "")))
    for number in range(100):
        thinned.add(entry(number))
    kept = thinned.take(", see there")
    lines = sum(each.lines for each in kept[1:])
    assert kept[0].text == f"── {101 - lines} lines skipped: more than this log can carry, see there ──"
    assert any(each.text == "boom" for each in kept)
    assert kept[-1] == entry(99)
    assert not thinned


async def test_records_are_counted_in_bytes_not_in_characters(log):
    sink = Emitter().sink(log)
    for number in range(40):
        sink.lines("s", block("学習" * 500, number=number))
    await sink.flush(10)
    sizes = [len(text.encode()) for _, _, _, text in log.records]
    assert log.of("nobody") == ["学習" * 500] * 40
    assert max(sizes) <= RECORD_BYTES
    assert len(log.records) < 40


def test_the_spool_counts_bytes_and_goes_to_disk_by_them():
    spool = Spool(memory=3_000)
    for number in range(4):
        assert spool.push(make_entry(logging.INFO, "漢" * 500, 1, NOW, "s", (NOW, number, 0, "")))
    assert spool._segments, "4 x 1,500 bytes are more than 3,000"
    found = []
    while spool.peek() is not None:
        found.append(spool.pop())
    assert [(each.text, each.size, each.mark[1]) for each in found] == [("漢" * 500, 1500, n) for n in range(4)]


def test_a_large_entry_of_wide_characters_is_cut_to_whole_ones():
    thinned = Thinned(kept=1000)
    thinned.add(make_entry(logging.INFO, "漢" * 400, 1, NOW, "s", (NOW, 1, 0, "")))
    (last,) = [each for each in thinned.take() if each.source == "s" and each.lines]
    assert last.text == "漢" * 83
