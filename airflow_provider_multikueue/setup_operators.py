"""Operators that make a fleet from its file, cluster by cluster, and take it down again.

Each may run any number of times: it looks what is there, says what it will do, does it, and waits until it works. They
go together with the Google provider's operators that create and delete GKE clusters, as setup and teardown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue._compat import BaseOperator

if TYPE_CHECKING:
    from airflow_provider_multikueue._compat import Context
    from airflow_provider_multikueue.setup.plan import Plan
    from airflow_provider_multikueue.setup.steps import FleetSetup, Options

__all__ = [
    "MultiKueueApplyFleetOperator",
    "MultiKueueConfigureManagerOperator",
    "MultiKueueConfigureWorkerOperator",
    "MultiKueueConnectWorkerOperator",
    "MultiKueueDisconnectWorkerOperator",
    "MultiKueueInstallOperator",
    "MultiKueueRemoveOperator",
]


class _FleetOperator(BaseOperator):
    """A step of setting up a fleet. Returns what was made, changed and deleted, as a list of plain JSON.

    :param fleet: the fleet file, or its content.
    :param plan_only: look, say what would be done, and change nothing.
    :param force: take over objects, and fields of objects, that are someone else's.
    :param step_timeout: how long to wait for what has been made to work.
    :param gke_project: the project of clusters that are given as LOCATION/NAME, instead of the file's.
    """

    template_fields: Sequence[str] = ("fleet", "gke_project")
    ui_color = "#e6f4ea"

    def __init__(
        self,
        *,
        fleet: str | Path | Mapping[str, Any],
        plan_only: bool = False,
        force: bool = False,
        step_timeout: timedelta = timedelta(minutes=10),
        gke_project: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.fleet = str(fleet) if isinstance(fleet, Path) else fleet
        self.plan_only = plan_only
        self.force = force
        self.step_timeout = step_timeout
        self.gke_project = gke_project

    def execute(self, context: Context) -> list[dict[str, Any]]:
        """Take the step."""
        from airflow_provider_multikueue.hooks import run_sync

        plan = run_sync(self._run)
        self.log.info("%s: %s", "Would do" if self.plan_only else "Done", plan.summary)
        return [change.plain() for change in (*plan.foreign, *plan.work)]

    async def _run(self) -> Plan:
        from airflow_provider_multikueue.fleet_files import open_fleet_file

        async with open_fleet_file(self.fleet, self._options(), project=self.gke_project) as setup:
            return await self._step(setup)

    def _options(self) -> Options:
        from airflow_provider_multikueue.setup.steps import Options

        return Options(
            plan_only=self.plan_only,
            force=self.force,
            seconds=self.step_timeout.total_seconds(),
            say=lambda line: self.log.info("%s", line),
        )

    async def _step(self, setup: FleetSetup) -> Plan:
        raise NotImplementedError


class _ClusterOperator(_FleetOperator):
    """A step on one cluster.

    :param cluster: ``manager``, or a worker as the fleet file names it.
    """

    template_fields: Sequence[str] = (*_FleetOperator.template_fields, "cluster")

    def __init__(self, *, cluster: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster

    def _known(self, setup: FleetSetup, *, workers_only: bool = False) -> str:
        from airflow_provider_multikueue.exceptions import FleetConfigurationError

        known = [*(() if workers_only else ("manager",)), *setup.fleet.workers]
        if self.cluster not in known:
            raise FleetConfigurationError(
                f"{setup.fleet.where} has no {'worker' if workers_only else 'cluster'} {self.cluster!r}. Set cluster= "
                f"to one of {', '.join(known)}."
            )
        return self.cluster


class MultiKueueInstallOperator(_ClusterOperator):
    """Install Kueue on a cluster, configured for the fleet, with its PodMonitoring; waits until webhooks answer."""

    async def _step(self, setup: FleetSetup) -> Plan:
        return await setup.install(self._known(setup))


class MultiKueueConfigureWorkerOperator(_ClusterOperator):
    """Give a worker its flavors, DWS settings, ClusterQueues and LocalQueues; waits until they are active."""

    async def _step(self, setup: FleetSetup) -> Plan:
        return await setup.configure_worker(self._known(setup, workers_only=True))


class MultiKueueConnectWorkerOperator(_ClusterOperator):
    """Make the account on a worker and tell the manager of it; waits until the manager's Kueue is connected.

    Run again, it renews a token that is about to end.
    """

    async def _step(self, setup: FleetSetup) -> Plan:
        return await setup.connect_worker(self._known(setup, workers_only=True))


class MultiKueueConfigureManagerOperator(_FleetOperator):
    """Give the manager its checks, residency groups, queues and priorities; waits until they are active."""

    async def _step(self, setup: FleetSetup) -> Plan:
        return await setup.configure_manager()


class MultiKueueDisconnectWorkerOperator(_ClusterOperator):
    """Take a worker's credentials from the manager, and the account from the worker."""

    async def _step(self, setup: FleetSetup) -> Plan:
        return await setup.disconnect_worker(self._known(setup, workers_only=True))


class MultiKueueRemoveOperator(_ClusterOperator):
    """Take everything of the fleet from a cluster, Kueue too if the fleet has installed it and nobody else uses it."""

    async def _step(self, setup: FleetSetup) -> Plan:
        return await setup.remove(self._known(setup))


class MultiKueueApplyFleetOperator(_FleetOperator):
    """Make the whole fleet as its file describes it, on clusters that are there."""

    async def _step(self, setup: FleetSetup) -> Plan:
        return await setup.apply()
