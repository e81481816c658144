"""The node agent against a real control plane: what Kubernetes and its users see of a pod."""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_multikueue.clusters.client import JOBS, NAMESPACES, NODES, PODS, ApiError, Cluster
from airflow_provider_multikueue.sandbox.api import Sandbox

pytestmark = pytest.mark.sandbox

Object = dict[str, Any]

STAMP = re.compile(rb"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z ", re.MULTILINE)


@pytest.fixture
async def cluster(fleet: Sandbox) -> AsyncIterator[Cluster]:
    path, context = str(fleet.kubeconfig), f"worker-{fleet.regions[0]}"
    async with await Cluster.from_kubeconfig("worker", path=path, context=context) as cluster:
        yield cluster


@pytest.fixture
async def pods(cluster: Cluster, fleet: Sandbox) -> AsyncIterator[Pods]:
    name = f"node-{time.time_ns():x}"
    await cluster.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield Pods(cluster, fleet, name)
    await cluster.delete(NAMESPACES, name)


class Pods:
    """Pods and Jobs of one test, straight on one worker."""

    def __init__(self, cluster: Cluster, fleet: Sandbox, namespace: str) -> None:
        self.cluster, self.fleet, self.namespace = cluster, fleet, namespace

    async def make(self, *containers: Object, name: str = "pod", **spec: Any) -> Object:
        """Create a pod; retried until the namespace has its service account."""
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod_spec(*containers, **spec)}
        async with asyncio.timeout(60):  # controllers need a while after their API server was away
            while True:
                try:
                    return await self.cluster.create(PODS, body, self.namespace)
                except ApiError as error:
                    if error.status != 403:
                        raise
                    await asyncio.sleep(0.05)

    async def until(self, condition: Callable[[Object], bool], *, name: str = "pod", within: float = 20) -> Object:
        """Return the pod as soon as it meets the condition; also one that is being removed."""
        async with asyncio.timeout(within):
            items, version = await self.cluster.list(PODS, self.namespace, fields=f"metadata.name={name}")
            if items and condition(items[0]):
                return items[0]
            events = self.cluster.watch(PODS, self.namespace, resource_version=version, fields=f"metadata.name={name}")
            async for _, pod in events:
                if condition(pod):
                    await events.aclose()  # type: ignore[attr-defined]
                    return pod
        raise AssertionError("the watch ended")

    async def ended(self, name: str = "pod", *, within: float = 20) -> Object:
        return await self.until(lambda pod: pod["status"]["phase"] in {"Succeeded", "Failed"}, name=name, within=within)

    async def waiting(self, reason: str) -> Object:
        """Return the first container's waiting state as soon as it has that reason."""
        pod = await self.until(lambda pod: state(pod).get("waiting", {}).get("reason") == reason)
        return dict(state(pod)["waiting"])

    async def log(self, name: str = "pod", container: str = "c0", **options: Any) -> bytes:
        options = {"follow": False, "timestamps": False, **options}
        async with self.cluster.log(self.namespace, name, container, **options) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def gone(self, name: str = "pod") -> None:
        await eventually(lambda: self._absent(name), within=10)

    async def _absent(self, name: str) -> bool:
        return not (await self.cluster.list(PODS, self.namespace, fields=f"metadata.name={name}"))[0]

    def known(self, name: str = "pod") -> Object:
        """Return what the node agent knows of a pod."""
        pods = self.fleet.node(self.fleet.regions[0], "pods")
        return next(dict(pod) for pod in pods if (pod["namespace"], pod["name"]) == (self.namespace, name))


async def eventually(condition: Callable[[], Awaitable[bool]], *, within: float) -> None:
    """Return when the condition is met; for what cannot be watched."""
    async with asyncio.timeout(within):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def process_ended(process: int) -> None:
    async def ended() -> bool:
        return not Path(f"/proc/{process}").exists()

    await eventually(ended, within=10)


def pod_spec(*containers: Object, **spec: Any) -> Object:
    named = [{"name": f"c{index}", "image": "busybox", **entry} for index, entry in enumerate(containers)]
    for index, entry in enumerate(spec.get("initContainers", [])):
        entry.update({"name": f"i{index}", "image": "busybox"} | entry)
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": named, **spec}


def sh(script: str, **more: Any) -> Object:
    return {"command": ["sh", "-c", script], **more}


def state(pod: Object, index: int = 0, kind: str = "containerStatuses") -> Object:
    statuses = pod["status"].get(kind, [])
    return dict(statuses[index]["state"]) if statuses else {}


def ended(pod: Object, index: int = 0, kind: str = "containerStatuses") -> Object:
    return dict(state(pod, index, kind)["terminated"])


def conditions(pod: Object) -> dict[str, str]:
    return {entry["type"]: entry["status"] for entry in pod["status"]["conditions"]}


# -- nodes


async def test_nodes_are_ready_with_their_gpus_and_labels(cluster: Cluster, fleet: Sandbox) -> None:
    nodes, _ = await cluster.list(NODES)
    assert len(nodes) == fleet.spec.nodes
    assert sum(int(node["status"]["allocatable"]["nvidia.com/gpu"]) for node in nodes) == fleet.spec.gpus
    for node in nodes:
        labels = node["metadata"]["labels"]
        assert labels["topology.kubernetes.io/region"] == fleet.regions[0]
        assert labels["topology.kubernetes.io/zone"].startswith(fleet.regions[0])
        assert labels["cloud.google.com/gke-accelerator"] == "nvidia-tesla-t4"
        assert {"type": "Ready", "status": "True"}.items() <= node["status"]["conditions"][-1].items()
        assert not node["spec"].get("taints")


# -- endings


async def test_an_instant_pod_is_over_soon_after_it_is_bound(pods: Pods) -> None:
    await pods.make(sh("echo hello; exit 3"))
    bound = await pods.until(lambda pod: bool(pod["spec"].get("nodeName")))
    seen = time.monotonic()
    pod = await pods.ended()
    assert time.monotonic() - seen < 1
    assert bound["metadata"]["uid"] == pod["metadata"]["uid"]
    assert (pod["status"]["phase"], ended(pod)["exitCode"], ended(pod)["reason"]) == ("Failed", 3, "Error")
    assert await pods.log() == b"hello\n"


async def test_conditions_of_a_running_and_of_an_ended_pod(pods: Pods) -> None:
    await pods.make(sh("sleep 0.5"))
    running = await pods.until(lambda pod: pod["status"]["phase"] == "Running")
    assert set(conditions(running).values()) == {"True"}
    over = await pods.ended()
    assert conditions(over) == {
        "PodReadyToStartContainers": "False",
        "Initialized": "True",
        "Ready": "False",
        "ContainersReady": "False",
        "PodScheduled": "True",
    }
    assert over["status"]["qosClass"] == "BestEffort"


async def test_the_seeds_sleep_image_runs_for_its_duration(pods: Pods) -> None:
    await pods.make({"image": "gcr.io/k8s-staging-perf-tests/sleep:v0.0.3", "args": ["1s"]})
    pod = await pods.ended()
    assert pod["status"]["phase"] == "Succeeded"


async def test_more_memory_than_the_limit_is_oomkilled(pods: Pods) -> None:
    await pods.make(
        {
            "image": "python:3.12",
            "command": ["python", "-c", "import time; x = bytearray(90 << 20); time.sleep(60)"],
            "resources": {"limits": {"memory": "50Mi"}},
        }
    )
    pod = await pods.ended()
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (137, "OOMKilled")


async def test_termination_messages(pods: Pods) -> None:
    fallback = sh("echo the last words; exit 1", terminationMessagePolicy="FallbackToLogsOnError")
    await pods.make(sh("printf because > /dev/termination-log; exit 1"), fallback)
    pod = await pods.ended()
    assert [ended(pod, index)["message"] for index in range(2)] == ["because", "the last words\n"]


async def test_the_pods_deadline(pods: Pods) -> None:
    await pods.make(sh("exec sleep 60"), activeDeadlineSeconds=1)
    pod = await pods.ended()
    assert (pod["status"]["reason"], ended(pod)["exitCode"]) == ("DeadlineExceeded", 143)


# -- starting


async def test_a_command_that_does_not_exist(pods: Pods) -> None:
    await pods.make({"command": ["no-such-program"]})
    pod = await pods.ended()
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (128, "StartError")


async def test_an_image_that_does_not_exist(pods: Pods) -> None:
    await pods.make({"image": "example.com/nope:1"})
    await pods.waiting("ErrImagePull")
    waiting = await pods.waiting("ImagePullBackOff")
    assert waiting["message"].startswith('Back-off pulling image "example.com/nope:1"')
    with pytest.raises(ApiError, match="waiting to start: trying and failing to pull image") as error:
        await pods.log()
    assert error.value.status == 400
    await pods.cluster.delete(PODS, "pod", pods.namespace)
    await pods.gone()


async def test_a_configmap_that_does_not_exist(pods: Pods) -> None:
    source = {"configMapKeyRef": {"name": "none", "key": "k"}}
    await pods.make(sh("true", env=[{"name": "X", "valueFrom": source}]))
    waiting = await pods.waiting("CreateContainerConfigError")
    assert waiting["message"] == 'configmap "none" not found'


async def test_init_containers_and_a_shared_volume(pods: Pods) -> None:
    mount = {"volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}
    sidecar = sh("trap 'exit 0' TERM; while :; do sleep 0.1; done", restartPolicy="Always")
    init = [sh("echo from init > /shared/x", **mount), sidecar]
    volumes = [{"name": "shared", "emptyDir": {}}]
    await pods.make(sh("cat /shared/x", **mount), sh("echo second"), initContainers=init, volumes=volumes)
    pod = await pods.ended()
    assert pod["status"]["phase"] == "Succeeded"
    assert ended(pod, 1, "initContainerStatuses")["exitCode"] in (0, 143)  # it may be told to stop before it listens
    assert (await pods.log(), await pods.log(container="c1")) == (b"from init\n", b"second\n")


async def test_the_downward_api(pods: Pods) -> None:
    env = [
        {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "TWO", "value": "$(ME)!"},
    ]
    await pods.make(sh("echo $TWO", env=env))
    await pods.ended()
    assert await pods.log() == b"pod!\n"


# -- restarts


async def test_restarts_back_off_and_the_previous_log_stays(pods: Pods) -> None:
    await pods.make(sh("date +%s%N; exit 1"), restartPolicy="Always")
    pod = await pods.until(lambda pod: state(pod).get("waiting", {}).get("reason") == "CrashLoopBackOff")
    assert pod["status"]["phase"] == "Running"
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 1
    first = await pods.log()
    pod = await pods.until(lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 2)
    began = pod["status"]["containerStatuses"][0]["lastState"]["terminated"]["finishedAt"]
    assert first.strip().isdigit()
    assert await pods.log(previous=True) in {first, await pods.log()}
    assert began


async def test_a_job_retries_up_to_its_limit(pods: Pods) -> None:
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job"},
        "spec": {"backoffLimit": 1, "template": {"spec": pod_spec(sh("exit 9"))}},
    }
    over = await run_job(pods, job, within=40)
    assert over["status"]["failed"] == 2
    assert [entry["reason"] for entry in over["status"]["conditions"]][-1] == "BackoffLimitExceeded"


async def test_an_indexed_job_of_many_pods(pods: Pods) -> None:
    template = {"spec": pod_spec(sh("echo index $JOB_COMPLETION_INDEX"))}
    spec = {"completions": 60, "parallelism": 60, "completionMode": "Indexed", "template": template}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}, "spec": spec}
    over = await run_job(pods, job, within=60)
    assert over["status"]["succeeded"] == 60
    items, _ = await pods.cluster.list(PODS, pods.namespace)
    lines = await asyncio.gather(*(pods.log(item["metadata"]["name"]) for item in items))
    assert sorted(lines) == sorted(b"index %d\n" % index for index in range(60))


async def run_job(pods: Pods, job: Object, *, within: float) -> Object:
    """Return the Job when it is Complete or Failed."""
    await pods.cluster.create(JOBS, job, pods.namespace)
    async with asyncio.timeout(within):
        while True:
            current = await pods.cluster.get(JOBS, job["metadata"]["name"], pods.namespace)
            ends = {"Complete", "Failed"}
            if any(
                each["type"] in ends and each["status"] == "True" for each in current["status"].get("conditions", [])
            ):
                return current
            await asyncio.sleep(0.1)


# -- deletion


async def test_deletion_asks_first_and_then_kills(pods: Pods) -> None:
    polite = sh("trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done")
    stubborn = sh("trap '' TERM; echo up; while :; do sleep 0.05; done")
    await pods.make(polite, stubborn, sh("exec sleep 60"))
    await pods.until(lambda pod: pod["status"]["phase"] == "Running")
    assert await pods.log() == b"up\n"
    begun = time.monotonic()
    await pods.cluster.delete(PODS, "pod", pods.namespace)
    pod = await pods.until(lambda pod: pod["status"]["phase"] == "Failed")
    assert 1.8 < time.monotonic() - begun < 4
    assert [ended(pod, index)["exitCode"] for index in range(3)] == [5, 137, 143]
    await pods.gone()


async def test_a_log_vanishes_with_its_pod_but_a_copy_is_kept(pods: Pods) -> None:
    await pods.make(sh("printf 'a\\nb\\n\\377 no newline'"))
    await pods.ended()
    served, kept = await pods.log(), Path(pods.known()["kept_logs"])
    await pods.cluster.delete(PODS, "pod", pods.namespace)
    await pods.gone()
    with pytest.raises(ApiError) as error:
        await pods.log()
    assert error.value.status == 404
    assert served == (kept / "c0-0.log").read_bytes() == b"a\nb\n\xff no newline"


async def test_forced_deletion_leaves_no_process(pods: Pods) -> None:
    await pods.make(sh("sleep 300 & sleep 300"))
    await pods.until(lambda pod: pod["status"]["phase"] == "Running")
    process = pods.known()["containers"][0]["pid"]
    await pods.cluster.delete(PODS, "pod", pods.namespace, grace=0)
    await process_ended(process)


# -- logs


async def test_log_options(pods: Pods) -> None:
    await pods.make(sh("echo one; echo two; sleep 2.2; echo three; printf four"))
    await pods.ended()
    whole = b"one\ntwo\nthree\nfour"
    assert await pods.log() == whole
    assert await pods.log(tail_lines=2) == b"three\nfour"
    assert await pods.log(limit_bytes=5) == b"one\nt"
    stamped = await pods.log(timestamps=True)
    assert STAMP.sub(b"", stamped) == whole
    third = datetime.fromisoformat(stamped.splitlines()[2].split(b" ")[0].decode()[:19]).replace(tzinfo=UTC)
    assert await pods.log(since_time=third.strftime("%Y-%m-%dT%H:%M:%SZ")) == b"three\nfour"
    later = third + timedelta(minutes=1)
    assert await pods.log(since_time=later.strftime("%Y-%m-%dT%H:%M:%SZ")) == b""


async def test_following_gets_lines_as_they_come_and_ends_with_the_container(pods: Pods) -> None:
    await pods.make(sh("for i in 1 2 3; do echo $i; sleep 0.3; done; printf end"))
    await pods.until(lambda pod: pod["status"]["phase"] == "Running")
    pieces = []
    async with pods.cluster.log(pods.namespace, "pod", "c0", follow=True, timestamps=False) as chunks:
        pieces = [chunk async for chunk in chunks]
    assert b"".join(pieces) == b"1\n2\n3\nend"
    assert len(pieces) >= 3


async def test_five_thousand_lines_of_an_instant_container(pods: Pods) -> None:
    await pods.make(sh("seq 5000; exit 3"))
    await pods.until(lambda pod: pod["status"]["phase"] != "Pending")
    assert await pods.log(follow=True) == b"".join(b"%d\n" % number for number in range(1, 5001))


async def test_a_log_cannot_be_read_before_the_start(pods: Pods) -> None:
    await pods.make(sh("echo main"), initContainers=[sh("sleep 1")])
    await pods.until(lambda pod: bool(pod["status"].get("initContainerStatuses")))
    with pytest.raises(ApiError, match='container "c0" in pod "pod" is waiting to start: PodInitializing') as error:
        await pods.log()
    assert error.value.status == 400


async def test_only_the_api_server_may_read_logs(pods: Pods, fleet: Sandbox, tmp_path: Path) -> None:
    node = (await pods.cluster.list(NODES))[0][0]
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE

    def ask() -> None:
        urllib.request.urlopen(f"https://127.0.0.1:{port}/containerLogs/a/b/c", context=tls, timeout=5)

    with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)) as refused:
        await asyncio.to_thread(ask)
    assert not isinstance(refused.value, urllib.error.HTTPError)
    user = users(fleet)[f"worker-{fleet.regions[0]}"]
    if "client-certificate-data" in user:
        for key in ("client-certificate-data", "client-key-data"):
            (tmp_path / key).write_bytes(base64.b64decode(user[key]))
        tls.load_cert_chain(tmp_path / "client-certificate-data", tmp_path / "client-key-data")
        # Refused by TLS or by the agent, according to which authority has signed the user's certificate.
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            await asyncio.to_thread(ask)


def users(fleet: Sandbox) -> dict[str, Object]:
    """Return the user of each context in the fleet's kubeconfig."""
    config = yaml.safe_load(fleet.kubeconfig.read_text())
    by_name = {entry["name"]: entry["user"] for entry in config["users"]}
    return {entry["name"]: by_name[entry["context"]["user"]] for entry in config["contexts"]}


# -- trouble; these disturb the whole worker, the last one for a minute, until its controllers try again


async def test_a_node_that_is_taken_away_fails_its_pods(pods: Pods, fleet: Sandbox) -> None:
    await pods.make(sh("exec sleep 60"))
    pod = await pods.until(lambda pod: pod["status"]["phase"] == "Running")
    node = pod["spec"]["nodeName"]
    try:
        await asyncio.to_thread(fleet.node, fleet.regions[0], "reclaim_node", name=node)
        pod = await pods.ended()
        assert pod["status"]["reason"] == "Terminated"
        assert conditions(pod)["DisruptionTarget"] == "True"
        with pytest.raises(ApiError, match="not found"):
            await pods.cluster.get(NODES, node)
    finally:
        fleet.node(fleet.regions[0], "restore_node", name=node)

    async def back() -> bool:
        return node in {each["metadata"]["name"] for each in (await pods.cluster.list(NODES))[0]}

    await eventually(back, within=20)


async def test_no_process_outlives_the_agent(pods: Pods, fleet: Sandbox) -> None:
    await pods.make(sh("sleep 300 & exec sleep 300"))
    await pods.until(lambda pod: pod["status"]["phase"] == "Running")
    process = pods.known()["containers"][0]["pid"]
    fleet.restart("agent")
    await process_ended(process)
    pod = await pods.ended(within=30)
    assert (ended(pod)["exitCode"], ended(pod)["reason"]) == (137, "ContainerStatusUnknown")


async def test_pods_outlive_an_outage_of_the_api_server(pods: Pods, fleet: Sandbox) -> None:
    await pods.make(sh("sleep 3; exit 6"))
    await pods.until(lambda pod: pod["status"]["phase"] == "Running")
    component = f"{fleet.regions[0]}-apiserver"
    fleet.stop(component)
    await asyncio.sleep(5)
    fleet.start(component)
    async with asyncio.timeout(60):
        while True:
            try:
                pod = await pods.ended(within=30)
                break
            except ApiError:
                await asyncio.sleep(0.2)
    assert ended(pod)["exitCode"] == 6
    assert 2 <= _seconds(ended(pod)["finishedAt"]) - _seconds(ended(pod)["startedAt"]) <= 4


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
