"""Opening an Airflow connection by many tasks of one event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
import yaml

from airflow_provider_multikueue.decisions import connection as decisions_connection
from airflow_provider_multikueue.decisions.plain_yaml import plain_yaml
from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.fleets.fleet import source_of
from airflow_provider_multikueue.opening import open_connection
from tests.unit.apiserver import kubeconfig


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write the connection ``fleet`` with a queue."""
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(kubeconfig("http://127.0.0.1:1", token="some-token")))

    def write(queue: str) -> None:
        extra = {"manager_kube_config_path": str(path), "queue_name": queue}
        monkeypatch.setenv("AIRFLOW_CONN_FLEET", json.dumps({"conn_type": "multikueue", "extra": extra}))

    return write


async def queue() -> str | None:
    async with open_connection("fleet") as (_, config):
        return config.queue_name


def test_tasks_of_an_event_loop_share_one_look_and_one_copy_of_what_it_says(store):
    async def open_two() -> None:
        store("first")
        async with open_connection("fleet") as (fleet, config):
            store("second")
            async with open_connection("fleet") as (same, also):
                assert same is fleet
                assert also is config

    asyncio.run(open_two())


def test_an_inline_kubeconfig_is_read_once_for_all_and_holds_up_no_loop(monkeypatch):
    readers = []

    def read(text: str) -> object:
        readers.append(threading.current_thread())
        return plain_yaml(text)

    monkeypatch.setattr(decisions_connection, "plain_yaml", read)
    extra = {"manager_kube_config": yaml.safe_dump(kubeconfig("http://127.0.0.1:1", token="some-token"))}
    monkeypatch.setenv("AIRFLOW_CONN_FLEET", json.dumps({"conn_type": "multikueue", "extra": extra}))

    async def open_many() -> None:
        async with open_connection("fleet") as (_, config), open_connection("fleet"):
            assert source_of(config.manager).config is config.manager.content
            assert source_of(config.manager).load().authorization == "Bearer some-token"

    asyncio.run(open_many())
    assert len(readers) == 1
    assert readers[0] is not threading.main_thread()


def test_another_event_loop_looks_for_itself(store):
    store("first")
    assert asyncio.run(queue()) == "first"
    store("second")
    assert asyncio.run(queue()) == "second"


def test_a_connection_that_could_not_be_read_is_looked_for_again(store, monkeypatch):
    async def open_late() -> str | None:
        monkeypatch.delenv("AIRFLOW_CONN_FLEET", raising=False)
        with pytest.raises(FleetConfigurationError, match="no connection 'fleet'"):
            await queue()
        store("late")
        return await queue()

    assert asyncio.run(open_late()) == "late"


def test_one_who_is_cancelled_takes_no_look_from_the_others(store):
    async def open_both() -> str | None:
        store("first")
        leaving, staying = asyncio.create_task(queue()), asyncio.create_task(queue())
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying

    assert asyncio.run(open_both()) == "first"
