"""The logs of real pods, against the node agent's own copy of what they wrote, over a network that misbehaves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from airflow_provider_multikueue.clusters.client import PODS, ApiError, Cluster
from airflow_provider_multikueue.logs.lines import CONTINUED, CONTINUES
from airflow_provider_multikueue.logs.reader import PodLogs
from airflow_provider_multikueue.sandbox.api import Sandbox
from airflow_provider_multikueue.sandbox.proxy import Fault, FaultProxy

pytestmark = pytest.mark.sandbox

Object = dict[str, Any]


@pytest.fixture
def kubeconfig(fleet: Sandbox) -> Object:
    whole = yaml.safe_load(Path(fleet.kubeconfig).read_text())
    return {**whole, "current-context": f"worker-{fleet.regions[0]}"}


@pytest.fixture
async def cluster(kubeconfig: Object) -> AsyncIterator[Cluster]:
    async with await Cluster.from_kubeconfig("worker", config=kubeconfig) as connected:
        yield connected


@pytest.fixture
def readers(fleet: Sandbox) -> Object:
    """The kubeconfig of the account that the provider reads with; pods are made by an administrator."""
    path = Path(fleet.connection()["extra"]["manager_kube_config_path"])
    return {**yaml.safe_load(path.read_text()), "current-context": f"worker-{fleet.regions[0]}"}


@pytest.fixture
async def reader(readers: Object) -> AsyncIterator[Cluster]:
    async with await Cluster.from_kubeconfig("worker", config=readers) as connected:
        yield connected


@pytest.fixture
async def proxy(cluster: Cluster) -> AsyncIterator[FaultProxy]:
    async with FaultProxy("127.0.0.1", urlsplit(cluster.server).port or 443) as running:
        yield running


@pytest.fixture
async def behind_proxy(readers: Object, cluster: Cluster, proxy: FaultProxy) -> AsyncIterator[Cluster]:
    address = f"https://127.0.0.1:{proxy.port}"
    clusters = [
        {**entry, "cluster": {**entry["cluster"], "server": address}}
        if entry["cluster"]["server"] == cluster.server
        else entry
        for entry in readers["clusters"]
    ]
    async with await Cluster.from_kubeconfig("worker", config={**readers, "clusters": clusters}) as connected:
        yield connected


@pytest.fixture
async def namespace(fleet: Sandbox) -> AsyncIterator[str]:
    name = await asyncio.to_thread(fleet.make_namespace)
    yield name
    await asyncio.to_thread(fleet.delete_namespace, name)


class TaskLog:
    """What a task's log holds."""

    def __init__(self) -> None:
        self.records: list[str] = []

    def record(self, level: int, text: str) -> None:
        del level
        self.records.append(text)

    @property
    def lines(self) -> list[str]:
        return [line for text in self.records for line in text.split("\n") if not line.startswith("──")]

    @property
    def remarks(self) -> list[str]:
        return [line for text in self.records for line in text.split("\n") if line.startswith("──")]


class Run:
    """Pods of one test, and the reader that follows them."""

    def __init__(self, fleet: Sandbox, cluster: Cluster, namespace: str, logs: PodLogs) -> None:
        self.fleet, self.cluster, self.namespace, self.logs = fleet, cluster, namespace, logs
        self.pods: dict[str, Object] = {}
        self.moved = asyncio.Condition()

    async def make(self, script: str, *, name: str = "pod", **spec: Any) -> None:
        container = {"name": "main", "image": "busybox", "command": ["bash", "-c", script]}
        body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body}
        async with asyncio.timeout(60):
            while True:
                try:
                    await self.cluster.create(PODS, pod, self.namespace)
                    return
                except ApiError as error:
                    if error.status != 403:
                        raise
                    await asyncio.sleep(0.05)

    async def watch(self, reader: Cluster) -> None:
        while True:
            pods, version = await self.cluster.list(PODS, self.namespace)
            for pod in pods:
                await self.see(reader, pod)
            async for kind, pod in self.cluster.watch(PODS, self.namespace, resource_version=version):
                if kind != "BOOKMARK":
                    await self.see(reader, pod)

    async def see(self, reader: Cluster, pod: Object) -> None:
        self.pods[pod["metadata"]["name"]] = pod
        self.logs.update(reader, "us-east4", list(self.pods.values()))
        async with self.moved:
            self.moved.notify_all()

    async def ended(self, name: str = "pod", *, within: float = 60) -> None:
        def over() -> bool:
            return self.pods.get(name, {}).get("status", {}).get("phase") in {"Succeeded", "Failed"}

        async with asyncio.timeout(within), self.moved:
            await self.moved.wait_for(over)

    def kept(self, name: str = "pod", restart: int = 0) -> bytes:
        """Return the node agent's copy."""
        for pod in self.fleet.node(self.fleet.regions[0], "pods"):
            if (pod["namespace"], pod["name"]) == (self.namespace, name):
                return (Path(pod["kept_logs"]) / f"main-{restart}.log").read_bytes()
        raise AssertionError("the node agent knows no such pod")


@asynccontextmanager
async def following(fleet: Sandbox, cluster: Cluster, reader: Cluster, namespace: str, sink: TaskLog, **options: Any):
    run = Run(fleet, cluster, namespace, PodLogs(sink=sink, **options))
    watch = asyncio.create_task(run.watch(reader))
    try:
        yield run
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await run.logs.close()


async def test_instant_pods_are_complete_although_they_vanish(fleet, cluster, reader, namespace) -> None:
    async def one(run: Run, name: str) -> None:
        await run.make("echo one; echo two; exit 3", name=name)
        await run.ended(name)
        await asyncio.sleep(1)
        await cluster.delete(PODS, name, namespace, grace=0)

    out = TaskLog()
    async with following(fleet, cluster, reader, namespace, out, several=True) as run:
        await asyncio.gather(*(one(run, f"pod-{number:02d}") for number in range(20)))
        await run.logs.drain(10)
    assert sorted(out.lines) == sorted(f"[{number:02d}] {word}" for number in range(20) for word in ("one", "two"))


async def test_five_thousand_lines_at_once(fleet, cluster, reader, namespace) -> None:
    out = TaskLog()
    async with following(fleet, cluster, reader, namespace, out) as run:
        await run.make("for i in {1..5000}; do echo $i; done; exit 3")
        await run.ended()
        await run.logs.drain(10)
        assert out.lines == run.kept().decode().splitlines() == [str(number) for number in range(1, 5001)]
    assert out.remarks == ["── pod pod in us-east4 ──"]


SPOKEN = "for i in {1..1000}; do echo line $i äöü; if [ $i -gt 300 ]; then sleep 0.005; fi; done"


@pytest.mark.parametrize("seed", range(4))
async def test_cuts_at_random_bytes(fleet, cluster, namespace, proxy, behind_proxy, seed) -> None:
    script = random.Random(seed)
    out = TaskLog()
    async with following(fleet, cluster, behind_proxy, namespace, out) as run:
        await run.make(SPOKEN)
        for _ in range(6):
            await proxy.set_fault(Fault(cut_after=script.randrange(1000, 12_000)))
            await asyncio.sleep(0.6)
        await proxy.set_fault(Fault())
        await run.ended()
        await run.logs.drain(20)
        assert out.lines == run.kept().decode().splitlines()
    assert len(out.lines) == 1000


async def test_a_black_hole_and_a_refusing_server(fleet, cluster, namespace, proxy, behind_proxy) -> None:
    out = TaskLog()
    async with following(fleet, cluster, behind_proxy, namespace, out) as run:
        await run.make(SPOKEN)
        for fault in (Fault(mode="blackhole"), Fault(mode="refuse"), Fault(cut_after=0), Fault(delay=0.2)):
            await proxy.set_fault(Fault())
            await asyncio.sleep(0.7)
            await proxy.set_fault(fault)
            await asyncio.sleep(0.7)
        await proxy.set_fault(Fault())
        await run.ended()
        await run.logs.drain(20)
        assert out.lines == run.kept().decode().splitlines()


async def test_the_workers_api_server_is_restarted(fleet, cluster, reader, namespace) -> None:
    out = TaskLog()
    async with following(fleet, cluster, reader, namespace, out) as run:
        await run.make("for i in {1..150}; do echo line $i; sleep 0.1; done")
        await asyncio.sleep(3)
        await asyncio.to_thread(fleet.restart, f"{fleet.regions[0]}-apiserver")
        async with asyncio.timeout(90):
            while len(out.lines) < 150:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert out.lines == [f"line {number}" for number in range(1, 151)]


async def test_any_bytes(fleet, cluster, reader, namespace) -> None:
    out = TaskLog()
    script = r"""
        printf '\xe4\n'; printf '\xe3\x81'; sleep 0.2; printf '\x82\n'; printf 'a\0b\n'; printf '::group::mine\n'
        printf '\033[31mred\033[0m\n'; for i in 1 2 3; do printf "\r$i%%"; done; printf '\n'; printf 'no newline'
    """
    async with following(fleet, cluster, reader, namespace, out) as run:
        await run.make(script)
        await run.ended()
        await run.logs.drain(10)
    assert out.lines == ["\\xe4", "あ", "a\\x00b", "::group\\::mine", "\x1b[31mred\x1b[0m", "3%", "no newline"]


async def test_six_megabytes_without_a_newline(fleet, cluster, reader, namespace) -> None:
    out = TaskLog()
    async with following(fleet, cluster, reader, namespace, out) as run:
        await run.make("echo before; head -c 6000000 /dev/zero | tr '\\0' x; echo; echo after")
        await run.ended()
        await run.logs.drain(20)
    assert (out.lines[0], out.lines[-1]) == ("before", "after")
    whole = "".join(line.removeprefix(CONTINUED).removesuffix(CONTINUES) for line in out.lines[1:-1])
    assert whole == "x" * 6_000_000
    assert max(len(text) for text in out.records) < 64_000


async def test_restarts_are_told_apart(fleet, cluster, reader, namespace) -> None:
    out = TaskLog()
    script = (
        "echo run $(cat /tmp/$RUN_ID 2>/dev/null | wc -l); echo x >> /tmp/$RUN_ID; [ $(wc -l < /tmp/$RUN_ID) -ge 2 ]"
    )
    async with following(fleet, cluster, reader, namespace, out) as run:
        environment = [{"name": "RUN_ID", "value": namespace}]
        container = {"name": "main", "image": "busybox", "command": ["bash", "-c", script], "env": environment}
        await run.make("", restartPolicy="OnFailure", containers=[container])
        await run.ended()
        await run.logs.drain(10)
    Path(f"/tmp/{namespace}").unlink(missing_ok=True)
    assert out.lines == ["run 0", "run 1"]
    assert out.remarks[-1] == "── main in pod pod: restart 1 ──"


async def test_a_reader_takes_over_from_another(fleet, cluster, reader, namespace) -> None:
    out = TaskLog()
    async with following(fleet, cluster, reader, namespace, out) as run:
        await run.make(SPOKEN)
        cursors: Object = {}
        for _ in range(4):
            await asyncio.sleep(0.9)
            cursors = await run.logs.hand_over()
            run.logs = PodLogs(sink=out, cursors=cursors)
            run.logs.update(cluster, "us-east4", list(run.pods.values()))
        await run.ended()
        await run.logs.drain(10)
        assert out.lines == run.kept().decode().splitlines()
