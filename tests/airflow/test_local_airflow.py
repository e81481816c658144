"""A real Airflow, without a fleet: it starts, is followed, loses a component, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from airflow_provider_multikueue.sandbox.airflow import LocalAirflow
from airflow_provider_multikueue.sandbox.airflow_config import HOME_MARK
from airflow_provider_multikueue.sandbox.airflow_runs import poll
from airflow_provider_multikueue.sandbox.leash import marked

pytestmark = [pytest.mark.airflow, pytest.mark.broad]

DAG = """
import time
from airflow.providers.common.compat.sdk import dag, task

@dag(dag_id="plain", schedule=None, params={"say": "nothing"})
def plain():
    @task
    def say(**context):
        print("it says", context["params"]["say"])
        return {"placement": {"region": "us-east4"}}

    @task
    def slow():
        print("sleeping")
        time.sleep(600)

    say() >> slow()

plain()
"""


@pytest.mark.timeout(300)
async def test_a_run_is_followed_and_nothing_outlives_the_airflow(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(DAG)
    python = os.environ.get("MULTIKUEUE_TEST_AIRFLOW_PYTHON", sys.executable)
    async with LocalAirflow(dags=tmp_path, python=python) as airflow:
        layout = airflow.layout
        run = await airflow.trigger("plain", conf={"say": "ahoy"})
        assert await airflow.wait_task("plain", run, "say") == "success"
        assert await airflow.xcom("plain", run, "say") == {"placement": {"region": "us-east4"}}
        assert "it says ahoy" in await airflow.task_text("plain", run, "say")
        with pytest.raises(KeyError):
            await airflow.xcom("plain", run, "say", "no-such-key")

        await _sleeping(airflow, run)
        await airflow.mark("plain", run, "slow", "failed")
        assert await airflow.wait_run("plain", run) == "failed"

        await airflow.clear("plain", run, "slow")
        await airflow.wait_task("plain", run, "slow", {"running"})
        assert (await airflow.task_instance("plain", run, "slow"))["try_number"] == 2

        before = airflow.components["triggerer"].pid
        airflow.signal("triggerer", signal.SIGKILL)
        assert await airflow.components["triggerer"].wait() == -signal.SIGKILL
        await airflow.start_component("triggerer")
        assert airflow.components["triggerer"].pid not in {None, before}
    assert marked(HOME_MARK, layout.mark) == []
    assert not layout.home.exists()


async def _sleeping(airflow: LocalAirflow, run: str) -> None:
    await airflow.wait_task("plain", run, "slow", {"running"})
    await poll(
        lambda: airflow.task_text("plain", run, "slow"),
        lambda text: "sleeping" in text,
        within=60,
        what="the first line",
    )
