"""The steps that set a fleet up, against API servers that refuse, are not ready, or have someone else's objects."""

from __future__ import annotations

import asyncio
import json
import secrets
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from airflow.providers.common.compat.sdk import redact

from airflow_provider_multikueue.clusters import gke
from airflow_provider_multikueue.exceptions import FleetConfigurationError, MultiKueueError
from airflow_provider_multikueue.fleet_files import describe, open_fleet_file
from airflow_provider_multikueue.setup.desired import FLEET_LABEL, PART_LABEL
from airflow_provider_multikueue.setup.steps import FleetSetup, Options
from tests.unit.apiserver import kubeconfig, status, until
from tests.unit.gkeserver import GkeServer
from tests.unit.setupserver import READY, SetupServer
from tests.unit.test_setup import EXAMPLE, manifests

EU = "multikueue-dws-worker-eu"
WEBHOOK = "/apis/kueue.x-k8s.io/v1beta2/resourceflavors"
DEPLOYMENT = "/apis/apps/v1/namespaces/kueue-system/deployments/kueue-controller-manager"
FLAVOR = f"{WEBHOOK}/default-dws-flavor"
MONITORING = {
    *("ServiceAccount", "Secret", "ClusterRoleBinding", "Role", "RoleBinding"),
    "PodMonitoring",
}
NOT_YET = status(500, 'failed calling webhook "mresourceflavor.kb.io": connection refused', reason="InternalError")


class Clusters:
    """A manager and one worker, each a server of its own, and the fleet file that leads to them."""

    def __init__(self, folder: Path) -> None:
        self.servers = {"manager": SetupServer(), EU: SetupServer()}
        self.content: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
        self.folder = folder
        self.said: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Clusters]:
        async with AsyncExitStack() as stack:
            for name, server in self.servers.items():
                await stack.enter_async_context(server.running())
                access = self.folder / f"{name}.json"
                access.write_text(json.dumps(kubeconfig(server.url)))
                place = self.content if name == "manager" else self.content["workers"]
                place[name]["cluster"] = {"kube_config_path": str(access)}
            self.content["workers"] = {EU: self.content["workers"][EU]}
            release = self.folder / "kueue.json"
            objects = [
                {"apiVersion": "apps/v1" if each["kind"] == "Deployment" else "v1", **each} for each in manifests()
            ]
            for each in objects:
                each["metadata"]["namespace"] = "kueue-system"
            release.write_text("\n---\n".join(map(json.dumps, objects)))
            self.content["kueue"]["manifests"] = str(release)
            del self.content["gcp_conn_id"]
            yield self

    @asynccontextmanager
    async def steps(self, *, seconds: float = 20, **options: Any) -> AsyncIterator[FleetSetup]:
        settings = Options(seconds=seconds, say=self.said.append, **options)
        async with open_fleet_file(self.content, settings) as setup:
            yield setup


@pytest.fixture
async def clusters(tmp_path: Path) -> AsyncIterator[Clusters]:
    async with Clusters(tmp_path).running() as running:
        yield running


async def test_a_webhook_that_is_not_ready_is_waited_for(clusters: Clusters):
    clusters.servers["manager"].on("POST", WEBHOOK, NOT_YET, NOT_YET, {})
    async with clusters.steps() as setup:
        plan = await setup.install("manager")
    assert {change.kind for change in plan.work} >= {"Namespace", "ConfigMap", "Deployment", "PodMonitoring"}
    assert clusters.servers["manager"].count("POST", WEBHOOK) == 3


async def test_a_webhook_that_never_answers_is_named_and_the_next_run_continues(clusters: Clusters):
    server = clusters.servers["manager"]
    server.on("POST", WEBHOOK, NOT_YET)
    with pytest.raises(MultiKueueError, match="webhooks on manager did not answer within 1 s") as raised:
        async with clusters.steps(seconds=1) as setup:
            await setup.install("manager")
    assert "connection refused" in str(raised.value)
    assert "Running the same again continues" in str(raised.value)
    server.on("POST", WEBHOOK, {})
    async with clusters.steps() as setup:
        plan = await setup.install("manager")
    assert {change.kind for change in plan.work} == MONITORING


async def test_an_object_that_meets_a_webhook_too_early_is_applied_again(clusters: Clusters):
    made = {"metadata": {"name": "default-dws-flavor", "uid": "1"}}
    clusters.servers[EU].on("PATCH", FLAVOR, NOT_YET, made)
    async with clusters.steps() as setup:
        await setup._do(EU, await _only_flavor(setup))
    assert clusters.servers[EU].count("PATCH", FLAVOR) == 2


async def _only_flavor(setup: FleetSetup) -> Any:
    from airflow_provider_multikueue.setup import desired
    from airflow_provider_multikueue.setup.desired import Part
    from airflow_provider_multikueue.setup.state import survey

    flavors = [each for each in desired.worker_objects(setup.fleet, EU) if each["kind"] == "ResourceFlavor"]
    return await survey(await setup._place(EU, Part.WORKER), flavors)


PODS = "/apis/monitoring.googleapis.com/v1/namespaces/kueue-system/podmonitorings"


async def test_monitoring_is_made_by_role_and_removed_with_its_account(clusters: Clusters):
    async with clusters.steps() as setup:
        await setup.install("manager")
        await setup.install(EU)
        found = {name: set(server.objects) for name, server in clusters.servers.items()}
        plan = await setup.remove("manager")
    assert f"{PODS}/kueue-manager" in found["manager"]
    assert f"{PODS}/kueue-worker" in found[EU]
    assert {each.kind for each in plan.work if each.name.startswith("kueue-m")} >= MONITORING
    assert clusters.servers["manager"].objects == {}


async def test_a_pod_monitoring_of_an_earlier_name_is_replaced(clusters: Clusters):
    server, name = clusters.servers["manager"], f"{PODS}/kueue"
    labels = {FLEET_LABEL: "seed", PART_LABEL: "monitoring"}
    server.objects[name] = {"metadata": {"name": "kueue", "namespace": "kueue-system", "uid": "1", "labels": labels}}
    async with clusters.steps() as setup:
        await setup.install("manager")
    assert name not in server.objects
    assert f"{PODS}/kueue-manager" in server.objects


async def test_monitoring_that_someone_else_has_applied_stays_as_it_is(clusters: Clusters):
    server, name = clusters.servers["manager"], f"{PODS}/kueue-manager"
    theirs = {"metadata": {"name": "kueue-manager", "namespace": "kueue-system", "uid": "1"}, "spec": {}}
    server.objects[name] = {"kind": "PodMonitoring", "apiVersion": "monitoring.googleapis.com/v1", **theirs}
    with pytest.raises(FleetConfigurationError, match="PodMonitoring kueue-system/kueue-manager: it was not made for"):
        async with clusters.steps() as setup:
            await setup.install("manager")
    assert server.objects[name]["metadata"] == theirs["metadata"]


async def test_an_image_that_cannot_be_pulled_is_told(clusters: Clusters):
    condition = {"type": "Available", "status": "False", "message": "Deployment does not have minimum availability."}
    stuck = {"metadata": {"generation": 1}, "spec": {}, "status": {"observedGeneration": 1, "conditions": [condition]}}
    server = clusters.servers["manager"]
    async with clusters.steps(seconds=1) as setup:
        server.on("GET", DEPLOYMENT, status(404), stuck)
        with pytest.raises(MultiKueueError, match="did not become available within 1 s: Deployment does not have"):
            await setup.install("manager")


async def test_missing_rights_are_said_with_verb_resource_and_cluster(clusters: Clusters):
    said = 'clusterroles.rbac.authorization.k8s.io is forbidden: User "nobody" cannot patch resource'
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/multikueue-sa-role"
    clusters.servers[EU].on("PATCH", path, status(403, said, reason="Forbidden"))
    with pytest.raises(FleetConfigurationError, match="multikueue-sa-role") as raised:
        async with clusters.steps() as setup:
            await setup.connect_worker(EU)
    assert EU in str(raised.value)
    assert 'User "nobody" cannot patch' in str(raised.value)


async def test_a_kueue_that_is_too_old_is_refused_before_anything_changes(clusters: Clusters):
    server = clusters.servers[EU]
    server.on("GET", "/apis/kueue.x-k8s.io", {"versions": [{"version": "v1beta1"}]})
    with pytest.raises(FleetConfigurationError, match=r"serves v1beta1 of kueue\.x-k8s\.io.*Install Kueue 0\.17"):
        async with clusters.steps() as setup:
            await setup.configure_worker(EU)
    assert server.objects == {}


async def test_a_kueue_of_someone_else_stays_as_it_is_until_it_is_taken_over_by_force(clusters: Clusters):
    server = clusters.servers["manager"]
    metadata = {"name": "kueue-controller-manager", "namespace": "kueue-system", "uid": "1", "generation": 1}
    kind: dict[str, Any] = {"apiVersion": "apps/v1", "kind": "Deployment"}
    theirs = {**kind, "metadata": metadata, "spec": {"replicas": 1}, "status": {"observedGeneration": 1}}
    server.objects[DEPLOYMENT] = theirs
    with pytest.raises(FleetConfigurationError, match="has a Kueue that this fleet did not install"):
        async with clusters.steps() as setup:
            await setup.install("manager")
    assert server.objects == {DEPLOYMENT: theirs}
    server.on("GET", DEPLOYMENT, theirs, {**theirs, "status": READY})
    async with clusters.steps(force=True) as setup:
        plan = await setup.install("manager")
    assert plan.foreign == ()
    assert server.objects[DEPLOYMENT]["metadata"]["labels"][FLEET_LABEL] == "seed"


ACCOUNT = "/api/v1/namespaces/kueue-system/serviceaccounts/multikueue-sa/token"
SECRETS = "/api/v1/namespaces/kueue-system/secrets"
LASTING = f"{SECRETS}/multikueue-sa-token"


@pytest.mark.parametrize("form", ["secret", "token"])
async def test_tokens_that_are_met_on_the_way_are_masked(clusters: Clusters, form: str):
    made, used = secrets.token_urlsafe(60), secrets.token_urlsafe(60)
    worker = clusters.servers[EU]
    Path(clusters.content["workers"][EU]["cluster"]["kube_config_path"]).write_text(
        json.dumps(kubeconfig(worker.url, token=used))
    )
    secret = {"metadata": {"name": "multikueue-sa-token"}, "data": {"token": b64encode(made.encode()).decode()}}
    worker.on("GET", LASTING, status(404), secret)
    worker.on("POST", ACCOUNT, {"status": {"token": made}})
    clusters.content["credentials"] = {"form": form}
    async with clusters.steps() as setup:
        await setup.connect_worker(EU)
        given = clusters.servers["manager"].objects[f"{SECRETS}/worker-europe-west4-secret"]["data"]["kubeconfig"]
        assert made in b64decode(given).decode()
        shown = str(redact(f"{made} {used}"))
    assert made not in shown
    assert used not in shown


def by_profile(clusters: Clusters) -> None:
    clusters.content["credentials"] = {"form": "cluster_profile"}
    clusters.content["workers"][EU]["cluster_profile"] = "eu-profile"


CLUSTER = f"/apis/kueue.x-k8s.io/v1beta2/multikueueclusters/{EU}"


async def test_a_fleet_that_changes_to_cluster_profiles_loses_its_secrets_and_accounts(clusters: Clusters):
    clusters.content["credentials"] = {"form": "token"}
    worker = clusters.servers[EU]
    worker.on("POST", ACCOUNT, {"status": {"token": "one-that-ends"}})
    async with clusters.steps() as setup:
        await setup.connect_worker(EU)
    manager = clusters.servers["manager"].objects
    assert {CLUSTER, f"{SECRETS}/worker-europe-west4-secret"} <= set(manager)
    assert worker.objects

    by_profile(clusters)
    async with clusters.steps() as setup:
        await setup.connect_worker(EU)
    assert set(manager) == {CLUSTER}
    assert manager[CLUSTER]["spec"]["clusterSource"] == {"clusterProfileRef": {"name": "eu-profile"}}
    assert worker.objects == {}


async def test_a_kueue_without_the_gate_for_cluster_profiles_is_told_with_what_to_do(clusters: Clusters):
    by_profile(clusters)
    message = "load client config failed: MultiKueueClusterProfile feature gate is disabled"
    condition = {"type": "Active", "status": "False", "reason": "MultiKueueClusterProfileFeatureDisabled"}
    off = {"metadata": {"generation": 1}, "status": {"conditions": [condition | {"message": message}]}}
    clusters.servers["manager"].on("GET", CLUSTER, status(404), off)
    with pytest.raises(MultiKueueError, match=r"feature gate is disabled\. Switch MultiKueueClusterProfile on"):
        async with clusters.steps(seconds=1) as setup:
            await setup.connect_worker(EU)


async def test_a_kueue_too_old_for_cluster_profiles_is_refused_before_anything_changes(clusters: Clusters):
    by_profile(clusters)
    server = clusters.servers["manager"]
    server.on("GET", "/apis/kueue.x-k8s.io", {"versions": [{"version": "v1beta1"}]})
    with pytest.raises(FleetConfigurationError, match=r"manager serves v1beta1 .*Install Kueue 0\.17"):
        async with clusters.steps() as setup:
            await setup.connect_worker(EU)
    assert server.objects == {}


async def test_planning_changes_nothing(clusters: Clusters):
    async with clusters.steps(plan_only=True) as setup:
        plan = await setup.apply()
    assert len(plan.work) > 20
    assert all(server.objects == {} for server in clusters.servers.values())
    assert any("+ manager: Deployment kueue-system/kueue-controller-manager" in line for line in clusters.said)


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with GkeServer().running(tmp_path) as server:
        monkeypatch.setenv(gke.API_ENDPOINT, server.address)
        extra = {"project": "team", "key_path": str(tmp_path / "key.json")}
        connection = {"conn_type": "google_cloud_platform", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT", json.dumps(connection))
        yield server


MANAGER = "projects/team/locations/europe-west4/clusters/manager-europe-west4"


async def test_a_cluster_that_gke_could_not_make_is_told_with_gkes_reason(google: GkeServer):
    cluster = google.add(MANAGER, "127.0.0.1:1")
    cluster.status, cluster.status_message = cluster.Status.ERROR, "Insufficient regional quota"
    with pytest.raises(FleetConfigurationError, match=r"status ERROR \(Insufficient regional quota\).*create it anew"):
        async with open_fleet_file(EXAMPLE, Options()) as setup:
            await setup.install("manager")


async def test_a_cluster_that_gke_does_not_get_made_in_time_is_told(google: GkeServer):
    cluster = google.add(MANAGER, "127.0.0.1:1")
    cluster.status = cluster.Status.PROVISIONING
    with pytest.raises(MultiKueueError, match="was not made within 1 s: it is of status PROVISIONING"):
        async with open_fleet_file(EXAMPLE, Options(seconds=1)) as setup:
            await setup.install("manager")


OUTAGE = (grpc.StatusCode.INTERNAL, "Google is out of order")


async def test_a_google_that_does_not_answer_is_asked_again(google: GkeServer):
    cluster = google.add(MANAGER, "127.0.0.1:1")
    cluster.status, cluster.status_message = cluster.Status.ERROR, "Insufficient regional quota"
    google.refusal = OUTAGE

    async def install() -> None:
        async with open_fleet_file(EXAMPLE, Options(seconds=60)) as setup:
            await setup.install("manager")

    installing = asyncio.create_task(install())
    await until(lambda: google.calls)
    google.refusal = None
    with pytest.raises(FleetConfigurationError, match="status ERROR"):
        await installing
    assert len(google.calls) > 1


async def test_a_google_that_goes_on_not_answering_is_told(google: GkeServer):
    google.refusal = OUTAGE
    with pytest.raises(
        MultiKueueError, match=r"was not made within 1 s: Google did not answer.*out of order"
    ) as raised:
        async with open_fleet_file(EXAMPLE, Options(seconds=1)) as setup:
            await setup.install("manager")
    assert not isinstance(raised.value, FleetConfigurationError)


async def test_a_project_that_google_does_not_tell_is_asked_for_again_and_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = []

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(1)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        (tmp_path / "subject").write_text("a token of some other cloud")
        key = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/p",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/token",
            "credential_source": {"file": str(tmp_path / "subject")},
        }
        (tmp_path / "key.json").write_text(json.dumps(key))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        content = yaml.safe_load(EXAMPLE.read_text())
        del content["gcp_conn_id"]
        with pytest.raises(MultiKueueError, match="was not known within 1 s: Google did not answer") as raised:
            await describe(content, seconds=1)
    assert not isinstance(raised.value, FleetConfigurationError)
    assert len(asked) > 1
