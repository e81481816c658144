"""What a shared watch remembers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_multikueue.clusters import store
from airflow_provider_multikueue.clusters.store import Store
from tests.unit.apiserver import obj

KEYS = ("a", "b", "c")


def made() -> Store:
    return Store(index=lambda thing: thing.get("keys", [thing["metadata"]["name"]]), trim=lambda thing: dict(thing))


def test_an_object_may_have_several_keys_and_change_them():
    things = made()
    for key in KEYS:
        things.claim(key)
    assert things.put(obj("x", keys=["a", "b"]), 0) == {"a", "b"}
    assert things.put(obj("x", 2, keys=["b", "c"]), 0) == {"a", "b", "c"}
    assert [len(things.view(key)) for key in KEYS] == [0, 1, 1]
    assert things.remove("uid-x") == {"b", "c"}


def test_the_same_version_again_is_no_news():
    things = made()
    things.claim("x")
    assert things.put(obj("x"), 0) == {"x"}
    assert things.put(obj("x"), 0) == set()


def test_an_unclaimed_object_is_kept_whole_for_the_grace_and_then_as_a_name():
    things = made()
    things.put(obj("x"), 0)
    things.sweep(store.GRACE - 1)
    things.claim("x")
    assert things.missing("x") == []
    things.release("x", store.GRACE)
    things.sweep(3 * store.GRACE)
    things.claim("x")
    assert [known.name for known in things.missing("x")] == ["x"]
    assert things.view("x") == {}
    assert things.put(obj("x"), 0, fetched=True) == {"x"}
    assert things.missing("x") == []


def test_not_more_than_so_many_unclaimed_objects_are_kept_whole(monkeypatch):
    monkeypatch.setattr(store, "UNCLAIMED_LIMIT", 3)
    things = made()
    for i in range(10):
        things.put(obj(f"x{i}"), 0)
        things.sweep(0)
    for i in range(10):
        things.claim(f"x{i}")
    assert [bool(things.missing(f"x{i}")) for i in range(10)] == [True] * 7 + [False] * 3


def test_what_was_fetched_does_not_bring_back_the_deleted():
    things = made()
    things.claim("x")
    assert things.put(obj("x"), 0, fetched=True) == set()
    assert things.view("x") == {}


def test_what_was_fetched_does_not_replace_what_is_newer():
    things = made()
    things.claim("x")
    things.put(obj("x", 10), 0)
    assert things.put(obj("x", 9), 0, fetched=True) == set()
    assert things.put(obj("x", 11), 0, fetched=True) == {"x"}


actions = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("xyz"), st.lists(st.sampled_from(KEYS), max_size=3)),
        st.tuples(st.just("remove"), st.sampled_from("xyz"), st.just([])),
        st.tuples(st.just("claim"), st.sampled_from(KEYS), st.just([])),
        st.tuples(st.just("release"), st.sampled_from(KEYS), st.just([])),
        st.tuples(st.just("sweep"), st.just(""), st.just([])),
    ),
    max_size=60,
)


@given(actions)
def test_a_claimed_key_shows_what_exists_or_says_what_is_missing(steps):
    things, exist, claims = made(), {}, dict.fromkeys(KEYS, 0)
    for now, (what, name, keys) in enumerate(steps):
        if what == "put":
            exist[name] = set(keys)
            things.put(obj(name, now + 1, keys=keys), now * 20)
        elif what == "remove":
            exist.pop(name, None)
            things.remove(f"uid-{name}")
        elif what == "claim":
            claims[name] += 1
            things.claim(name)
        elif what == "release" and claims[name]:
            claims[name] -= 1
            things.release(name, now * 20)
        elif what == "sweep":
            things.sweep(now * 20)
        for key in KEYS:
            if claims[key]:
                missing = {known.uid for known in things.missing(key)}
                shown = set(things.view(key))
                assert not missing & shown
                assert missing | shown == {f"uid-{name}" for name, its in exist.items() if key in its}
    assert len(things) == len(exist)
