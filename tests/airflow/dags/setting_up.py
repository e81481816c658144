"""Every operator that sets a fleet up, on the fleet of the file that the run's conf names, down to nothing again."""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import chain, dag

from airflow_provider_multikueue.setup_operators import (
    MultiKueueApplyFleetOperator,
    MultiKueueConfigureManagerOperator,
    MultiKueueConfigureWorkerOperator,
    MultiKueueConnectWorkerOperator,
    MultiKueueDisconnectWorkerOperator,
    MultiKueueInstallOperator,
    MultiKueueRemoveOperator,
)

FLEET: dict[str, Any] = {"fleet": "{{ dag_run.conf['fleet'] }}"}
WORKER = "{{ dag_run.conf['worker'] }}"


@dag(schedule=None, catchup=False)
def setting_up() -> None:
    chain(
        MultiKueueApplyFleetOperator(task_id="plan", plan_only=True, **FLEET),
        MultiKueueInstallOperator(task_id="install_manager", cluster="manager", **FLEET),
        MultiKueueInstallOperator(task_id="install_worker", cluster=WORKER, **FLEET),
        MultiKueueConfigureWorkerOperator(task_id="configure_worker", cluster=WORKER, **FLEET),
        MultiKueueConnectWorkerOperator(task_id="connect_worker", cluster=WORKER, **FLEET),
        MultiKueueConfigureManagerOperator(task_id="configure_manager", **FLEET),
        MultiKueueApplyFleetOperator(task_id="apply", **FLEET),
        MultiKueueRemoveOperator(task_id="plan_removal", cluster="manager", plan_only=True, **FLEET),
        MultiKueueDisconnectWorkerOperator(task_id="disconnect_worker", cluster=WORKER, **FLEET),
        MultiKueueRemoveOperator(task_id="remove_manager", cluster="manager", **FLEET),
        MultiKueueRemoveOperator(task_id="remove_worker", cluster=WORKER, **FLEET),
    )


setting_up()
