"""A pod's status follows from its containers as it does for a kubelet."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_multikueue.sandbox.podenv import Place
from airflow_provider_multikueue.sandbox.podstatus import ContainerRecord, Verdict, pod_phase, pod_status, restarts

NOW, BEFORE = "2026-01-01T00:00:10Z", "2026-01-01T00:00:00Z"
RUNNING = {"running": {"startedAt": BEFORE}}
WAITING = {"waiting": {"reason": "ContainerCreating"}}


def ended(code: int) -> dict[str, Any]:
    return {"terminated": {"exitCode": code}}


def crashing(code: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"waiting": {"reason": "CrashLoopBackOff"}}, ended(code)


def records(*states: Any) -> list[ContainerRecord]:
    pairs = [state if isinstance(state, tuple) else (state, {}) for state in states]
    return [
        ContainerRecord(name=f"c{index}", image="busybox", state=state, last=last, container_id="containerd://1")
        for index, (state, last) in enumerate(pairs)
    ]


def pod(policy: str, main: int, init: tuple[str, ...] = ()) -> dict[str, Any]:
    inits = [
        {"name": f"c{index}", **({"restartPolicy": "Always"} if kind == "sidecar" else {})}
        for index, kind in enumerate(init)
    ]
    spec = {
        "restartPolicy": policy,
        "containers": [{"name": f"c{index}"} for index in range(main)],
        "initContainers": inits,
    }
    return {"metadata": {"generation": 1}, "spec": spec}


@pytest.mark.parametrize(
    ("policy", "states", "phase"),
    [
        ("Never", [WAITING], "Pending"),
        ("Never", [RUNNING], "Running"),
        ("Never", [RUNNING, WAITING], "Pending"),
        ("Never", [RUNNING, ended(1)], "Running"),
        ("Never", [ended(0), ended(0)], "Succeeded"),
        ("Never", [ended(0), ended(1)], "Failed"),
        ("OnFailure", [ended(0)], "Succeeded"),
        ("OnFailure", [ended(1)], "Running"),
        ("OnFailure", [crashing(1)], "Running"),
        ("Always", [ended(0)], "Running"),
        ("Always", [crashing(0)], "Running"),
    ],
)
def test_phase_without_init_containers(policy: str, states: list[Any], phase: str) -> None:
    assert pod_phase(pod(policy, len(states)), [], records(*states), ending=False) == phase


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        (RUNNING, "Running"),
        (ended(0), "Succeeded"),
        (ended(143), "Failed"),
        (WAITING, "Failed"),
        (crashing(1), "Failed"),
    ],
)
def test_phase_of_a_pod_that_is_being_stopped(state: Any, phase: str) -> None:
    assert pod_phase(pod("Always", 1), [], records(state), ending=True) == phase


@pytest.mark.parametrize(
    ("policy", "init", "phase"),
    [
        ("Never", RUNNING, "Pending"),
        ("Never", ended(1), "Failed"),
        ("OnFailure", ended(1), "Pending"),
        ("OnFailure", crashing(1), "Pending"),
        ("Never", WAITING, "Pending"),
    ],
)
def test_phase_while_initializing(policy: str, init: Any, phase: str) -> None:
    assert pod_phase(pod(policy, 1, ("init",)), records(init), records(WAITING), ending=False) == phase


def test_a_sidecar_does_not_count_for_the_phase() -> None:
    assert pod_phase(pod("Never", 1, ("sidecar",)), records(RUNNING), records(ended(0)), ending=False) == "Succeeded"


def status_of(
    the_pod: dict[str, Any], init: list[ContainerRecord], main: list[ContainerRecord], **more: Any
) -> dict[str, Any]:
    options: dict[str, Any] = {"ending": False, "verdict": None, "previous": {}, **more}
    place = Place(ip="127.1.1.1", host_ip="127.0.0.1", allocatable={})
    return pod_status(the_pod, init, main, now=NOW, started=BEFORE, place=place, **options)


def conditions(status: dict[str, Any]) -> dict[str, tuple[str, str | None]]:
    return {entry["type"]: (entry["status"], entry["reason"]) for entry in status["conditions"]}


def test_conditions_of_a_running_pod() -> None:
    status = status_of(pod("Never", 1), [], records(RUNNING))
    assert conditions(status) == dict.fromkeys(
        ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady"), ("True", None)
    )
    assert (status["podIP"], status["hostIPs"], status["startTime"]) == ("127.1.1.1", [{"ip": "127.0.0.1"}], BEFORE)
    assert status["containerStatuses"][0]["ready"] is True


def test_conditions_of_an_ended_pod() -> None:
    succeeded = conditions(status_of(pod("Never", 1), [], records(ended(0))))
    assert succeeded["Initialized"] == ("True", "PodCompleted")
    assert succeeded["Ready"] == succeeded["ContainersReady"] == ("False", "PodCompleted")
    failed = conditions(status_of(pod("Never", 1), [], records(ended(1))))
    assert failed["Ready"] == failed["ContainersReady"] == ("False", "PodFailed")
    assert failed["PodReadyToStartContainers"][0] == "False"


def test_conditions_name_what_is_missing() -> None:
    status = status_of(pod("Never", 1, ("init",)), records(RUNNING), records(WAITING))
    by_type = {entry["type"]: entry for entry in status["conditions"]}
    assert by_type["Initialized"]["message"] == "containers with incomplete status: [c0]"
    assert by_type["Ready"]["message"] == "containers with unready status: [c0]"
    assert status["initContainerStatuses"][0]["ready"] is False


def test_a_finished_init_container_is_ready() -> None:
    status = status_of(pod("Never", 1, ("init",)), records(ended(0)), records(RUNNING))
    assert status["initContainerStatuses"][0]["ready"] is True
    assert conditions(status)["Initialized"] == ("True", None)


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    previous = {"Ready": {"status": "True", "lastTransitionTime": BEFORE}, "Initialized": {"status": "False"}}
    times = {
        entry["type"]: entry["lastTransitionTime"]
        for entry in status_of(pod("Never", 1), [], records(RUNNING), previous=previous)["conditions"]
    }
    assert (times["Ready"], times["Initialized"]) == (BEFORE, NOW)


def test_a_verdict_is_the_reason_and_its_phase_waits_for_the_containers() -> None:
    verdict = Verdict("Terminated", "node shutdown", disruption="TerminationByKubelet")
    dying = status_of(pod("Always", 1), [], records(RUNNING), ending=True, verdict=verdict)
    dead = status_of(pod("Always", 1), [], records(ended(0)), ending=True, verdict=verdict)
    assert (dying["phase"], dead["phase"]) == ("Running", "Failed")
    assert dead["reason"] == "Terminated"
    assert conditions(dead)["DisruptionTarget"] == ("True", "TerminationByKubelet")


def test_a_pod_runs_until_its_sidecars_are_stopped() -> None:
    status = status_of(pod("Never", 1, ("sidecar",)), records(RUNNING), records(ended(0)), ending=True)
    assert status["phase"] == "Running"


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("Always", 1, True), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Never", 1, False)],
)
def test_restart_policies(policy: str, code: int, again: bool) -> None:
    assert restarts(policy, code) is again
