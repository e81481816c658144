"""One list and watch for all who wait, against a scripted API server."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Callable

import pytest

from airflow_provider_multikueue.clusters import attempts, client, store, watch
from airflow_provider_multikueue.clusters.client import JOBS, Cluster, Resource
from airflow_provider_multikueue.clusters.transport import Timeouts
from airflow_provider_multikueue.clusters.watch import SharedWatch, Subscription
from tests.unit.apiserver import ApiServer, Feed, Stream, event, hang, kubeconfig, listed, obj, status, until

PATH = "/apis/batch/v1/namespaces/default/jobs"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Let what takes seconds in production take milliseconds."""
    monkeypatch.setattr(attempts, "BACKOFF", (0.01, 0.05))
    monkeypatch.setattr(watch, "GATHER", 0.01)
    monkeypatch.setattr(watch, "LIST_PAUSE", 0.05)
    monkeypatch.setattr(attempts, "STABLE", 0.0)
    monkeypatch.setattr(attempts, "TOLD_AFTER", 0.0)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as running:
        yield running


@pytest.fixture
async def cluster(server: ApiServer) -> AsyncIterator[Cluster]:
    async with await Cluster.from_kubeconfig("worker-us", config=kubeconfig(server.url)) as connected:
        yield connected


@pytest.fixture
async def jobs(cluster: Cluster) -> AsyncIterator[SharedWatch]:
    async def open_(*, fresh: bool) -> tuple[Cluster, Resource]:
        return cluster, JOBS

    shared = SharedWatch("jobs", open_, "default", index=lambda o: [o["metadata"]["name"]], trim=dict)
    yield shared
    await shared.close()


def names(subscription: Subscription) -> list[str]:
    return [thing["metadata"]["name"] for thing in subscription.objects.values()]


def version(subscription: Subscription) -> str | None:
    return next((thing["metadata"]["resourceVersion"] for thing in subscription.objects.values()), None)


class Bell:
    """Counts how often it was rung."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.rings = 0
        self._then = then

    def __call__(self) -> None:
        self.rings += 1
        self._then()


async def test_subscribers_get_their_objects_and_are_told_of_changes(server, jobs):
    feed = Feed()
    server.on("GET", PATH, listed(obj("a"), obj("b"), version="5"))
    server.on_watch(PATH, feed)
    bell, other = Bell(), Bell()
    a, b = jobs.subscribe("a", bell), jobs.subscribe("b", other)
    await until(lambda: a.synced and b.synced)
    assert (names(a), names(b)) == (["a"], ["b"])
    feed.send(("MODIFIED", obj("a", 6)))
    await until(lambda: version(a) == "6" and other.rings)
    before = other.rings
    feed.send(("DELETED", obj("a", 7)))
    await until(lambda: not a.objects)
    assert other.rings == before
    assert [seen.query.get("resourceVersion") for seen in server.seen] == [None, "5"]


async def test_an_object_that_appears_later_is_seen(server, jobs):
    feed = Feed()
    server.on("GET", PATH, listed())
    server.on_watch(PATH, feed)
    a = jobs.subscribe("a", Bell())
    await until(lambda: a.synced)
    assert not a.objects
    feed.send(("ADDED", obj("a", 2)))
    await until(lambda: names(a) == ["a"])


async def test_five_thousand_subscribers_in_one_second_cause_one_list(server, jobs):
    server.on(
        "GET", PATH, *(listed(*(obj(f"job-{i}") for i in range(n, n + 250)), more="x") for n in range(0, 4750, 250))
    )
    server.on("GET", PATH, listed(*(obj(f"job-{i}") for i in range(5000)), version="9"))
    subscriptions = []
    for i in range(5000):
        subscriptions.append(jobs.subscribe(f"job-{i}", Bell()))
        if i % 500 == 0:
            await asyncio.sleep(0.05)
    await until(lambda: all(s.synced and s.objects for s in subscriptions))
    assert jobs.lists == 1
    assert server.count("GET", PATH) == 1
    await until(lambda: server.count("GET", PATH, watch=True) == 1)


async def test_a_broken_watch_goes_on_from_the_last_bookmark_and_nobody_is_troubled(server, jobs):
    feed = Feed()
    server.on("GET", PATH, listed(obj("a"), version="5"))
    server.on_watch(PATH, feed)
    a = jobs.subscribe("a", Bell())
    feed.send(("BOOKMARK", obj("", 70)), "cut")
    await until(lambda: server.count("GET", PATH, watch=True) == 2)
    assert server.seen[-1].query["resourceVersion"] == "70"
    feed.send(("MODIFIED", obj("a", 71)))
    await until(lambda: version(a) == "71")
    assert jobs.lists == 1
    assert a.trouble is None


async def test_a_watch_that_the_server_ends_goes_on_at_once(server, jobs):
    feed = Feed()
    server.on("GET", PATH, listed(obj("a"), version="5"))
    server.on_watch(PATH, feed)
    jobs.subscribe("a", Bell())
    feed.send(("MODIFIED", obj("a", 8)), None)
    await until(lambda: server.count("GET", PATH, watch=True) == 2)
    assert server.seen[-1].query["resourceVersion"] == "8"


@pytest.mark.parametrize(
    "expired", [status(410, "too old"), Stream([event("ERROR", {"code": 410, "message": "too old"})])]
)
async def test_after_a_410_the_difference_is_told(server, jobs, expired):
    feed = Feed()
    server.on("GET", PATH, listed(obj("same"), obj("changed"), obj("gone"), version="5"))
    server.on_watch(PATH, feed, expired, hang)
    bells = {name: Bell() for name in ("same", "changed", "gone", "new")}
    subscriptions = {name: jobs.subscribe(name, bell) for name, bell in bells.items()}
    await until(lambda: bells["new"].rings)  # all are told of the first list at once
    before = {name: bell.rings for name, bell in bells.items()}
    server.on("GET", PATH, listed(obj("same"), obj("changed", 8), obj("new", 9), version="10"))
    feed.send("cut")
    await until(lambda: subscriptions["new"].objects and not subscriptions["gone"].objects)
    assert {name for name, bell in bells.items() if bell.rings > before[name]} == {"changed", "gone", "new"}
    assert jobs.lists == 2
    await until(lambda: server.seen[-1].query.get("resourceVersion") == "10")


async def test_a_server_that_calls_its_own_list_too_old_is_not_asked_in_a_rush(server, jobs, monkeypatch):
    monkeypatch.setattr(attempts, "STABLE", 5.0)
    monkeypatch.setattr(attempts, "BACKOFF", (0.1, 5.0))
    server.on("GET", PATH, listed(obj("a"), version="5"))
    server.on_watch(PATH, status(410, "too old"))
    a = jobs.subscribe("a", Bell())
    await until(lambda: a.trouble)
    await asyncio.sleep(0.5)
    assert jobs.lists <= 5


async def test_a_watch_that_breaks_again_and_again_is_resumed_soon_since_the_server_is_there(server, jobs, monkeypatch):
    monkeypatch.setattr(attempts, "STABLE", 5.0)
    monkeypatch.setattr(attempts, "BACKOFF", (0.01, 3600.0))
    monkeypatch.setattr(attempts, "SHORT_BACKOFF", 0.02)
    server.on("GET", PATH, listed(obj("a"), version="5"))
    server.on_watch(PATH, *[Stream([], "cut")] * 30, Stream([event("MODIFIED", obj("a", 8))]))
    a = jobs.subscribe("a", Bell())
    await until(lambda: version(a) == "8")


async def test_watches_that_broke_do_not_add_up_to_the_pause_for_a_server_that_is_away(server, jobs, monkeypatch):
    monkeypatch.setattr(attempts, "STABLE", 5.0)
    monkeypatch.setattr(attempts, "BACKOFF", (0.01, 3600.0))
    monkeypatch.setattr(attempts, "SHORT_BACKOFF", 0.02)
    server.on("GET", PATH, listed(obj("a"), version="5"))
    server.on_watch(PATH, *[Stream([], "cut")] * 30, status(503), status(503), Stream([event("MODIFIED", obj("a", 8))]))
    a = jobs.subscribe("a", Bell())
    await until(lambda: version(a) == "8")


async def test_a_cluster_that_is_back_within_seconds_is_no_news(server, jobs, monkeypatch):
    monkeypatch.setattr(attempts, "TOLD_AFTER", 60.0)
    server.on("GET", PATH, listed(obj("a"), version="5"))
    server.on_watch(PATH, Stream([], "cut"), status(503), status(503), Stream([event("MODIFIED", obj("a", 8))], "open"))
    bell = Bell()
    a = jobs.subscribe("a", bell)
    await until(lambda: a.synced)
    rings = bell.rings
    await until(lambda: version(a) == "8")
    assert (bell.rings, a.trouble) == (rings + 1, None)


async def test_a_cluster_whose_watches_break_before_an_event_comes_is_told(server, jobs, monkeypatch):
    monkeypatch.setattr(attempts, "TOLD_AFTER", 60.0)
    monkeypatch.setattr(attempts, "SHORT_BACKOFF", 0.02)
    server.on("GET", PATH, listed(obj("a"), version="5"))
    server.on_watch(PATH, *[Stream([], "cut")] * 60)
    a = jobs.subscribe("a", Bell())
    await until(lambda: a.trouble)
    assert sum("watch" in seen.query for seen in server.seen) > attempts.VAIN


async def test_a_short_fault_costs_no_long_pause(server, jobs, monkeypatch):
    monkeypatch.setattr(attempts, "BACKOFF", (0.25, 3600.0))
    server.on("GET", PATH, *[status(500)] * attempts.PATIENT, listed(obj("a"), version="5"))
    a = jobs.subscribe("a", Bell())
    await until(lambda: a.synced)
    assert server.count("GET", PATH) == attempts.PATIENT + 1


async def test_who_comes_within_the_grace_costs_nothing(server, jobs):
    server.on("GET", PATH, listed(obj("a"), obj("b"), version="5"))
    a = jobs.subscribe("a", Bell())
    await until(lambda: a.synced)
    b = jobs.subscribe("b", Bell())
    assert b.synced
    assert names(b) == ["b"]
    assert server.count("GET", PATH) == 1


async def _settled(server: ApiServer, jobs: SharedWatch, monkeypatch, count: int) -> Feed:
    """Let the watch drop all objects but those of ``first``."""
    monkeypatch.setattr(store, "GRACE", 0.0)
    feed = Feed()
    things = [obj(f"old-{i}") for i in range(count)]
    server.on("GET", PATH, listed(obj("first"), *things, version="5"))
    for thing in things:
        server.on("GET", f"{PATH}/{thing['metadata']['name']}", thing)
    server.on_watch(PATH, feed)
    first = jobs.subscribe("first", Bell())
    feed.send(("MODIFIED", obj("first", 6)))
    await until(lambda: version(first) == "6")
    return feed


async def test_a_few_latecomers_get_their_objects_one_by_one(server, jobs, monkeypatch):
    await _settled(server, jobs, monkeypatch, 5)
    bell = Bell()
    late = [jobs.subscribe(f"old-{i}", bell) for i in range(3)]
    assert not late[0].synced
    await until(lambda: all(s.synced for s in late))
    assert [names(s) for s in late] == [["old-0"], ["old-1"], ["old-2"]]
    assert jobs.lists == 1
    assert bell.rings >= 3


async def test_many_latecomers_cause_one_list(server, jobs, monkeypatch):
    await _settled(server, jobs, monkeypatch, 2000)
    late = [jobs.subscribe(f"old-{i}", Bell()) for i in range(2000)]
    await until(lambda: all(s.synced for s in late))
    assert all(s.objects for s in late)
    assert jobs.lists == 2


async def test_what_a_latecomer_fetches_never_goes_back_in_time(server, jobs, monkeypatch):
    feed = await _settled(server, jobs, monkeypatch, 1)
    late = jobs.subscribe("old-0", Bell())
    feed.send(("MODIFIED", obj("old-0", 9)))
    await until(lambda: late.synced)
    await until(lambda: version(late) == "9")


async def test_a_latecomer_for_what_was_deleted_meanwhile_sees_nothing(server, jobs, monkeypatch):
    await _settled(server, jobs, monkeypatch, 1)
    server.on("GET", f"{PATH}/old-0", status(404))
    late = jobs.subscribe("old-0", Bell())
    await until(lambda: late.synced)
    assert not late.objects


async def test_a_latecomer_waits_until_the_server_answers(server, jobs, monkeypatch):
    await _settled(server, jobs, monkeypatch, 1)
    server.on("GET", f"{PATH}/old-0", status(403), status(403), obj("old-0"))
    late = jobs.subscribe("old-0", Bell())
    await until(lambda: late.synced)
    assert names(late) == ["old-0"]


async def test_a_refusal_of_a_server_that_has_just_come_back_is_no_missing_right(server, jobs):
    server.on("GET", PATH, status(503), status(403, "not yet"))
    a = jobs.subscribe("a", Bell())
    await until(lambda: a.trouble and '"list" on "jobs.batch"' in a.trouble.text)
    assert a.trouble.status == 0


async def test_a_cluster_that_refuses_is_told_at_once_and_tried_again(server, jobs):
    server.on("GET", PATH, status(403, "no"), status(403, "no"), listed(obj("a")))
    bell = Bell()
    a = jobs.subscribe("a", bell)
    await until(lambda: a.trouble)
    assert a.trouble.status == 403
    assert '"list" on "jobs.batch"' in a.trouble.text
    assert abs(a.trouble.since - time.time()) < 5
    assert not a.synced
    await until(lambda: bell.rings)
    await until(lambda: a.synced and not a.trouble)


async def test_a_cluster_that_goes_and_comes_back_is_told_once_each_way():
    bell = Bell()
    async with ApiServer().running() as first:
        first.on("GET", PATH, listed(obj("a"), version="5"))
        port = int(first.url.rpartition(":")[2])
        cluster = await Cluster.from_kubeconfig("worker-us", config=kubeconfig(first.url))

        async def open_(*, fresh: bool) -> tuple[Cluster, Resource]:
            return cluster, JOBS

        jobs = SharedWatch("jobs", open_, "default", index=lambda o: [o["metadata"]["name"]], trim=dict)
        a = jobs.subscribe("a", bell)
        await until(lambda: first.count("GET", PATH, watch=True))
        before = bell.rings
    await until(lambda: a.trouble)
    since = a.trouble.since
    await asyncio.sleep(0.2)
    assert bell.rings <= before + 2
    assert a.trouble.since == since
    assert names(a) == ["a"]
    async with ApiServer().running(port=port) as second:
        second.on_watch(PATH, Feed())
        await until(lambda: a.trouble is None)
        assert second.count("GET", PATH) == 0
        await jobs.close()
        await cluster.close()


async def test_a_cluster_that_falls_silent_is_noticed_before_its_connection_is(server, cluster, jobs, monkeypatch):
    monkeypatch.setattr(watch, "LOOK", 0.02)
    monkeypatch.setattr(Cluster.probe, "__defaults__", (0.05,))
    monkeypatch.setattr("airflow_provider_multikueue.clusters.server.PROBE_PAUSE", 0.0)
    monkeypatch.setattr("airflow_provider_multikueue.clusters.server.PROBE", Timeouts(connect=1, silence=0.05, total=1))
    feed = Feed()
    server.on("GET", PATH, listed(obj("a"), version="5"))
    server.on("GET", "/version", hang)
    server.on_watch(PATH, feed)
    a = jobs.subscribe("a", Bell())
    await until(lambda: a.trouble)
    assert a.trouble.since < time.time()
    assert server.count("GET", PATH, watch=True) == 1
    feed.send(("MODIFIED", obj("a", 6)))
    await until(lambda: version(a) == "6")
    server.on("GET", "/version", {})
    await until(lambda: a.trouble is None)


async def test_a_cluster_that_falls_silent_before_it_takes_the_watch_on_is_noticed(server, jobs, monkeypatch):
    monkeypatch.setattr(watch, "LOOK", 0.02)
    monkeypatch.setattr(Cluster.probe, "__defaults__", (0.05,))
    monkeypatch.setattr("airflow_provider_multikueue.clusters.server.PROBE", Timeouts(connect=1, silence=0.05, total=1))
    server.on("GET", PATH, listed(obj("a"), version="5"))
    server.on("GET", "/version", hang)
    server.on_watch(PATH, hang)
    a = jobs.subscribe("a", Bell())
    await until(lambda: a.trouble)


async def test_a_cluster_that_answers_but_refuses_is_still_trouble(server, jobs, monkeypatch):
    monkeypatch.setattr(watch, "LOOK", 0.01)
    monkeypatch.setattr(Cluster.probe, "__defaults__", (0.0,))
    server.on("GET", "/version", {})
    server.on("GET", PATH, status(403, "no"))
    told = []
    a = jobs.subscribe("a", Bell(lambda: told.append(a.trouble)))
    await until(lambda: a.trouble)
    await asyncio.sleep(0.2)
    assert None not in told
    assert a.trouble.status == 403


async def test_retry_after_is_honoured(server, jobs):
    server.on("GET", PATH, status(429, "slow down", Retry_After="1"), listed())
    a = jobs.subscribe("a", Bell())
    await until(lambda: a.synced)
    first, second = server.seen[:2]
    assert second.at - first.at >= 1.0


async def test_a_version_that_is_no_longer_served_is_discovered_anew(server, cluster):
    asked = []

    async def open_(*, fresh: bool) -> tuple[Cluster, Resource]:
        asked.append(fresh)
        return cluster, JOBS if fresh else Resource("batch", "v1beta1", "jobs")

    server.on("GET", PATH, listed(obj("a")))
    jobs = SharedWatch("jobs", open_, "default", index=lambda o: [o["metadata"]["name"]], trim=dict)
    a = jobs.subscribe("a", Bell())
    await until(lambda: a.synced)
    assert asked[:2] == [False, True]
    await jobs.close()


async def test_objects_without_sense_are_trouble_and_no_end(server, jobs):
    server.on("GET", PATH, listed({"metadata": {}}), listed(obj("a")))
    a = jobs.subscribe("a", Bell())
    await until(lambda: a.synced)
    assert names(a) == ["a"]


async def test_after_an_event_that_is_too_large_the_objects_are_listed_anew(server, jobs, monkeypatch):
    monkeypatch.setattr(client, "LINE_LIMIT", 100_000)
    large = obj("a", 2, spec="x" * 200_000)
    server.on("GET", PATH, listed(obj("a"), version="1"), listed(large, version="2"))
    server.on_watch(PATH, Stream([event("MODIFIED", large)]), hang)
    subscription = jobs.subscribe("a", Bell())
    await until(lambda: version(subscription) == "2")
    await until(lambda: server.count("GET", PATH, watch=True) == 2)
    assert server.seen[-1].query["resourceVersion"] == "2"


async def test_a_subscriber_that_fails_hurts_nobody_else(server, jobs):
    def fail() -> None:
        raise RuntimeError("a bug of a subscriber")

    server.on("GET", PATH, listed(obj("a")))
    jobs.subscribe("a", fail)
    bell = Bell()
    a = jobs.subscribe("a", bell)
    await until(lambda: a.synced)
    assert bell.rings


async def test_a_subscriber_may_leave_while_it_is_told(server, jobs):
    server.on("GET", PATH, listed(obj("a"), obj("b")))
    subscriptions = []
    bell = Bell(lambda: subscriptions[0].close())
    subscriptions.append(jobs.subscribe("a", bell))
    b = jobs.subscribe("b", Bell())
    await until(lambda: b.synced)
    assert bell.rings == 1


async def test_the_watch_stops_after_the_last_and_starts_again_for_the_next(server, jobs, monkeypatch):
    monkeypatch.setattr(watch, "LINGER", 0.02)
    server.on("GET", PATH, listed(obj("a"), version="5"), listed(version="9"))
    a = jobs.subscribe("a", Bell())
    await until(lambda: a.synced)
    task = jobs._following
    a.close()
    a.close()
    await until(task.done)
    again = jobs.subscribe("a", Bell())
    assert not again.synced
    await until(lambda: again.synced)
    assert not again.objects
    assert jobs.lists == 2


async def test_who_comes_back_within_the_linger_meets_the_same_watch(server, jobs, monkeypatch):
    monkeypatch.setattr(watch, "LINGER", 0.05)
    server.on("GET", PATH, listed(obj("a"), version="5"))
    a = jobs.subscribe("a", Bell())
    await until(lambda: a.synced)
    a.close()
    a = jobs.subscribe("a", Bell())
    await asyncio.sleep(0.1)
    assert a.synced
    assert names(a) == ["a"]
    assert jobs.lists == 1


async def test_the_watch_runs_in_nobodys_context(server, jobs):
    mark = contextvars.ContextVar("mark", default="nobody")
    mark.set("the subscriber")
    seen = []
    server.on("GET", PATH, listed(obj("a")))
    a = jobs.subscribe("a", Bell(lambda: seen.append(mark.get())))
    await until(lambda: a.synced)
    assert set(seen) == {"nobody"}
