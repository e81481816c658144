"""What a reader that stops leaves for the next: where it stood, and whether that is all that it has shown."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from airflow_provider_multikueue.decisions.orders import Orders
from airflow_provider_multikueue.fleets.follow import Following, _cursors
from airflow_provider_multikueue.fleets.notes import Notes
from airflow_provider_multikueue.logs.reader import PodLogs
from tests.unit.kubelet import Pod
from tests.unit.test_reader import Killed, Recorded, until

PART = {"api_version": "batch/v1", "kind": "Job", "namespace": "default", "name": "train", "uid": "uid-train"}


@pytest.mark.parametrize(("dying", "again"), [(99, []), (1, ["two"]), (0, ["one", "two"])])
async def test_a_log_that_is_lost_is_no_stop_in_order(kubelet, cluster, dying, again):
    pod, before, after = Pod(kubelet, "a"), Recorded(), Recorded()
    pod.start()
    notes: dict[str, str] = {}

    async def write(annotations: dict[str, str]) -> None:
        notes.update(annotations)

    following = Following(None, PART, Orders(), before, reader="ti/1")
    following._notes = Notes(write)
    following._logs = PodLogs(sink=Killed(before, dying))
    following._logs.update(cluster, None, [pod.status()])
    for line in ("one", "two"):
        pod.write(line)
        await until(lambda line=line: line in before.lines)
    await following.hand_over()
    await following.close()

    (note,) = notes.values()
    cursors, lost_at = _cursors(note)
    assert (lost_at is None) == (not again)
    assert set(json.loads(note)) == ({"streams", "at"} if again else {"streams"})
    assert lost_at is None or lost_at <= datetime.now(UTC)
    pod.end()
    following = PodLogs(sink=after, cursors=cursors, resumed_at=lost_at)
    following.update(cluster, None, [pod.status()])
    await following.drain(5)
    assert after.lines == again
