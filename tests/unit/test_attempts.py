"""Tests for clusters.attempts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_multikueue.clusters.attempts import (
    BACKOFF,
    PATIENT,
    SHORT_BACKOFF,
    STABLE,
    TOLD_AFTER,
    VAIN,
    Attempts,
)


@pytest.fixture
def attempts() -> Attempts:
    return Attempts()


def test_a_server_that_is_away_is_asked_at_a_short_pace_first_and_then_ever_more_rarely(attempts):
    pauses = [attempts.failed(float(second), anew=False).pause for second in range(40)]
    assert pauses[:PATIENT] == [BACKOFF[0]] * PATIENT
    assert pauses[PATIENT] == 2 * BACKOFF[0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == BACKOFF[1]


def test_a_server_that_asks_for_lists_anew_is_never_asked_in_a_rush(attempts):
    assert [attempts.failed(0.0, anew=True).pause for _ in range(3)] == [BACKOFF[0], 2 * BACKOFF[0], 4 * BACKOFF[0]]


def test_broken_watches_do_not_add_up_to_the_pause_for_a_server_that_is_away(attempts):
    for second in range(100):
        attempts.accepted(float(second))
        assert attempts.failed(float(second), anew=False).pause <= SHORT_BACKOFF
    assert attempts.failed(100.0, anew=False).pause == BACKOFF[0]


def test_a_server_that_is_away_is_told_after_seconds_and_since_its_first_failure(attempts):
    assert not attempts.failed(10.0, anew=False).told
    assert not attempts.failed(10.0 + TOLD_AFTER / 2, anew=False).told
    later = attempts.failed(10.0 + TOLD_AFTER, anew=False)
    assert (later.told, later.since) == (True, 10.0)


def test_a_watch_that_breaks_once_is_no_news_however_long_it_lasted(attempts):
    attempts.failed(0.0, anew=False)
    attempts.accepted(10.0)
    broke = attempts.failed(10.0 + 2 * STABLE, anew=False)
    assert (broke.told, broke.since, attempts.failures) == (False, 10.0 + 2 * STABLE, 1)


def test_accepted_watches_that_bring_no_event_are_told_at_last_and_an_event_ends_the_count(attempts):
    def broken() -> bool:
        attempts.accepted(0.0)
        return attempts.failed(0.0, anew=False).told

    assert [broken() for _ in range(VAIN + 1)] == [False] * VAIN + [True]
    attempts.event()
    assert not broken()


@given(
    st.lists(
        st.tuples(st.sampled_from(["accepted", "event", "failed", "anew"]), st.floats(0.0, 60.0)),
        max_size=60,
    )
)
def test_whatever_happens_pauses_stay_within_bounds_and_no_failure_is_in_the_future(story):
    attempts, now = Attempts(), 100.0
    for what, seconds in story:
        now += seconds
        if what == "accepted":
            attempts.accepted(now)
        elif what == "event":
            attempts.event()
        else:
            accepted = attempts.accepted_at is not None
            failure = attempts.failed(now, anew=what == "anew")
            assert BACKOFF[0] <= failure.pause <= (SHORT_BACKOFF if accepted else BACKOFF[1])
            assert 100.0 <= failure.since <= now
