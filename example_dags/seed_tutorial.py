"""From nothing to GPU jobs in three regions, and back: clusters, Kueue, MultiKueue, DWS, jobs, and all of it deleted.

What "Any location's GPUs with MultiKueue" does by hand, with one trigger. It needs the Google provider, a connection
``google_cloud_default`` that names its project, and the fleet's own connection, ``multikueue_seed``, as
``multikueue fleet connection -f fleet.yaml`` prints it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from airflow.providers.common.compat.sdk import chain, dag, task
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
CONNECTION = "multikueue_seed"


@dag(
    schedule=None,
    catchup=False,
    tags=["multikueue"],
    max_active_runs=1,  # there is one set of clusters
    params={"image": "gcr.io/k8s-staging-perf-tests/sleep:v0.0.3", "command": [], "args": ["120s"]},
)
def seed_tutorial() -> None:
    @task
    def begin() -> None:
        """Come before all that costs, so that the clusters are deleted whatever else fails, creating them included."""

    started = begin().as_setup()
    configure_manager = MultiKueueConfigureManagerOperator(task_id="configure_manager", fleet=FLEET)
    install, connect, disconnect, delete = {}, {}, {}, {}
    for cluster, place in CLUSTERS.items():
        location, _, name = place.partition("/")
        create = GKECreateClusterOperator(
            task_id=f"create_{cluster}",
            project_id=PROJECT,
            location=location,
            body={"name": name, "autopilot": {"enabled": True}, "release_channel": {"channel": "REGULAR"}},
            deferrable=True,
        )
        install[cluster] = MultiKueueInstallOperator(task_id=f"install_{cluster}", fleet=FLEET, cluster=cluster)
        delete[cluster] = GKEDeleteClusterOperator(
            task_id=f"delete_{cluster}", project_id=PROJECT, location=location, cluster_name=name, deferrable=True
        )
        chain(started, create, install[cluster])
        delete[cluster].as_teardown(setups=started, on_failure_fail_dagrun=True)
    for worker in WORKERS:
        configure = MultiKueueConfigureWorkerOperator(task_id=f"configure_{worker}", fleet=FLEET, cluster=worker)
        connect[worker] = MultiKueueConnectWorkerOperator(task_id=f"connect_{worker}", fleet=FLEET, cluster=worker)
        disconnect[worker] = MultiKueueDisconnectWorkerOperator(
            task_id=f"disconnect_{worker}", fleet=FLEET, cluster=worker
        )
        disconnect[worker].as_teardown(setups=connect[worker])
        chain(install[worker], configure, connect[worker], configure_manager)
        chain(install["manager"], connect[worker])

    # The job of the seed, submitted again and again: DWS decides where each of them runs.
    train = MultiKueueJobOperator.partial(
        task_id="train", multikueue_conn_id=CONNECTION, queue_name="dws-local-queue", deferrable=True
    ).expand(job=["train.yaml"] * 6)
    # Data that must not leave the EU.
    train_in_eu = MultiKueueJobOperator(
        task_id="train_in_eu",
        job="train.yaml",
        multikueue_conn_id=CONNECTION,
        queue_name="dws-local-queue-eu",
        regions=["europe-west4"],
        deferrable=True,
    )
    teams = [
        MultiKueueJobOperator(
            task_id=f"train_for_{team}",
            job="train.yaml",
            multikueue_conn_id=CONNECTION,
            namespace=f"team-{team}",
            queue_name="dws-local-queue",
            priority_class=team,
            deferrable=True,
        )
        for team in ("research", "production")
    ]

    @task
    def show_regions(ti: Any = None) -> dict[str, str]:
        reports = {"eu": ti.xcom_pull("train_in_eu")}
        reports |= {team: ti.xcom_pull(f"train_for_{team}") for team in ("research", "production")}
        reports |= {f"train {index}": each for index, each in enumerate(ti.xcom_pull("train"))}
        regions = {name: report["placement"]["region"] for name, report in reports.items()}
        for name, report in reports.items():
            print(f"{name}: {report['phase']} in {regions[name]}, waited {report['waited_seconds']:.0f} s")
        for region, jobs in Counter(regions.values()).most_common():
            print(f"{jobs} jobs ran in {region}")
        return regions

    shown = show_regions()
    chain(configure_manager, [train, train_in_eu, *teams], shown)
    chain(shown, list(disconnect.values()), delete["manager"])
    for worker in WORKERS:
        chain(disconnect[worker], delete[worker])


seed_tutorial()
