"""The pure half of setting a fleet up: the file, the objects, the plan, Kueue's manifests."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.sandbox.fleet_file import fleet_file
from airflow_provider_multikueue.sandbox.spec import FleetSpec
from airflow_provider_multikueue.setup import desired
from airflow_provider_multikueue.setup.description import FleetDescription, parse, schema
from airflow_provider_multikueue.setup.monitoring import Role, monitoring_objects
from airflow_provider_multikueue.setup.plan import Action, Plan, compare, deletion_order, making_order
from airflow_provider_multikueue.setup.quantities import canonical
from airflow_provider_multikueue.setup.release import CONFIG_ANNOTATION, kueue_objects
from airflow_provider_multikueue.setup.state import KINDS

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "example_dags/fleet.yaml"
LABEL = (desired.FLEET_LABEL, "seed")


@pytest.fixture
def content() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    return loaded


@pytest.fixture
def fleet(content: dict[str, Any]) -> FleetDescription:
    return parse(content, where="fleet.yaml")


def named(objects: list[dict[str, Any]]) -> set[str]:
    return {f"{each['kind']} {each['metadata']['name']}" for each in objects}


def test_the_example_gives_the_objects_of_the_seed_their_names(fleet):
    assert {
        "ClusterQueue dws-cluster-queue",
        "LocalQueue dws-local-queue",
        "ResourceFlavor default-dws-flavor",
        "MultiKueueConfig multikueue-dws",
        "AdmissionCheck sample-dws-multikueue",
    } <= named(desired.manager_objects(fleet))
    assert {"AdmissionCheck dws-prov", "ProvisioningRequestConfig dws-config"} <= named(
        desired.worker_objects(fleet, "multikueue-dws-worker-us")
    )
    link = desired.link_objects(fleet, "multikueue-dws-worker-us", {})
    assert named(link) == {"Secret worker-us-east4-secret", "MultiKueueCluster multikueue-dws-worker-us"}


def test_a_residency_group_has_a_check_that_asks_its_workers_alone(fleet):
    objects = {f"{each['kind']} {each['metadata']['name']}": each for each in desired.manager_objects(fleet)}
    assert objects["MultiKueueConfig multikueue-dws-eu"]["spec"]["clusters"] == ["multikueue-dws-worker-eu"]
    queue = objects["ClusterQueue dws-cluster-queue-eu"]["spec"]
    assert queue["admissionChecksStrategy"]["admissionChecks"] == [{"name": "sample-dws-multikueue-eu"}]
    elsewhere = named(desired.worker_objects(fleet, "multikueue-dws-worker-us"))
    assert "ClusterQueue dws-cluster-queue-eu" not in elsewhere


def test_the_managers_account_may_touch_nothing_but_workloads_and_the_chosen_kinds(fleet):
    role = next(each for each in desired.access_objects(fleet, "w") if each["kind"] == "ClusterRole")
    resources = {resource for rule in role["rules"] for resource in rule["resources"]}
    assert resources == {"workloads", "workloads/status", "jobs", "jobs/status"}
    assert not any("*" in rule["verbs"] for rule in role["rules"])


def test_every_object_carries_the_fleet_and_its_part(fleet):
    every = [*desired.manager_objects(fleet), *desired.worker_objects(fleet, "multikueue-dws-worker-eu")]
    assert all(each["metadata"]["labels"][desired.FLEET_LABEL] == "seed" for each in every)


def without_labels(each: dict[str, Any]) -> dict[str, Any]:
    metadata = {key: value for key, value in each["metadata"].items() if key != "labels"}
    return {**each, "metadata": metadata}


@pytest.mark.parametrize("role", ["manager", "worker"])
def test_a_fleets_monitoring_is_what_the_shipped_manifests_make(fleet: FleetDescription, role: Role):
    text = (ROOT / f"deploy/monitoring/kueue-{role}.yaml").read_text()
    shipped = {each["kind"]: each for each in yaml.safe_load_all(text)}
    made = monitoring_objects(fleet, role)
    assert {each["kind"]: without_labels(each) for each in made} == shipped
    assert all(
        each["metadata"]["labels"] == {desired.FLEET_LABEL: "seed", desired.PART_LABEL: "monitoring"} for each in made
    )


def test_the_label_job_of_a_fleets_metrics_is_what_dashboards_and_alerts_ask_for(fleet: FleetDescription):
    roles: tuple[Role, ...] = ("manager", "worker")
    objects = [each for role in roles for each in monitoring_objects(fleet, role)]
    jobs = {each["metadata"]["name"] for each in objects if each["kind"] == "PodMonitoring"}
    asked = set()
    for name in ("alerts.yaml", "grafana-dashboard.json"):
        text = (ROOT / "deploy/monitoring" / name).read_text().replace("\\", "")
        asked |= {job for each in re.findall(r'job=~?"([^"]+)"', text) for job in each.split("|")}
    assert jobs == asked


def test_all_that_monitoring_makes_is_looked_for_when_it_is_removed(fleet: FleetDescription):
    kinds = {(each["apiVersion"], each["kind"]) for each in monitoring_objects(fleet, "manager")}
    assert kinds == set(KINDS[desired.Part.MONITORING])


def test_a_fleet_without_monitoring_makes_nothing_for_it(content):
    content["monitoring"]["pod_monitoring"] = False
    assert monitoring_objects(parse(content, where="f"), "manager") == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (["queues", "dws-cluster-queue", "quotas"], {"other": {"cpu": 1}}, "`flavors` has no 'other'"),
        (["teams", 0, "queue"], "none", "`queues` has no 'none'"),
        (["teams", 0, "prio"], "x", "`teams.0`: remove or correct `prio`"),
        (["residency", "eu"], ["moon"], "`workers` has no 'moon'"),
        (["kueue", "version"], "0.9.0", "0.9.0 is too old"),
        (["kueue"], {}, "add `version` and `manifests`"),
        (["workers", "multikueue-dws-worker-eu", "region"], 4, "must be of type string"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(content, path, value, said):
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(FleetConfigurationError, match=r"fleet\.yaml does not describe a fleet") as raised:
        parse(content, where="fleet.yaml")
    assert said in str(raised.value)


def test_the_schema_is_one():
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(schema())


def test_the_sandboxes_own_fleet_is_a_fleet_file():
    described = parse(fleet_file(FleetSpec(bare=True), Path("/kubeconfig")), where="sandbox")
    assert set(described.workers) == {worker.cluster for worker in FleetSpec().workers}


def test_clusters_by_location_and_name_get_the_project(content):
    described = parse({**content, "project": "team"}, where="f")
    assert described.connection()["manager_gke_cluster"] == (
        "projects/team/locations/europe-west4/clusters/manager-europe-west4"
    )
    assert parse(content, where="f").needs_project


@pytest.mark.parametrize(
    ("text", "same"), [("1000000", "1M"), ("1024Gi", "1Ti"), ("0.5", "500m"), ("1500", "1500"), ("?", "?")]
)
def test_a_quantity_is_written_as_kubernetes_does(text, same):
    assert canonical(text) == same


QUEUE = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "LocalQueue",
    "metadata": {"name": "q", "namespace": "n", "labels": {desired.FLEET_LABEL: "seed"}},
    "spec": {"clusterQueue": "one"},
}


def test_what_is_not_there_is_created():
    assert compare("m", QUEUE, None, None, label=LABEL).action is Action.CREATE


def test_a_field_that_differs_is_named():
    live = copy.deepcopy(QUEUE)
    live["metadata"] |= {"uid": "1", "resourceVersion": "7"}
    live["spec"]["clusterQueue"] = "other"
    change = compare("m", QUEUE, live, QUEUE, label=LABEL)
    assert change.action is Action.CHANGE
    assert [(each.path, each.old, each.new) for each in change.differences] == [("spec.clusterQueue", "other", "one")]


def test_what_someone_else_made_is_foreign_until_forced():
    live = {**QUEUE, "metadata": {"name": "q", "namespace": "n", "managedFields": [{"manager": "kubectl"}]}}
    change = compare("m", QUEUE, live, QUEUE, label=LABEL)
    assert (change.action, "kubectl" in change.reason) == (Action.FOREIGN, True)
    assert compare("m", QUEUE, live, QUEUE, label=LABEL, force=True).action is Action.CHANGE


def test_a_secret_is_compared_and_never_shown():
    def secret(text: str) -> dict[str, Any]:
        return {"apiVersion": "v1", "kind": "Secret", "metadata": QUEUE["metadata"], "data": {"kubeconfig": text}}

    change = compare("m", secret("bmV3"), secret("b2xk"), secret("bmV3"), label=LABEL)
    shown = json.dumps(Plan((change,)).plain()) + "\n".join(Plan((change,)).lines())
    assert change.action is Action.CHANGE
    assert "bmV3" not in shown
    assert "b2xk" not in shown


def test_definitions_come_first_and_go_before_what_serves_them():
    kinds = ["LocalQueue", "Deployment", "CustomResourceDefinition", "ClusterQueue", "Namespace"]
    objects = [
        {"kind": kind, "apiVersion": "kueue.x-k8s.io/v1beta2" if kind.endswith("Queue") else "v1"} for kind in kinds
    ]
    assert [each["kind"] for each in making_order(objects)][:2] == ["Namespace", "CustomResourceDefinition"]
    gone = [each["kind"] for each in deletion_order(objects)]
    assert gone == ["LocalQueue", "ClusterQueue", "CustomResourceDefinition", "Deployment", "Namespace"]


def manifests(version: str = "0.19.1") -> list[dict[str, Any]]:
    container = {"name": "manager", "image": f"registry.k8s.io/kueue/kueue:v{version}"}
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "kueue-controller-manager"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    data = {"controller_manager_config.yaml": "integrations: {frameworks: [pod]}\nhealth: {}\n"}
    return [deployment, {"kind": "ConfigMap", "metadata": {"name": "kueue-manager-config"}, "data": data}]


def kueue_configuration(content: dict[str, Any]) -> dict[str, Any]:
    objects = kueue_objects(manifests(), parse(content, where="f"))
    data = next(each for each in objects if each["kind"] == "ConfigMap")["data"]
    configuration: dict[str, Any] = yaml.safe_load(data["controller_manager_config.yaml"])
    return configuration


def test_kueue_reports_the_quotas_that_the_dashboards_show_unless_told_otherwise(content):
    assert kueue_configuration(content)["metrics"] == {"enableClusterQueueResources": True}
    content["kueue"]["configuration"] = {"metrics": {"enableClusterQueueResources": False}}
    assert kueue_configuration(content)["metrics"] == {"enableClusterQueueResources": False}


def test_another_configuration_is_another_pod_template(content):
    def digest(content: dict[str, Any]) -> str:
        objects = kueue_objects(manifests(), parse(content, where="f"))
        template = next(each for each in objects if each["kind"] == "Deployment")["spec"]["template"]
        return str(template["metadata"]["annotations"][CONFIG_ANNOTATION])

    before = digest(content)
    content["kueue"]["configuration"] = {"multiKueue": {"workerLostTimeout": "1m"}}
    assert digest(content) != before


def test_manifests_of_another_version_are_refused(fleet):
    with pytest.raises(FleetConfigurationError, match=r"are of Kueue 0\.18\.2, but"):
        kueue_objects(manifests("0.18.2"), fleet)


def test_a_fleet_without_multikueue_is_refused(content):
    content["kueue"]["configuration"] = {"featureGates": {"MultiKueue": False}}
    with pytest.raises(FleetConfigurationError, match="feature gate MultiKueue is switched off"):
        kueue_objects(manifests(), parse(content, where="f"))


EU = "multikueue-dws-worker-eu"
GATE = "MultiKueueClusterProfile"


@pytest.fixture
def by_profile(content: dict[str, Any]) -> dict[str, Any]:
    """A fleet file whose workers the manager's Kueue gets at by ClusterProfiles."""
    content["credentials"] = {"form": "cluster_profile"}
    for name, worker in content["workers"].items():
        worker["cluster_profile"] = f"{name}-profile"
    return content


def test_a_worker_by_its_cluster_profile_has_no_account_token_or_secret(by_profile):
    described = parse(by_profile, where="f")
    (cluster,) = desired.link_objects(described, EU)
    assert cluster["kind"] == "MultiKueueCluster"
    assert cluster["spec"] == {"clusterSource": {"clusterProfileRef": {"name": f"{EU}-profile"}}}
    assert desired.access_objects(described, EU) == []


def test_workers_of_one_region_need_no_secrets_of_their_own_where_there_are_none(by_profile):
    by_profile["workers"]["multikueue-dws-worker-us"]["region"] = "europe-west4"
    assert parse(by_profile, where="f").by_profile


def test_a_worker_without_its_profile_is_told_what_to_add(by_profile):
    del by_profile["workers"][EU]["cluster_profile"]
    with pytest.raises(FleetConfigurationError, match=rf"`workers\.{EU}`: add `cluster_profile`"):
        parse(by_profile, where="f")


def test_a_profile_that_nobody_would_use_is_refused(by_profile):
    by_profile["credentials"] = {"form": "token"}
    with pytest.raises(FleetConfigurationError, match=rf"`workers\.{EU}\.cluster_profile`: Kueue uses it with"):
        parse(by_profile, where="f")


def test_one_profile_for_two_workers_is_refused(by_profile):
    for worker in by_profile["workers"].values():
        worker["cluster_profile"] = "same"
    with pytest.raises(FleetConfigurationError, match="same is there twice"):
        parse(by_profile, where="f")


def test_the_gate_for_profiles_is_switched_on_where_it_is_needed_alone(content, by_profile):
    assert kueue_configuration(by_profile)["featureGates"] == {GATE: True}
    del by_profile["credentials"]
    for worker in by_profile["workers"].values():
        del worker["cluster_profile"]
    assert "featureGates" not in kueue_configuration(content)


def test_a_gate_for_profiles_that_stays_off_is_told(by_profile):
    def install(*arguments: str) -> dict[str, Any]:
        release = manifests()
        release[0]["spec"]["template"]["spec"]["containers"][0]["args"] = list(arguments)
        objects = kueue_objects(release, parse(by_profile, where="f"))
        data = next(each for each in objects if each["kind"] == "ConfigMap")["data"]
        configuration: dict[str, Any] = yaml.safe_load(data["controller_manager_config.yaml"])
        return configuration

    # Kueue does not start when it is told of gates in both ways.
    assert "featureGates" not in install(f"--feature-gates=Other=true,{GATE}=true")
    with pytest.raises(FleetConfigurationError, match=f"needs Kueue's feature gate {GATE}"):
        install("--feature-gates=Other=true")
    by_profile["kueue"]["configuration"] = {"featureGates": {GATE: False}}
    with pytest.raises(FleetConfigurationError, match=f"needs Kueue's feature gate {GATE}"):
        install()
