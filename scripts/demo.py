"""A DAG on a real fleet and a real Airflow, followed from start to end.

`make demo` starts a fleet (or uses the one that is up), starts Airflow, runs `train_anywhere`, shows it here, and stops
everything; it fails if anything went wrong. `make demo-ui` leaves both running until Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from airflow_provider_multikueue.sandbox.airflow import RUN_ENDS, LocalAirflow
from airflow_provider_multikueue.sandbox.airflow_rest import AirflowApiError, LogRecord
from airflow_provider_multikueue.sandbox.airflow_runs import DagImportError, poll
from airflow_provider_multikueue.sandbox.api import Sandbox
from airflow_provider_multikueue.sandbox.paths import SandboxError

EXAMPLES = Path(__file__).resolve().parent.parent / "example_dags"
DAG = "train_anywhere"
FLEET = "demo"
RUN_SECONDS = 300.0

PODS, EPOCHS = 3, 5
TRAINING = f"""
for epoch in $(seq {EPOCHS}); do
  echo "epoch $epoch of {EPOCHS}, loss 0.$((9 - epoch))"
  sleep 1
done
"""
CONF = {"image": "busybox:1.36", "command": ["sh", "-c"], "args": [TRAINING]}


class DemoError(Exception):
    """The demo did not show what it should."""


START = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - START:6.1f} s  {text}", flush=True)


@contextlib.asynccontextmanager
async def fleet(name: str) -> AsyncIterator[Sandbox]:
    """Use the fleet that `multikueue sandbox up` left running, or one for ourselves."""
    if (running := await asyncio.to_thread(running_fleet, name)) is not None:
        say("Using the sandbox that is up")
        scripts = {region: running.requests(region)["script"] for region in running.regions}
        try:
            yield running
        finally:
            for region, script in scripts.items():
                running.capacity(region, **script)
        return
    say("Starting a fleet: a manager and three workers (the first time, its programs are built for some minutes)")
    async with Sandbox.start_local(name=FLEET, progress=say) as sandbox:
        yield sandbox


def running_fleet(name: str) -> Sandbox | None:
    with contextlib.suppress(SandboxError, OSError):
        return Sandbox.attach(name)
    return None


def script_capacity(sandbox: Sandbox) -> None:
    """Let one region be quick, one slow, and one without capacity."""
    quick, slow, *others = sandbox.regions
    sandbox.capacity(quick, mode="grant", after=8)
    sandbox.capacity(slow, mode="grant", after=30)
    for region in others:
        sandbox.capacity(region, mode="starve")
    say(f"GPUs: {quick} has some in 8 s, {slow} in 30 s, {', '.join(others) or 'no other'} none")


async def follow(airflow: LocalAirflow, run: str) -> str:
    """Show the task's log as it grows, and each change of a task's state; return how the run ended."""
    states: dict[str, str | None] = {}
    shown: Counter[LogRecord] = Counter()

    async def look() -> str:
        state = await airflow.run_state(DAG, run)
        for instance in await airflow.task_instances(DAG, run):
            task, now = instance["task_id"], instance["state"]
            if now and states.get(task) != now:
                states[task] = now
                say(f"task {task} is {now}")
        await show_log(airflow, run, shown)
        return state

    return await poll(
        look, lambda state: state in RUN_ENDS, within=RUN_SECONDS, what=f"the run of {DAG} to end", every=0.5
    )


async def show_log(airflow: LocalAirflow, run: str, shown: Counter[LogRecord]) -> None:
    try:
        records = await airflow.task_log(DAG, run, "train")
    except AirflowApiError as error:
        if error.status != 404:  # else the task has no log yet
            raise
        return
    for record, count in Counter(records).items():
        if count > shown[record] and record.logger.startswith(("airflow_provider_multikueue", "airflow.task")):
            for line in record.event.split("\n"):
                say(f"    {line}")
        shown[record] = count


async def show_failure(airflow: LocalAirflow, run: str) -> None:
    for instance in await airflow.task_instances(DAG, run):
        if instance["state"] == "failed":
            say(f"All of the log of task {instance['task_id']}:")
            print(await airflow.task_text(DAG, run, instance["task_id"]))
    for name, component in airflow.components.items():
        say(f"The end of the log of Airflow's {name}:")
        print(component.tail())


async def show_results(airflow: LocalAirflow, run: str) -> None:
    report = await airflow.xcom(DAG, run, "train")
    say("What the next task received:")
    print(json.dumps(report, indent=2))
    for task in ("show_region", "publish_in_europe", "publish_abroad"):
        state = await airflow.task_state(DAG, run, task)
        lines = [
            record.event
            for record in (await airflow.task_log(DAG, run, task) if state == "success" else [])
            if record.logger.endswith("stdout")
        ]
        say(f"task {task} is {state}{': ' + '; '.join(lines) if lines else ''}")


async def check_results(airflow: LocalAirflow, run: str) -> None:
    """Fail unless every line of every pod is in the task's log once, and the next task knew the region."""
    lines = Counter(line for record in await airflow.task_log(DAG, run, "train") for line in record.event.split("\n"))
    epochs = sum(count for line, count in lines.items() if "epoch" in line)
    if epochs != PODS * EPOCHS:
        raise DemoError(f"The task's log has {epochs} lines of the pods instead of {PODS * EPOCHS}.")
    region = (await airflow.xcom(DAG, run, "train"))["placement"]["region"]
    if f"Trained in {region}" not in await airflow.task_text(DAG, run, "show_region"):
        raise DemoError(f"The next task did not learn that the job ran in {region}.")
    say(f"All {epochs} lines of the pods are in the task's log; the next task knew the region")


async def run_example(airflow: LocalAirflow) -> None:
    run = await airflow.trigger(DAG, conf=CONF)
    say(f"Started {DAG}: {airflow.url}/dags/{DAG}/runs/{run}")
    state = await follow(airflow, run)
    if state != "success":
        await show_failure(airflow, run)
        raise DemoError(f"The run ended as {state}.")
    await show_results(airflow, run)
    await check_results(airflow, run)


async def demo(name: str, *, ui: bool) -> None:
    async with fleet(name) as sandbox:
        await asyncio.to_thread(script_capacity, sandbox)
        say("Starting Airflow: API server, scheduler, DAG processor, triggerer")
        async with LocalAirflow(dags=EXAMPLES, connections={"multikueue_default": sandbox.connection()}) as airflow:
            say(f"Airflow is up at {airflow.url}")
            await run_example(airflow)
            if ui:
                say(f"Left running: {airflow.url}, user {airflow.layout.username}, password {airflow.layout.password}")
                say(f"Change a region's capacity: multikueue sandbox capacity REGION --name {sandbox.name} --help")
                say("Ctrl-C stops Airflow and the fleet")
                await until_interrupted()
        say("Stopping")
    say("All of it is stopped")


async def until_interrupted() -> None:
    interrupted = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted.set)
    await interrupted.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ui", action="store_true", help="leave fleet and Airflow running until Ctrl-C")
    parser.add_argument("--name", default="default", help="the sandbox to use if it is up (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        asyncio.run(demo(arguments.name, ui=arguments.ui))
    except KeyboardInterrupt:
        print("Interrupted; all of it is stopped.", file=sys.stderr)
        return 130
    except (DemoError, DagImportError, SandboxError, AirflowApiError, TimeoutError, KeyError) as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
