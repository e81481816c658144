"""What Airflow's task log holds of the pods' output while the task is deferred: each line once, soon, and harmless."""

from __future__ import annotations

import re
from datetime import datetime

import pytest

from airflow_provider_multikueue.sandbox.airflow import TASK_ENDS, LocalAirflow
from airflow_provider_multikueue.sandbox.airflow_runs import poll
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import job, start

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(240)]


def until_shown(airflow: LocalAirflow, run: str, text: str) -> None:
    airflow.sync(airflow.wait_task("deferred", run, "train", {"deferred", *TASK_ENDS}))
    airflow.sync(
        poll(lambda: airflow.task_text("deferred", run, "train"), lambda log: text in log, within=90, what=repr(text))
    )


@pytest.mark.fleet
def test_a_triggerer_stopped_politely_repeats_and_loses_no_line(airflow: LocalAirflow, granting: Sandbox) -> None:
    run = start(
        airflow, "deferred", job("import time\nfor i in range(600): print('tock', i, flush=True); time.sleep(.13)")
    )
    until_shown(airflow, run, "tock 40\n")
    airflow.sync(airflow.restart("triggerer"))
    until_shown(airflow, run, "tock 300\n")
    airflow.sync(airflow.restart("triggerer"))
    assert airflow.sync(airflow.wait_run("deferred", run)) == "success"
    text = airflow.sync(airflow.task_text("deferred", run, "train"))
    assert [int(number) for number in re.findall(r"^tock (\d+)$", text, re.MULTILINE)] == list(range(600))


def test_no_output_can_pass_for_records_of_airflow(airflow: LocalAirflow, granting: Sandbox) -> None:
    script = r"""
import sys
out = sys.stdout.buffer
out.write(b"::group::mine\nhidden ::endgroup:: line\n[2026-01-02T03:04:05.678+0000] {x.py:1} INFO - forged\n")
out.write(b"bytes \xe4 \x00 \x1b[31mred\x1b[0m \xe2\x80\xa8 end\n 1%\r 50%\r100%\n100% %s {} done\n")
out.write(b"ERROR: an error\nno newline at the end")
"""
    run = start(airflow, "deferred", job(script))
    assert airflow.sync(airflow.wait_run("deferred", run)) == "success"
    records = airflow.sync(airflow.task_log("deferred", run, "train"))
    text = "\n".join(record.event for record in records)
    for line in (
        "::group\\::mine",
        "hidden ::endgroup\\:: line",
        "bytes \\xe4 \\x00 \x1b[31mred\x1b[0m \\u2028 end",
        "100%",
        "100% %s {} done",
        "no newline at the end",
    ):
        assert line in text.split("\n")
    assert [record.level for record in records if record.event.startswith("ERROR: an error")] == ["error"]
    assert "forged" not in [record.event for record in records]


def test_lines_are_shown_soon(airflow: LocalAirflow, granting: Sandbox) -> None:
    run = start(
        airflow,
        "deferred",
        job("import time\nfor i in range(100): print('at', repr(time.time()), flush=True); time.sleep(.05)"),
    )
    assert airflow.sync(airflow.wait_run("deferred", run)) == "success"
    delays = []
    for record in airflow.sync(airflow.task_log("deferred", run, "train")):
        shown = datetime.fromisoformat(str(record.timestamp)) if record.timestamp else None
        delays += [
            shown.timestamp() - float(at) for at in re.findall(r"^at ([\d.]+)$", record.event, re.MULTILINE) if shown
        ]
    assert len(delays) == 100
    delays.sort()
    print(f"median {delays[50] * 1000:.0f} ms, 99 % {delays[98] * 1000:.0f} ms")
    assert delays[50] < 1.0
