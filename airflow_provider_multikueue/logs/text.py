r"""Lines of a container become text that a task log can show: harmless, with a level, and joined into few records.

What Airflow's log view does with text decides the rules (3.3's own source, and 2.11's):

- It renders ANSI colours and leaves out all other control sequences, so colours stay (but not "conceal", which hides
  text) and the others are dropped; an escape character that begins no such sequence is shown as ``\x1b``.
- A record that contains ``::group::`` anywhere, also once colours are taken out, is shown as a folded heading and
  nothing else of it; one with ``::endgroup::`` is not shown at all. In lines of a container both are broken up.
- It shows newlines inside one record as they are, deletes ``\r``, and lets a backspace eat what is before it: lines are
  joined by newlines, progress bars are reduced to their last state here, other control characters are made visible.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_multikueue.logs.lines import Line, Mark

__all__ = ["LATE_SPAN", "RECORD_BYTES", "Block", "Levels", "blocks", "byte_length", "clean", "pieces"]

RECORD_BYTES = 60 * 1024
"""Most bytes of text in one record: Airflow's triggerer copes with 64 kB a record, and JSON adds a little."""

LATE_SPAN = len("2026-01-02T03:04")
"""Lines that come late and were written in the same minute stand under one heading."""

_SPECIAL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]|group(?:::|\\])")
_CALM = bytes(range(0x20, 0x7F)) + b"\t\n"
"""What is shown as it is. To delete it and see what is left is much faster than to search for the rest."""
_CONTROL = re.compile("[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]|\x1b(?!\\[[0-9;]*m)")
_SEQUENCE = re.compile("\x1b\\[([0-?]*)[ -/]*([@-~])")
_GROUP = re.compile(r"(::|##\[\]?)((?:end)?group)(::|\])")


def clean(line: str) -> str:
    """Return a line with nothing in it that can forge or hide other text; plain text comes back unchanged."""
    if "\r" in line:
        states = [state for state in line.split("\r") if state.strip()]
        line = states[-1] if states else ""
    if "\b" in line:
        line = _erase(line)
    if "\x1b" in line:
        line = _SEQUENCE.sub(_colour, line)
    line = _CONTROL.sub(_visible, line)
    if _GROUP.search(line):
        return _GROUP.sub(r"\1\2\\\3", line)
    if "\x1b" in line and _GROUP.search(bare := _SEQUENCE.sub("", line)):
        return _GROUP.sub(r"\1\2\\\3", bare)
    return line


def _erase(line: str) -> str:
    kept: list[str] = []
    for character in line:
        if character != "\b":
            kept.append(character)
        elif kept:
            kept.pop()
    return "".join(kept)


def _colour(found: re.Match[str]) -> str:
    codes = found[1].split(";")
    concealed = "8" in (code.lstrip("0") for code in codes) and not {"38", "48"} & set(codes)
    return "" if found[2] != "m" or concealed or not found[1].replace(";", "").isascii() else found[0]


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


# -- levels

_WORDS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "WARN": logging.WARNING,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "ERR": logging.ERROR,
    "SEVERE": logging.ERROR,
    "FATAL": logging.CRITICAL,
    "CRITICAL": logging.CRITICAL,
    "PANIC": logging.CRITICAL,
    "W": logging.WARNING,
    "E": logging.ERROR,
    "F": logging.CRITICAL,
}
_LEVEL = "TRACE|DEBUG|WARN(?:ING)?|ERR(?:OR)?|SEVERE|FATAL|CRITICAL|PANIC"
_HINTS = (
    *("ERR", "WARN", "Error:", "Traceback", "FATAL", "DEBUG", "CRITICAL", "TRACE", "PANIC", "SEVERE", "Warning:"),
    *("level=", '"level', '"severity"'),
)
"""Without one of these no line states a level, but for klog's; plain searches are faster than one for any of them."""
_KLOG = re.compile(r"^[EWF][0-9]{4} ", re.MULTILINE)
_FORMATS = (
    # "ERROR:name:text", "[WARNING] text", "2026-01-02 03:04:05,678 - name - ERROR - text", "... | ERROR | ..."
    re.compile(
        r"[\[(<\s]*(?:\d[\d\-/:.,TZ+ ]{5,40})?[\])>\s\-|:,]{0,8}"
        r"(?:\[[^\]]{0,60}\][\s:\-|]{0,4}|[\w./:\-]{1,60}\s{1,4}[\-|:]\s{1,4}){0,3}"
        rf"[\[(<]?(?P<word>{_LEVEL})(?=[\])>:|,\s\-]|$)"
    ),
    re.compile(r"(?P<word>[EWF])\d{4} \d\d:\d\d:\d\d\."),  # klog, glog
    re.compile(r"[\w/.\-<>: ]{0,200}?\b(?P<kind>[A-Z]\w*)?(?P<word>Warning|Error): "),
    re.compile(
        rf"""(?:.{{0,400}}[\s,{{])?(?:"(?:level|severity|levelname)"\s*:\s*"|level="?)(?P<word>(?i:{_LEVEL}))\b"""
    ),
)
_COLOURS = re.compile("\x1b\\[[0-9;]*m")


def _may_state_level(text: str) -> bool:
    """Return whether one of the lines of ``text`` may state a level."""
    for hint in _HINTS:
        if hint in text:
            return True
    first = text[:1]
    return (first in ("E", "W", "F") or "\nE" in text or "\nW" in text or "\nF" in text) and bool(_KLOG.search(text))


class Levels:
    """Finds the level of each line of one stream, in order: a Python traceback counts as one error."""

    def __init__(self) -> None:
        self.in_traceback = False

    def of(self, line: str) -> int:
        """Return the level that the line's own format states, else INFO."""
        if self.in_traceback:
            self.in_traceback = not line or line[0] in " \t"
            return logging.ERROR
        if line.startswith("Traceback (most recent call last)"):
            self.in_traceback = True
            return logging.ERROR
        if not _may_state_level(line):
            return logging.INFO
        bare = _COLOURS.sub("", line[:500])
        for form in _FORMATS:
            if found := form.match(bare):
                return _WORDS[found["word"].upper()]
        return logging.INFO


# -- blocks


@dataclass(frozen=True, slots=True)
class Block:
    """Lines that came together, have one level, and can be one record."""

    level: int
    text: str
    lines: int
    time: str
    """When its first line was written, or ""."""
    mark: Mark
    """Where its stream stands once these lines are out."""


def byte_length(text: str) -> int:
    """Return how many bytes the text takes as UTF-8; it is known at once for ASCII, as nearly all logs are."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def blocks(lines: Sequence[Line], levels: Levels, *, prefix: str = "", late: bool = False) -> list[Block]:
    """Return the lines as few blocks, each of one level, and with ``late`` of one time (to the minute)."""
    texts = [line[1] for line in lines]
    whole = "\n".join(texts)
    if not _is_calm(whole):
        texts = [clean(text) if _SPECIAL.search(text) else text for text in texts]
    if levels.in_traceback or _may_state_level(whole):
        kinds = [levels.of(text) for text in texts]
    else:
        kinds = [logging.INFO] * len(texts)
    if prefix:
        texts = [prefix + text for text in texts]
    return [_block(lines, texts, kinds[start], start, end) for start, end in _runs(lines, texts, kinds, late=late)]


def _is_calm(text: str) -> bool:
    """Return whether `clean` would leave each line of ``text`` as it is."""
    if text.isascii() and "group" not in text:
        return not text.encode().translate(None, _CALM)
    return not _SPECIAL.search(text)


def _block(lines: Sequence[Line], texts: Sequence[str], level: int, start: int, end: int) -> Block:
    return Block(level, "\n".join(texts[start:end]), end - start, lines[start][0], lines[end - 1][2])


def _runs(
    lines: Sequence[Line], texts: Sequence[str], kinds: Sequence[int], *, late: bool
) -> Iterator[tuple[int, int]]:
    start = size = 0
    for index, text in enumerate(texts):
        length = byte_length(text) + 1
        if index > start and (
            size + length > RECORD_BYTES
            or kinds[index] != kinds[start]
            or (late and lines[index][0][:LATE_SPAN] != lines[start][0][:LATE_SPAN])
        ):
            yield start, index
            start, size = index, 0
        size += length
    if texts:
        yield start, len(texts)


def pieces(text: str) -> list[str]:
    """Return the text in pieces that each fit one record; only escapes of many invalid bytes make a line so long."""
    if byte_length(text) <= RECORD_BYTES:
        return [text]
    step = RECORD_BYTES if text.isascii() else RECORD_BYTES // 4
    return [text[start : start + step] for start in range(0, len(text), step)]
