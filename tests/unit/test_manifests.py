"""Reading what the user wrote: one job taken, the rest refused with its place; nothing that could do harm."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_multikueue.decisions.jobs import manifest_hash, parse_manifest
from airflow_provider_multikueue.exceptions import ManifestError

JOB = """
apiVersion: batch/v1
kind: Job
metadata:
  generateName: dws-job-
spec:
  template:
    spec:
      containers:
      - name: main
        image: img
"""
CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n"


def test_a_leading_separator_and_comments_do_no_harm() -> None:
    assert parse_manifest(f"# our job\n---\n# here it is\n{JOB}\n---\n# nothing\n")["kind"] == "Job"


def test_one_job_is_taken_and_what_stands_beside_it_is_named() -> None:
    notes: list[str] = []
    assert parse_manifest(f"---\n{CONFIG_MAP}---{JOB}", note=notes.append)["kind"] == "Job"
    assert len(notes) == 1
    assert "document 1 (ConfigMap 'settings')" in notes[0]
    assert "copies nothing but the job" in notes[0]


def test_two_jobs_are_refused_with_their_numbers() -> None:
    with pytest.raises(ManifestError, match=r"has 2: document 1 \(Job 'dws-job-'\), document 2"):
        parse_manifest(f"{JOB}---{JOB}")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "there is no job"),
        ("# only a comment", "there is no job"),
        (CONFIG_MAP, r"document 1 \(ConfigMap 'settings'\)"),
        ("apiVersion: apps/v1\nkind: Deployment", "never finishes"),
        ("just text", "not an object"),
        ("[1, 2]", "not an object"),
        ("kind: Job", "apiVersion: missing in document 1"),
        ("apiVersion: batch/v1\nkind: 5", "kind: missing"),
        ("apiVersion: v1\nkind: List\nitems: []", "not a list"),
        ("a: b: c", "not YAML: .* in line 1"),
        ("kind: [", "not YAML"),
        (5, "got int"),
        (None, "got NoneType"),
        (b"kind: Job", "got bytes"),
    ],
)
def test_what_is_no_job_is_refused_with_the_place(source: Any, says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        parse_manifest(source)


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['true']",
        "a: !!python/name:os.system",
        "a: !custom x",
        "a: !!binary aGk=",
        "a: !!set {x}",
    ],
)
def test_tags_are_refused(text: str) -> None:
    with pytest.raises(ManifestError, match="tag"):
        parse_manifest(text)


def test_a_bomb_of_aliases_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(ManifestError, match="aliases expanded"):
        parse_manifest("\n".join(lines))


def test_an_alias_that_contains_itself_is_refused() -> None:
    with pytest.raises(ManifestError, match="contains itself"):
        parse_manifest("a: &a [*a]")


@pytest.mark.parametrize("text", ["[" * 5000, "{a: " * 5000, "a: " + "- " * 5000])
def test_deep_nesting_is_refused(text: str) -> None:
    with pytest.raises(ManifestError):
        parse_manifest(text)


def test_a_manifest_that_no_server_would_take_is_refused() -> None:
    with pytest.raises(ManifestError, match="larger than 1024 KiB"):
        parse_manifest(f"# {'x' * 1024 * 1024}\n{JOB}")


def test_plain_aliases_and_merges_are_welcome() -> None:
    job = parse_manifest(JOB + "  x: &x {a: 1}\n  y: *x\n  z: {<<: *x, b: 2}\n")
    assert (job["spec"]["y"], job["spec"]["z"]) == ({"a": 1}, {"a": 1, "b": 2})


def test_a_key_that_stands_twice_is_refused_with_its_line() -> None:
    with pytest.raises(ManifestError, match=r"'kind' stands twice, the second time in line 3"):
        parse_manifest("apiVersion: batch/v1\nkind: Job\nkind: Pod\n")


def test_texts_stay_as_they_are_written_where_kubernetes_wants_text() -> None:
    text = JOB.replace(
        "        image: img",
        "        image: img\n        args: [120, 1.10, no, 0123]\n"
        "        env: [{name: V, value: 1.10}, {name: W, value: yes}]",
    ).replace("  generateName: dws-job-", "  annotations: {seconds: 600, flag: true}\n  labels: {v: 1.0}")
    job = parse_manifest(text)
    main = job["spec"]["template"]["spec"]["containers"][0]
    assert main["args"] == ["120", "1.10", "no", "0123"]
    assert [entry["value"] for entry in main["env"]] == ["1.10", "yes"]
    assert job["metadata"] == {"annotations": {"seconds": "600", "flag": "true"}, "labels": {"v": "1.0"}}


def test_a_dicts_numbers_become_text_where_kubernetes_wants_text() -> None:
    source = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"annotations": {"seconds": 600, "flag": True}},
        "spec": {"parallelism": 3, "template": {"spec": {"containers": [{"env": [{"name": "A", "value": 1.5}]}]}}},
    }
    job = parse_manifest(source)
    assert job["metadata"]["annotations"] == {"seconds": "600", "flag": "true"}
    assert job["spec"]["parallelism"] == 3
    assert job["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "A", "value": "1.5"}]
    assert source["metadata"] == {"annotations": {"seconds": 600, "flag": True}}


def test_dates_and_clock_like_numbers_stay_text() -> None:
    job = parse_manifest(JOB + "  when: 2026-03-01\n  at: 12:30:45\n  count: 7\n  share: 0.5\n  none: ~\n")
    spec = {key: job["spec"][key] for key in ("when", "at", "count", "share", "none")}
    assert spec == {"when": "2026-03-01", "at": "12:30:45", "count": 7, "share": 0.5, "none": None}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), {1, 2}, b"x"])
def test_what_json_cannot_hold_is_refused_with_its_place(value: object) -> None:
    with pytest.raises(ManifestError, match=r"spec\.x\[1\]"):
        parse_manifest({"apiVersion": "batch/v1", "kind": "Job", "spec": {"x": [0, value]}})


def test_a_client_model_is_turned_into_a_dict_by_the_given_hook() -> None:
    class Model:
        def to_plain(self) -> dict[str, Any]:
            return {"apiVersion": "batch/v1", "kind": "Job", "spec": {}}

    assert parse_manifest(Model(), sanitize=lambda model: model.to_plain())["kind"] == "Job"


def test_json_text_is_yaml() -> None:
    assert parse_manifest('{"apiVersion": "batch/v1", "kind": "Job", "spec": {}}')["kind"] == "Job"


@settings(max_examples=300)
@given(st.one_of(st.text(max_size=200), st.text(alphabet="-:{}[]&*!|>%@`'\"\n ab01.~#,?", max_size=60)))
def test_any_text_is_a_job_or_a_manifest_error(text: str) -> None:
    with contextlib.suppress(ManifestError):
        assert parse_manifest(text)["kind"]


def test_the_hash_is_of_the_manifest_and_of_what_changes_the_job() -> None:
    one = parse_manifest(JOB)
    assert manifest_hash(one) == manifest_hash(parse_manifest(f"# other text\n{JOB}"))
    assert manifest_hash(one, queue_name="q") != manifest_hash(one, queue_name="r")
    assert manifest_hash(one, max_run_duration=timedelta(hours=1)) == manifest_hash(
        one, max_run_duration=timedelta(minutes=60)
    )
    assert manifest_hash(one, later=None) == manifest_hash(one)
    one["spec"]["x"] = 1
    assert manifest_hash(one) != manifest_hash(parse_manifest(JOB))


def test_what_a_template_made_text_of_is_a_number_or_a_truth_value_again_where_kubernetes_wants_that() -> None:
    spec = {
        "parallelism": "3",
        "suspend": "True",
        "backoffLimit": "many",
        "template": {
            "metadata": {"annotations": {"replicas": "3"}},
            "spec": {
                "terminationGracePeriodSeconds": " 30 ",
                "hostNetwork": "false",
                "containers": [{"args": ["7"], "env": [{"name": "replicas", "value": "3"}]}],
            },
        },
    }
    job = parse_manifest({"apiVersion": "batch/v1", "kind": "Job", "spec": spec})["spec"]
    assert (job["parallelism"], job["suspend"], job["backoffLimit"]) == (3, True, "many")
    pod = job["template"]["spec"]
    assert (pod["terminationGracePeriodSeconds"], pod["hostNetwork"]) == (30, False)
    assert (pod["containers"][0]["args"], pod["containers"][0]["env"][0]["value"]) == (["7"], "3")
    assert job["template"]["metadata"]["annotations"] == {"replicas": "3"}
