"""A fleet that is behind a proxy which lets nothing but CONNECT through, and whose names only the proxy can resolve."""

from __future__ import annotations

import json
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
from tests.connect_proxy import ConnectProxy
from tests.sandbox.test_hook import manifest

pytestmark = [pytest.mark.sandbox, pytest.mark.broad]

SUFFIX = "fleet.test"


@pytest.fixture
def proxy() -> Iterator[ConnectProxy]:
    with ConnectProxy(lambda host, port: port if host.endswith(SUFFIX) else None) as running:
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
