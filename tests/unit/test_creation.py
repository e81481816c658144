"""A job is created when nothing is wrong with it; else all that is wrong is said, and nothing exists."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from airflow_provider_multikueue.clusters.client import JOBS, Cluster
from airflow_provider_multikueue.exceptions import FleetConfigurationError, ManifestError, MultiKueueError
from airflow_provider_multikueue.fleets import creation
from airflow_provider_multikueue.fleets.creation import create
from tests.unit.apiserver import Answer, ApiServer, hang, kubeconfig, obj, status

PATH = "/apis/batch/v1/namespaces/default/jobs"
QUEUE = "kueue.x-k8s.io/queue-name"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer().running() as running:
        yield running


@pytest.fixture
async def manager(server: ApiServer) -> AsyncIterator[Cluster]:
    async with await Cluster.from_kubeconfig("manager", config=kubeconfig(server.url)) as cluster:
        yield cluster


def job(**labels: str) -> dict:
    return {"kind": "Job", "metadata": {"name": "train", "namespace": "default", "labels": labels}, "spec": {}}


WANTED, HELD = job(**{QUEUE: "q"}), job()


def queries(server: ApiServer) -> list[dict[str, str]]:
    return [seen.query for seen in server.seen]


TRIED = {"dryRun": "All", "fieldValidation": "Strict"}
MADE = {"fieldValidation": "Strict"}


async def test_a_held_job_is_tried_with_its_queue_before_it_is_made_without(server: ApiServer, manager: Cluster):
    server.on("POST", PATH, obj("train"))
    assert await create(manager, JOBS, WANTED, held=HELD) == obj("train")
    assert queries(server) == [TRIED, MADE]
    assert [seen.body["metadata"]["labels"] for seen in server.seen] == [{QUEUE: "q"}, {}]


@pytest.mark.parametrize("held", [None, WANTED], ids=["not held", "a kind that can't be held"])
async def test_what_is_made_with_its_queue_at_once_costs_one_request(server: ApiServer, manager: Cluster, held):
    server.on("POST", PATH, obj("train"))
    await create(manager, JOBS, WANTED, held=held)
    assert queries(server) == [MADE]


def invalid(**causes: str) -> Answer:
    listed = [{"reason": "FieldValueInvalid", "field": field, "message": why} for field, why in causes.items()]
    body = {"kind": "Status", "code": 422, "reason": "Invalid", "message": "Job is invalid", "details": {}}
    return Answer(body | {"details": {"causes": listed}}, 422)


async def test_each_mistake_has_a_line_with_its_field_and_nothing_is_made(server: ApiServer, manager: Cluster):
    unknown = 'Job in version "v1" cannot be handled as a Job: strict decoding error: '
    unknown += 'unknown field "spec.paralelism", unknown field "spec.template.spec.container"'
    wrong = invalid(**{"spec.completions": "Invalid value: -1", "spec.template.spec.restartPolicy": "Required value"})
    server.on("POST", PATH, status(400, unknown, reason="BadRequest"), wrong)
    with pytest.raises(ManifestError) as refused:
        await create(manager, JOBS, WANTED, held=HELD)
    assert str(refused.value).splitlines()[1:5] == [
        "- spec.paralelism: unknown field",
        "- spec.template.spec.container: unknown field",
        "- spec.completions: Invalid value: -1",
        "- spec.template.spec.restartPolicy: Required value",
    ]
    assert queries(server) == [TRIED, {"dryRun": "All"}]


async def test_an_unknown_field_alone_is_refused_too(server: ApiServer, manager: Cluster):
    server.on("POST", PATH, status(400, 'strict decoding error: unknown field "spec.a"'), obj("train"))
    with pytest.raises(ManifestError, match=r"spec\.a: unknown field"):
        await create(manager, JOBS, WANTED)
    assert queries(server) == [MADE, {"dryRun": "All"}]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (403, 'admission webhook "vrayjob.kb.io" denied the request: spec.rayClusterSpec: Required value'),
        (403, "jobs.batch \"train\" is forbidden: ValidatingAdmissionPolicy 'a' with binding 'b' denied request: no"),
        (400, "metadata.labels: Invalid value"),
    ],
    ids=["webhook", "policy", "bad request"],
)
async def test_a_refusal_by_admission_is_a_mistake_of_the_manifest(
    server: ApiServer, manager: Cluster, code: int, text: str
):
    server.on("POST", PATH, status(code, text))
    with pytest.raises(ManifestError) as refused:
        await create(manager, JOBS, WANTED, held=HELD)
    assert text in str(refused.value)
    assert "account" not in str(refused.value)
    assert queries(server) == [TRIED]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            'jobs.batch is forbidden: User "u" cannot create resource "jobs"',
            FleetConfigurationError,
        ),
        ('jobs.batch "train" is forbidden: exceeded quota: team, requested: count/jobs.batch=1', MultiKueueError),
    ],
    ids=["rights", "quota"],
)
async def test_a_lack_of_rights_or_of_quota_is_no_mistake_of_the_manifest(
    server: ApiServer, manager: Cluster, text: str, error: type[Exception]
):
    server.on("POST", PATH, status(403, text))
    with pytest.raises(MultiKueueError) as refused:
        await create(manager, JOBS, WANTED, held=HELD)
    assert type(refused.value) is error


async def test_a_webhook_that_can_not_be_tried_prevents_nothing(server: ApiServer, manager: Cluster):
    no = status(400, 'admission webhook "audit.example.com" does not support dry run', reason="BadRequest")
    server.on("POST", PATH, no, obj("train"))
    assert await create(manager, JOBS, WANTED, held=HELD) == obj("train")
    assert queries(server) == [TRIED, MADE]


async def test_a_manager_that_fails_for_a_while_is_asked_again_and_a_trial_that_passed_is_not(
    server: ApiServer, manager: Cluster
):
    failing = status(500, "Internal error occurred: failed calling webhook", Retry_After="0")
    server.on("POST", PATH, failing, obj("train"), failing, obj("train"))
    assert await create(manager, JOBS, WANTED, held=HELD) == obj("train")
    assert queries(server) == [TRIED, TRIED, MADE, MADE]


async def test_a_manager_that_fails_for_too_long_is_an_error_that_can_be_retried(
    server: ApiServer, manager: Cluster, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(creation, "RETRY_SECONDS", 0.6)
    server.on("POST", PATH, status(500, "Internal error occurred: failed calling webhook"))
    with pytest.raises(MultiKueueError, match="Is the manager's Kueue running") as failed:
        await create(manager, JOBS, WANTED, held=HELD)
    assert type(failed.value) is MultiKueueError
    assert len(server.seen) == 2


async def test_a_name_that_is_taken_shows_at_the_trial_already(server: ApiServer, manager: Cluster):
    server.on("POST", PATH, status(409, "already exists", reason="AlreadyExists"), hang)
    assert await create(manager, JOBS, WANTED, held=HELD) is None
    assert queries(server) == [TRIED]
