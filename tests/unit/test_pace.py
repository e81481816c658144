"""How the pace of records follows what their pipe takes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest

from airflow_provider_multikueue.logs.pace import BURST, LEAST, LESS, MORE, REST, WAITED, Pace


@pytest.fixture
def pace() -> Pace:
    return Pace(100, 10_000, now=0.0)


def test_the_budget_is_spent_and_comes_back_with_time_up_to_a_burst(pace):
    assert pace.room == 10_000 * BURST
    pace.spend(4_000)
    assert pace.room < 0
    pace.refill(0.2)
    assert pace.room == pytest.approx(10_000 * BURST - 4_000 + 2_000)
    pace.refill(60.0)
    assert pace.room == 10_000 * BURST


def test_records_are_counted_too(pace):
    for _ in range(int(100 * BURST)):
        pace.spend(1)
    assert pace.room == 0
    pace.refill(0.02)
    assert pace.room > 0


def test_after_a_write_that_waited_nothing_is_written_for_a_while_and_then_half_as_much(pace):
    pace.waited(WAITED * 2)
    pace.refill(REST * 0.9)
    assert pace.room <= 0
    pace.refill(REST + 0.1)
    assert 0 < pace.room < 0.1 * 10_000 * (LESS + MORE)
    assert pace.share == pytest.approx(LESS + MORE * (REST + 0.1))


def test_a_write_that_did_not_wait_or_came_in_the_rest_changes_nothing(pace):
    pace.waited(WAITED / 2)
    assert (pace.share, pace.room) == (1.0, 10_000 * BURST)
    pace.waited(1.0)
    pace.waited(1.0)  # a record that a task writes as it is closed
    assert pace.share == LESS


def test_the_pace_never_falls_to_nothing_and_rises_by_itself(pace):
    now = 0.0
    for _ in range(20):
        pace.waited(1.0)
        now += 2 * REST
        pace.refill(now)
        assert pace.room > 0
    assert LEAST <= pace.share < LEAST + 3 * MORE * REST
    pace.refill(now + 1 / MORE)
    assert pace.share == 1.0


def test_a_pipe_that_is_full_is_noticed(pace):
    ours, theirs = socket.socketpair()
    with contextlib.closing(ours), contextlib.closing(theirs):
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(b"x" * 65_536)
        ours.setblocking(True)
        reader = threading.Timer(0.1, theirs.recv, (1 << 20,))
        reader.start()
        with pace.writing():
            ours.sendall(b"x" * 1_000)
        reader.join()
    assert pace.share == LESS


def test_a_writer_that_only_works_is_not_taken_for_one_that_waits(pace):
    with pace.writing():
        until = time.thread_time() + 3 * WAITED
        while time.thread_time() < until:
            pass
    assert pace.share == 1.0
