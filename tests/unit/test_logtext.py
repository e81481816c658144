"""Lines of a container as a task log can show them."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_multikueue.logs.lines import Line, LineDecoder
from airflow_provider_multikueue.logs.text import RECORD_BYTES, Levels, blocks, clean, pieces

TIME = "2026-01-02T03:04:05.000000001Z"


def lines(*texts: str, time: str = TIME) -> list[Line]:
    return [(time, text, (time, number + 1, 0, "")) for number, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain text, äöü 日本\t✓", "plain text, äöü 日本\t✓"),
        ("a\0b\x07", "a\\x00b\\x07"),
        ("windows\r", "windows"),
        (" 1%\r 50%\r100%", "100%"),
        (" 1%\r 50%\r100%\r", "100%"),
        ("10\b\b20", "20"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        ("\x1b[38;5;8mgrey", "\x1b[38;5;8mgrey"),
        ("\x1b[2K\x1b[1Aup", "up"),
        ("\x1b[8mhidden", "hidden"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x1bc", "\\x1bc"),
        ("one\u2028two\x85three\x0bfour", "one\\u2028two\\x85three\\x0bfour"),
        ("\u202eright to left", "\\u202eright to left"),
        ("::group::mine", "::group\\::mine"),
        ("text ::endgroup:: text", "text ::endgroup\\:: text"),
        ("::gr\x1b[0moup::", "::group\\::"),
        ("##[endgroup]", "##[endgroup\\]"),
    ],
)
def test_clean(raw: str, shown: str) -> None:
    assert clean(raw) == shown


@given(st.binary(max_size=200))
def test_no_bytes_can_forge_anything(data: bytes) -> None:
    decoder = LineDecoder()
    taken = decoder.feed(f"{TIME} ".encode() + data.replace(b"\n", b" ") + b"\n")
    [block] = blocks(taken, Levels())
    assert "::group::" not in block.text
    assert "::endgroup::" not in block.text
    assert not any(ord(c) < 0x20 and c not in "\t\x1b" for c in block.text)
    assert len(block.text.splitlines()) <= 1


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("loss 0.3, no ERROR found so far", logging.INFO),
        ("INFO: all good", logging.INFO),
        ("ERROR:root:boom", logging.ERROR),
        ("[ERROR] boom", logging.ERROR),
        ("WARNING - low", logging.WARNING),
        ("2026-01-02 03:04:05,678 - trainer - ERROR - boom", logging.ERROR),
        ("2026-01-02 03:04:05,678 ERROR trainer boom", logging.ERROR),
        ("2026-01-02 03:04:05.678 | WARNING  | mod:f:1 - low", logging.WARNING),
        ("[2026-01-02 03:04:05,678][trainer][CRITICAL] - boom", logging.CRITICAL),
        ("E0102 03:04:05.678901       1 main.go:12] boom", logging.ERROR),
        ("W0102 03:04:05.678901       1 main.go:12] low", logging.WARNING),
        ('{"level": "error", "msg": "boom"}', logging.ERROR),
        ('{"ts": 1, "severity":"WARNING"}', logging.WARNING),
        ("time=x level=debug msg=hi", logging.DEBUG),
        ("DEBUG hi", logging.DEBUG),
        ("Error: no such file", logging.ERROR),
        ("/app/x.py:3: UserWarning: old", logging.WARNING),
        ("ValueError: bad value", logging.ERROR),
        ("\x1b[31mERROR\x1b[0m boom", logging.ERROR),
        ("ERRORS are fun", logging.INFO),
        ("total errors: 0", logging.INFO),
        ("Errored tests: none", logging.INFO),
    ],
)
def test_level(line: str, level: int) -> None:
    assert blocks(lines(line), Levels())[0].level == level


def test_a_traceback_is_one_error() -> None:
    made = blocks(
        lines(
            "start", "Traceback (most recent call last):", '  File "x.py", line 1', "    f()", "KeyError: 'x'", "next"
        ),
        Levels(),
    )
    assert [(block.level, block.lines) for block in made] == [(logging.INFO, 1), (logging.ERROR, 4), (logging.INFO, 1)]


def test_lines_of_one_level_are_one_block_and_the_mark_is_that_of_the_last() -> None:
    made = blocks(lines("a", "b", "ERROR c", "d"), Levels(), prefix="[p] ")
    assert [block.text for block in made] == ["[p] a\n[p] b", "[p] ERROR c", "[p] d"]
    assert [block.mark[1] for block in made] == [2, 3, 4]


def test_blocks_fit_a_record() -> None:
    made = blocks(lines(*["日" * 1000] * 100), Levels())
    assert len(made) == 5
    assert all(len(block.text.encode()) <= RECORD_BYTES for block in made)
    assert sum(block.lines for block in made) == 100


def test_late_lines_are_kept_apart_by_time() -> None:
    taken = lines("a", "b") + lines("c", time="2026-01-02T03:09:05.000000001Z")
    assert len(blocks(taken, Levels(), late=True)) == 2
    assert len(blocks(taken, Levels())) == 1


def test_pieces_put_together_are_the_text() -> None:
    text = "\\xe4" * 40_000
    assert "".join(pieces(text)) == text
    assert all(len(piece) <= RECORD_BYTES for piece in pieces(text))
    assert pieces("") == [""]


SAMPLES = st.sampled_from(
    ["ERROR: x", "E0102 03:04:05.6 x", "::group::a", "##[endgroup]", "Epoch 1", "level=warn", "\x1b[8m"]
)


@given(st.lists(st.one_of(SAMPLES, st.text(max_size=20).map(lambda text: text.replace("\n", ""))), max_size=8))
def test_lines_that_come_together_are_shown_as_each_would_be_by_itself(texts):
    lines = [("", text, ("", 0, 0, "")) for text in texts]
    together = [line for block in blocks(lines, Levels()) for line in block.text.split("\n")]
    assert together == [clean(text) for text in texts]
    singly = [block.level for line in lines for block in blocks([line], Levels())]
    levels = [block.level for block in blocks(lines, Levels()) for _ in range(block.lines)]
    if not any(text.startswith("Traceback") for text in texts):
        assert levels == singly
