"""One list and watch, shared by all who wait for objects of one kind in one namespace of one cluster.

However many subscribe, the API server sees one list, then one watch that is resumed where it broke off. A cluster that
cannot be watched is told to the subscribers as `Trouble`; the watch itself goes on trying and never gives up.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_multikueue.clusters import attempts
from airflow_provider_multikueue.clusters.client import ApiError
from airflow_provider_multikueue.clusters.store import Known, Store
from airflow_provider_multikueue.clusters.subscription import Subscription, Trouble
from airflow_provider_multikueue.tally import tally

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.client import Cluster, Resource

__all__ = ["SharedWatch", "Subscription", "Trouble"]

Object = dict[str, Any]

log = logging.getLogger(__name__)

PAGE = 100
"""Objects a page: decoding one must not hold up the event loop for more than a few milliseconds."""
AT_A_TIME = 4
"""Tasks that are told of a change before they get their turn: a thousand at once would stop the loop for a second."""
LINGER = 5.0
"""Seconds that a watch without subscribers goes on, since the next one often comes at once."""
GATHER = 0.05
"""Seconds that newcomers are gathered before what they miss is fetched."""
GETS_AT_MOST = 20
"""Objects that are fetched one by one; for more, one list is cheaper."""
LIST_PAUSE = 2.0
"""Seconds between two lists on behalf of newcomers."""
LOOK = 5.0
"""Seconds between two looks at whether the cluster is still heard."""


class Open(Protocol):
    """Gives the cluster and the resource to watch; ``fresh`` after the server said that it does not serve it."""

    def __call__(self, *, fresh: bool) -> Awaitable[tuple[Cluster, Resource]]: ...


class SharedWatch:
    """A list and watch that runs while somebody subscribes, in a task and a context that belong to none of them."""

    def __init__(
        self,
        name: str,
        open_: Open,
        namespace: str | None,
        *,
        index: Callable[[Object], Iterable[str]],
        trim: Callable[[Object], Object],
        labels: str | None = None,
        on_stop: Callable[[], object] | None = None,
    ) -> None:
        self.name = name
        self.synced = False
        self.trouble: Trouble | None = None
        self.lists = 0
        """Lists that were begun; for tests and measurements."""
        self._open = open_
        self._namespace = namespace
        self._labels = labels
        self._store = Store(index=index, trim=trim)
        self._on_stop = on_stop
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._newcomers: dict[Subscription, None] = {}
        self._following: asyncio.Task[None] | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._untold: list[str] = []
        self._cluster: Cluster | None = None
        self._version = ""
        self._stale = False
        self._silent = False
        self._attempts = attempts.Attempts()
        self._listed_at = 0.0
        self._listed_for_newcomers = 0.0

    # -- subscribers

    def subscribe(self, key: str, notify: Callable[[], None]) -> Subscription:
        """Return the objects of ``key``; ``notify`` is called when they, ``synced`` or ``trouble`` have changed."""
        self._store.claim(key)
        subscription = Subscription(self, key, notify, self._store.view(key))
        self._subscriptions.setdefault(key, []).append(subscription)
        if self._following is None or self._following.done():
            self._following = self._spawn(self._follow(), "watch")
            self._looking = self._spawn(self._look_after(), "look after")
        if self._store.missing(key):
            subscription.missing = True
            self._newcomers[subscription] = None
            if self._fetching is None or self._fetching.done():
                self._fetching = self._spawn(self._fetch(), "fetch")
        return subscription

    def _spawn(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        """Start a task in an empty context: it serves all subscribers, so its log lines are nobody's."""
        name = f"{what} {self.name}"
        return asyncio.get_running_loop().create_task(work, name=name, context=contextvars.Context())

    def leave(self, subscription: Subscription) -> None:
        """Take a subscription off; it calls this itself when it is closed."""
        same = self._subscriptions[subscription.key]
        same.remove(subscription)
        if not same:
            del self._subscriptions[subscription.key]
        self._newcomers.pop(subscription, None)
        self._store.release(subscription.key, time.monotonic())
        if not self._subscriptions:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and the watch with it
                asyncio.get_running_loop().call_later(LINGER, self._stop_if_idle)

    def _stop_if_idle(self) -> None:
        if not self._subscriptions:
            self._stop()

    def _stop(self) -> list[asyncio.Task[None]]:
        tasks = [task for task in (self._following, self._fetching, self._looking, self._telling) if task is not None]
        self._following = self._fetching = self._looking = self._telling = None
        self.synced = False
        for task in tasks:
            task.cancel()
        if self._on_stop is not None:
            self._on_stop()
        return tasks

    async def close(self) -> None:
        """Stop at once, whoever is subscribed."""
        await asyncio.gather(*self._stop(), return_exceptions=True)

    def _tell(self, keys: Iterable[str]) -> None:
        for key in keys:
            for subscription in tuple(self._subscriptions.get(key, ())):
                try:
                    subscription.notify()
                except Exception:
                    log.exception("A subscriber of %s failed.", self.name)

    def _tell_all(self) -> None:
        """Tell everybody, a few at a time."""
        self._untold = list(self._subscriptions)
        if self._telling is None or self._telling.done():
            self._telling = self._spawn(self._tell_untold(), "tell all of")

    async def _tell_untold(self) -> None:
        while self._untold:
            self._tell([self._untold.pop() for _ in range(min(AT_A_TIME, len(self._untold)))])
            await asyncio.sleep(0)

    # -- list and watch

    async def _follow(self) -> None:
        """List once, then watch for ever; after a failure go on where it broke off, if the server still can."""
        self._version, self.synced = "", False
        while True:
            try:
                cluster, resource = await self._open(fresh=self._stale)
                self._cluster, self._stale = cluster, False
                if not self._version:
                    await self._list(cluster, resource)
                await self._stream(cluster, resource)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others still wait
                await asyncio.sleep(self._failed(error))

    async def _list(self, cluster: Cluster, resource: Resource) -> None:
        self.lists += 1
        seen: set[str] = set()
        version = ""
        async with contextlib.aclosing(
            cluster.pages(resource, self._namespace, labels=self._labels, limit=PAGE, repeat=False)
        ) as pages:
            async for items, current in pages:
                version = current
                for item in items:
                    seen.add(str(item["metadata"]["uid"]))
                    self._tell(self._store.put(item, time.monotonic()))
                await asyncio.sleep(0)  # let others run between two pages
        self._tell(self._store.keep_only(seen))
        self._version, self._listed_at = version, time.monotonic()
        news = not self.synced or self.trouble is not None
        self.synced, self.trouble = True, None
        if news:
            self._tell_all()

    async def _stream(self, cluster: Cluster, resource: Resource) -> None:
        started = time.monotonic()
        events = cluster.watch(
            resource,
            self._namespace,
            resource_version=self._version,
            labels=self._labels,
            timeout_seconds=random.randint(240, 360),  # noqa: S311 - so that watches do not end together
            accepted=self._accepted,
        )
        async with contextlib.aclosing(events):
            told = 0
            async for kind, obj in events:
                told += self._event(kind, obj)
                if told >= AT_A_TIME:
                    told = 0
                    await asyncio.sleep(0)  # who was told acts, and the loop's timers are looked at, before the next
        if time.monotonic() - started < attempts.STABLE:
            raise ConnectionError("the server ended the watch at once")

    def _event(self, kind: str, obj: Object) -> int:
        """Take an event in; return for how many keys somebody was told."""
        now = time.monotonic()
        meta = obj["metadata"]
        changed: set[str] = set()
        if kind in ("ADDED", "MODIFIED"):
            changed = self._store.put(obj, now)
        elif kind == "DELETED":
            changed = self._store.remove(str(meta["uid"]))
        self._tell(changed)
        self._version = str(meta["resourceVersion"])
        self._attempts.event()
        self._store.sweep(now)
        self._well()
        return len(changed)

    def _accepted(self) -> None:
        self._attempts.accepted(time.monotonic())
        self._well()

    def _well(self) -> None:
        """Take note that the cluster answers again."""
        self._silent = False
        if self.trouble is not None:
            self.trouble = None
            self._tell_all()

    async def _look_after(self) -> None:
        """Notice a cluster that fell silent in the middle of a watch, long before its connection does."""
        while True:
            await asyncio.sleep(LOOK * random.uniform(0.8, 1.2))  # noqa: S311
            if self._cluster is None or (self.trouble is not None and not self._silent):
                continue  # the watch itself is at it
            try:
                await self._cluster.probe()
            except ApiError as error:
                self._silent = True
                self._set_trouble(self._cluster.heard, str(error), error.status)
            except Exception:
                log.exception("Looking after the watch of %s failed.", self.name)
            else:
                if self._silent:
                    self._well()

    def _failed(self, error: Exception) -> float:
        """Take note of a failure; return the seconds to wait before the next attempt."""
        now = time.monotonic()
        status = error.status if isinstance(error, ApiError) and not error.starting else 0
        if status == 410 and self._version and now - self._listed_at >= attempts.STABLE:
            self._version = ""  # the server's ordinary way to say: list anew
            return attempts.BACKOFF[0] * random.random()  # noqa: S311 - not all at once
        anew = status == 410 or (isinstance(error, ApiError) and error.too_large)  # the same event would come again
        if anew:
            self._version = ""
        self._silent, self._stale = False, status == 404
        failure = self._attempts.failed(now, anew=anew)
        tally.add("multikueue.watch_reconnects", fleet_cluster=self._cluster.name if self._cluster else "unknown")
        log.debug("Watch %s failed %d times: %s", self.name, self._attempts.failures, error)
        if failure.told or not self.synced:
            self._set_trouble(failure.since, str(error), status)
        asked = error.retry_after if isinstance(error, ApiError) else None
        return max(failure.pause * random.uniform(0.5, 1.5), asked or 0.0)  # noqa: S311

    def _set_trouble(self, moment: float, text: str, status: int) -> None:
        """Tell what is wrong since ``moment`` of the monotonic clock; as long as it lasts, it has one beginning."""
        before = self.trouble
        since = before.since if before is not None else time.time() - (time.monotonic() - moment)
        self.trouble = Trouble(since, text, status)
        if self.trouble != before:
            self._tell_all()

    # -- what newcomers miss

    async def _fetch(self) -> None:
        """Give newcomers the objects that were dropped before they came."""
        failures = 0
        while self._newcomers:
            await asyncio.sleep(min(GATHER * 4**failures, attempts.BACKOFF[1]))
            served = tuple(self._newcomers)
            try:
                await self._fill(served)
            except Exception as error:  # noqa: BLE001 - tried again; the watch itself reports the trouble
                failures += 1
                log.debug("Fetching for %d newcomers of %s failed: %s", len(served), self.name, error)
                continue
            failures = 0
            for subscription in served:
                subscription.missing = False
                self._newcomers.pop(subscription, None)
            self._tell({subscription.key for subscription in served})

    async def _fill(self, served: Iterable[Subscription]) -> None:
        """Fetch a few objects one by one, many by one list for all who came; the watch goes on meanwhile."""
        cluster, resource = await self._open(fresh=False)
        keys = {subscription.key for subscription in served}
        missing = {known.uid: known for key in keys for known in self._store.missing(key)}
        if len(missing) <= GETS_AT_MOST:
            await asyncio.gather(*(self._get(cluster, resource, known) for known in missing.values()))
            return
        await asyncio.sleep(self._listed_for_newcomers + LIST_PAUSE - time.monotonic())
        self._listed_for_newcomers = time.monotonic()
        self.lists += 1
        pages = cluster.pages(resource, self._namespace, labels=self._labels, limit=PAGE)
        async with contextlib.aclosing(pages):
            async for items, _ in pages:
                for item in items:
                    self._tell(self._store.put(item, time.monotonic(), fetched=True))
                await asyncio.sleep(0)

    async def _get(self, cluster: Cluster, resource: Resource, known: Known) -> None:
        try:
            obj = await cluster.get(resource, known.name, known.namespace or self._namespace)
        except ApiError as error:
            if error.status != 404:  # deleted meanwhile: the watch says so
                raise
        else:
            self._tell(self._store.put(obj, time.monotonic(), fetched=True))
