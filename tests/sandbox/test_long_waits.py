"""A job that waits and runs for much longer than any of its fleet's tokens is good for."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_multikueue.clusters.client import JOBS, SECRETS, ApiError, Cluster, Resource
from airflow_provider_multikueue.decisions.connection import FleetConfig
from airflow_provider_multikueue.decisions.names import Identity
from airflow_provider_multikueue.fleets.fleet import open_fleet
from airflow_provider_multikueue.hooks import MultiKueueHook
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.sandbox.accounts import ACCOUNT, Accounts
from tests.sandbox.test_hook import manifest
from tests.sandbox.token_plugin import token

pytestmark = [pytest.mark.sandbox, pytest.mark.fleet, pytest.mark.timeout(400)]

LIFETIME = 20
PLUGIN = Path(__file__).with_name("token_plugin.py")
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts")


class ShortLived:
    """The shipped accounts, with tokens that end after 20 s."""

    def __init__(self, accounts: Accounts) -> None:
        self.accounts = accounts
        self.folder = accounts.folder
        self._ended = threading.Event()

    async def make(self) -> None:
        """Write what the plugin needs for each cluster."""
        await self.accounts.make()
        async with self.accounts.admin() as clusters:
            for name, cluster in clusters.items():
                account = await cluster.get(SERVICE_ACCOUNTS, ACCOUNT, self.accounts.namespace)
                self._given(name, account["metadata"]["uid"])

    def _given(self, name: str, uid: str) -> None:
        namespace = self.accounts.namespace
        issuer = "https://kubernetes.default.svc"
        claims = {
            "iss": issuer,
            "aud": [issuer],
            "sub": f"system:serviceaccount:{namespace}:{ACCOUNT}",
            "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": ACCOUNT, "uid": uid}},
        }
        key = self.accounts.sandbox.folder / "pki" / self._place(name) / "service-account.key"
        given = {"key": str(key), "claims": claims, "lifetime": LIFETIME, "runs": str(self.folder / f"{name}.runs")}
        (self.folder / f"{name}.json").write_text(json.dumps(given))

    def _place(self, name: str) -> str:
        if name == "manager":
            return name
        return str(self.accounts.sandbox.connection()["extra"]["workers"][name]["region"])

    def config(self, user: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        """Return the kubeconfig whose users are made by ``user``."""
        config: dict[str, Any] = yaml.safe_load((self.folder / "kubeconfig").read_text())
        names = {self.accounts.context(name): name for name in self.accounts.tokens}
        for context in config["contexts"]:
            entry = next(each for each in config["users"] if each["name"] == context["context"]["user"])
            entry["user"] = user(names[context["name"]])
        return config

    def plugin(self, name: str) -> dict[str, Any]:
        """Return a user by the credential plugin."""
        arguments = [str(PLUGIN), str(self.folder / f"{name}.json")]
        section = {"command": sys.executable, "args": arguments, "apiVersion": "client.authentication.k8s.io/v1"}
        return {"exec": section | {"interactiveMode": "Never"}}

    def fresh(self, name: str) -> str:
        """Return a token that is good from now on."""
        given = json.loads((self.folder / f"{name}.json").read_text())
        return token(given, time.time())

    def token_file(self, name: str) -> dict[str, Any]:
        """Return a user by a token file."""
        self._replace(f"{name}.token", self.fresh(name))
        return {"tokenFile": str(self.folder / f"{name}.token")}

    def fixed(self, name: str) -> dict[str, Any]:
        """Return a user by a token in the kubeconfig itself."""
        return {"token": self.fresh(name)}

    def _replace(self, name: str, text: str) -> None:
        (self.folder / f"{name}.new").write_text(text)
        (self.folder / f"{name}.new").replace(self.folder / name)

    def write(self, config: dict[str, Any]) -> None:
        self._replace("rotated", yaml.safe_dump(config))

    def extra(self) -> dict[str, Any]:
        """Return the connection."""
        old, new = (json.dumps(str(self.folder / name)) for name in ("kubeconfig", "rotated"))
        extra: dict[str, Any] = json.loads(json.dumps(self.accounts.extra()).replace(old, new))
        return extra

    def rotate(self, make: Callable[[], None]) -> threading.Thread:
        """Make new tokens every few seconds, until `end`."""

        def turn() -> None:
            while not self._ended.wait(LIFETIME / 3):
                make()

        thread = threading.Thread(target=turn)
        thread.start()
        return thread

    def end(self) -> None:
        self._ended.set()

    def runs(self, name: str) -> int:
        return len((self.folder / f"{name}.runs").read_text().splitlines())


@pytest.fixture
async def short(fleet: Sandbox, multikueue_namespace: str, tmp_path: Path) -> AsyncIterator[ShortLived]:
    accounts = Accounts(fleet, multikueue_namespace, tmp_path)
    short = ShortLived(accounts)
    await short.make()
    yield short
    short.end()
    await accounts.remove()


async def test_the_tokens_are_refused_after_their_time(short):
    config = short.config(short.fixed)
    async with await Cluster.from_kubeconfig("manager", config=config, context=short.accounts.context("manager")) as it:
        assert (await it.list(JOBS, short.accounts.namespace))[0] == []

        async def refused() -> bool:
            try:
                await it.list(JOBS, short.accounts.namespace)
            except ApiError as error:
                return error.status == 401
            return False

        async with asyncio.timeout(3 * LIFETIME):
            while not await refused():  # noqa: ASYNC110 - the server decides when
                await asyncio.sleep(1)


async def test_a_worker_by_the_secret_that_kueue_uses_outlives_each_token_in_it(short):
    """By a MultiKueueCluster of its own, so that Kueue's connections to the others stay as they are."""
    name, worker_name = short.accounts.namespace, "multikueue-dws-worker-us"

    def secret() -> dict[str, Any]:
        config = short.config(short.fixed)
        config["current-context"] = short.accounts.context(worker_name)
        text = base64.b64encode(yaml.safe_dump(config).encode()).decode()
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"kubeconfig": text}}

    extra = Sandbox.connection(short.accounts.sandbox)["extra"] | {"workers": "manager_secrets"}
    async with open_fleet(FleetConfig.from_extra(extra, conn_id="secrets")) as opened:
        manager = opened.manager
        resource = await manager.resource("kueue.x-k8s.io", "multikueueclusters")
        source = {"kubeConfig": {"location": name, "locationType": "Secret"}}
        cluster = {"apiVersion": resource.api_version, "kind": "MultiKueueCluster", "metadata": {"name": name}}
        await manager.create(SECRETS, secret(), "kueue-system")
        await manager.create(resource, {**cluster, "spec": {"clusterSource": source}})
        opened._looked = None  # else it looks again after a minute
        try:
            worker = await opened.worker(name)
            assert worker is not None
            shown = set()
            ends = time.monotonic() + 3 * LIFETIME
            while time.monotonic() < ends:
                await worker.list(JOBS, short.accounts.namespace)
                shown.add(worker._transport._access.authorization)
                await manager.patch(SECRETS, name, {"data": secret()["data"]}, "kueue-system", kind="merge")
                await asyncio.sleep(1)  # the server decides for how long it takes a token
        finally:
            await manager.delete(resource, name)
            await manager.delete(SECRETS, name, "kueue-system")
    assert len(shown) >= 3


@pytest.mark.parametrize("form", ["plugin", "token-file", "kubeconfig", "connection"])
def test_a_job_waits_and_runs_for_longer_than_its_tokens(short, monkeypatch, form):
    """Through a wait of 40 s, a minute of log, and a worker that is away in between."""
    sandbox, extra = short.accounts.sandbox, short.extra()
    wait_for_rotation = rotated_by(form, short, extra, monkeypatch)
    hook = MultiKueueHook("short")
    lines: list[str] = []
    monkeypatch.setattr(hook.log, "log", lambda _level, _format, text: lines.append(text))
    who = Identity(deployment="rights", dag_id="d", run_id=uuid.uuid4().hex, task_id="t", map_index=-1)
    sandbox.capacity(mode="starve")
    timers = [
        threading.Timer(2 * LIFETIME, lambda: sandbox.capacity("us-east4", mode="grant", after=0.3)),
        threading.Timer(3.5 * LIFETIME, lambda: sandbox.restart("us-east4-apiserver")),
    ]
    try:
        job = hook.submit(manifest("for i in $(seq 1 70); do echo number $i; sleep 1; done"), identity=who)
        for timer in timers:
            timer.start()
        report = hook.wait(job, logs="all")
        hook.delete(job)
    finally:
        for timer in timers:
            timer.cancel()
        sandbox.capacity()
        short.end()
        wait_for_rotation()
    text = "\n".join(lines)
    assert report["phase"] == "SUCCEEDED"
    assert report["placement"]["region"] == "us-east4"
    assert [line for line in text.split("\n") if line.startswith("number ")] == [f"number {i}" for i in range(1, 71)]
    assert report["waited_seconds"] > 1.5 * LIFETIME
    if form == "plugin":
        assert short.runs("manager") >= 5
        assert short.runs("multikueue-dws-worker-us") >= 5


def rotated_by(
    form: str, short: ShortLived, extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Have the connection "short", with credentials of one form that are rotated; return what waits for the end."""

    def give(values: dict[str, Any]) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_SHORT", json.dumps({"conn_type": "multikueue", "extra": values}))

    def inline() -> None:
        config = json.dumps(short.config(short.fixed))
        for name, worker in extra["workers"].items():
            values = {"kube_config": config, "cluster_context": worker["context"]}
            connection = json.dumps({"conn_type": "kubernetes", "extra": values})
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper().replace('-', '_')}", connection)
        workers = {
            name: {"conn_id": name.replace("-", "_"), "region": worker["region"]}
            for name, worker in extra["workers"].items()
        }
        rest = {key: value for key, value in extra.items() if key != "manager_kube_config_path"}
        give(rest | {"manager_kube_config": config, "workers": workers})

    if form == "connection":
        inline()
        return short.rotate(inline).join
    give(extra)
    if form == "plugin":
        short.write(short.config(short.plugin))
        return lambda: None
    user = short.token_file if form == "token-file" else short.fixed
    short.write(short.config(user))
    again: Callable[[], None] = (
        (lambda: [short.token_file(name) for name in short.accounts.tokens] and None)
        if form == "token-file"
        else (lambda: short.write(short.config(short.fixed)))
    )
    return short.rotate(again).join
