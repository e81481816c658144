"""The steps that make a fleet, and take it down again. Each may be run any number of times, and stops half-way well.

A step surveys what is there, says what it will do, does it, and waits until it works. Nothing is changed when ``plan``
is all that was asked for, or when something is someone else's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_multikueue.clusters.client import SECRETS, ApiError, Cluster, Resource
from airflow_provider_multikueue.clusters.gke import GkeCluster, status_of
from airflow_provider_multikueue.exceptions import FleetConfigurationError, MultiKueueError
from airflow_provider_multikueue.fleets.fleet import MANAGER, source_of
from airflow_provider_multikueue.setup import desired
from airflow_provider_multikueue.setup.carry_out import (
    Patience,
    carry_out,
    refuse_foreign,
    until_active,
    until_kueue_answers,
)
from airflow_provider_multikueue.setup.desired import KUEUE_NAMESPACE, WORKER_LABEL, Part
from airflow_provider_multikueue.setup.monitoring import monitoring_objects
from airflow_provider_multikueue.setup.plan import Action, Change, Plan
from airflow_provider_multikueue.setup.release import DEPLOYMENT, kueue_objects
from airflow_provider_multikueue.setup.source import read_release
from airflow_provider_multikueue.setup.state import Place, resource_of, survey
from airflow_provider_multikueue.setup.tokens import authority_of, token_for

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.credentials import Source
    from airflow_provider_multikueue.clusters.transport import Mask
    from airflow_provider_multikueue.decisions.connection import FleetConfig
    from airflow_provider_multikueue.setup.description import FleetDescription

__all__ = ["FleetSetup", "Options", "open_setup"]

Object = dict[str, Any]

KUEUE_GROUP: Final = "kueue.x-k8s.io"
API_VERSION: Final = "v1beta2"
NOT_MADE_YET: Final = "not made yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How steps are carried out."""

    plan_only: bool = False
    force: bool = False
    seconds: float = 600.0
    say: Callable[[str], None] = lambda _: None


@contextlib.asynccontextmanager
async def open_setup(
    fleet: FleetDescription, config: FleetConfig, options: Options, *, mask: Mask | None = None
) -> AsyncIterator[FleetSetup]:
    """Give the steps for the fleet, whose clusters ``config`` leads to.

    ``mask`` is told each token and key as it is loaded, and the tokens that the manager is given. Within it, what a
    cluster refuses is a `MultiKueueError` that names verb, resource and cluster.
    """
    async with contextlib.AsyncExitStack() as stack:

        async def connect(name: str) -> Cluster:
            source = source_of(config.manager if name == MANAGER else config.workers[name])
            await _until_made(name, source, Patience(options.seconds))
            return await stack.enter_async_context(await Cluster.connect(name, source, mask=mask))

        try:
            yield FleetSetup(fleet, connect, options, mask=mask)
        except ApiError as error:
            kind = FleetConfigurationError if error.status in (401, 403) else MultiKueueError
            raise kind(str(error)) from error


async def _until_made(name: str, source: Source, patience: Patience) -> None:
    """Wait until GKE has made a cluster that it is making."""
    if not isinstance(source, GkeCluster):
        return

    async def made() -> str:
        try:
            status, said = await asyncio.to_thread(status_of, source)
        except ConnectionError as error:  # Google does not answer now
            return str(error)
        if status in ("ERROR", "STOPPING", "DEGRADED"):
            raise FleetConfigurationError(
                f"{name}: {source.name} is of status {status}{f' ({said})' if said else ''}: it was not made, or is "
                "being deleted. Delete it, wait until it is gone, create it anew, and run this again."
            )
        return f"it is of status {status}" if status == "PROVISIONING" else ""

    await patience.until(made, what=f"{name}: {source.name} was not made")


class FleetSetup:
    """The steps for one fleet. Clusters are named ``manager``, or as their MultiKueueCluster."""

    def __init__(
        self,
        fleet: FleetDescription,
        connect: Callable[[str], Awaitable[Cluster]],
        options: Options,
        *,
        mask: Mask | None = None,
    ) -> None:
        self.fleet = fleet
        self._mask = mask
        self._connect = connect
        self._options = options
        self._clusters: dict[str, asyncio.Future[Cluster]] = {}
        self._release: asyncio.Task[list[Object]] | None = None

    async def cluster(self, name: str) -> Cluster:
        """Return a cluster, connected at the first call: a step needs no cluster but its own."""
        if name not in self._clusters:
            self._clusters[name] = asyncio.ensure_future(self._connect(name))
        return await self._clusters[name]

    # -- steps

    async def install(self, name: str) -> Plan:
        """Install Kueue on a cluster, configured for the fleet, and wait until its webhooks answer."""
        cluster = await self.cluster(name)
        plan = Plan()
        if self.fleet.kueue.install:
            plan = await survey(await self._place(name, Part.KUEUE), await self._kueue(), force=self._options.force)
            if plan.foreign and not self._options.plan_only:
                _refuse_other_kueue(plan, name)
            await self._do(name, plan)
        if not self._options.plan_only:
            await until_kueue_answers(cluster, DEPLOYMENT, KUEUE_NAMESPACE, self._patience())
        monitoring = monitoring_objects(self.fleet, "manager" if name == MANAGER else "worker")
        watched = await survey(await self._place(name, Part.MONITORING), monitoring, force=self._options.force)
        await self._do(name, watched)
        return plan + watched

    async def configure_worker(self, name: str) -> Plan:
        """Give a worker its flavors, DWS settings, ClusterQueues and LocalQueues, and wait until they are active."""
        return await self._configure(name, Part.WORKER, desired.worker_objects(self.fleet, name))

    async def configure_manager(self) -> Plan:
        """Give the manager its checks, queues and priorities, wait until they work; drop workers that are no more."""
        plan = await self._configure(MANAGER, Part.MANAGER, desired.manager_objects(self.fleet))
        stale = await self._stale_links()
        await self._do(MANAGER, stale)
        return plan + stale

    async def connect_worker(self, name: str) -> Plan:
        """Make the account on a worker, give the manager its token, and wait until the manager's Kueue is connected.

        By a ClusterProfile, there is neither: the manager is told which one, and what was made for another form goes.
        """
        if self.fleet.by_profile:
            if not self._options.plan_only:
                await self._check_version(MANAGER)
            link = await self._link(name, desired.link_objects(self.fleet, name))
            return link + await self._access(name)  # which Kueue has used until now, perhaps
        access = await self._access(name)
        return access + await self._link(name, desired.link_objects(self.fleet, name, await self._kubeconfig(name)))

    async def disconnect_worker(self, name: str) -> Plan:
        """Take a worker's credentials from the manager, and the account from the worker."""
        link = await survey(await self._place(MANAGER, Part.LINK, worker=name), [])
        await self._do(MANAGER, link)
        access = await survey(await self._place(name, Part.ACCESS, worker=name), [])
        await self._do(name, access)
        return link + access

    async def remove(self, name: str) -> Plan:
        """Take everything of the fleet from a cluster, Kueue last, if the fleet has installed it."""
        plan = Plan()
        for part in (Part.WORKER, Part.MANAGER, Part.ACCESS, Part.LINK, Part.MONITORING):
            found = await survey(await self._place(name, part), [])
            await self._do(name, found)
            plan += found
        kueue = await survey(await self._place(name, Part.KUEUE), [])
        if kueue.work and not self._options.force:
            await self._refuse_when_used(name, plan)
        await self._do(name, kueue)
        return plan + kueue

    # -- all of it

    async def plan(self) -> Plan:
        """Return what `apply` would do."""
        return await self._with(_only_plan(self._options))._make()

    async def apply(self) -> Plan:
        """Make the whole fleet as it is described and return what was done; nothing if anything is someone else's."""
        if not self._options.plan_only:
            refuse_foreign(await self.plan())
        return await self._make()

    async def delete(self) -> Plan:
        """Take the whole fleet from its clusters, the manager's queues first, and return what was deleted."""
        plan = Plan()
        for part in (Part.MANAGER, Part.LINK):
            found = await survey(await self._place(MANAGER, part), [])
            await self._do(MANAGER, found)
            plan += found
        workers = await _side_by_side(self.remove, self.fleet.workers)
        return plan + workers + await self.remove(MANAGER)

    async def _make(self) -> Plan:
        plan = await _side_by_side(self.install, (MANAGER, *self.fleet.workers))
        plan += await _side_by_side(self.configure_worker, self.fleet.workers)
        plan += await _side_by_side(self.connect_worker, self.fleet.workers)
        return plan + await self.configure_manager()

    # -- how

    def _with(self, options: Options) -> FleetSetup:
        return FleetSetup(self.fleet, self.cluster, options, mask=self._mask)

    async def _place(self, name: str, part: Part, worker: str | None = None) -> Place:
        return Place(cluster=await self.cluster(name), fleet=self.fleet.name, part=part, worker=worker)

    def _patience(self) -> Patience:
        return Patience(self._options.seconds)

    async def _kueue(self) -> list[Object]:
        if self._release is None:
            self._release = asyncio.create_task(read_release(self.fleet))
        return kueue_objects(await self._release, self.fleet)

    async def _configure(self, name: str, part: Part, objects: list[Object]) -> Plan:
        if not self._options.plan_only:
            await self._check_version(name)
        plan = await survey(await self._place(name, part), objects, force=self._options.force)
        await self._do(name, plan)
        if not self._options.plan_only:
            await until_active(await self.cluster(name), objects, self._patience())
        return plan

    async def _check_version(self, name: str) -> None:
        served = await (await self.cluster(name)).versions(KUEUE_GROUP)
        if API_VERSION not in served:
            raise FleetConfigurationError(
                f"{name} serves {', '.join(served) or 'nothing'} of {KUEUE_GROUP}, and the fleet needs {API_VERSION}. "
                "Install Kueue 0.17 or newer there first."
            )

    async def _do(self, name: str, plan: Plan) -> None:
        if plan.work or plan.foreign:
            for line in plan.lines():
                self._options.say(line)
        if not self._options.plan_only:
            await carry_out(await self.cluster(name), plan, self._patience(), force=self._options.force)

    async def _access(self, name: str) -> Plan:
        objects = desired.access_objects(self.fleet, name)
        plan = await survey(await self._place(name, Part.ACCESS, worker=name), objects, force=self._options.force)
        await self._do(name, plan)
        return plan

    async def _link(self, name: str, objects: list[Object]) -> Plan:
        plan = await survey(await self._place(MANAGER, Part.LINK, worker=name), objects, force=self._options.force)
        await self._do(MANAGER, plan)
        if not self._options.plan_only:
            await until_active(await self.cluster(MANAGER), objects, self._patience())
        return plan

    async def _kubeconfig(self, name: str) -> Object:
        fleet, worker = self.fleet, await self.cluster(name)
        patience = None if self._options.plan_only else self._patience()
        present = await _get(await self.cluster(MANAGER), SECRETS, fleet.workers[name].secret)
        token = await token_for(fleet, worker, present, patience)
        if token and self._mask is not None:
            await self._mask([token], worker)
        return desired.worker_kubeconfig(
            fleet.workers[name],
            server=worker.server,
            authority=await authority_of(worker),
            token=token or NOT_MADE_YET,
        )

    async def _stale_links(self) -> Plan:
        """Return the deletion of the manager's links to workers that the description no longer has."""
        found = await survey(await self._place(MANAGER, Part.LINK), [])
        return Plan(tuple(change for change in found.changes if not self._known(change)))

    def _known(self, change: Change) -> bool:
        return ((change.live or {})["metadata"].get("labels") or {}).get(WORKER_LABEL) in self.fleet.workers

    async def _refuse_when_used(self, name: str, going: Plan) -> None:
        """Raise FleetConfigurationError when deleting Kueue's definitions would delete what others have made."""
        gone = {(change.kind, change.name) for change in going.having(Action.DELETE)}
        cluster = await self.cluster(name)
        queues = await _list(cluster, "ClusterQueue")
        others = [each["metadata"]["name"] for each in queues if ("ClusterQueue", each["metadata"]["name"]) not in gone]
        unfinished = [each for each in await _list(cluster, "Workload") if not _finished(each)]
        if others or unfinished:
            raise FleetConfigurationError(
                f"Kueue stays on {name}, since deleting it would delete {len(unfinished)} workloads that have not "
                f"finished and others' ClusterQueues ({', '.join(others) or 'none'}). Let the jobs end, or use force."
            )


async def _side_by_side(step: Callable[[str], Awaitable[Plan]], names: Iterable[str]) -> Plan:
    """Do a step on several clusters; all come to their end before the first error is raised."""
    results = await asyncio.gather(*(step(name) for name in names), return_exceptions=True)
    plan = Plan()
    for result in results:
        if isinstance(result, BaseException):
            raise result
        plan += result
    return plan


def _only_plan(options: Options) -> Options:
    return Options(plan_only=True, force=options.force, seconds=options.seconds)


def _refuse_other_kueue(plan: Plan, name: str) -> None:
    if any(change.kind == "Deployment" for change in plan.foreign):
        raise FleetConfigurationError(
            f"{name} has a Kueue that this fleet did not install ({plan.foreign[0].reason}). "
            "Set `kueue.install: false` to use it as it is, or take it over with force."
        )


async def _get(cluster: Cluster, resource: Resource, name: str) -> Object | None:
    try:
        return await cluster.get(resource, name, KUEUE_NAMESPACE)
    except ApiError as error:
        if error.status == 404:
            return None
        raise


async def _list(cluster: Cluster, kind: str) -> list[Object]:
    try:
        items, _ = await cluster.list(resource_of(f"{KUEUE_GROUP}/{API_VERSION}", kind))
    except ApiError as error:
        if error.status == 404:
            return []
        raise
    return items


def _finished(workload: Mapping[str, Any]) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Finished" and each["status"] == "True" for each in conditions)
