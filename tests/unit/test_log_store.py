"""The whole output of a job, in object storage: complete, as it comes, and never at the expense of the task."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from airflow_provider_multikueue._compat import ObjectStoragePath
from airflow_provider_multikueue.decisions.console import storage_url
from airflow_provider_multikueue.logs import store as logstore
from airflow_provider_multikueue.logs.reader import PodLogs
from airflow_provider_multikueue.logs.store import LogStore
from airflow_provider_multikueue.object_storage import ObjectTarget, check_uri
from tests.unit.kubelet import Pod, stamp
from tests.unit.test_reader import Recorded, until


@pytest.fixture
def out() -> Recorded:
    return Recorded()


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ObjectStoragePath  # its import takes seconds, and is done by now
    monkeypatch.setattr(logstore, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(logstore, "PAUSE", 0.05)
    monkeypatch.setattr(logstore, "LONGEST_PAUSE", 0.2)


def reader(folder: str, out: Recorded, **options: object) -> PodLogs:
    return PodLogs(sink=out, store=LogStore(ObjectTarget(folder), "train", out.record), **options)


def stored(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*.log"))}


async def test_each_container_has_an_object_by_region_and_pod(kubelet, cluster, out, tmp_path):
    logs = reader(tmp_path.as_uri(), out)
    pods = [Pod(kubelet, "train-a"), Pod(kubelet, "train-b")]
    for pod in pods:
        pod.start()
        pod.write(f"I am {pod.name}", "äöü")
        pod.end()
    logs.update(cluster, "us-east4", [pod.status() for pod in pods])
    await logs.drain(5)
    assert stored(tmp_path) == {
        f"train/us-east4/{name}/main-0.log": f"I am {name}\näöü\n" for name in ("train-a", "train-b")
    }
    assert [text for text in out.remarks if "whole output" in text] == [
        f"── the whole output is written to {tmp_path.as_uri()}/train ──"
    ]


async def test_what_is_written_is_stored_while_the_pod_runs(kubelet, cluster, out, tmp_path):
    logs = reader(tmp_path.as_uri(), out)
    pod = Pod(kubelet, "train-a")
    pod.start()
    pod.write("one")
    logs.update(cluster, "us", [pod.status()])
    await until(lambda: list(stored(tmp_path).values()) == ["one\n"])
    pod.write("two")
    await until(lambda: list(stored(tmp_path).values()) == ["one\ntwo\n"])
    await logs.close()


async def test_a_memory_file_system_does_as_well(kubelet, cluster, out):
    import fsspec

    logs = reader("memory://bucket/logs", out)
    pod = Pod(kubelet, "train-a")
    pod.start()
    pod.write("one")
    pod.end()
    logs.update(cluster, "us", [pod.status()])
    await logs.drain(5)
    assert fsspec.filesystem("memory").cat("/bucket/logs/train/us/train-a/main-0.log") == b"one\n"


@pytest.mark.parametrize("policy", ["none", "first", "failed"])
async def test_everything_is_stored_whatever_is_shown(kubelet, cluster, out, tmp_path, policy):
    logs = reader(tmp_path.as_uri(), out, policy=policy)
    good, bad = Pod(kubelet, "train-a"), Pod(kubelet, "train-b")
    for pod in (good, bad):
        pod.start()
        pod.write(f"from {pod.name}")
    logs.update(cluster, "us", [good.status(), bad.status()])
    await asyncio.sleep(0.1)
    good.end()
    bad.end(3)
    logs.update(cluster, "us", [good.status(), bad.status()])
    await logs.drain(5)
    assert sorted(stored(tmp_path).values()) == ["from train-a\n", "from train-b\n"]
    shown = {"none": [], "first": ["from train-a"], "failed": ["from train-b"]}[policy]
    assert [line.split("] ")[-1] for line in out.lines if "from" in line and "──" not in line] == shown


async def test_long_lines_are_whole_again(kubelet, cluster, out, tmp_path):
    logs = reader(tmp_path.as_uri(), out)
    pod = Pod(kubelet, "train-a")
    pod.start()
    pod.write("before", "x" * 300_000, "after ⟪continues⟫", "last")
    pod.end()
    logs.update(cluster, "us", [pod.status()])
    await logs.drain(5)
    (text,) = stored(tmp_path).values()
    assert text == "before\n" + "x" * 300_000 + "\nafter ⟪continues⟫\nlast\n"


async def test_a_large_log_is_several_objects(kubelet, cluster, out, tmp_path, monkeypatch):
    monkeypatch.setattr(logstore, "PART_BYTES", 1000)
    logs = reader(tmp_path.as_uri(), out)
    pod = Pod(kubelet, "train-a")
    pod.start()
    logs.update(cluster, "us", [pod.status()])
    for n in range(10):
        pod.write(*(f"line {n} {i} of some length" for i in range(20)))
        await until(lambda n=n: any(f"line {n} 19" in text for text in stored(tmp_path).values()))
    pod.end()
    logs.update(cluster, "us", [pod.status()])
    await logs.drain(5)
    texts = stored(tmp_path)
    assert len(texts) > 3
    numbers = sorted(texts, key=lambda name: int(name.split(".")[-2] if name.count(".") > 1 else 1))
    whole = "".join(texts[name] for name in numbers)
    assert whole == "".join(f"line {n} {i} of some length\n" for n in range(10) for i in range(20))


async def test_readers_that_take_over_store_each_line_once(kubelet, cluster, out, tmp_path):
    script, cursors = random.Random(3), {}
    pod = Pod(kubelet, "train-a")
    pod.start()
    second = 1_767_323_045 * 10**9
    logs = reader(tmp_path.as_uri(), out)
    for n in range(8):
        logs.update(cluster, "us", [pod.status()])
        for i in range(100):
            pod.write(f"line {n} {i}", at=stamp(second + n * 10**8 + i // 10))
        await asyncio.sleep(script.random() * 0.2)
        # The store may be behind the task's log when it is cut off, or the other way round.
        cursors = await logs.hand_over(script.choice([0.0, 1.0]))
        await logs.close()
        logs = reader(tmp_path.as_uri(), out, cursors=cursors)
    pod.end()
    logs.update(cluster, "us", [pod.status()])
    await logs.drain(5)
    texts = stored(tmp_path)
    numbers = sorted(texts, key=lambda name: int(name.split(".")[-2] if name.count(".") > 1 else 1))
    expected = [f"line {n} {i}" for n in range(8) for i in range(100)]
    assert "".join(texts[name] for name in numbers).splitlines() == expected
    assert out.lines == expected


async def test_a_store_that_fails_is_told_once_and_changes_nothing(kubelet, cluster, out, tmp_path, monkeypatch):
    monkeypatch.setattr(logstore.LogStore.finish, "__defaults__", (0.5,))
    (tmp_path / "train").write_text("a file where a folder should be")
    logs = reader(tmp_path.as_uri(), out)
    pods = [Pod(kubelet, f"train-{n}") for n in range(3)]
    for pod in pods:
        pod.start()
        pod.write("one")
        pod.end()
    logs.update(cluster, "us", [pod.status() for pod in pods])
    await logs.drain(5)
    told = [text for _, text in out.records if "can't be written" in text or "incomplete" in text]
    assert len(told) == 2
    assert "FileExistsError" in told[0] or "NotADirectoryError" in told[0]
    assert len([line for line in out.lines if line.endswith("one")]) == 3


async def test_a_store_that_comes_back_gets_all(kubelet, cluster, out, tmp_path):
    obstacle = tmp_path / "train"
    obstacle.write_text("a file where a folder should be")
    logs = reader(tmp_path.as_uri(), out)
    pod = Pod(kubelet, "train-a")
    pod.start()
    pod.write("one")
    logs.update(cluster, "us", [pod.status()])
    await until(lambda: any("can't be written" in text for _, text in out.records))
    obstacle.unlink()
    pod.write("two")
    pod.end()
    logs.update(cluster, "us", [pod.status()])
    await logs.drain(5)
    assert list(stored(tmp_path).values()) == ["one\ntwo\n"]
    assert not [text for text in out.remarks if "incomplete" in text]


async def test_a_scheme_that_nobody_knows_is_told(kubelet, cluster, out):
    logs = reader("nosuch://bucket/x", out)
    pod = Pod(kubelet, "train-a")
    pod.start()
    pod.write("one")
    logs.update(cluster, "us", [pod.status()])
    await until(lambda: any("can't be written" in text for _, text in out.records))
    await logs.close()
    assert "one" in out.lines


@pytest.mark.parametrize("uri", ["bucket/path", "s3://key:secret@bucket/x", "abfs://c@a/x?sig=1"])
def test_an_address_with_a_secret_or_none_is_refused(uri):
    with pytest.raises(ValueError, match="log_uri") as caught:
        check_uri("log_uri", uri)
    assert "secret@" not in str(caught.value)


def test_links_to_stores_lead_to_their_consoles():
    assert storage_url("gs://google@bucket/a/b/") == "https://console.cloud.google.com/storage/browser/bucket/a/b"
    assert storage_url("s3://bucket/a") == "https://console.aws.amazon.com/s3/buckets/bucket?prefix=a/"
    assert storage_url("file:///tmp/x") == "file:///tmp/x"
