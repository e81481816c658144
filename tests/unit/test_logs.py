"""Every line once, whatever the bytes, the cuts and the connections."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_multikueue.logs.lines import CONTINUED, CONTINUES, LineDecoder, LogCursor, canonical_time

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def stamp(nanoseconds: int) -> str:
    moment = START + timedelta(seconds=nanoseconds // 10**9)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds % 10**9:09d}Z"


class Log:
    """A container's log as a kubelet serves it."""

    def __init__(self, lines: list[tuple[int, bytes]], *, newline_at_end: bool = True) -> None:
        self.lines = lines
        self.newline_at_end = newline_at_end

    def read(self, since: str | None) -> bytes:
        """Return what the API sends for ``sinceTime``."""
        kept = [since is None or stamp(at) >= since.removesuffix("Z") for at, _ in self.lines]
        whole = b"".join(
            f"{stamp(at)} ".encode() + body + b"\n" for (at, body), keep in zip(self.lines, kept, strict=True) if keep
        )
        return whole if self.newline_at_end or not kept[-1] else whole[:-1]

    @property
    def texts(self) -> list[str]:
        return [body.decode("utf-8", "backslashreplace") for _, body in self.lines]


def joined(texts: list[str]) -> list[str]:
    """Parts of long lines put together again."""
    out: list[str] = []
    for text in texts:
        if text.startswith(CONTINUED) and out and out[-1].endswith(CONTINUES):
            out[-1] = out[-1].removesuffix(CONTINUES) + text.removeprefix(CONTINUED)
        else:
            out.append(text)
    return [text.removesuffix(CONTINUES) for text in out]


bodies = st.one_of(
    st.binary(max_size=40).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b"")),
    st.integers(0, 9).map(lambda n: b"line %d" % n),
    st.text(max_size=60).map(lambda t: t.replace("\n", "").replace("\r", "").encode("utf-8", "replace")),
    st.integers(20, 90).map(lambda n: "日本é".encode() * n),
    st.integers(80, 400).map(lambda n: b"0123456789abc" * (n // 13)),
).filter(lambda body: "⟪".encode() not in body)
# few different times, so that many lines share one, and seconds are crossed
times = st.integers(0, 40).map(lambda n: (n // 8) * 400_000_000 + n % 8 // 4)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Draw a log in order, or as two writers leave it: out of order by less than a second."""
    lines = sorted(draw(st.lists(st.tuples(times, bodies), min_size=1, max_size=30)), key=lambda line: line[0])
    if draw(st.booleans()):
        jitter = st.sampled_from([0, 0, 1, 400_000_000, 999_999_999])
        lines = [(at + draw(jitter), body) for at, body in lines]
    return Log(lines, newline_at_end=draw(st.booleans()))


def read(log: Log, cuts: list[int], sizes: list[int], *, hand_over: bool) -> list[str]:
    """Read the log over connections that are cut after so many bytes, in chunks of the given sizes."""
    decoder = LineDecoder(part_bytes=24)
    texts: list[str] = []
    chunk = 0
    for cut in [*cuts, None]:
        data = log.read(decoder.cursor.since_time)[:cut]
        while data:
            size = sizes[chunk % len(sizes)]
            chunk += 1
            texts += [text for _, text, _ in decoder.feed(data[:size])]
            data = data[size:]
        if cut is None:
            texts += [text for _, text, _ in decoder.finish()]
        elif hand_over:
            decoder = LineDecoder(LogCursor.from_json(json.loads(json.dumps(decoder.cursor.to_json()))), part_bytes=24)
        else:
            decoder.reconnect()
    assert decoder.gap is None
    return texts


@settings(max_examples=400, deadline=None)
@given(
    log=logs(),
    cuts=st.lists(st.integers(0, 1500), max_size=6),
    sizes=st.lists(st.integers(1, 200), min_size=1, max_size=5),
    hand_over=st.booleans(),
)
def test_any_bytes_in_any_cuts_over_any_connections_are_given_once(
    log: Log, cuts: list[int], sizes: list[int], hand_over: bool
) -> None:
    whole = LineDecoder(part_bytes=10**9)
    expected = [text for _, text, _ in whole.feed(log.read(None)) + whole.finish()]
    assert expected == log.texts
    assert joined(read(log, cuts, sizes, hand_over=hand_over)) == expected


@settings(max_examples=150, deadline=None)
@given(log=logs(), stop=st.integers(0, 40))
def test_the_mark_of_each_line_is_a_point_to_go_on_from(log: Log, stop: int) -> None:
    lines = LineDecoder().feed(Log(log.lines).read(None))
    index = min(stop, len(lines) - 1)
    cursor = LogCursor(*lines[index][2])
    rest = LineDecoder(cursor).feed(Log(log.lines).read(cursor.since_time))
    assert [line[1] for line in rest] == [line[1] for line in lines[index + 1 :]]


def test_a_thousand_numbered_lines_survive_a_cut_at_every_byte() -> None:
    log = Log([(n * 3_000_000 if n < 300 else 10**9 + n, b"line %d" % n) for n in range(1000)])
    whole = log.read(None)
    for cut in range(0, len(whole), 97):
        decoder = LineDecoder()
        texts = [line[1] for line in decoder.feed(whole[:cut])]
        decoder.reconnect()
        texts += [line[1] for line in decoder.feed(log.read(decoder.cursor.since_time))]
        assert texts == [f"line {n}" for n in range(1000)]


def test_six_megabytes_without_a_newline_come_in_parts_from_little_memory() -> None:
    body = "日本語".encode() * 700_000
    decoder = LineDecoder()
    data = f"{stamp(1)} ".encode() + body
    texts = []
    for start in range(0, len(data), 65536):
        texts += [line[1] for line in decoder.feed(data[start : start + 65536])]
        assert len(decoder._pending) <= 2 * 65536
    texts += [line[1] for line in decoder.finish()]
    assert joined(texts) == [body.decode()]
    assert all("\\x" not in text for text in texts)


def test_a_long_line_goes_on_within_itself_after_a_restart() -> None:
    body = b"0123456789" * 20_000
    data = f"{stamp(1)} before\n{stamp(2)} ".encode() + body + f"\n{stamp(3)} after\n".encode()
    first = LineDecoder()
    texts = [line[1] for line in first.feed(data[:100_000])]
    cursor = LogCursor.from_json(first.cursor.to_json())
    assert cursor.offset > 0
    texts += [line[1] for line in LineDecoder(cursor).feed(data)]
    assert joined(texts) == ["before", body.decode(), "after"]


def test_overwritten_states_of_a_progress_bar_are_let_go() -> None:
    decoder = LineDecoder(part_bytes=200)
    data = f"{stamp(1)} ".encode() + b"".join(b"\r%3d%% of the work" % n for n in range(100))
    assert decoder.feed(data) == []
    assert decoder.progress() == " 99% of the work"
    assert len(decoder._pending) < 230
    assert decoder.feed(b"\r100% of the work\n")[0][1].endswith("100% of the work")


def test_a_rotated_log_is_noticed() -> None:
    decoder = LineDecoder(LogCursor(stamp(5), 2))
    assert [line[1] for line in decoder.feed(f"{stamp(9)} new\n".encode())] == ["new"]
    assert decoder.gap == (stamp(5), stamp(9))


def test_the_rest_of_a_line_taken_before_is_passed_over_and_kept_at_the_beginning() -> None:
    headless = f"end of a long line\n{stamp(5)} a\n{stamp(6)} b\n".encode()
    assert [line[1] for line in LineDecoder(LogCursor(stamp(5), 1)).feed(headless)] == ["b"]
    assert [line[1] for line in LineDecoder().feed(headless)] == ["end of a long line", "a", "b"]


def test_a_clock_set_back_while_reading_repeats_and_loses_nothing() -> None:
    log = Log([(20 * 10**9, b"a"), (20 * 10**9, b"b"), (5 * 10**9, b"c"), (6 * 10**9, b"d")])
    whole = log.read(None)
    for cut in range(whole.index(b" d"), len(whole)):
        decoder = LineDecoder()
        decoder.feed(whole[:cut])
        rest = LineDecoder(decoder.cursor).feed(log.read(decoder.cursor.since_time))
        assert [line[1] for line in rest] == ["d"]


def test_reading_can_begin_at_a_moment() -> None:
    decoder = LineDecoder(LogCursor.at(START + timedelta(seconds=2)))
    assert decoder.cursor.since_time == "2026-01-02T03:04:06Z"
    lines = decoder.feed(f"{stamp(10**9)} old\n{stamp(2 * 10**9)} a\n{stamp(3 * 10**9)} b\n".encode())
    assert [line[1] for line in lines] == ["a", "b"]
    assert decoder.gap is None


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.000000000Z"),
        ("2026-01-02T03:04:05.12Z", "2026-01-02T03:04:05.120000000Z"),
        ("2026-01-02T03:04:05.123456789Z", "2026-01-02T03:04:05.123456789Z"),
        ("2026-01-02T12:04:05.5+09:00", "2026-01-02T03:04:05.500000000Z"),
        ("yesterday", ""),
    ],
)
def test_times_of_any_precision_and_zone_compare(text: str, canonical: str) -> None:
    assert canonical_time(text) == canonical


def test_a_moment_in_any_zone_is_the_same_cursor() -> None:
    tokyo = START.astimezone(timezone(timedelta(hours=9)))
    assert LogCursor.at(tokyo) == LogCursor.at(START)


@pytest.mark.parametrize("value", [None, {}, [], ["x", 1, 0, ""], [1, 2, 3, 4], "text"])
def test_what_is_no_cursor_reads_from_the_beginning(value: object) -> None:
    assert LogCursor.from_json(value) == LogCursor()
