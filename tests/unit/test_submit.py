"""Which of its jobs a task takes over, and when it begins a new one, on a manager that answers what it is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from airflow_provider_multikueue.decisions.jobs import IDENTITY_LABEL, QUEUE_LABEL, build_job
from airflow_provider_multikueue.decisions.kinds import MULTIKUEUE
from airflow_provider_multikueue.decisions.names import (
    HANDED_OVER,
    OWNER,
    REPORTED,
    Identity,
    Lifetime,
    Owner,
    Reported,
)
from airflow_provider_multikueue.decisions.report import job_part
from airflow_provider_multikueue.exceptions import ManifestError
from airflow_provider_multikueue.fleets.fleet import Fleet, open_fleet
from airflow_provider_multikueue.fleets.submit import Request, Submitted, mark_handed_over, mark_reported, submit
from tests.unit.apiserver import Answer, ApiServer, fleet_config, listed, status

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
PLURALS = {"Job": ("batch", "v1", "jobs"), "JobSet": ("jobset.x-k8s.io", "v1alpha2", "jobsets")}
WHOSE = Identity(deployment="test", dag_id="dag", run_id="run", task_id="train")
ENDED = {"conditions": [{"type": "Complete", "status": "True"}]}
PODS = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "busybox"}]}}
MANIFEST = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {}, "spec": {"template": PODS}}
JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {},
    "spec": {"replicatedJobs": [{"name": "main", "template": {"spec": {"template": PODS}}}]},
}


class Silence:
    def record(self, level: int, text: str) -> None:
        """Show nothing."""


class Manager(ApiServer):
    """A manager that keeps jobs; it forbids to list them in all namespaces at once where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[dict[str, Any]] = []
        self.narrow = False
        for group, version, names in (
            ("kueue.x-k8s.io", "v1beta2", ["localqueues", "clusterqueues", "admissionchecks", "multikueueconfigs"]),
            *((group, version, [plural]) for group, version, plural in PLURALS.values()),
        ):
            self.on("GET", f"/apis/{group}", {"versions": [{"version": version}], "preferredVersion": {}})
            resources = [{"name": name, "namespaced": name in ("localqueues", "jobs", "jobsets")} for name in names]
            self.on("GET", f"/apis/{group}/{version}", {"resources": resources})

    def queue(self, name: str, *clusters: str, namespace: str = "default") -> None:
        """Add a queue that leads to these clusters, and list it as the last of them."""
        check = {"spec": {"controllerName": MULTIKUEUE, "parameters": {"name": name}}}
        local = {"metadata": {"name": name}, "spec": {"clusterQueue": name}}
        strategy = {"admissionChecks": [{"name": name}]}
        queues = f"{KUEUE}/namespaces/{namespace}/localqueues"
        self.on("GET", f"{queues}/{name}", local)
        self.on("GET", f"{KUEUE}/clusterqueues/{name}", {"spec": {"admissionChecksStrategy": strategy}})
        self.on("GET", f"{KUEUE}/admissionchecks/{name}", check)
        self.on("GET", f"{KUEUE}/multikueueconfigs/{name}", {"spec": {"clusters": list(clusters)}})
        names = [*getattr(self, "_queues", []), name]
        self._queues = names
        self.on("GET", queues, listed(*({"metadata": {"name": each}} for each in names)))

    def put(self, manifest: dict[str, Any], namespace: str = "default", **more: Any) -> dict[str, Any]:
        """Add the job of a first try."""
        job, _ = build_job(
            manifest,
            identity=WHOSE,
            generation=1,
            owner=Owner(ti="one", attempt=1),
            lifetime=Lifetime(kind="task"),
            queue_name="here",
            default_namespace=namespace,
        )
        job["metadata"] |= {"uid": f"uid-{len(self.jobs)}", "resourceVersion": "1"}
        job["metadata"]["annotations"] |= more.pop("annotations", {})
        self.jobs.append(job | more)
        return self.jobs[-1]

    async def _unscripted(self, seen: Any, request: web.Request) -> web.StreamResponse:
        for kind, (group, version, plural) in PLURALS.items():
            everywhere = f"/apis/{group}/{version}/{plural}"
            if seen.path == everywhere and self.narrow:
                return await status(403, "may not")(request)
            if seen.path == everywhere or (seen.path.endswith(f"/{plural}") and f"/{group}/" in seen.path):
                return await self._collection(kind, seen, request)
            if f"/{plural}/" in seen.path:
                return await self._object(kind, seen, request)
        return await super()._unscripted(seen, request)

    async def _collection(self, kind: str, seen: Any, request: web.Request) -> web.StreamResponse:
        space = seen.path.split("/namespaces/")[1].split("/")[0] if "/namespaces/" in seen.path else None
        if seen.method == "POST":
            made = seen.body | {"metadata": seen.body["metadata"] | {"uid": f"uid-{len(self.jobs)}"}}
            self.jobs.append(made)
            return await Answer(made, 201)(request)
        wanted = seen.query["labelSelector"].partition("=")[2]
        mine = [job for job in self.jobs if job["metadata"]["labels"][IDENTITY_LABEL] == wanted]
        there = [job for job in mine if job["kind"] == kind and space in (None, job["metadata"]["namespace"])]
        return await listed(*there)(request)

    async def _object(self, kind: str, seen: Any, request: web.Request) -> web.StreamResponse:
        space, name = seen.path.split("/namespaces/")[1].split("/")[0], seen.path.rsplit("/", 1)[1]
        for job in self.jobs:
            meta = job["metadata"]
            if (job["kind"], meta["namespace"], meta["name"]) != (kind, space, name):
                continue
            if seen.method == "DELETE":
                self.jobs.remove(job)
            if seen.method == "PATCH":
                notes = meta["annotations"] | seen.body["metadata"]["annotations"]
                meta["annotations"] = {key: value for key, value in notes.items() if value is not None}
            return await Answer(job)(request)
        return await status(404, "no such job")(request)


@pytest.fixture
async def manager() -> AsyncIterator[Manager]:
    async with (manager := Manager()).running():
        manager.queue("here", "eu")
        yield manager


@pytest.fixture
async def fleet(manager: Manager, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with open_fleet(fleet_config(manager, tmp_path)) as opened:
        yield opened


async def second_try(fleet: Fleet, manifest: dict[str, Any] = MANIFEST, **wishes: Any) -> Submitted:
    request = Request(
        manifest=manifest,
        identity=WHOSE,
        owner=Owner(ti="one", attempt=wishes.pop("attempt", 2), max_tries=wishes.pop("max_tries", None)),
        lifetime=Lifetime(kind="task"),
        **{"queue_name": "here"} | wishes,
    )
    return await submit(fleet, request, Silence())


# -- a task whose manifest was changed meanwhile


CHANGES: dict[str, tuple[dict[str, Any], str]] = {"kind": (JOBSET, "default"), "namespace": (MANIFEST, "other")}


@pytest.mark.parametrize(("manifest", "namespace"), CHANGES.values(), ids=CHANGES.keys())
async def test_a_later_try_of_another_kind_or_in_another_namespace_leaves_no_second_job(
    manager: Manager, fleet: Fleet, manifest: dict[str, Any], namespace: str
) -> None:
    manager.put(manifest, namespace)
    submitted = await second_try(fleet)
    assert not submitted.adopted
    assert [job["metadata"]["uid"] for job in manager.jobs] == [submitted.job["metadata"]["uid"]]


async def test_jobs_of_earlier_runs_are_left_where_they_are(manager: Manager, fleet: Fleet) -> None:
    manager.put(MANIFEST, "other", annotations={REPORTED: "2026-03-01"}, status=ENDED)
    await second_try(fleet)
    assert len(manager.jobs) == 2


async def test_who_may_not_look_everywhere_looks_where_it_may(manager: Manager, fleet: Fleet) -> None:
    manager.narrow = True
    manager.put(MANIFEST, "other")
    manager.put(JOBSET)
    await second_try(fleet)
    assert sorted((job["kind"], job["metadata"]["namespace"]) for job in manager.jobs) == [
        ("Job", "default"),
        ("Job", "other"),
    ]


async def test_a_first_try_looks_for_nothing(manager: Manager, fleet: Fleet) -> None:
    await second_try(fleet, attempt=1)
    assert not [seen for seen in manager.seen if "jobset" in seen.path]


# -- a task that was cleared, or is tried again


@pytest.mark.parametrize("note", [REPORTED, HANDED_OVER])
async def test_an_ended_job_that_was_reported_or_handed_over_is_followed_by_a_new_one(
    manager: Manager, fleet: Fleet, note: str
) -> None:
    old = manager.put(MANIFEST, annotations={note: "2026-03-01"}, status=ENDED)
    submitted = await second_try(fleet)
    assert not submitted.adopted
    assert submitted.job["metadata"]["name"] != old["metadata"]["name"]


@pytest.mark.parametrize(
    ("tries", "attempt", "succeeded", "again"),
    [(2, 2, True, True), (3, 2, True, False), (2, 2, False, False), (None, 2, True, False), (2, 1, True, False)],
    ids=["retry", "cleared", "retry after a failure", "unknown", "the same try"],
)
async def test_a_success_that_airflow_did_not_take_note_of_is_reported_again(
    manager: Manager, fleet: Fleet, tries: int | None, attempt: int, succeeded: bool, again: bool
) -> None:
    old = manager.put(MANIFEST, annotations={OWNER: Owner(ti="one", attempt=1, max_tries=2).to_json()}, status=ENDED)
    await mark_reported(fleet, job_part(old), Reported(at="2026-03-01", succeeded=succeeded, kept=False))
    submitted = await second_try(fleet, attempt=attempt, max_tries=tries)
    assert submitted.adopted is again
    assert len(manager.jobs) == (1 if again else 2)
    assert (REPORTED in old["metadata"]["annotations"]) is not again, "it is to be reported anew"


async def test_an_ended_job_that_nobody_reported_is_taken_over(manager: Manager, fleet: Fleet) -> None:
    old = manager.put(MANIFEST, status=ENDED)
    submitted = await second_try(fleet)
    assert submitted.adopted
    assert submitted.job["metadata"]["uid"] == old["metadata"]["uid"]


async def test_a_living_job_that_was_handed_over_is_taken_back(manager: Manager, fleet: Fleet) -> None:
    """It never runs beside another, and is handed over again only when the new try has returned it."""
    old = manager.put(MANIFEST)
    await mark_handed_over(fleet, job_part(old), "2026-03-01")
    assert old["metadata"]["annotations"][HANDED_OVER] == "2026-03-01"
    assert (await second_try(fleet)).adopted
    assert HANDED_OVER not in old["metadata"]["annotations"]
    assert Owner.from_json(old["metadata"]["annotations"][OWNER]) == Owner(ti="one", attempt=2)


# -- a queue that nobody names


@pytest.fixture
async def regional(manager: Manager, tmp_path: Path) -> AsyncIterator[Fleet]:
    """A fleet of two regions with a queue for each, whose connection names no queue."""
    manager.queue("american", "us")
    async with open_fleet(fleet_config(manager, tmp_path, eu="eu-region", us="us-region")) as opened:
        yield opened


@pytest.mark.parametrize("default", [None, "here"], ids=["no default", "another by default"])
async def test_the_queue_that_stays_within_the_regions_is_chosen(
    manager: Manager, regional: Fleet, default: str | None
) -> None:
    await second_try(regional, attempt=1, queue_name=None, default_queue_name=default, regions=["us-region"])
    (job,) = manager.jobs
    assert job["metadata"]["labels"][QUEUE_LABEL] == "american"


async def test_the_connections_queue_is_taken_if_it_stays_within_the_regions(manager: Manager, regional: Fleet) -> None:
    manager.queue("european", "eu")
    await second_try(regional, attempt=1, queue_name=None, default_queue_name="here", regions=["eu-region"])
    (job,) = manager.jobs
    assert job["metadata"]["labels"][QUEUE_LABEL] == "here"


async def test_without_regions_a_queue_must_be_named(manager: Manager, regional: Fleet) -> None:
    with pytest.raises(ManifestError, match="queue_name"):
        await second_try(regional, attempt=1, queue_name=None)
    assert manager.jobs == []
