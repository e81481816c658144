"""What the doctor says of the host's own limits."""

from __future__ import annotations

from airflow_provider_multikueue.commands.host import host_limits, judge_limits


def test_the_triggerers_capacity_is_always_told() -> None:
    (note,) = judge_limits(1000, None)["findings"]
    assert note["level"] == "note"
    assert "1,000 tasks" in note["text"]
    assert "[triggerer] capacity" in note["text"]


def test_few_open_files_are_a_warning() -> None:
    assert [finding["level"] for finding in judge_limits(1000, 1024)["findings"]] == ["note", "warning"]
    assert [finding["level"] for finding in judge_limits(1000, 65536)["findings"]] == ["note"]


def test_this_host_has_limits() -> None:
    assert host_limits()["triggerer_capacity"] > 0
