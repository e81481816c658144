"""From nothing to GPU jobs in three regions, and back: clusters, Kueue, MultiKueue, DWS, jobs, and all of it deleted.

What "Any location's GPUs with MultiKueue" does by hand, with one trigger. It needs the Google provider, a connection
``google_cloud_default`` that names its project, and the fleet's own connection, ``multikueue_seed``, as
``multikueue fleet connection -f fleet.yaml`` prints it.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml
from airflow.providers.common.compat.sdk import AirflowFailException, chain, dag, task
from airflow.providers.google.cloud.hooks.kubernetes_engine import GKEHook
from airflow.providers.google.cloud.operators.kubernetes_engine import (
    GKECreateClusterOperator,
    GKEDeleteClusterOperator,
)

from airflow_provider_multikueue.operators import MultiKueueJobOperator
from airflow_provider_multikueue.setup_operators import (
    MultiKueueConfigureManagerOperator,
    MultiKueueConfigureWorkerOperator,
    MultiKueueConnectWorkerOperator,
    MultiKueueDisconnectWorkerOperator,
    MultiKueueInstallOperator,
)

FLEET = Path(__file__).with_name("fleet.yaml")
DESCRIPTION = yaml.safe_load(FLEET.read_text())
WORKERS = {name: each["cluster"]["gke_cluster"] for name, each in DESCRIPTION["workers"].items()}
CLUSTERS = {"manager": DESCRIPTION["manager"]["cluster"]["gke_cluster"], **WORKERS}
PROJECT = "{{ conn.google_cloud_default.extra_dejson.project }}"
LABELS = {"multikueue-fleet": DESCRIPTION["fleet"]}
CONNECTION = "multikueue_seed"
TEAMS = ("research", "production")


@task
def begin() -> None:
    """Come before all that is deleted in the end, and refuse to delete what someone else has made.

    A cluster of ours that an earlier run left half-made goes now, since GKE can't mend it.
    """
    from google.api_core.exceptions import NotFound

    for place in CLUSTERS.values():
        location, _, name = place.partition("/")
        gke = GKEHook(location=location)
        try:
            cluster = gke.get_cluster(name=name)
        except NotFound:
            continue
        if not LABELS.items() <= dict(cluster.resource_labels).items():
            raise AirflowFailException(
                f"There is a cluster {place} that this DAG has not made: it lacks the label {LABELS}. Give other names "
                f"in {FLEET.name}, or delete it."
            )
        if cluster.status == cluster.Status.ERROR:
            print(f"{place} is half-made, and deleted: {cluster.status_message}")
            gke.delete_cluster(name=name)


@task
def show_regions(ti: Any = None) -> dict[str, str]:
    reports = {"eu": ti.xcom_pull("train_in_eu")}
    reports |= {team: ti.xcom_pull(f"train_for_{team}") for team in TEAMS}
    reports |= {f"train {index}": each for index, each in enumerate(ti.xcom_pull("train"))}
    regions = {name: report["placement"]["region"] for name, report in reports.items()}
    for name, report in reports.items():
        print(f"{name}: {report['phase']} in {regions[name]}, waited {report['waited_seconds']:.0f} s")
    for region, jobs in Counter(regions.values()).most_common():
        print(f"{jobs} jobs ran in {region}")
    return regions


def create(cluster: str) -> Any:
    location, _, name = CLUSTERS[cluster].partition("/")
    autopilot = {"autopilot": {"enabled": True}, "release_channel": {"channel": "REGULAR"}}
    return GKECreateClusterOperator(
        task_id=f"create_{cluster}",
        project_id=PROJECT,
        location=location,
        body={"name": name, **autopilot, "resource_labels": LABELS},
        deferrable=True,
    )


def delete(cluster: str) -> Any:
    location, _, name = CLUSTERS[cluster].partition("/")
    return GKEDeleteClusterOperator(
        task_id=f"delete_{cluster}",
        project_id=PROJECT,
        location=location,
        cluster_name=name,
        deferrable=True,
        retries=20,  # GKE refuses while it is still at something else, such as making the cluster
        retry_delay=timedelta(seconds=30),
    )


def jobs() -> list[Any]:
    """Return the job of the seed, submitted again and again, one that must not leave the EU, and one for each team."""
    common: dict[str, Any] = {"multikueue_conn_id": CONNECTION, "deferrable": True}
    train = MultiKueueJobOperator.partial(task_id="train", queue_name="dws-local-queue", **common)
    in_eu = MultiKueueJobOperator(
        task_id="train_in_eu",
        job="train.yaml",
        queue_name="dws-local-queue-eu",
        regions=["europe-west4"],
        **common,
    )
    teams = [
        MultiKueueJobOperator(
            task_id=f"train_for_{team}",
            job="train.yaml",
            namespace=f"team-{team}",
            queue_name="dws-local-queue",
            priority_class=team,
            **common,
        )
        for team in TEAMS
    ]
    return [train.expand(job=["train.yaml"] * 6), in_eu, *teams]


@dag(
    schedule=None,
    catchup=False,
    tags=["multikueue"],
    max_active_runs=1,  # there is one set of clusters
    params={"image": "gcr.io/k8s-staging-perf-tests/sleep:v0.0.3", "command": [], "args": ["120s"]},
)
def seed_tutorial() -> None:
    started = begin().as_setup()
    creation = {cluster: create(cluster) for cluster in CLUSTERS}
    installation = {
        cluster: MultiKueueInstallOperator(task_id=f"install_{cluster}", fleet=FLEET, cluster=cluster)
        for cluster in CLUSTERS
    }
    deletion = {cluster: delete(cluster) for cluster in CLUSTERS}
    for cluster in CLUSTERS:
        chain(started, creation[cluster], installation[cluster])
        # Whatever happens in between, the clusters that were begun are deleted, when nothing is at work on them.
        chain([creation[cluster], installation[cluster]], deletion[cluster])
        deletion[cluster].as_teardown(setups=started, on_failure_fail_dagrun=True)

    configured = MultiKueueConfigureManagerOperator(task_id="configure_manager", fleet=FLEET)
    submitted = jobs()
    shown = show_regions()
    chain(configured, submitted, shown)
    for worker in WORKERS:
        configure = MultiKueueConfigureWorkerOperator(task_id=f"configure_{worker}", fleet=FLEET, cluster=worker)
        connect = MultiKueueConnectWorkerOperator(task_id=f"connect_{worker}", fleet=FLEET, cluster=worker)
        disconnect = MultiKueueDisconnectWorkerOperator(task_id=f"disconnect_{worker}", fleet=FLEET, cluster=worker)
        chain(installation[worker], configure, connect, configured)
        chain(installation["manager"], connect)
        chain([*submitted, shown], disconnect, [deletion[worker], deletion["manager"]])
        chain(configure, deletion[worker])
        disconnect.as_teardown(setups=connect)


seed_tutorial()
