"""Names and labels: valid whatever the ids are, the same for the same task, readable."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_multikueue.decisions.kinds import KINDS, Kind, find_kind
from airflow_provider_multikueue.decisions.names import (
    Identity,
    Lifetime,
    Owner,
    Reported,
    cursors_of,
    identity_selector,
    job_name,
    label_value,
)

JOB = find_kind("batch/v1", "Job")
DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


def identity(**ids: Any) -> Identity:
    known = {
        "deployment": "prod-eu",
        "dag_id": "train_anywhere",
        "run_id": "manual__2026-03-01T00:00:00+00:00",
        "task_id": "train",
    }
    return Identity(**{**known, **ids})


def test_a_name_says_which_dag_and_task() -> None:
    name = job_name(identity(), 1, JOB, prefix="dws-job-")
    assert re.fullmatch(r"dws-job-train-anywhere-train-[a-z2-7]{10}-1", name)


def test_the_same_task_has_the_same_name_and_a_new_generation_another() -> None:
    first = job_name(identity(), 1, JOB)
    assert job_name(identity(), 1, JOB) == first
    assert job_name(identity(), 2, JOB) != first


@pytest.mark.parametrize(
    "other",
    [{"deployment": "x"}, {"dag_id": "x"}, {"run_id": "x"}, {"task_id": "x"}, {"map_index": 0}],
    ids=lambda other: next(iter(other)),
)
def test_another_task_has_another_name(other: dict[str, Any]) -> None:
    assert job_name(identity(), 1, JOB) != job_name(identity(**other), 1, JOB)
    assert identity_selector(identity()) != identity_selector(identity(**other))


def test_long_ids_that_differ_in_the_last_character_differ_in_name_and_labels() -> None:
    one, two = "a" * 60 + "b", "a" * 60 + "c"
    assert job_name(identity(dag_id=one), 1, JOB) != job_name(identity(dag_id=two), 1, JOB)
    assert label_value(one * 2) != label_value(two * 2)


def test_ids_in_any_script_give_valid_readable_names() -> None:
    who = identity(dag_id="Entrenamiento.Campaña_ÑÑ", task_id="grp.Train__Model.", map_index=2)
    name = job_name(who, 1, JOB)
    assert name.startswith("entrenamiento-campana-nn-grp-train")
    assert label_value("Entrenamiento.Campaña_ÑÑ").startswith("Entrenamiento.Campana_NN-")
    assert label_value("grp.Train__Model.").startswith("grp.Train__Model-")
    assert Identity.from_json(who.to_json()) == who


@pytest.mark.parametrize("text", ["train", "grp.train_model", "manual-1", "0", ""])
def test_a_valid_label_value_stays_as_it_is(text: str) -> None:
    assert label_value(text) == text


TEXT = st.text(max_size=300)


@given(st.sampled_from(KINDS), TEXT, TEXT, TEXT, TEXT, st.integers(-1, 99999), st.integers(1, 999))
def test_every_name_is_a_dns_label_within_its_kinds_budget(
    kind: Kind, prefix: str, dag: str, task: str, run: str, index: int, generation: int
) -> None:
    who = identity(dag_id=dag, task_id=task, run_id=run, map_index=index)
    name = job_name(who, generation, kind, prefix=prefix)
    assert DNS_LABEL.fullmatch(name)
    assert len(name) <= kind.name_budget
    assert name.endswith(f"-{who.digest}-{generation}")
    assert Identity.from_json(who.to_json()) == who


@given(TEXT)
def test_every_label_value_is_valid(text: str) -> None:
    assert LABEL.fullmatch(label_value(text))


@pytest.mark.parametrize("completions", [1, 10, 100, 10_000])
def test_an_indexed_jobs_pods_have_host_names(completions: int) -> None:
    manifest = {"spec": {"completionMode": "Indexed", "completions": completions}}
    name = job_name(identity(dag_id="d" * 200), 1, JOB, manifest=manifest)
    assert len(f"{name}-{completions - 1}") <= 63


def test_a_jobsets_longest_pod_name_fits() -> None:
    kind = find_kind("jobset.x-k8s.io/v1alpha2", "JobSet")
    replicated = [
        {"name": "driver", "template": {"spec": {"completions": 1}}},
        {"name": "gpu-workers", "replicas": 12, "template": {"spec": {"completions": 128}}},
    ]
    name = job_name(identity(dag_id="d" * 200), 1, kind, manifest={"spec": {"replicatedJobs": replicated}})
    assert len(f"{name}-gpu-workers-11-127-abcde") <= 63


def test_a_rayjob_stays_below_its_limit() -> None:
    assert len(job_name(identity(dag_id="d" * 200), 1, find_kind("ray.io/v1", "RayJob"))) <= 47


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"deployment": 1}', 5, '{"kind": "other"}'])
def test_what_cannot_be_read_is_nothing(text: object) -> None:
    assert Identity.from_json(text) is None
    assert Owner.from_json(text) is None
    assert Lifetime.from_json(text) is None


def test_owner_and_lifetime_survive_their_annotations() -> None:
    owner = Owner(ti="0190-uuid", attempt=2)
    lifetime = Lifetime(kind="run", deadline=datetime(2026, 3, 1, 12, tzinfo=UTC))
    assert Owner.from_json(owner.to_json()) == owner
    assert Lifetime.from_json(lifetime.to_json()) == lifetime
    assert owner.to_json() == '{"ti":"0190-uuid","try":2}'
    assert Owner.from_json(Owner(ti="a", attempt=2, max_tries=3).to_json()).max_tries == 3  # type: ignore[union-attr]
    assert lifetime.to_json() == '{"kind":"run","deadline":"2026-03-01T12:00:00+00:00"}'


def test_how_often_a_task_may_be_tried_says_nothing_of_whose_the_job_is() -> None:
    assert Owner(ti="a", attempt=1, max_tries=1) == Owner(ti="a", attempt=1, max_tries=5) == Owner(ti="a", attempt=1)


@pytest.mark.parametrize("text", ["2026-03-01T12:00:00Z", "{", "[]", '{"succeeded": 1}'])
def test_a_report_that_cannot_be_read_was_made_all_the_same(text: str) -> None:
    report = Reported.from_json(text)
    assert report is not None
    assert (report.succeeded, report.kept) == (False, True)
    assert Reported.from_json("") is None


def test_a_deadline_that_cannot_be_read_gives_no_lifetime() -> None:
    assert Lifetime.from_json('{"kind": "task", "deadline": "soon"}') is None


def test_each_reader_notes_its_place_under_a_name_of_its_own_that_an_annotation_may_have() -> None:
    names = {cursors_of(reader) for reader in ("", "0190-uuid/1", "0190-uuid/2", "x" * 500)}
    assert len(names) == 4
    assert all(re.fullmatch(r"airflow-provider-multikueue/[a-z0-9-]{1,63}", name) for name in names)
