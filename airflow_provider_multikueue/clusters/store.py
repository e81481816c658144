"""What a shared watch remembers: the objects of the keys that somebody claimed, and of the rest little more than names.

An object has keys (its name, its owner's uid, ...) by which it is waited for. Objects that nobody claims are kept whole
for a short while, since who waits for a job comes right after it was made, and as names after that.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Known", "Store"]

Object = dict[str, Any]

GRACE = 30.0
"""Seconds that an unclaimed object is kept whole."""
UNCLAIMED_LIMIT = 10_000
"""Unclaimed objects kept whole at once."""


@dataclass(slots=True)
class Known:
    """An object that exists, with its body where that is kept."""

    uid: str
    namespace: str | None
    name: str
    version: str
    keys: tuple[str, ...]
    body: Object | None


class Store:
    """The objects of one list and watch. Not a cache of the API server: only what was claimed is there for certain."""

    def __init__(self, *, index: Callable[[Object], Iterable[str]], trim: Callable[[Object], Object]) -> None:
        self._index = index
        self._trim = trim
        self._known: dict[str, Known] = {}
        self._by_key: dict[str, tuple[Known, ...]] = {}  # mostly of one, in a fourth of a dictionary's memory
        self._claims: dict[str, int] = {}
        self._views: dict[str, dict[str, Object]] = {}
        self._unclaimed: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def view(self, key: str) -> dict[str, Object]:
        """Return the bodies of a claimed key by uid: one mapping, which changes as the objects do."""
        return self._views[key]

    def claim(self, key: str) -> None:
        """Keep the objects of ``key`` from now on; what was dropped before is `missing`."""
        self._claims[key] = self._claims.get(key, 0) + 1
        view = self._views.setdefault(key, {})
        for entry in self._by_key.get(key, ()):
            self._unclaimed.pop(entry.uid, None)
            if entry.body is not None:
                view[entry.uid] = entry.body

    def missing(self, key: str) -> list[Known]:
        """Return the objects of ``key`` that exist but whose bodies must be fetched."""
        return [entry for entry in self._by_key.get(key, ()) if entry.body is None]

    def release(self, key: str, now: float) -> None:
        """Undo one `claim`."""
        self._claims[key] -= 1
        if self._claims[key]:
            return
        del self._claims[key], self._views[key]
        for entry in self._by_key.get(key, ()):
            if not self._claimed(entry.keys):
                self._unclaimed[entry.uid] = now

    def put(self, obj: Object, now: float, *, fetched: bool = False) -> set[str]:
        """Take in the object's present state; return the claimed keys for which something changed.

        A ``fetched`` object did not come in order with the watch's events: it fills in, and never goes back in time.
        """
        meta = obj["metadata"]
        uid, version = str(meta["uid"]), str(meta.get("resourceVersion", ""))
        old = self._known.get(uid)
        if fetched and not self._fills(old, version):
            return set()
        if old is not None and old.body is not None and old.version == version:
            return set()
        keys = tuple(dict.fromkeys(self._index(obj)))
        body = _interned(self._trim(obj))
        entry = Known(uid, meta.get("namespace"), str(meta["name"]), version, keys, body)
        before = old.keys if old else ()
        if old and before != keys:
            self._unlink(old)
        self._known[uid] = entry
        self._link(entry, now)
        return self._claimed((*keys, *before))

    def _fills(self, old: Known | None, version: str) -> bool:
        if old is None or not self._claimed(old.keys):
            return False
        return old.body is None or _age(version) > _age(old.version)

    def remove(self, uid: str) -> set[str]:
        """Forget an object that was deleted; return the claimed keys that had it."""
        entry = self._known.pop(uid, None)
        if entry is None:
            return set()
        self._unlink(entry)
        return self._claimed(entry.keys)

    def keep_only(self, uids: set[str]) -> set[str]:
        """Forget all objects but these; return the claimed keys that lost one."""
        changed: set[str] = set()
        for uid in self._known.keys() - uids:
            changed |= self.remove(uid)
        return changed

    def sweep(self, now: float) -> None:
        """Drop the bodies of objects that nobody has claimed for a while."""
        while self._unclaimed:
            uid, since = next(iter(self._unclaimed.items()))
            if now - since < GRACE and len(self._unclaimed) <= UNCLAIMED_LIMIT:
                return
            del self._unclaimed[uid]
            if uid in self._known:
                self._known[uid].body = None

    def _claimed(self, keys: Iterable[str]) -> set[str]:
        return {key for key in keys if key in self._claims}

    def _others(self, key: str, entry: Known) -> tuple[Known, ...]:
        return tuple(known for known in self._by_key.get(key, ()) if known.uid != entry.uid)

    def _link(self, entry: Known, now: float) -> None:
        claimed = False
        for key in entry.keys:
            self._by_key[key] = (*self._others(key, entry), entry)
            view = self._views.get(key)
            if view is not None and entry.body is not None:
                view[entry.uid] = entry.body
                claimed = True
        self._unclaimed.pop(entry.uid, None)
        if not claimed:
            self._unclaimed[entry.uid] = now

    def _unlink(self, entry: Known) -> None:
        for key in entry.keys:
            if others := self._others(key, entry):
                self._by_key[key] = others
            else:
                self._by_key.pop(key, None)
            if key in self._views:
                self._views[key].pop(entry.uid, None)
        self._unclaimed.pop(entry.uid, None)


def _age(version: str) -> int:
    """Return a number that grows with the object's changes; resourceVersions of one resource can be compared."""
    return int(version) if version.isdecimal() else 0


def _interned(value: Any) -> Any:
    """Return ``value`` with keys and texts shared between objects, which saves more than half of their memory."""
    if isinstance(value, dict):
        return {sys.intern(key): _interned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_interned(item) for item in value]
    return sys.intern(value) if isinstance(value, str) else value
