"""A sandbox from a fleet file: whose clusters, what of the file is kept, what can't be."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from airflow_provider_multikueue.sandbox.from_file import kueue_of, read_fleet, regions_of, with_clusters_of
from airflow_provider_multikueue.sandbox.paths import SandboxError
from airflow_provider_multikueue.sandbox.spec import FleetSpec
from airflow_provider_multikueue.setup.description import parse
from tests.unit.test_setup import EXAMPLE


def test_the_tutorials_fleet_keeps_all_but_its_clusters_and_where_kueue_comes_from():
    content = read_fleet(EXAMPLE)
    spec = FleetSpec(regions=regions_of(content), bare=True)
    made = with_clusters_of(content, spec, Path("/sandbox"))
    described = parse(made, where="sandbox")
    contexts = {name: worker.cluster["context"] for name, worker in described.workers.items()}
    assert contexts == {
        "multikueue-dws-worker-eu": "worker-europe-west4",
        "multikueue-dws-worker-us": "worker-us-east4",
        "multikueue-dws-worker-asia": "worker-asia-southeast1",
    }
    assert described.kueue.manifests == "/sandbox/kueue.yaml"
    changed = {"gcp_conn_id", "manager", "workers", "kueue"}
    assert {k: v for k, v in made.items() if k not in changed} == {k: v for k, v in content.items() if k not in changed}


def test_cluster_profiles_lead_to_the_files_clusters_and_are_left_out():
    content = yaml.safe_load(EXAMPLE.read_text())
    content["credentials"] = {"form": "cluster_profile"}
    for name, worker in content["workers"].items():
        worker["cluster_profile"] = name
    made = with_clusters_of(content, FleetSpec(regions=regions_of(content), bare=True), Path("/sandbox"))
    assert not parse(made, where="sandbox").by_profile


def test_two_workers_in_one_region_are_refused():
    content = yaml.safe_load(EXAMPLE.read_text())
    content["workers"]["multikueue-dws-worker-us"]["region"] = "europe-west4"
    with pytest.raises(SandboxError, match="several in one: europe-west4, europe-west4, asia-southeast1"):
        regions_of(content)


def test_what_is_wrong_in_the_file_is_said(tmp_path: Path):
    (tmp_path / "fleet.yaml").write_text("fleet: f\n")
    with pytest.raises(SandboxError, match="does not describe a fleet"):
        read_fleet(tmp_path / "fleet.yaml")


@pytest.mark.parametrize(("version", "taken"), [("0.17.0", "0.17.0"), ("0.20.5", None), (None, None)])
def test_the_files_kueue_is_taken_where_the_sandbox_has_it(version, taken):
    assert kueue_of({"kueue": {"version": version}}) == taken
