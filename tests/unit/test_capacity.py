"""How a region's capacity script is applied, with a clock of our own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_multikueue.sandbox.capacity import (
    ACCEPTED,
    BOOKING_EXPIRED,
    CAPACITY_REVOKED,
    FAILED,
    PROVISIONED,
    Answer,
    Ask,
    Script,
    command_answer,
    gpus_of_pod,
    merge_conditions,
    plan,
)

NOW = 1_700_000_000.0
NEW = Ask(uid="a", namespace="default", name="job-a", gpus=1)
WAITING = replace(NEW, accepted=NOW, eta=NOW + 3600, conditions=frozenset({ACCEPTED}))
GRANTED = replace(WAITING, granted=NOW, conditions=frozenset({ACCEPTED, PROVISIONED}))


def answered(ask: Ask, script: Script, now: float, since: float = NOW) -> list[tuple[str, str]]:
    step = plan([ask], script, since=since, now=now)
    return [(kind, status) for answer in step.answers for kind, status, *_ in answer.conditions]


def test_a_new_request_is_accepted_before_anything_else_and_told_an_eta() -> None:
    step = plan([NEW], Script(eta=60), since=NOW, now=NOW)
    (accepted, waiting) = step.answers[0].conditions
    assert accepted[:2] == (ACCEPTED, "True")
    assert waiting[:2] == (PROVISIONED, "False")
    assert waiting[3].endswith("ETA: 2023-11-14T22:14:20Z")
    assert step.answers[0].eta == NOW + 60


@pytest.mark.parametrize("mode", ["grant", "fail"])
def test_the_answer_comes_after_the_delay(mode: str) -> None:
    script = Script.from_json({"mode": mode, "after": 5})
    wait = plan([WAITING], script, since=NOW, now=NOW + 4.9)
    assert wait.answers == ()
    assert wait.wake == NOW + 5
    kind = PROVISIONED if mode == "grant" else FAILED
    assert answered(WAITING, script, NOW + 5) == [(kind, "True")]


def test_a_failure_carries_its_text() -> None:
    step = plan([WAITING], Script(mode="fail", text="no T4 in us-east4"), since=NOW, now=NOW)
    assert step.answers[0].conditions[0][3] == "no T4 in us-east4"


def test_a_starving_region_only_renews_its_eta() -> None:
    script = Script(mode="starve", eta=3600)
    assert plan([WAITING], script, since=NOW, now=NOW + 3599).wake == NOW + 3600
    assert answered(WAITING, script, NOW + 3600) == [(PROVISIONED, "False")]


def test_a_script_counts_its_delay_from_when_it_came_into_force() -> None:
    script = Script(after=5)
    assert answered(WAITING, script, NOW + 104, since=NOW + 100) == []
    assert answered(WAITING, script, NOW + 105, since=NOW + 100) == [(PROVISIONED, "True")]


def test_capacity_is_shared_oldest_first_and_a_smaller_request_may_go_ahead() -> None:
    asks = [
        replace(WAITING, uid="old", gpus=3),
        replace(WAITING, uid="large", gpus=9, accepted=NOW + 1),
        replace(WAITING, uid="small", gpus=5, accepted=NOW + 2),
        replace(WAITING, uid="late", gpus=1, accepted=NOW + 3),
    ]
    step = plan(asks, Script(gpus=8), since=NOW, now=NOW + 4)
    assert [answer.uid for answer in step.answers] == ["old", "small"]


def test_capacity_comes_back_when_a_request_goes_or_is_over() -> None:
    script = Script(gpus=1)
    waiting = replace(WAITING, uid="b", accepted=NOW + 1)
    revoked = replace(GRANTED, conditions=GRANTED.conditions | {CAPACITY_REVOKED})
    assert plan([GRANTED, waiting], script, since=NOW, now=NOW + 2).answers == ()
    assert [each.uid for each in plan([waiting], script, since=NOW, now=NOW + 2).answers] == ["b"]
    assert [each.uid for each in plan([revoked, waiting], script, since=NOW, now=NOW + 2).answers] == ["b"]


def test_nothing_of_unknown_size_is_granted_out_of_a_limit() -> None:
    unknown = replace(WAITING, gpus=None)
    assert answered(unknown, Script(gpus=8), NOW) == []
    assert answered(unknown, Script(), NOW) == [(PROVISIONED, "True")]


def test_capacity_is_revoked_after_the_run_duration() -> None:
    ask = replace(GRANTED, run_duration=30)
    assert plan([ask], Script(), since=NOW, now=NOW + 29).wake == NOW + 30
    assert answered(ask, Script(), NOW + 30) == [(CAPACITY_REVOKED, "True")]


def test_a_booking_expires_once_and_the_run_goes_on() -> None:
    ask = replace(GRANTED, run_duration=1000)
    assert answered(ask, Script(booking=600), NOW + 600) == [(BOOKING_EXPIRED, "True")]
    expired = replace(ask, conditions=ask.conditions | {BOOKING_EXPIRED})
    after = plan([expired], Script(booking=600), since=NOW, now=NOW + 601)
    assert (after.answers, after.wake) == ((), NOW + 1000)


@pytest.mark.parametrize("end", [FAILED, CAPACITY_REVOKED])
def test_what_is_over_gets_no_answer_and_no_command(end: str) -> None:
    over = replace(GRANTED, conditions=GRANTED.conditions | {end})
    assert plan([over], Script(), since=NOW, now=NOW + 9999) == plan([], Script(), since=NOW, now=NOW)
    assert command_answer(over, "fail") is None


def test_commands_apply_to_what_they_can() -> None:
    assert command_answer(WAITING, "revoke") is None
    assert command_answer(WAITING, "expire") is None
    assert command_answer(GRANTED, "revoke", "gone") == Answer(
        "a", ((CAPACITY_REVOKED, "True", "CapacityRevoked", "gone"),)
    )
    fail = command_answer(WAITING, "fail")
    assert fail is not None
    assert fail.conditions[0][0] == FAILED


def test_a_transition_time_changes_only_with_the_status() -> None:
    old = [{"type": PROVISIONED, "status": "False", "lastTransitionTime": "2020-01-01T00:00:00Z"}]
    renewed = merge_conditions(old, Answer("a", ((PROVISIONED, "False", "R", "m"),)), now=NOW, generation=1)
    granted = merge_conditions(old, Answer("a", ((PROVISIONED, "True", "R", "m"),)), now=NOW, generation=1)
    assert renewed[0]["lastTransitionTime"] == "2020-01-01T00:00:00Z"
    assert granted[0]["lastTransitionTime"] == "2023-11-14T22:13:20Z"


def test_gpus_of_a_pod_count_limits_sidecars_and_the_greediest_init_container() -> None:
    gpu = {"resources": {"requests": {"nvidia.com/gpu": "2"}}}
    limit = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    assert gpus_of_pod({"containers": [gpu, limit, {}]}) == 3
    assert gpus_of_pod({"containers": [limit], "initContainers": [gpu]}) == 2
    assert gpus_of_pod({"containers": [limit], "initContainers": [{**gpu, "restartPolicy": "Always"}]}) == 3


@given(
    st.builds(
        Script,
        mode=st.sampled_from(["grant", "starve", "fail"]),
        after=st.floats(0, 1e6),
        gpus=st.none() | st.integers(0, 10_000),
        text=st.text(),
        eta=st.floats(0, 1e6),
        booking=st.floats(0, 1e6),
    )
)
def test_a_script_survives_its_json(script: Script) -> None:
    assert Script.from_json(script.to_json()) == script


@pytest.mark.parametrize("data", [{"mode": "maybe"}, {"after": -1}, {"gpus": -1}, {"gpu": 8}])
def test_a_wrong_script_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="capacity script"):
        Script.from_json(data)


@given(
    st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.floats(0, 100)), max_size=20),
    st.integers(0, 40),
    st.floats(0, 200),
)
def test_no_more_is_ever_granted_than_there_is(
    rows: list[tuple[int, bool, float]], capacity: int, later: float
) -> None:
    asks = [
        replace(GRANTED if granted else WAITING, uid=str(index), gpus=gpus, accepted=NOW + accepted)
        for index, (gpus, granted, accepted) in enumerate(rows)
    ]
    held = sum(ask.gpus or 0 for ask in asks if ask.holds_capacity)
    step = plan(asks, Script(gpus=capacity), since=NOW, now=NOW + later)
    granted = {answer.uid for answer in step.answers if answer.conditions[0][:2] == (PROVISIONED, "True")}
    assert sum(ask.gpus or 0 for ask in asks if ask.uid in granted) <= max(0, capacity - held)
