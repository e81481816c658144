"""A client that talks to a scripted API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import socket
from collections.abc import AsyncIterator

import pytest

from airflow_provider_multikueue.clusters import client, sending, transport
from airflow_provider_multikueue.clusters.client import JOBS, NODES, PODS, ApiError, Cluster, Resource
from airflow_provider_multikueue.clusters.transport import Timeouts
from tests.unit.apiserver import Answer, ApiServer, Stream, event, hang, kubeconfig, listed, obj, status

PATH = "/apis/batch/v1/namespaces/default/jobs"
TOKEN = "a-token-that-must-stay-secret"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as running:
        yield running


@pytest.fixture
async def cluster(server: ApiServer) -> AsyncIterator[Cluster]:
    async with await Cluster.from_kubeconfig("manager", config=kubeconfig(server.url, token=TOKEN)) as connected:
        yield connected


async def failure(awaitable) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await awaitable
    return caught.value


async def watched(cluster: Cluster, version: str = "1") -> list:
    return [(kind, thing) async for kind, thing in cluster.watch(JOBS, "default", resource_version=version)]


# -- objects


async def test_get_sends_the_token_and_returns_plain_json(server, cluster):
    server.on("GET", f"{PATH}/train", obj("train"))
    assert await cluster.get(JOBS, "train", "default") == obj("train")
    assert server.seen[0].headers["Authorization"] == f"Bearer {TOKEN}"


async def test_names_cannot_climb_out_of_their_path(server, cluster):
    server.on("GET", f"{PATH}/..%2Fsecrets", obj("x"))
    await cluster.get(JOBS, "../secrets", "default")
    with pytest.raises(ValueError, match="not the name of an object"):
        await cluster.get(JOBS, "..", "default")


async def test_create_is_sent_once_even_when_the_server_fails(server, cluster):
    server.on("POST", PATH, status(500, 'failed calling webhook "mjob.kb.io"', reason="InternalError"))
    error = await failure(cluster.create(JOBS, obj("train"), "default"))
    assert (error.status, error.passing, error.reason) == (500, True, "InternalError")
    assert server.count("POST", PATH) == 1


async def test_create_without_answer_is_an_error_of_status_0(server, cluster):
    server.on("POST", PATH, Stream([], end="cut"))
    assert (await failure(cluster.create(JOBS, obj("train"), "default"))).status == 0
    assert server.count("POST", PATH) == 1


async def test_dry_run_asks_for_it(server, cluster):
    server.on("POST", PATH, obj("train"))
    await cluster.create(JOBS, obj("train"), "default", dry_run=True)
    assert server.seen[0].query == {"dryRun": "All"}


async def test_a_safe_request_is_repeated_until_the_server_recovers(server, cluster):
    server.on("GET", f"{PATH}/train", status(503), Stream([], end="cut"), obj("train"))
    assert (await cluster.get(JOBS, "train", "default"))["metadata"]["name"] == "train"


async def test_retry_after_is_honoured(server, cluster):
    server.on("GET", f"{PATH}/train", status(429, "too many requests", Retry_After="1"), obj("train"))
    await cluster.get(JOBS, "train", "default")
    first, second = server.seen
    assert second.at - first.at >= 1.0


async def test_a_retry_after_beyond_our_patience_is_told_to_the_caller(server, cluster):
    server.on("GET", f"{PATH}/train", status(429, "later", Retry_After="120"))
    error = await failure(cluster.get(JOBS, "train", "default"))
    assert error.retry_after == 120
    assert server.count("GET", f"{PATH}/train") == 1


async def test_refusals_are_not_repeated(server, cluster):
    server.on("GET", f"{PATH}/train", status(422, "nonsense"))
    assert (await failure(cluster.get(JOBS, "train", "default"))).status == 422
    assert len(server.seen) == 1


async def test_delete_states_its_preconditions(server, cluster):
    server.on("DELETE", f"{PATH}/train", {"kind": "Status"})
    await cluster.delete(JOBS, "train", "default", uid="u-1", resource_version="7", grace=0)
    body = server.seen[0].body
    assert body["preconditions"] == {"uid": "u-1", "resourceVersion": "7"}
    assert (body["propagationPolicy"], body["gracePeriodSeconds"]) == ("Background", 0)


async def test_a_delete_whose_answer_was_lost_has_worked(server, cluster):
    server.on("DELETE", f"{PATH}/train", Stream([], end="cut"), status(404))
    await cluster.delete(JOBS, "train", "default")


async def test_deleting_what_is_not_there_says_so(server, cluster):
    assert (await failure(cluster.delete(JOBS, "train", "default"))).status == 404


@pytest.mark.parametrize(
    ("kind", "content_type"),
    [
        ("merge", "application/merge-patch+json"),
        ("json", "application/json-patch+json"),
        ("apply", "application/apply-patch+yaml"),
    ],
)
async def test_patches_name_their_kind(server, cluster, kind, content_type):
    server.on("PATCH", f"{PATH}/train/status", obj("train"))
    await cluster.patch(
        JOBS, "train", {}, "default", kind=kind, subresource="status", field_manager="me", force=kind == "apply"
    )
    (seen,) = server.seen
    assert seen.headers["Content-Type"] == content_type
    assert seen.query == {"fieldManager": "me"} | ({"force": "true"} if kind == "apply" else {})


async def test_conflicts_carry_the_servers_causes(server, cluster):
    answer = status(409, "the object has been modified", reason="Conflict")
    answer.body["details"] = {"causes": [{"reason": "FieldValueInvalid", "field": "spec.x"}]}
    server.on("PUT", f"{PATH}/train", answer)
    error = await failure(cluster.replace(JOBS, "train", obj("train"), "default"))
    assert (error.status, error.causes[0]["field"]) == (409, "spec.x")


# -- errors in words


async def test_a_missing_right_is_named_with_verb_resource_namespace_and_cluster(server, cluster):
    server.on("GET", "/api/v1/namespaces/default/pods/p/log", status(403, "User cannot get pods/log"))
    with pytest.raises(ApiError) as caught:
        async with cluster.log("default", "p", "main", follow=True):
            pass
    text = str(caught.value)
    assert 'Grant it the verb "get" on "pods/log" in namespace default' in text
    assert "cluster manager" in text


async def test_no_error_text_holds_the_token(server, cluster):
    server.on("PUT", f"{PATH}/a", status(401, "Unauthorized"))
    server.on("PUT", f"{PATH}/b", Answer("<html>", 502))
    for name in "ab":
        error = await failure(cluster.replace(JOBS, name, {}, "default"))
        assert TOKEN not in str(error) + repr(error) + repr(vars(error))
    assert TOKEN not in repr(vars(cluster._transport))


async def test_an_unreachable_server_is_named_with_address_and_cause():
    async with ApiServer().running() as gone:
        config = kubeconfig(gone.url)
    async with await Cluster.from_kubeconfig("worker-us", config=config) as cluster:
        error = await failure(cluster.create(JOBS, {}, "default"))
    assert error.status == 0
    assert gone.url in str(error)
    assert "Connect call failed" in str(error)


async def test_a_server_that_does_not_answer_times_out(server, cluster, monkeypatch):
    monkeypatch.setattr(sending, "UNARY", Timeouts(connect=1, silence=0.1, total=1))
    server.on("POST", PATH, hang)
    error = await failure(cluster.create(JOBS, {}, "default"))
    assert (error.status, error.message) == (0, "timed out")


@pytest.mark.parametrize("body", ["[]", "7", "null", "<html>", '{"a":' * 100_000, "\udcff", ""])
async def test_answers_of_any_shape_are_errors(server, cluster, body):
    body = body.encode("utf-8", "surrogateescape")
    server.on("POST", PATH, Stream([body]))
    assert (await failure(cluster.create(JOBS, {}, "default"))).status == 0


async def test_an_answer_beyond_the_limit_is_an_error_that_is_not_asked_for_again(server, cluster, monkeypatch):
    monkeypatch.setattr(sending, "ANSWER_LIMIT", 1024 * 1024)
    server.on("GET", f"{PATH}/train", Answer(obj("train", spec="x" * 1024 * 1024)))
    server.on("GET", PATH, listed(obj("a", spec="x" * 1024 * 1024)))
    error = await failure(cluster.get(JOBS, "train", "default"))
    assert (error.status, error.message, error.passing) == (0, "the answer is larger than 1 MiB", False)
    assert "Check that this host reaches it" not in str(error)
    assert "delete it" in str(error)
    assert (await failure(cluster.list(JOBS, "default"))).too_large
    assert len(server.seen) == 2
    assert pickle.loads(pickle.dumps(error)).too_large


async def test_the_loop_goes_on_while_a_large_answer_is_read(server, cluster):
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def turns_during(body: bytes) -> int:
        before = turns
        assert await sending.decoded(body) == json.loads(body)
        return turns - before

    turning = asyncio.create_task(turn())
    await asyncio.sleep(0)
    assert await turns_during(b"[{}]") == 0
    assert await turns_during(b"[" + b"{}," * sending.LARGE + b"{}]") > 0
    turning.cancel()


@pytest.mark.parametrize("body", [b"[" * 2_000_000, b"[" + b"{}," * 1_000_000, b"\xff" * 2_000_000])
async def test_a_large_answer_that_is_no_json_is_an_error(server, cluster, body):
    server.on("POST", PATH, Stream([body]))
    assert (await failure(cluster.create(JOBS, {}, "default"))).status == 0


async def test_a_redirect_is_not_followed(server, cluster):
    server.on("GET", f"{PATH}/train", Answer({}, 302, {"Location": "http://127.0.0.1:1/"}))
    assert (await failure(cluster.get(JOBS, "train", "default"))).status == 302


async def test_errors_pickle(server, cluster):
    error = await failure(cluster.get(JOBS, "train", "default"))
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.status, copy.cluster) == (str(error), 404, "manager")


async def test_a_refusal_of_a_server_that_has_just_come_back_is_asked_about_again(server, cluster):
    server.on("GET", f"{PATH}/train", status(503), status(403, "not yet"), obj("train"))
    assert (await cluster.get(JOBS, "train", "default"))["metadata"]["name"] == "train"


async def test_any_other_refusal_is_final(server, cluster):
    server.on("GET", f"{PATH}/train", status(403, "never"))
    assert (await failure(cluster.get(JOBS, "train", "default"))).status == 403
    assert server.count("GET", f"{PATH}/train") == 1


# -- lists


async def test_a_list_is_read_in_pages(server, cluster):
    server.on("GET", PATH, listed(obj("a"), more="next", version="8"), listed(obj("b"), version="8"))
    items, version = await cluster.list(JOBS, "default", labels="a=b", limit=1)
    assert [item["metadata"]["name"] for item in items] == ["a", "b"]
    assert version == "8"
    assert [seen.query.get("continue") for seen in server.seen] == [None, "next"]
    assert {(seen.query["limit"], seen.query["labelSelector"]) for seen in server.seen} == {("1", "a=b")}


async def test_a_list_that_leads_back_to_a_page_of_its_own_is_a_broken_answer(server, cluster):
    server.on("GET", PATH, listed(obj("a"), more="one"), listed(obj("b"), more="two"), listed(obj("c"), more="one"))
    error = await failure(cluster.list(JOBS, "default"))
    assert error.status == 0
    assert "the list does not end" in str(error)
    assert len(server.seen) == 3


async def test_a_list_without_an_end_is_a_broken_answer(server, cluster, monkeypatch):
    monkeypatch.setattr(client, "MAX_PAGES", 3)
    server.on("GET", PATH, *(listed(more=f"page-{number}") for number in range(10)))
    error = await failure(cluster.list(JOBS, "default"))
    assert "the list does not end" in str(error)
    assert len(server.seen) == 4


async def test_a_list_that_expires_between_pages_begins_anew(server, cluster):
    server.on(
        "GET", PATH, listed(obj("a"), more="next"), status(410, "expired"), listed(obj("b"), obj("c"), version="9")
    )
    items, version = await cluster.list(JOBS, "default")
    assert ([item["metadata"]["name"] for item in items], version) == (["b", "c"], "9")


async def test_cluster_wide_resources_have_no_namespace_in_their_path(server, cluster):
    server.on("GET", "/api/v1/nodes", listed())
    assert await cluster.list(NODES, "default") == ([], "1")


# -- watches


async def test_events_arrive_whole_however_they_are_cut(server, cluster):
    raw = event("ADDED", obj("a")) + event("MODIFIED", obj("ä", 2)) + event("BOOKMARK", obj("", 3))
    server.on_watch(PATH, Stream([raw[i : i + 1] for i in range(len(raw))]))
    assert await watched(cluster) == [("ADDED", obj("a")), ("MODIFIED", obj("ä", 2)), ("BOOKMARK", obj("", 3))]
    assert server.seen[0].query["allowWatchBookmarks"] == "true"


async def test_an_event_may_be_larger_than_a_megabyte(server, cluster):
    large = obj("a", spec="x" * 3_000_000)
    server.on_watch(PATH, Stream([event("ADDED", large), event("ADDED", obj("b"))]))
    assert await watched(cluster) == [("ADDED", large), ("ADDED", obj("b"))]


@pytest.mark.parametrize("end", [b"\n", b""], ids=["whole", "endless"])
async def test_an_event_beyond_the_limit_is_an_error(server, cluster, monkeypatch, end):
    monkeypatch.setattr(client, "LINE_LIMIT", 1024 * 1024)
    server.on_watch(PATH, Stream([event("ADDED", obj("a")), *[b"x" * 65536] * 20, end], end="open"))
    watching = cluster.watch(JOBS, "default", resource_version="1")
    assert await anext(watching) == ("ADDED", obj("a"))
    error = await failure(anext(watching))
    assert (error.status, error.message, error.passing) == (0, "an event is larger than 1 MiB", False)


@pytest.mark.parametrize(
    "answer",
    [status(410, "too old"), Stream([event("ERROR", {"kind": "Status", "code": 410, "message": "too old"})])],
)
async def test_a_version_that_is_too_old_is_a_410(server, cluster, answer):
    server.on_watch(PATH, answer)
    assert (await failure(watched(cluster))).status == 410


async def test_a_watch_that_breaks_is_told_from_one_that_ends(server, cluster):
    server.on_watch(PATH, Stream([event("ADDED", obj("a"))], end="cut"))
    error = await failure(watched(cluster))
    assert (error.status, error.message) == (0, "the answer broke off")


async def test_half_an_event_is_no_good_end(server, cluster):
    server.on_watch(PATH, Stream([event("ADDED", obj("a"))[:-5]]))
    assert (await failure(watched(cluster))).status == 0


async def test_a_watch_that_is_not_taken_on_is_given_up(server, cluster, monkeypatch):
    monkeypatch.setattr("airflow_provider_multikueue.clusters.client.WATCH", Timeouts(answer=0.1, silence=60))
    server.on_watch(PATH, hang)
    assert (await failure(watched(cluster))).message == "timed out"


@pytest.mark.parametrize("line", [b"nonsense\n", b"[]\n", b"{}\n", b'{"type":"ERROR","object":null}\n'])
async def test_nonsense_in_a_watch_is_an_error(server, cluster, line):
    server.on_watch(PATH, Stream([line]))
    assert (await failure(watched(cluster))).status == 0


# -- logs

LOG = "/api/v1/namespaces/default/pods/p/log"


async def test_a_log_gives_bytes_as_they_come_and_ends(server, cluster):
    server.on("GET", LOG, Stream([b"one\ntw", b"\xff\x00", b"x" * 1_000_000]))
    async with cluster.log(
        "default", "p", "main", follow=True, since_time="2026-01-01T00:00:00Z", previous=True, limit_bytes=5
    ) as chunks:
        data = b"".join([chunk async for chunk in chunks])
    assert data == b"one\ntw\xff\x00" + b"x" * 1_000_000
    assert server.seen[0].query == {
        "container": "main",
        "follow": "true",
        "timestamps": "true",
        "sinceTime": "2026-01-01T00:00:00Z",
        "previous": "true",
        "limitBytes": "5",
    }


async def test_a_log_that_breaks_says_so_after_what_it_gave(server, cluster):
    server.on("GET", LOG, Stream([b"one\n"], end="cut"))
    async with cluster.log("default", "p", "main", follow=True) as chunks:
        assert await anext(chunks) == b"one\n"
        assert (await failure(anext(chunks))).status == 0


async def test_many_logs_are_followed_at_once(server, cluster):
    server.on("GET", LOG, Stream([b"line\n"], end="open"))
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(150):
            chunks = await stack.enter_async_context(cluster.log("default", "p", "main", follow=True))
            assert await anext(chunks) == b"line\n"


# -- about the server


async def test_the_served_version_of_a_resource_is_found_once(server, cluster):
    server.on(
        "GET",
        "/apis/kueue.x-k8s.io",
        {"versions": [{"version": "v1beta1"}, {"version": "v1beta2"}], "preferredVersion": {"version": "v1beta2"}},
    )
    server.on("GET", "/apis/kueue.x-k8s.io/v1beta2", {"resources": [{"name": "workloads", "namespaced": True}]})
    found = await asyncio.gather(*(cluster.resource("kueue.x-k8s.io", "workloads") for _ in range(10)))
    assert set(found) == {Resource("kueue.x-k8s.io", "v1beta2", "workloads")}
    assert len(server.seen) == 2


async def test_all_kinds_of_a_group_are_found_at_once_and_jobs_without_asking(server, cluster):
    kinds = ["localqueues", "clusterqueues", "admissionchecks", "multikueueconfigs"]
    server.on("GET", "/apis/kueue.x-k8s.io", {"versions": [{"version": "v1beta2"}]})
    server.on("GET", "/apis/kueue.x-k8s.io/v1beta2", {"resources": [{"name": kind} for kind in kinds]})
    for kind in kinds:
        assert (await cluster.resource("kueue.x-k8s.io", kind)).version == "v1beta2"
    assert await cluster.resource("batch", "jobs") == Resource("batch", "v1", "jobs")
    assert len(server.seen) == 2


async def test_an_older_version_is_taken_when_the_preferred_one_lacks_the_resource(server, cluster):
    server.on(
        "GET",
        "/apis/kueue.x-k8s.io",
        {"versions": [{"version": "v1beta2"}, {"version": "v1beta1"}], "preferredVersion": {"version": "v1beta2"}},
    )
    server.on("GET", "/apis/kueue.x-k8s.io/v1beta2", {"resources": [{"name": "localqueues"}]})
    server.on("GET", "/apis/kueue.x-k8s.io/v1beta1", {"resources": [{"name": "cohorts", "namespaced": False}]})
    assert await cluster.resource("kueue.x-k8s.io", "cohorts") == Resource(
        "kueue.x-k8s.io", "v1beta1", "cohorts", namespaced=False
    )
    assert (await failure(cluster.resource("kueue.x-k8s.io", "workloads"))).status == 404


@pytest.mark.parametrize("answer", [{}, {"versions": None}, {"versions": [1, {}]}, {"versions": {"version": 1}}])
async def test_discovery_bears_answers_of_any_shape(server, cluster, answer):
    server.on("GET", "/apis/kueue.x-k8s.io", answer)
    assert (await failure(cluster.resource("kueue.x-k8s.io", "workloads"))).status == 404


async def test_rights_are_asked_for(server, cluster):
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    server.on("POST", reviews, {"status": {"allowed": True}}, {"status": {"allowed": False}}, {"status": None})
    assert await cluster.access("get", PODS, "default", subresource="log")
    assert not await cluster.access("delete", JOBS)
    assert not await cluster.access("delete", JOBS)
    assert server.seen[0].body["spec"]["resourceAttributes"] == {
        "verb": "get",
        "resource": "pods",
        "namespace": "default",
        "subresource": "log",
    }


async def test_a_server_that_was_heard_is_not_probed(server, cluster):
    server.on("GET", "/version", {"gitVersion": "v1.35.4"})
    assert (await cluster.version())["gitVersion"] == "v1.35.4"
    await asyncio.gather(*(cluster.probe() for _ in range(5)))
    assert len(server.seen) == 1


async def test_a_silent_server_is_probed_once_for_all_who_ask(server, cluster, monkeypatch):
    monkeypatch.setattr("airflow_provider_multikueue.clusters.server.PROBE", Timeouts(connect=1, silence=0.1, total=1))
    server.on("GET", "/version", hang)
    results = await asyncio.gather(*(cluster.probe() for _ in range(5)), return_exceptions=True)
    assert {type(result) for result in results} == {ApiError}
    assert len(server.seen) == 1


async def test_closing_ends_what_is_open(server, cluster):
    server.on("GET", LOG, Stream([b"one\n"], end="open"))
    async with cluster.log("default", "p", "main", follow=True) as chunks:
        await anext(chunks)
        await cluster.close()
        with pytest.raises(ApiError):
            await anext(chunks)
    assert (await failure(cluster.create(JOBS, {}, "default"))).status == 0


async def test_followed_streams_are_watched_over_by_tcp(server, cluster):
    server.on("GET", LOG, Stream([b"one\n"], end="open"))
    async with cluster.log("default", "p", "main", follow=True):
        (connection,) = cluster._transport._session.connector._acquired
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert transport.LOG_FOLLOW.silence is None
    assert transport.WATCH.silence is not None
    assert transport.WATCH.silence > 60
