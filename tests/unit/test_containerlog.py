"""A container's log gives back what was written, as a kubelet would."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_multikueue.sandbox.containerlog import ContainerLog, LogOptions, stamp

SECOND = 1_000_000_000
STAMPED = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z ")


class Clock:
    """Time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_700_000_000 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> ContainerLog:
    return ContainerLog(tmp_path / "logs" / "main-0.log", clock=clock)


async def read(log: ContainerLog, **options: object) -> bytes:
    return b"".join([piece async for piece in log.read(LogOptions(**options))])  # type: ignore[arg-type]


def nanoseconds(text: bytes) -> int:
    head, _, rest = text.rstrip(b"Z").partition(b".")
    moment = datetime.strptime(head.decode(), "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    return int(moment.timestamp()) * SECOND + int(rest)


async def test_a_line_becomes_visible_with_its_newline(log: ContainerLog) -> None:
    log.write(b"one\ntw")
    assert await read(log) == b"one\n"
    log.write(b"o\n")
    assert await read(log) == b"one\ntwo\n"


async def test_an_unfinished_last_line_becomes_visible_at_the_end_without_a_newline_of_ours(log: ContainerLog) -> None:
    log.write(b"one\nlast")
    log.close()
    assert await read(log) == b"one\nlast"
    assert re.fullmatch(STAMPED.pattern + rb"one\n" + STAMPED.pattern + b"last", await read(log, timestamps=True))


async def test_a_line_without_end_becomes_visible_in_parts(log: ContainerLog) -> None:
    log.write(b"x" * 20_000)
    log.write(b"y" * 10)
    assert await read(log) == b"x" * 20_000
    log.write(b"\n")
    assert await read(log, timestamps=True) == stamp(1_700_000_000 * SECOND) + b" " + b"x" * 20_000 + b"y" * 10 + b"\n"


async def test_bytes_are_kept_as_they_are(log: ContainerLog) -> None:
    data = b"\xe4\n\0\r\n\xff\xfe" + bytes(range(256))
    log.write(data)
    log.close()
    assert await read(log) == data
    assert log.path.read_bytes() == data


async def test_lines_that_came_together_have_rising_stamps(log: ContainerLog) -> None:
    log.write(b"a\nb\nc\n")
    log.write(b"d\n")
    stamps = [line.split(b" ")[0] for line in (await read(log, timestamps=True)).splitlines()]
    assert stamps == sorted(set(stamps))
    assert stamps[0] == b"2023-11-14T22:13:20.000000000Z"


async def test_stamps_carry_over_into_the_next_second(log: ContainerLog, clock: Clock) -> None:
    clock.now += SECOND - 150
    log.write(b"a\nb\nc\nd\n")
    stamps = [nanoseconds(line.split(b" ")[0]) for line in (await read(log, timestamps=True)).splitlines()]
    assert stamps == [clock.now + 100 * index for index in range(4)]


async def test_since_begins_at_the_first_line_not_older(log: ContainerLog, clock: Clock) -> None:
    for index in range(4):
        log.write(b"line %d\nand %d\n" % (index, index))
        clock.now += SECOND
    start = clock.now - 2 * SECOND
    assert await read(log, since=start) == b"line 2\nand 2\nline 3\nand 3\n"
    assert await read(log, since=start + 100) == b"and 2\nline 3\nand 3\n"
    assert await read(log, since=start + 101) == b"line 3\nand 3\n"
    assert await read(log, since=0) == await read(log)
    assert await read(log, since=clock.now) == b""


@pytest.mark.parametrize(("lines", "expected"), [(0, b""), (1, b"c"), (2, b"b\nc"), (3, b"a\nb\nc"), (9, b"a\nb\nc")])
async def test_tail_counts_an_unfinished_line(log: ContainerLog, lines: int, expected: bytes) -> None:
    log.write(b"a\nb\nc")
    log.close()
    assert await read(log, tail_lines=lines) == expected


@pytest.mark.parametrize(("lines", "expected"), [(1, b"c\n"), (2, b"b\nc\n"), (3, b"a\nb\nc\n"), (4, b"a\nb\nc\n")])
async def test_tail_of_whole_lines(log: ContainerLog, lines: int, expected: bytes) -> None:
    log.write(b"a\nb\nc\n")
    assert await read(log, tail_lines=lines) == expected


async def test_tail_far_from_the_end(log: ContainerLog) -> None:
    lines = [b"%06d %s\n" % (index, b"x" * 90) for index in range(20_000)]
    for start in range(0, len(lines), 500):
        log.write(b"".join(lines[start : start + 500]))
    assert await read(log, tail_lines=15_001) == b"".join(lines[-15_001:])


async def test_limit_counts_stamps_too_and_cuts_anywhere(log: ContainerLog) -> None:
    log.write(b"hello\nworld\n")
    assert await read(log, limit_bytes=8) == b"hello\nwo"
    assert await read(log, limit_bytes=33, timestamps=True) == b"2023-11-14T22:13:20.000000000Z he"


async def test_a_follower_gets_each_line_as_it_comes_and_ends_with_the_container(log: ContainerLog) -> None:
    pieces: list[bytes] = []

    async def follow() -> None:
        async for piece in log.read(LogOptions(follow=True)):
            pieces.append(piece)  # noqa: PERF401 - looked at while it grows

    task = asyncio.create_task(follow())
    for text in (b"one\n", b"two\n"):
        log.write(text)
        await asyncio.sleep(0.01)
    assert pieces == [b"one\n", b"two\n"]
    log.write(b"rest")
    log.close()
    await task
    assert b"".join(pieces) == b"one\ntwo\nrest"


async def test_without_follow_what_comes_later_is_left_out(log: ContainerLog) -> None:
    log.write(b"one\n")
    reader = log.read(LogOptions())
    first = await anext(reader)
    log.write(b"two\n")
    assert [first, *[piece async for piece in reader]] == [b"one\n"]


@given(
    pieces=st.lists(st.binary(max_size=60) | st.sampled_from([b"\n", b"a\n\nb", b"z" * 17_000])), cut=st.integers(0, 9)
)
@settings(max_examples=150, deadline=None)
def test_stamped_and_plain_reading_agree_for_any_bytes(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], cut: int
) -> None:
    log = ContainerLog(tmp_path_factory.mktemp("log") / "log", clock=Clock())
    for piece in pieces:
        log.write(piece)
    log.close()
    whole = b"".join(pieces)

    async def check() -> None:
        assert await read(log) == whole
        stamped = await read(log, timestamps=True)
        lines = stamped.split(b"\n")
        assert b"\n".join(STAMPED.sub(b"", line, count=1) for line in lines) == whole
        tail = whole.split(b"\n")
        if whole.endswith(b"\n"):
            tail = tail[:-1]
        expected = b"\n".join(tail[len(tail) - cut :] if cut and cut <= len(tail) else tail if cut else [])
        got = await read(log, tail_lines=cut)
        assert got == expected + (b"\n" if whole.endswith(b"\n") and got else b"")

    asyncio.run(check())
    assert log.last(size=10, lines=80) == whole[-10:] or len(whole) > 10


async def test_what_was_rotated_away_is_served_to_nobody_who_comes_later(log: ContainerLog, clock: Clock) -> None:
    log.write(b"one\ntwo\n")
    following = log.read(LogOptions(follow=True))
    assert await anext(following) == b"one\ntwo\n"
    log.rotate()
    clock.now += SECOND
    log.write(b"three\n")
    assert await anext(following) == b"three\n"
    await following.aclose()
    assert await read(log) == await read(log, tail_lines=3) == await read(log, since=0) == b"three\n"
