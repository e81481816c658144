"""The shipped RBAC manifests hold exactly the table of rights."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
import yaml

from airflow_provider_multikueue.decisions.rights import RIGHTS, WORKERS_FROM, Role, rights_of, rules

ROLES = get_args(Role)
FOLDER = Path(__file__).parents[2] / "deploy" / "rbac"


def objects(role: str) -> list[dict]:
    return list(yaml.safe_load_all((FOLDER / f"{role}.yaml").read_text()))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("kind", "namespaced"), [("Role", True), ("ClusterRole", False)])
def test_a_manifest_grants_what_the_table_says(role, kind, namespaced):
    wanted = rules(right for right in rights_of(role) if right.namespaced is namespaced)
    found = [rule for obj in objects(role) if obj["kind"] == kind for rule in obj["rules"]]
    assert found == wanted


@pytest.mark.parametrize("role", ROLES)
def test_each_role_is_bound_to_the_one_account(role):
    roles = {(obj["kind"], obj["metadata"]["name"]) for obj in objects(role) if obj["kind"].endswith("Role")}
    bindings = [obj for obj in objects(role) if obj["kind"].endswith("Binding")]
    assert {(b["roleRef"]["kind"], b["roleRef"]["name"]) for b in bindings} == roles
    assert {subject["name"] for b in bindings for subject in b["subjects"]} == {"airflow-multikueue"}


def test_reading_and_mending_are_apart():
    assert {verb for right in rights_of("worker") for verb in right.verbs} == {"get", "list", "watch"}


def test_no_right_is_a_wildcard():
    assert "*" not in {part for right in RIGHTS for part in (right.group, right.plural, *right.verbs)}


def test_secrets_are_read_only_by_who_asks_for_the_secrets_of_kueue_and_only_there():
    (right,) = (right for right in RIGHTS if right.plural == "secrets")
    assert (right.role, right.verbs, right.where("team")) == ("manager-secrets", ("get",), "kueue-system")
    assert right.role == WORKERS_FROM["manager_secrets"]


def test_the_base_holds_each_object_once_and_mends_nothing():
    base = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    found = [obj for name in base["resources"] for obj in objects(name.removesuffix(".yaml"))]
    ids = [(obj["kind"], obj["metadata"]["name"]) for obj in found]
    assert len(ids) == len(set(ids)), "kustomize refuses an object that is there twice"
    assert ("ServiceAccount", "airflow-multikueue") in ids
    assert set(base["resources"]) == {"account.yaml", "manager.yaml", "worker.yaml"}


@pytest.mark.parametrize("role", ROLES)
def test_a_role_can_be_applied_in_any_namespace(role):
    """Kubectl refuses objects of a namespace other than the one that it is told."""
    assert [obj for obj in objects(role) if "namespace" in obj["metadata"]] == []
