"""A pod's containers run as local processes, and what becomes of them is told. A dictionary plays the API server."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_multikueue.clusters.client import ApiError, Resource
from airflow_provider_multikueue.sandbox import container as container_module
from airflow_provider_multikueue.sandbox.container import LogUnavailable
from airflow_provider_multikueue.sandbox.containerlog import LogOptions
from airflow_provider_multikueue.sandbox.pod import Host, Pod
from airflow_provider_multikueue.sandbox.podstatus import Verdict
from airflow_provider_multikueue.sandbox.process import Processes

TERMINATION_LOG = "/dev/termination-log"


class Server:
    """The part of an API server that a pod on its node speaks to."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.statuses: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.changed = asyncio.Event()
        self.down = False

    def _answer(self) -> None:
        if self.down:
            raise ApiError("No answer.", status=0)

    async def patch(self, _: Resource, name: str, body: dict[str, Any], namespace: str, **__: Any) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        self._answer()
        self.statuses.append(copy.deepcopy(body["status"]))
        self.changed.set()
        return body

    async def delete(self, _: Resource, name: str, namespace: str, *, uid: str, grace: int) -> None:
        self._answer()
        assert grace == 0
        self.deleted.append(uid)
        self.changed.set()

    async def get(self, resource: Resource, name: str, namespace: str) -> dict[str, Any]:
        if (resource.plural, name) not in self.objects:
            raise ApiError("Not found.", status=404)
        return self.objects[resource.plural, name]

    async def create(self, _: Resource, obj: dict[str, Any], namespace: str) -> dict[str, Any]:
        self.events.append(obj)
        return obj

    async def until(self, condition: Callable[[dict[str, Any]], bool], within: float = 5.0) -> dict[str, Any]:
        """Return the newest status as soon as it meets the condition."""
        async with asyncio.timeout(within):
            while not (self.statuses and condition(self.statuses[-1])):
                self.changed.clear()
                await self.changed.wait()
        return self.statuses[-1]

    async def over(self, within: float = 5.0) -> dict[str, Any]:
        """Return the newest status as soon as the pod has ended."""
        return await self.until(lambda status: status["phase"] in {"Succeeded", "Failed"}, within)

    async def removed(self) -> None:
        """Return as soon as the pod's object was deleted for good."""
        async with asyncio.timeout(2):
            while not self.deleted:
                self.changed.clear()
                await self.changed.wait()


class Rig:
    """Runs pods against one such server."""

    def __init__(self, folder: Path) -> None:
        self.server = Server()
        self.processes = Processes()
        self.host = Host(self.server, self.processes, folder, "/usr/bin:/bin", {"cpu": "64"}, asyncio.Semaphore(2))  # type: ignore[arg-type]
        self.folder = folder

    @asynccontextmanager
    async def pod(
        self, *containers: dict[str, Any], status: dict[str, Any] | None = None, **spec: Any
    ) -> AsyncIterator[Pod]:
        """Run a pod until the block ends, which is as if its object were gone."""
        named = [{"name": f"c{index}", "image": "busybox", **entry} for index, entry in enumerate(containers)]
        for index, entry in enumerate(spec.get("initContainers", [])):
            entry.update({"name": f"i{index}", "image": "busybox"} | entry)
        metadata = {"name": "pod", "namespace": "team", "uid": "uid-1", "generation": 1}
        full = {
            "nodeName": "n",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": named,
            **spec,
        }
        pod = Pod(self.host, {"metadata": metadata, "spec": full, "status": status or {}})
        task = asyncio.create_task(pod.run())
        try:
            yield pod
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    watching = asyncio.create_task(rig.processes.watch_memory())
    yield rig
    watching.cancel()
    rig.processes.close()


def sh(script: str, **more: Any) -> dict[str, Any]:
    return {"command": ["sh", "-c", script], **more}


def state(status: dict[str, Any], index: int = 0, kind: str = "containerStatuses") -> dict[str, Any]:
    return status[kind][index]["state"]


def delete(pod: Pod, grace: int) -> None:
    meta = pod.pod["metadata"] | {"deletionTimestamp": "now", "deletionGracePeriodSeconds": grace}
    pod.update(pod.pod | {"metadata": meta})


async def text(pod: Pod, name: str = "c0", *, previous: bool = False) -> bytes:
    record = pod.container_log(name, previous=previous)
    return b"".join([piece async for piece in record.read(LogOptions())])


async def test_an_instant_pod_is_told_within_a_tenth_of_a_second(rig: Rig) -> None:
    begun = time.monotonic()
    async with rig.pod(sh("echo one; echo two >&2")) as pod:
        status = await rig.server.over()
        assert time.monotonic() - begun < 0.5
        assert status["phase"] == "Succeeded"
        ended = state(status)["terminated"]
        assert (ended["exitCode"], ended["reason"]) == (0, "Completed")
        assert await text(pod) == b"one\ntwo\n"
        kept = rig.folder / "kept-logs" / "team" / "pod_uid-1" / "c0-0.log"
    assert kept.read_bytes() == b"one\ntwo\n"
    assert not (rig.folder / "pods" / "uid-1").exists()


async def test_exit_codes_and_signals_are_told(rig: Rig) -> None:
    async with rig.pod(sh("exit 3"), sh("kill -9 $$$$"), sh("exit 0")):
        status = await rig.server.over()
    assert status["phase"] == "Failed"
    assert [state(status, index)["terminated"]["exitCode"] for index in range(3)] == [3, 137, 0]
    assert state(status)["terminated"]["reason"] == "Error"


async def test_termination_messages_come_from_the_file_or_the_log(rig: Rig) -> None:
    own = sh("echo reason > /my/message; exit 1", terminationMessagePath="/my/message")
    fallback = sh("seq 200; exit 1", terminationMessagePolicy="FallbackToLogsOnError")
    async with rig.pod(sh(f"printf why > {TERMINATION_LOG}"), own, fallback, sh("echo x; exit 1")):
        status = await rig.server.over()
    ended = [state(status, index)["terminated"] for index in range(4)]
    assert [each.get("message") for each in ended[:2]] == ["why", "reason\n"]
    assert ended[2]["message"].splitlines() == [str(number) for number in range(121, 201)]
    assert "message" not in ended[3]


async def test_a_command_that_does_not_exist_is_a_start_error(rig: Rig) -> None:
    async with rig.pod({"command": ["no-such-program"]}, {"command": ["/no/such/file"]}, {"command": ["/etc"]}):
        status = await rig.server.over()
    ended = [state(status, index)["terminated"] for index in range(3)]
    assert [(each["exitCode"], each["reason"]) for each in ended] == [(128, "StartError")] * 3
    assert "executable file not found in $PATH" in ended[0]["message"]
    assert "no such file or directory" in ended[1]["message"]
    assert "permission denied" in ended[2]["message"]


async def test_an_unknown_image_is_not_pulled(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_module, "PULL_ERROR_SECONDS", 0.05)
    async with rig.pod({"image": "example.com/nope:1"}) as pod:
        status = await rig.server.until(lambda status: "waiting" in state(status))
        assert (status["phase"], state(status)["waiting"]["reason"]) == ("Pending", "ErrImagePull")
        with pytest.raises(LogUnavailable, match="waiting to start: image can't be pulled"):
            pod.container_log("c0", previous=False)
        status = await rig.server.until(lambda status: state(status)["waiting"]["reason"] == "ImagePullBackOff")
        with pytest.raises(LogUnavailable, match="waiting to start: trying and failing to pull image"):
            pod.container_log("c0", previous=False)
        delete(pod, 30)
        await rig.server.removed()
        assert rig.server.statuses[-1]["phase"] == "Failed"
    assert {event["reason"] for event in rig.server.events} == {"Failed", "BackOff"}


async def test_a_missing_configmap_is_a_config_error_until_it_is_there(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_module, "BACKOFF_FIRST", 0.05)
    source = {"configMapKeyRef": {"name": "settings", "key": "mode"}}
    async with rig.pod(sh("echo $MODE", env=[{"name": "MODE", "valueFrom": source}])) as pod:
        status = await rig.server.until(lambda status: "waiting" in state(status))
        expected = {"reason": "CreateContainerConfigError", "message": 'configmap "settings" not found'}
        assert state(status)["waiting"] == expected
        rig.server.objects["configmaps", "settings"] = {"data": {"mode": "fast"}}
        await rig.server.over()
        assert await text(pod) == b"fast\n"


async def test_failed_containers_restart_with_growing_pauses(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_module, "BACKOFF_FIRST", 0.2)
    script = "echo run >> /state/runs; wc -l < /state/runs; test $(wc -l < /state/runs) -ge 3"
    volumes = [{"name": "state", "emptyDir": {}}]
    mounted = sh(script, volumeMounts=[{"name": "state", "mountPath": "/state"}])
    async with rig.pod(mounted, restartPolicy="OnFailure", volumes=volumes) as pod:
        status = await rig.server.until(lambda status: "waiting" in state(status))
        assert state(status)["waiting"]["reason"] == "CrashLoopBackOff"
        assert status["phase"] == "Running"
        assert status["containerStatuses"][0]["restartCount"] == 1
        assert status["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
        assert await text(pod) == b"2\n"
        status = await rig.server.over()
        assert status["phase"] == "Succeeded"
        assert status["containerStatuses"][0]["restartCount"] == 2
        assert (await text(pod), await text(pod, previous=True)) == (b"3\n", b"2\n")


async def test_init_containers_run_in_order_before_the_others(rig: Rig) -> None:
    mount = {"volumeMounts": [{"name": "shared", "mountPath": "/work"}]}
    init = [sh("echo a > /work/x", **mount), sh("echo b >> /work/x", **mount)]
    volumes = [{"name": "shared", "emptyDir": {}}]
    async with rig.pod(sh("cat /work/x", **mount), initContainers=init, volumes=volumes) as pod:
        status = await rig.server.over()
        assert await text(pod) == b"a\nb\n"
    assert status["phase"] == "Succeeded"
    assert [each["ready"] for each in status["initContainerStatuses"]] == [True, True]


async def test_a_failed_init_container_fails_the_pod(rig: Rig) -> None:
    async with rig.pod(sh("true"), initContainers=[sh("exit 4")]):
        status = await rig.server.over()
    assert status["phase"] == "Failed"
    assert state(status, kind="initContainerStatuses")["terminated"]["exitCode"] == 4
    assert state(status)["waiting"]["reason"] == "PodInitializing"


async def test_a_sidecar_runs_beside_and_is_stopped_after_the_others(rig: Rig) -> None:
    sidecar = sh("trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done", restartPolicy="Always")
    async with rig.pod(sh("sleep 0.3"), initContainers=[sidecar]) as pod:
        status = await rig.server.until(lambda status: status["phase"] == "Running")
        assert "running" in state(status, kind="initContainerStatuses")
        status = await rig.server.over()
        assert status["phase"] == "Succeeded"
        assert await text(pod, "i0") == b"up\nbye\n"


async def test_deletion_asks_first_and_then_kills(rig: Rig) -> None:
    polite = sh("trap 'echo bye; exit 5' TERM; echo up; while :; do sleep 0.05; done")
    stubborn = sh("trap '' TERM; echo up; while :; do sleep 0.05; done")
    async with rig.pod(polite, stubborn, sh("exec sleep 60")) as pod:
        await rig.server.until(lambda status: status["phase"] == "Running")
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        delete(pod, 1)
        status = await rig.server.over()
        assert 0.9 < time.monotonic() - begun < 1.6
        assert [state(status, index)["terminated"]["exitCode"] for index in range(3)] == [5, 137, 143]
        assert rig.server.statuses[-1]["phase"] == "Failed"
        await rig.server.removed()


async def test_a_later_deletion_may_shorten_the_grace_period(rig: Rig) -> None:
    async with rig.pod(sh("trap '' TERM; while :; do sleep 0.05; done")) as pod:
        await rig.server.until(lambda status: status["phase"] == "Running")
        await asyncio.sleep(0.1)
        delete(pod, 60)
        await asyncio.sleep(0.1)
        delete(pod, 0)
        await rig.server.over(within=2)


async def test_a_pod_whose_object_is_gone_leaves_no_process(rig: Rig) -> None:
    async with rig.pod(sh("sleep 77 & setsid sleep 77 & sleep 77")) as pod:
        await rig.server.until(lambda status: status["phase"] == "Running")
        process = pod.main[0].process
        assert process is not None
        await asyncio.sleep(0.1)
    assert await process.wait() == 137


async def test_children_that_left_the_group_end_with_the_container(rig: Rig) -> None:
    async with rig.pod(sh("setsid sleep 77 & echo started")) as pod:
        await rig.server.over()
        assert await text(pod) == b"started\n"


async def test_a_group_that_uses_more_memory_than_its_limit_is_killed(rig: Rig) -> None:
    greedy = {
        "image": "python",
        "command": [
            "python",
            "-c",
            "import time; x = bytearray(80 << 20); print('have it', flush=True); time.sleep(60)",
        ],
        "resources": {"limits": {"memory": "48Mi"}},
    }
    async with rig.pod(greedy):
        status = await rig.server.over()
    ended = state(status)["terminated"]
    assert (ended["exitCode"], ended["reason"], status["phase"]) == (137, "OOMKilled", "Failed")


async def test_memory_below_the_limit_is_left_alone(rig: Rig) -> None:
    modest = {
        "image": "python",
        "command": ["python", "-c", "import time; x = bytearray(20 << 20); time.sleep(0.5)"],
        "resources": {"limits": {"memory": "64Mi"}},
    }
    async with rig.pod(modest):
        assert (await rig.server.over())["phase"] == "Succeeded"


async def test_the_pods_own_deadline_ends_it(rig: Rig) -> None:
    async with rig.pod(sh("exec sleep 60"), activeDeadlineSeconds=0.3):
        status = await rig.server.over()
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert state(status)["terminated"]["exitCode"] == 143


async def test_a_verdict_from_outside_fails_the_pod(rig: Rig) -> None:
    async with rig.pod(sh("exec sleep 60"), restartPolicy="Always") as pod:
        await rig.server.until(lambda status: status["phase"] == "Running")
        pod.end(Verdict("Terminated", "node shutdown", disruption="TerminationByKubelet"), 5)
        await pod.ended()
        status = rig.server.statuses[-1]
    assert (status["phase"], status["reason"]) == ("Failed", "Terminated")


async def test_a_pod_that_its_node_cannot_run_is_told_to_have_failed(rig: Rig) -> None:
    (rig.folder / "pods").write_text("a file where a folder should be")
    async with rig.pod(sh("true")):
        status = await rig.server.over()
    assert (status["phase"], status["reason"]) == ("Failed", "NodeAgentError")


async def test_what_happened_during_an_outage_is_told_afterwards(rig: Rig) -> None:
    async with rig.pod(sh("sleep 0.2; exit 6")):
        await rig.server.until(lambda status: status["phase"] == "Running")
        rig.server.down = True
        await asyncio.sleep(0.4)
        rig.server.down = False
        status = await rig.server.over()
    assert state(status)["terminated"]["exitCode"] == 6


async def test_a_new_agent_tells_that_processes_were_lost(rig: Rig) -> None:
    told = {
        "phase": "Running",
        "containerStatuses": [
            {
                "name": "c0",
                "containerID": "containerd://1",
                "restartCount": 0,
                "state": {"running": {"startedAt": "then"}},
            }
        ],
    }
    async with rig.pod(sh("true"), status=told):
        status = await rig.server.over()
    ended = state(status)["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["startedAt"]) == (137, "ContainerStatusUnknown", "then")


async def test_a_new_agent_starts_again_what_may_be_started_again(rig: Rig) -> None:
    told = {
        "phase": "Running",
        "containerStatuses": [
            {
                "name": "c0",
                "containerID": "containerd://1",
                "restartCount": 2,
                "state": {"running": {"startedAt": "then"}},
            }
        ],
    }
    async with rig.pod(sh("true"), status=told, restartPolicy="OnFailure"):
        status = await rig.server.over()
    assert (status["phase"], status["containerStatuses"][0]["restartCount"]) == ("Succeeded", 3)


async def test_an_ended_pod_is_not_run_again_by_a_new_agent(rig: Rig) -> None:
    told = {"phase": "Succeeded", "containerStatuses": []}
    async with rig.pod(sh("echo again"), status=told) as pod:
        await asyncio.sleep(0.1)
        assert rig.server.statuses == []
        delete(pod, 30)
        await rig.server.removed()


async def test_environment_and_folder_are_the_containers_own(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "x")
    env = [
        {"name": "OUT", "value": "/data/out"},
        {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    ]
    mounted = sh(
        "pwd; echo $OUT $ME ${SECRET_OF_THE_AGENT:-none} $HOSTNAME; touch here",
        env=env,
        volumeMounts=[{"name": "data", "mountPath": "/data"}],
        workingDir="/srv/app",
    )
    async with rig.pod(mounted, volumes=[{"name": "data", "emptyDir": {}}]) as pod:
        await rig.server.over()
        folder, line = (await text(pod)).decode().splitlines()
    root = rig.folder / "pods" / "uid-1"
    assert folder == f"{root}/containers/c0/0/work/srv/app"
    assert line == f"{root}/volumes/data/out pod none pod"


async def test_volumes_have_the_files_of_configmaps_and_secrets(rig: Rig) -> None:
    rig.server.objects["configmaps", "code"] = {"data": {"main.sh": "echo from the map"}}
    rig.server.objects["secrets", "key"] = {"data": {"k": "aHVzaA=="}}
    volumes = [{"name": "code", "configMap": {"name": "code"}}, {"name": "key", "secret": {"secretName": "key"}}]
    mounts = [{"name": "code", "mountPath": "/code"}, {"name": "key", "mountPath": "/etc/key"}]
    async with rig.pod(sh("sh /code/main.sh; cat /etc/key/k", volumeMounts=mounts), volumes=volumes) as pod:
        await rig.server.over()
        assert await text(pod) == b"from the map\nhush"


async def test_a_flood_does_not_hold_the_loop(rig: Rig) -> None:
    longest = 0.0

    async def beat() -> None:
        nonlocal longest
        while True:
            begun = time.thread_time()  # of this thread alone: a busy machine is not our doing
            await asyncio.sleep(0.005)
            longest = max(longest, time.thread_time() - begun)

    beating = asyncio.create_task(beat())
    async with rig.pod(sh("yes 0123456789012345678901234567890123456789 | head -c 200000000")) as pod:
        await rig.server.over(within=30)
        assert pod.container_log("c0", previous=False).path.stat().st_size == 200_000_000
        beating.cancel()
    assert longest < 0.1


async def test_many_pods_at_once(rig: Rig, tmp_path: Path) -> None:
    begun = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for index in range(100):
            group.create_task(_one(Rig.__new__(Rig), rig, tmp_path, index))
    assert time.monotonic() - begun < 20


async def _one(mine: Rig, rig: Rig, folder: Path, index: int) -> None:
    """Run one of many pods; they share processes, and each has a server of its own."""
    mine.server, mine.processes, mine.folder = Server(), rig.processes, folder / str(index)
    mine.host = Host(mine.server, mine.processes, mine.folder, "/usr/bin:/bin", {}, rig.host.turns)  # type: ignore[arg-type]
    async with mine.pod(sh(f"echo {index}; exit {index % 5}")) as pod:
        status = await mine.server.over(within=20)
        assert state(status)["terminated"]["exitCode"] == index % 5
        assert await text(pod) == f"{index}\n".encode()
