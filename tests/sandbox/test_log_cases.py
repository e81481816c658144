"""Cases of logs and results from people who run jobs: what the task's log shows, and how the task ends."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_multikueue.clusters.client import PODS
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.decisions.names import cursors_of
from airflow_provider_multikueue.decisions.rights import RIGHTS
from airflow_provider_multikueue.exceptions import ResultError
from airflow_provider_multikueue.fleets.fleet import open_fleet
from tests.sandbox.accounts import Accounts
from tests.sandbox.faults import ASIA, EU, US, Site, eventually, gpu_job, shell
from tests.sandbox.overlap import overlapping

pytestmark = [pytest.mark.sandbox, pytest.mark.fleet, pytest.mark.asyncio(loop_scope="module")]

Object = dict[str, Any]

AT_ONCE = 3
INDEXED = {"parallelism": 3, "completions": 3, "completionMode": "Indexed"}


@overlapping
async def test_a_progress_bar_is_its_last_state_and_now_and_then_one_on_the_way(site: Site) -> None:
    site.only(US)
    bar = "for i in {1..250}; do printf '\\rstep %d of 250' $i; sleep 0.1; done; printf '\\n'; echo done"
    job = await site.start(shell(bar))
    assert (await job.outcome()).error is None
    steps = [line for line in job.log.output if "of 250" in line]
    assert steps[-1] == "step 250 of 250"
    assert len(steps[:-1]) <= 4, steps
    assert all(line.endswith("of 250 …") for line in steps[:-1])
    assert "done" in job.log.output


@overlapping
async def test_lines_of_many_pods_are_told_apart_and_no_number_of_pods_is_waited_for(site: Site) -> None:
    site.only(US)
    talking = "for i in 1 2 3; do echo $HOSTNAME says $i; sleep 1; done"
    job = await site.start(shell(talking, parallelism=5, completions=2))
    assert (await job.outcome()).error is None
    said = [re.match(r"\[(\S+)\] \S+ says (\d)$", line) for line in job.log.lines if " says " in line]
    assert all(said), job.log.text
    by_pod: dict[str, list[str]] = {}
    for each in said:
        assert each is not None
        by_pod.setdefault(each[1], []).append(each[2])
    assert len(by_pod) >= 2
    assert all(lines == ["1", "2", "3"][: len(lines)] for lines in by_pod.values())


@overlapping
async def test_indexed_pods_bear_their_index(site: Site) -> None:
    site.only(US)
    talking = "for i in 1 2 3; do echo index $JOB_COMPLETION_INDEX line $i; sleep 0.2; done"
    job = await site.start(shell(talking, **INDEXED))
    assert (await job.outcome()).error is None
    for index in range(3):
        mine = [line for line in job.log.lines if line.startswith(f"[{index}] ")]
        assert mine == [f"[{index}] index {index} line {line}" for line in (1, 2, 3)]


@overlapping
async def test_containers_of_one_pod_are_told_apart_and_an_init_container_is_shown_when_it_fails(site: Site) -> None:
    site.only(US)
    good = shell("echo of main; sleep 1")
    pod = good["spec"]["template"]["spec"]
    side = {"name": "side", "image": "busybox", "command": ["bash", "-c", "echo of side; sleep 1"]}
    first = {"name": "first", "image": "busybox", "command": ["bash", "-c", "echo of first"]}
    pod["containers"].append(side)
    pod["initContainers"] = [first]
    broken = shell("echo of main")
    failing = {**first, "command": ["bash", "-c", "echo no data here >&2; exit 7"]}
    broken["spec"]["template"]["spec"]["initContainers"] = [failing]
    jobs = [await site.start(good), await site.start(broken)]
    outcomes = [await job.outcome() for job in jobs]
    assert outcomes[0].error is None
    assert {line for line in jobs[0].log.lines if " of " in line and line.startswith("[")} == {
        "[main] of main",
        "[side] of side",
    }
    assert "[first] no data here" in jobs[1].log.lines
    assert "no data here" in str(outcomes[1].error)
    assert "exit code 7" in str(outcomes[1].error)


@overlapping
async def test_a_rotation_in_the_middle_costs_no_line_and_one_that_was_missed_is_told(site: Site) -> None:
    site.only(US)
    config = FleetConfig.from_extra(site.sandbox.connection(network=True)["extra"], conn_id="network")
    async with open_fleet(config) as seen:
        part = await site.submit(shell("for i in {1..120}; do echo line $i; sleep 0.1; done"))
        job = site.follow(part, fleet=seen)
        await job.log.says("line 5")
        (pod,) = (each["name"] for each in site.sandbox.node(US, "pods") if each["namespace"] == site.namespace)
        site.sandbox.node(US, "rotate_logs", namespace=site.namespace, pod=pod)
        await job.log.says("line 20")
        assert not [line for line in job.log.lines if "missing" in line]
        await asyncio.to_thread(site.sandbox.network, US, mode="refuse", cut_after=0)
        await asyncio.to_thread(site.sandbox.cut, US)
        await asyncio.sleep(2)
        site.sandbox.node(US, "rotate_logs", namespace=site.namespace, pod=pod)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(site.sandbox.network, US)
        assert (await job.outcome()).error is None
    numbers = [int(line.split()[1]) for line in job.log.output if re.fullmatch(r"line \d+", line)]
    assert numbers == sorted(set(numbers))
    assert numbers[:20] == list(range(1, 21))
    assert numbers[-1] == 120
    assert len(numbers) < 120
    assert job.log.count("the log was rotated: lines between") == 1


@overlapping
async def test_the_end_does_not_wait_for_streams_that_are_silent_and_what_is_missing_is_told(site: Site) -> None:
    site.only(EU)
    config = FleetConfig.from_extra(site.sandbox.connection(network=True)["extra"], conn_id="network")
    async with open_fleet(config) as seen:
        part = await site.submit(shell("for i in {1..60}; do echo line $i; sleep 0.1; done; echo the end"))
        job = site.follow(part, fleet=seen)
        await job.log.says("line 20")
        await asyncio.to_thread(site.sandbox.network, EU, mode="blackhole")
        try:
            outcome = await job.outcome()
        finally:
            await asyncio.to_thread(site.sandbox.network, EU)
    assert outcome.error is None
    assert outcome.report is not None
    assert outcome.report["phase"] == "SUCCEEDED"
    assert job.log.count("was not read to its end") + job.log.count("may be missing") == 1, job.log.text


@overlapping
async def test_streams_that_end_early_or_are_held_back_lose_nothing(site: Site) -> None:
    site.only(ASIA)
    config = FleetConfig.from_extra(site.sandbox.connection(network=True)["extra"], conn_id="network")
    async with open_fleet(config) as seen:
        for fault in ({"end_after": 0.3, "path": "/log$"}, {"buffer": True, "path": "/log$"}):
            await asyncio.to_thread(site.sandbox.network, ASIA, **fault)
            part = await site.submit(shell("for i in {1..150}; do echo line $i; sleep 0.1; done"))
            job = site.follow(part, fleet=seen)
            try:
                assert (await job.outcome()).error is None
            finally:
                await asyncio.to_thread(site.sandbox.network, ASIA)
            assert [line for line in job.log.output if line.startswith("line ")] == [f"line {n}" for n in range(1, 151)]


@overlapping
async def test_without_the_right_to_read_logs_the_outcome_is_right_and_one_line_says_so(site: Site) -> None:
    site.only(US)
    folder = Path(site.path.with_suffix(".accounts"))
    folder.mkdir(parents=True, exist_ok=True)
    accounts = Accounts(site.sandbox, site.namespace, folder)
    await accounts.make()
    right = next(right for right in RIGHTS if right.resource == "pods/log")
    try:
        config = FleetConfig.from_extra(accounts.extra(), conn_id="without-logs")
        async with accounts.without(right), open_fleet(config) as seen:
            good = await site.start(shell("echo hidden; sleep 1", **INDEXED), fleet=seen)
            bad = await site.start(shell("echo hidden; sleep 1; exit 3"), fleet=seen)
            outcomes = await good.outcome(), await bad.outcome()
    finally:
        await accounts.remove()
    assert outcomes[0].error is None
    assert "exit code 3" in str(outcomes[1].error)
    for job in (good, bad):
        assert job.log.count("hidden") == 0
        assert job.log.count("`pods/log`") == 1, job.log.text


WRONG_RESULTS = {
    "absent": ("true", "wrote no termination message"),
    "empty": (": > /dev/termination-log", "wrote no termination message"),
    "no JSON": ("printf 'loss: 0.25' > /dev/termination-log", "is not JSON .*'loss: 0.25'"),
    "too large": (
        "printf '[%04998d]' 0 | tr 0 1 > /dev/termination-log",
        r"was cut at 4096 bytes: '\[1111",
    ),
    "NaN": ("printf '{\"loss\": NaN}' > /dev/termination-log", "NaN is not JSON"),
}


@overlapping
async def test_a_result_that_is_none_is_an_error_that_shows_how_it_begins(site: Site) -> None:
    site.only(US)
    jobs = {
        what: await site.start(shell(f"{script}; sleep 1"), read_result=True)
        for what, (script, _) in WRONG_RESULTS.items()
    }
    for what, job in jobs.items():
        outcome = await job.outcome()
        assert isinstance(outcome.error, ResultError), what
        assert re.search(WRONG_RESULTS[what][1], str(outcome.error)), f"{what}: {outcome.error}"
        assert outcome.report is not None
        assert outcome.report["result"] is None


@overlapping
async def test_results_by_leader_by_index_by_another_path_and_by_address(site: Site) -> None:
    site.only(US)
    write = "printf '{\"index\": %d}' $JOB_COMPLETION_INDEX > "
    indexed = shell(f"{write}/dev/termination-log; sleep 1", **INDEXED)
    path = str(site.path.with_suffix(".result"))
    other = gpu_job(
        {
            "command": ["bash", "-c", f'echo \'{{"result_uri": "gs://bucket/model"}}\' > {path}; sleep 1'],
            "image": "busybox",
            "terminationMessagePath": path,
        }
    )
    first = await site.start(indexed, read_result=True)
    every = await site.start(indexed, read_result="all")
    elsewhere = await site.start(other, read_result=True)
    outcomes = [await job.outcome() for job in (first, every, elsewhere)]
    assert [outcome.error for outcome in outcomes] == [None] * 3
    assert [outcome.report["result"] for outcome in outcomes if outcome.report] == [
        {"index": 0},
        [{"index": 0}, {"index": 1}, {"index": 2}],
        {"result_uri": "gs://bucket/model"},
    ]


@overlapping
async def test_a_late_reader_begins_at_the_first_line_and_one_after_the_end_says_what_it_can_not_have(
    site: Site,
) -> None:
    site.only(US)
    script = "for i in {1..150}; do echo line $i; sleep 0.1; done"
    job = await site.start(shell(script), reader="a task")

    async def noted() -> bool:
        return cursors_of("a task") in ((await job.on_manager()) or {})["metadata"]["annotations"]

    await eventually(noted, "place in the log that is noted for who goes on")
    late = site.follow(job.part, reader="a sensor", may_delete=False)
    assert (await late.outcome()).error is None
    assert [line for line in late.log.output if line.startswith("line ")] == [f"line {n}" for n in range(1, 151)]
    assert not late.log.count("an earlier reader was lost")
    assert (await job.outcome()).error is None
    worker = await site.worker(US)

    async def removed() -> bool:
        return not (await worker.list(PODS, site.namespace))[0]

    await eventually(removed, "worker without a pod of the job")
    async with open_fleet(FleetConfig.from_extra(site.sandbox.connection()["extra"], conn_id="later")) as another:
        after = site.follow(job.part, reader="another sensor", may_delete=False, fleet=another)
        assert (await after.outcome()).error is None
    assert "it is kept nowhere that is known here" in await after.log.says("no output of the pods in us-east4 was seen")
    assert not [line for line in after.log.output if line.startswith("line ")]
