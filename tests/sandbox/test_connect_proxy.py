"""A fleet that is behind a proxy which lets nothing but CONNECT through, and whose names only the proxy can resolve."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from airflow_provider_multikueue.decisions.names import Identity
from airflow_provider_multikueue.hooks import MultiKueueHook
from airflow_provider_multikueue.sandbox.api import Sandbox
from tests.sandbox.test_hook import manifest

pytestmark = pytest.mark.sandbox

SUFFIX = "fleet.test"


class ConnectProxy:
    """Leads names of the fleet to this machine, and refuses whatever is no CONNECT to one of them."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._tasks: set[asyncio.Task[Any]] = set()

    def __enter__(self) -> ConnectProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # closed writers close their sockets in the next round

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            verb, target, *_ = (await reader.readuntil(b"\r\n\r\n")).decode().split()
            self.asked.append(f"{verb} {target}")
            host, _, port = target.rpartition(":")
            if verb != "CONNECT" or not host.endswith(SUFFIX):
                writer.write(b"HTTP/1.1 405 Only CONNECT\r\nContent-Length: 0\r\n\r\n")
                return
            there = await asyncio.open_connection("127.0.0.1", int(port))
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer), return_exceptions=True)
        finally:
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()


@pytest.fixture
def proxy() -> Iterator[ConnectProxy]:
    with ConnectProxy() as running:
        yield running


@pytest.mark.parametrize("given", ["proxy-url", "environment"])
def test_a_job_runs_and_its_log_is_read_through_the_proxy_alone(
    fleet: Sandbox,
    proxy: ConnectProxy,
    multikueue_connection: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
) -> None:
    config = yaml.safe_load(Path(multikueue_connection["extra"]["manager_kube_config_path"]).read_text())
    for entry in config["clusters"]:
        port = urlsplit(entry["cluster"]["server"]).port
        # Its certificate is for another name, as behind a company's load balancer.
        entry["cluster"] |= {"server": f"https://{entry['name']}.{SUFFIX}:{port}", "tls-server-name": "127.0.0.1"}
        if given == "proxy-url":
            entry["cluster"]["proxy-url"] = proxy.url
    if given == "environment":
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("NO_PROXY", f"10.0.0.0/8,.svc,other.{SUFFIX}")
    (tmp_path / "behind").write_text(yaml.safe_dump(config))
    text = json.dumps(multikueue_connection)
    old = json.dumps(multikueue_connection["extra"]["manager_kube_config_path"])
    monkeypatch.setenv("AIRFLOW_CONN_BEHIND", text.replace(old, json.dumps(str(tmp_path / "behind"))))
    hook = MultiKueueHook("behind")
    lines: list[str] = []
    monkeypatch.setattr(hook.log, "log", lambda _level, _format, text: lines.append(text))
    who = Identity(deployment="proxy", dag_id="d", run_id=uuid.uuid4().hex, task_id="t", map_index=-1)
    job = hook.submit(manifest("echo hello from the pod; sleep 1"), identity=who)
    report = hook.wait(job, logs="all")
    hook.delete(job)
    assert report["phase"] == "SUCCEEDED"
    assert any("hello from the pod" in line for line in lines), lines
    reached = {line.split()[1].partition(".")[0] for line in proxy.asked}
    assert len(reached) == 1 + len(fleet.regions)
    assert all(line.startswith("CONNECT ") for line in proxy.asked)
