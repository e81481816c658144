"""The manager and its workers: one client each, and one list and watch for all who wait for the same kind of object.

Whoever opens the fleet of the same connection on the same event loop gets the same `Fleet`. It is closed a few seconds
after its last user left, or with the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.clusters import kubeconfig, trim
from airflow_provider_multikueue.clusters.client import JOBS, PODS, ApiError, Cluster, Resource
from airflow_provider_multikueue.clusters.credentials import InCluster, InlineKubeconfig, KubeconfigFile, Source
from airflow_provider_multikueue.clusters.watch import SharedWatch
from airflow_provider_multikueue.decisions.connection import ClusterConfig, FleetConfig, Form
from airflow_provider_multikueue.fleets.rotation import LookUp, Rotation
from airflow_provider_multikueue.fleets.zones import NodeZones

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.cloud_logging import CloudLogging
    from airflow_provider_multikueue.clusters.transport import Mask
    from airflow_provider_multikueue.fleets.discovery import Found

__all__ = ["MANAGER", "Fleet", "Lease", "open_fleet", "source_of"]

log = logging.getLogger(__name__)

Object = dict[str, Any]

MANAGER = "manager"
FIND_PAUSE = 60.0
"""Seconds between two looks for workers."""
LINGER = 5.0
"""Seconds that an unused fleet stays open: the next task often comes at once."""
LAST_WORDS = 3.0
KUEUE = "kueue.x-k8s.io"
AUTOSCALING = "autoscaling.x-k8s.io"


# -- from configuration to credentials


def _file(config: ClusterConfig) -> Source:
    return KubeconfigFile(path=config.value, context=config.context, key=config.key)


def _inline(config: ClusterConfig) -> Source:
    parsed = kubeconfig.checked(config.content, where=f"the connection's `{config.key}`")
    return InlineKubeconfig(config=parsed, context=config.context, key=config.key)


def _in_cluster(_: ClusterConfig) -> Source:
    return InCluster()


def _gke(config: ClusterConfig) -> Source:
    from airflow_provider_multikueue.clusters.gke import source_of_gke

    return source_of_gke(config)


LOADERS: dict[Form, Callable[[ClusterConfig], Source]] = {
    Form.PATH: _file,
    Form.INLINE: _inline,
    Form.IN_CLUSTER: _in_cluster,
    Form.GKE: _gke,
}
"""How each form becomes credentials; what ``Form.CONN_ID`` stands for is looked up in Airflow, before it comes here."""


def source_of(config: ClusterConfig) -> Source:
    """Return where the credentials of a cluster come from.

    Raises FleetConfigurationError for a form that has no loader.
    """
    loader = LOADERS.get(config.form)
    if loader is None:
        raise kubeconfig.configuration_error(
            f"`{config.key}` names an Airflow connection, which was not looked up.",
            "Open the fleet by its Airflow connection id.",
        )
    return loader(config)


# -- the fleet


class Fleet:
    """The clusters of one connection on one event loop."""

    def __init__(self, rotation: Rotation, manager: Cluster, mask: Mask | None) -> None:
        self.config = rotation.config
        self.manager = manager
        self.zones = NodeZones()
        self._rotation = rotation
        self._mask = mask
        self._found: dict[str, Found] = {}
        self._looked: float | None = None
        self._learned: dict[str, str | None] = {}
        self._learning: dict[str, asyncio.Task[None]] = {}
        self._workers: dict[str, Cluster] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._cloud_logging: dict[str, CloudLogging] = {}
        self._watches: dict[tuple[str, Resource | tuple[str, str], str | None], SharedWatch] = {}

    @property
    def worker_names(self) -> tuple[str, ...]:
        """The names of the workers that the connection lists or leads to: those of their MultiKueueClusters."""
        return tuple(sorted({*self.config.workers, *self._found}))

    @property
    def workers(self) -> Mapping[str, Cluster]:
        """The workers that somebody has asked for so far."""
        return dict(self._workers)

    async def worker(self, name: str) -> Cluster | None:
        """Return the worker of that name, its credentials loaded at the first call; None when it is not listed.

        Raises FleetConfigurationError when its credentials cannot be loaded.
        """
        async with self._locks.setdefault(name, asyncio.Lock()):
            if name not in self._workers:
                source = await self.source(name)
                if source is None:
                    return None
                self._workers[name] = cluster = await Cluster.connect(
                    name, source, mask=self._mask, source_anew=lambda: self._source_anew(name)
                )
                if self.region(name) is None:
                    # Behind its back, since a worker that does not answer must hold nobody up.
                    self._learning[name] = _spawn(self._learn_region(cluster), "region")
            return self._workers[name]

    async def source(self, name: str) -> Source | None:
        """Return where the credentials of a worker come from; None when it is not among the workers."""
        if name in self._rotation.config.workers:
            return source_of(self._rotation.config.workers[name])
        if name not in self._found:
            await self.find_workers()
        return self._found[name].source if name in self._found else None

    async def _source_anew(self, name: str) -> Source | None:
        """Return where a worker's credentials come from by now, if its connection was changed."""
        if not await self._rotation.look():
            return None
        if name not in self._rotation.config.workers and self._rotation.config.workers_from:
            self._looked = None
            await self.find_workers()
        return await self.source(name)

    async def find_workers(self) -> None:
        """Look for workers where the connection says that they are to be found, at most once a minute."""
        now = time.monotonic()
        if self.config.workers_from is None or (self._looked is not None and now - self._looked < FIND_PAUSE):
            return
        from airflow_provider_multikueue.fleets.discovery import find_workers

        self._looked = now
        try:
            self._found = {**self._found, **await find_workers(self._rotation.config, self.manager)}
        except ConnectionError as error:
            log.warning("The workers can't be found now, trying again later: %s", error)
        except ApiError as error:
            if not error.passing:
                raise kubeconfig.configuration_error(str(error), "Or list the workers in the connection.") from error
            log.warning("The workers can't be found now, trying again later: %s", error)

    async def learn_regions(self) -> None:
        """Ask the nodes of the workers whose region nobody stated; one that does not answer stays without."""
        from airflow_provider_multikueue.exceptions import MultiKueueError

        async def connect(name: str) -> None:
            with contextlib.suppress(ApiError, MultiKueueError):
                await self.worker(name)

        await asyncio.gather(*(connect(name) for name in self.worker_names if self.region(name) is None))
        await asyncio.gather(*self._learning.values(), return_exceptions=True)

    async def await_region(self, name: str, seconds: float) -> None:
        """Wait until the nodes of a worker were asked for a region that nobody stated, at most that long."""
        if name in self._learning:
            await asyncio.wait([self._learning[name]], timeout=seconds)

    async def _learn_region(self, cluster: Cluster) -> None:
        from airflow_provider_multikueue.fleets.discovery import region_of_nodes

        self._learned[cluster.name] = await region_of_nodes(cluster)

    def region(self, name: str | None) -> str | None:
        """Return the region of a worker, or None when it is unknown."""
        name = name or ""
        config, found = self.config.workers.get(name), self._found.get(name)
        return (config and config.region) or (found and found.region) or self._learned.get(name)

    def gke_cluster(self, name: str | None) -> str | None:
        """Return a worker's GKE resource name, or the manager's (None); None where it is not given or found by one."""
        config = self.config.manager if name is None else self.config.workers.get(name)
        if config is not None:
            return config.value if config.form is Form.GKE else None
        from airflow_provider_multikueue.clusters.connect_gateway import FleetMember
        from airflow_provider_multikueue.clusters.gke import GkeCluster

        source = self._found[name].source if name in self._found else None
        return source.name if isinstance(source, GkeCluster | FleetMember) else None

    def cloud_logging(self, name: str) -> CloudLogging | None:
        """Return Cloud Logging of a worker's project where the connection says that it has the output of its pods."""
        gke, config = self.gke_cluster(name), self.config.workers.get(name)
        if gke is None or not (config.cloud_logging if config is not None else self.config.cloud_logging):
            return None
        from airflow_provider_multikueue.clusters.cloud_logging import CloudLogging
        from airflow_provider_multikueue.clusters.google_account import DEFAULT_ACCOUNT

        account = (config.google if config is not None else self.config.google) or DEFAULT_ACCOUNT
        return self._cloud_logging.setdefault(name, CloudLogging(gke.split("/")[1], account))

    # -- shared watches

    async def watch_jobs(
        self, cluster: Cluster | str, namespace: str | None, resource: Resource | tuple[str, str] = JOBS
    ) -> SharedWatch:
        """Return the watch of jobs of one kind (a resource, or its group and plural), by name."""
        return self._watch(cluster, namespace, resource, trim.job_keys, trim.trim_job)

    async def watch_workloads(self, cluster: Cluster | str, namespace: str | None) -> SharedWatch:
        """Return the watch of Workloads, by their name and by the uids of their jobs."""
        return self._watch(cluster, namespace, (KUEUE, "workloads"), trim.workload_keys, trim.trim_workload)

    async def watch_pods(self, cluster: Cluster | str, namespace: str | None) -> SharedWatch:
        """Return the watch of pods, by the name of their job."""
        return self._watch(cluster, namespace, PODS, trim.pod_keys, trim.trim_pod)

    async def watch_provisioning(self, cluster: Cluster | str, namespace: str | None) -> SharedWatch:
        """Return the watch of ProvisioningRequests, by the name of the Workload that asks."""
        what = (AUTOSCALING, "provisioningrequests")
        return self._watch(cluster, namespace, what, trim.provisioning_keys, trim.trim_provisioning)

    def _watch(
        self,
        cluster: Cluster | str,
        namespace: str | None,
        what: Resource | tuple[str, str],
        index: Callable[[Object], Iterable[str]],
        trimmed: Callable[[Object], Object],
    ) -> SharedWatch:
        """Return the one watch of this kind; a kind by group and plural is watched in the version that is served."""
        name = cluster if isinstance(cluster, str) else cluster.name
        key = (name, what, namespace)
        if key in self._watches:
            return self._watches[key]

        def forget() -> None:
            if self._watches.get(key) is watch:
                del self._watches[key]

        plural = what.plural if isinstance(what, Resource) else what[1]
        watch = self._watches[key] = SharedWatch(
            f"{plural} in {namespace or 'all namespaces'} on {name}",
            self._opener(name, what),
            namespace,
            index=index,
            trim=trimmed,
            on_stop=forget,
        )
        return watch

    def _opener(self, name: str, what: Resource | tuple[str, str]) -> Callable[..., Any]:
        async def open_(*, fresh: bool) -> tuple[Cluster, Resource]:
            cluster = self.manager if name == MANAGER else await self.worker(name)
            if cluster is None:
                raise LookupError(f"worker {name} is not among the workers of connection {self.config.conn_id!r}")
            if isinstance(what, Resource):
                return cluster, what
            return cluster, await cluster.resource(*what, fresh=fresh)

        return open_

    async def close(self) -> None:
        """Stop all watches and close all connections."""
        for task in self._learning.values():
            task.cancel()
        await asyncio.gather(*(watch.close() for watch in tuple(self._watches.values())))
        await asyncio.gather(*(cluster.close() for cluster in (self.manager, *self._workers.values())))


# -- one fleet a loop and connection


@dataclass(eq=False)
class _Shared:
    """A fleet with the number of its users."""

    fleet: asyncio.Task[Fleet]
    users: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    keeper: asyncio.Task[None] | None = None


_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]] = weakref.WeakKeyDictionary()


@contextlib.asynccontextmanager
async def open_fleet(
    config: FleetConfig, *, look_up: LookUp | None = None, mask: Mask | None = None
) -> AsyncIterator[Fleet]:
    """Give the fleet of a connection, shared with all others on this loop that opened the same.

    ``look_up`` reads the connection again when a cluster refuses its credentials, in case they were changed there.
    ``mask`` is told each token and key as it is loaded.

    Nothing is sent to the manager yet, unless workers are to be found there. Raises FleetConfigurationError when its
    credentials cannot be loaded.
    """
    lease = Lease()
    fleet = await lease.take(config, look_up=look_up, mask=mask)
    try:
        yield fleet
    finally:
        lease.release()


class Lease:
    """What `open_fleet` does, for those who wait in thousands: a generator each takes many times as much memory."""

    __slots__ = ("_shared",)

    def __init__(self) -> None:
        self._shared: _Shared | None = None

    async def take(self, config: FleetConfig, *, look_up: LookUp | None = None, mask: Mask | None = None) -> Fleet:
        """Return the fleet, which stays open until `release`; there is nothing to release after an error."""
        fleets, digest = _shared.setdefault(asyncio.get_running_loop(), {}), config.digest
        shared = fleets.get(digest)
        if shared is None:
            shared = fleets[digest] = _Shared(_spawn(_connect(config, look_up, mask), "open"))
            shared.keeper = _spawn(_keep(shared, fleets, digest), "keep")
        self._shared = shared
        shared.users += 1
        shared.changed.set()
        try:
            return await asyncio.shield(shared.fleet)
        except BaseException:
            if shared.fleet.done() and not shared.fleet.cancelled() and shared.fleet.exception():
                fleets.pop(digest, None)  # the next one tries anew
            self.release()
            raise

    def release(self) -> None:
        """Let go of the fleet; may be called twice."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.users -= 1
            shared.changed.set()


async def _connect(config: FleetConfig, look_up: LookUp | None, mask: Mask | None) -> Fleet:
    rotation = Rotation(config, look_up)

    async def manager_anew() -> Source | None:
        return source_of(rotation.config.manager) if await rotation.look() else None

    manager = await Cluster.connect(MANAGER, source_of(config.manager), mask=mask, source_anew=manager_anew)
    fleet = Fleet(rotation, manager, mask)
    try:
        await fleet.find_workers()
    except BaseException:
        await fleet.close()
        raise
    return fleet


def _spawn(work: Any, what: str) -> asyncio.Task[Any]:
    """Start a task in an empty context: it serves all users, so it must not be one's."""
    return asyncio.get_running_loop().create_task(work, name=f"{what} fleet", context=contextvars.Context())


async def _keep(shared: _Shared, fleets: dict[str, _Shared], digest: str) -> None:
    """Close the fleet when nobody uses it; also when the loop ends, which cancels this task."""
    try:
        while shared.users or not await _left_alone(shared):
            await shared.changed.wait()
            shared.changed.clear()
    finally:
        if fleets.get(digest) is shared:
            del fleets[digest]
        await _last_words(shared)
        shared.fleet.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await (await shared.fleet).close()


async def _left_alone(shared: _Shared) -> bool:
    """Return whether nobody came for a while."""
    shared.changed.clear()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER):
            await shared.changed.wait()
    return not shared.users


async def _last_words(shared: _Shared) -> None:
    """Let users that end with the loop do what they do at their end, for a moment."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_WORDS):
            while shared.users:
                shared.changed.clear()
                await shared.changed.wait()
