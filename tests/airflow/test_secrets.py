"""Nothing secret of a fleet is in what Airflow keeps, shows or logs, whatever becomes of a job."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from cryptography.fernet import Fernet

from airflow_provider_multikueue.sandbox.airflow import TASK_ENDS, LocalAirflow
from airflow_provider_multikueue.sandbox.airflow_rest import AirflowApiError
from airflow_provider_multikueue.sandbox.airflow_runs import poll
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.airflow.conftest import job, start
from tests.sandbox.accounts import Accounts

pytestmark = [pytest.mark.airflow, pytest.mark.broad, pytest.mark.timeout(300)]

TASKS = ("train", "submit", "watch")


@dataclass
class Keeping:
    """A fleet's secrets by name, and the places where they were looked for."""

    accounts: Accounts
    secrets: dict[str, str] = field(default_factory=dict)

    def found_in(self, place: str, content: str | bytes) -> list[str]:
        """Return which secrets ``content`` has, as they are or in base64."""
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        assert data, f"{place} is empty: nothing was looked through"
        return [f"{name} in {place}" for name, text in self.secrets.items() if any(f in data for f in _forms(text))]


def _forms(secret: str) -> Iterator[bytes]:
    plain = secret.encode()
    yield plain
    yield plain[-100:]  # the end of a token is its signature
    for shift in range(3):  # base64 has three forms, by where in a longer text it stands
        yield base64.b64encode(b"x" * shift + plain)[4:-4]


@pytest.fixture
def keeping(fleet: Sandbox, multikueue_namespace: str, tmp_path: Path, airflow: LocalAirflow) -> Iterator[Keeping]:
    """Accounts of all sorts: an inline kubeconfig, a credential plugin, a token file, a client certificate."""
    accounts = Accounts(fleet, multikueue_namespace, tmp_path)
    asyncio.run(accounts.make())
    keeping = Keeping(accounts, {f"the token of {name}": token for name, token in accounts.tokens.items()})
    extra = accounts.extra()
    config = json.loads(fleet.kubeconfig.read_text())
    users = {user["name"]: user["user"] for user in config["users"]}
    contexts = {context["name"]: context["context"] for context in config["contexts"]}
    for number, (name, worker) in enumerate(sorted(extra["workers"].items())):
        user = users[contexts[worker["context"]]["user"]]
        if number == 0:  # by the administrator's client certificate
            keeping.secrets = {"the client key": user["client-key-data"][200:300], **keeping.secrets}
            del keeping.secrets[f"the token of {name}"]
            continue
        user.clear()
        user.update(_plugin(tmp_path, accounts.tokens[name]) if number == 1 else _file(tmp_path, accounts.tokens[name]))
    (tmp_path / "kubeconfig-of-all-sorts").write_text(json.dumps(config))
    for worker in extra["workers"].values():
        worker["kube_config_path"] = str(tmp_path / "kubeconfig-of-all-sorts")
    del extra["manager_kube_config_path"]
    extra["manager_kube_config"] = yaml.safe_dump(_alone(tmp_path / "kubeconfig", extra["manager_context"]))
    connection = {"connection_id": "secretive", "conn_type": "multikueue", "extra": json.dumps(extra)}
    airflow.sync(airflow.api.post("/connections", connection))
    yield keeping
    airflow.sync(airflow.api.delete("/connections/secretive"))
    asyncio.run(accounts.remove())


def _alone(path: Path, name: str) -> dict[str, Any]:
    """Return what a kubeconfig says of one context."""
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    context = next(each for each in config["contexts"] if each["name"] == name)
    of = {"clusters": context["context"]["cluster"], "users": context["context"]["user"], "contexts": name}
    return {part: [each for each in config[part] if each["name"] == of[part]] for part in of}


def _plugin(folder: Path, token: str) -> dict[str, Any]:
    given = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": token}}
    command = folder / "plugin"
    command.write_text(f"#!/bin/sh\ncat <<END\n{json.dumps(given)}\nEND\n")
    command.chmod(0o700)
    section = {"apiVersion": given["apiVersion"], "command": str(command), "interactiveMode": "Never"}
    return {"exec": section}


def _file(folder: Path, token: str) -> dict[str, Any]:
    (folder / "token").write_text(token)
    return {"tokenFile": str(folder / "token")}


def kept(airflow: LocalAirflow) -> Iterator[tuple[str, bytes]]:
    """Yield all that Airflow has on disk: each table's rows, packed ones unpacked, and each log."""
    with closing(sqlite3.connect(f"file:{airflow.layout.database}?mode=ro", uri=True)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        assert {"dag_run", "task_instance", "xcom"} <= set(tables)
        for table in tables:
            rows = database.execute(f'SELECT * FROM "{table}"').fetchall()
            if rows:
                yield f"table {table}", b"\n".join(_bytes(value) for row in rows for value in row)
    for path in sorted(airflow.layout.home.rglob("*")):
        if path.is_file() and path.stat().st_size:
            yield str(path.relative_to(airflow.layout.home)), path.read_bytes()


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        return str(value).encode()
    try:
        return value + zlib.decompress(value)
    except zlib.error:
        return value


def answers(airflow: LocalAirflow, dag_id: str, run: str) -> Iterator[tuple[str, str]]:
    """Yield what the REST API says of a run: its tasks with their triggers, rendered fields, XComs, logs."""
    of_run = f"/dags/{quote(dag_id)}/dagRuns/{quote(run, safe='')}"
    paths = [of_run, f"/dags/{quote(dag_id)}/details", "/connections/secretive", "/connections", "/eventLogs"]
    for task in TASKS:
        instance = f"{of_run}/taskInstances/{task}"
        paths += [instance, f"{instance}/xcomEntries", f"{instance}/logs/1", f"{instance}/tries", f"{instance}/links"]
        paths += [f"{instance}/xcomEntries/{key}" for key in ("return_value", "report", "placement")]
    for path in paths:
        try:
            yield path, json.dumps(airflow.sync(airflow.api.get(path)))
        except AirflowApiError as error:  # no such XCom, or not in this version
            yield path, str(error)


def stored_triggers(airflow: LocalAirflow) -> str:
    """Return the arguments of all triggers, which Airflow keeps encrypted."""
    key = Fernet(airflow.components["triggerer"].environment["AIRFLOW__CORE__FERNET_KEY"])
    with closing(sqlite3.connect(f"file:{airflow.layout.database}?mode=ro", uri=True)) as database:
        rows = [kept for (kept,) in database.execute("SELECT kwargs FROM trigger")]
    return "\n".join(row if row.startswith("{") else key.decrypt(row.encode()).decode() for row in rows)


def blurred(text: str) -> str:
    """Return a text in a form that no search for it finds."""
    return "".join(f"{ord(letter) ^ 1:02x}" for letter in text)


def printing(secrets: dict[str, str], end: str) -> dict[str, Any]:
    """Return a job that prints secrets, as a careless program does, and takes a while."""
    lines = [f"print('given', unblurred('{blurred(secret)}'), 'to all', flush=True)" for secret in secrets.values()]
    unblurred = "unblurred = lambda text: ''.join(chr(b ^ 1) for b in bytes.fromhex(text))"
    return job("\n".join(["import time", unblurred, "print('begin', flush=True)", "time.sleep(8)", *lines, end]))


@pytest.mark.parametrize("dag_id", ["secretive_deferred", "secretive_in_worker"])
@pytest.mark.parametrize(("end", "state"), [("pass", "success"), ("raise SystemExit(3)", "failed")])
def test_no_secret_of_the_fleet_is_anywhere_in_airflow(
    airflow: LocalAirflow, granting: Sandbox, keeping: Keeping, dag_id: str, end: str, state: str
) -> None:
    printed = {name: text for name, text in keeping.secrets.items() if "token" in name}
    run = start(airflow, dag_id, printing(printed, end))
    found: list[str] = []
    for task in ("train", "watch"):
        airflow.sync(airflow.wait_task(dag_id, run, task, {"running", "deferred", *TASK_ENDS}))
        if dag_id == "secretive_deferred":
            waiting = airflow.sync(
                poll(
                    lambda: airflow.task_instance(dag_id, run, task),  # noqa: B023 - awaited here
                    lambda instance: instance["trigger"] or instance["state"] in TASK_ENDS,
                    within=120,
                    what=f"the trigger of {task}",
                )
            )
            arguments = stored_triggers(airflow)
            assert waiting["state"] in TASK_ENDS or "multikueue_conn_id" in arguments
            found += keeping.found_in(f"the trigger of {task}", f"{json.dumps(waiting)} {arguments}")
    assert airflow.sync(airflow.wait_run(dag_id, run, within=200)) == state

    for task in ("train", "watch"):
        text = airflow.sync(airflow.task_text(dag_id, run, task))
        shown = re.findall(r"given (.*) to all", text)
        assert all(each.endswith("***") for each in shown), text
        assert len(shown) >= (len(printed) if task == "train" else 0), text  # the other may have come too late
    for place, content in (*kept(airflow), *answers(airflow, dag_id, run)):
        found += keeping.found_in(place, content)
    assert not found


def test_a_search_finds_what_is_there(keeping: Keeping) -> None:
    name, secret = list(keeping.secrets.items())[-1]
    for text in (secret, f"Bearer {secret}.", base64.b64encode(f"a: {secret}".encode()).decode(), secret[-110:]):
        assert keeping.found_in("here", text) == [f"{name} in here"]
    assert keeping.found_in("here", secret[:-60]) == []


def test_wrong_credentials_are_said_without_being_quoted(
    airflow: LocalAirflow, granting: Sandbox, keeping: Keeping
) -> None:
    connection = airflow.sync(airflow.api.get("/connections/secretive"))
    refused = "not-a-token-" + "abcdefgh" * 12
    keeping.secrets = {"the refused token": refused}
    config = json.loads(json.dumps(json.loads(granting.kubeconfig.read_text())))
    for user in config["users"]:
        user["user"] = {"token": refused}
    extra = {"manager_kube_config": json.dumps(config), "deployment": "secretive", "namespace": "default"}
    extra["queue_name"] = granting.connection()["extra"]["queue_name"]
    extra["manager_context"] = granting.connection()["extra"]["manager_context"]
    body = {"connection_id": "secretive", "conn_type": "multikueue", "extra": json.dumps(extra)}
    airflow.sync(airflow.api.patch("/connections/secretive", body))
    assert connection["conn_type"] == "multikueue"
    run = start(airflow, "secretive_deferred", job("pass"))
    assert airflow.sync(airflow.wait_run("secretive_deferred", run)) == "failed"
    text = airflow.sync(airflow.task_text("secretive_deferred", run, "train"))
    assert "401" in text
    assert not [
        place
        for name, content in (*kept(airflow), *answers(airflow, "secretive_deferred", run))
        for place in keeping.found_in(name, content)
    ]
