"""Object storage by Airflow's own paths: any scheme that fsspec knows, with the connection that the URI names."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from airflow_provider_multikueue.logs.store import Content, Target

__all__ = ["ObjectTarget", "check_uri", "target_of"]

THREADS: Final = 8
_pool: Final = ThreadPoolExecutor(THREADS, "multikueue-store")
"""For writes alone: a store that hangs must not use up the event loop's own threads."""


def check_uri(name: str, uri: str | None) -> None:
    """Raise ValueError for an address that is none, or that holds a secret."""
    if uri is None:
        return
    parts = urlsplit(uri)
    if not parts.scheme or "://" not in uri:
        raise ValueError(f"{name}={uri!r} is no address of object storage: it begins like gs://, s3:// or file://")
    if ":" in parts.netloc.rpartition("@")[0] or parts.query:
        raise ValueError(
            f"{name} must hold no secret, since it is stored and shown: name an Airflow connection, as in "
            f"{parts.scheme}://CONN_ID@{parts.netloc.rpartition('@')[2]}{parts.path}"
        )


def target_of(uri: str | None) -> Target | None:
    """Return where the output goes that is to be stored below ``uri``."""
    return ObjectTarget(uri) if uri else None


class ObjectTarget:
    """Objects below a URI; what blocks is done in threads."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    async def exists(self, name: str) -> bool:
        """Return whether there is an object of that name."""
        return bool(await self._do(self._exists, name))

    async def write(self, name: str, content: Content) -> None:
        """Make the object, or replace it."""
        await self._do(self._write, name, content)

    async def _do(self, act: Any, *arguments: Any) -> Any:
        # asgiref's threads, and no others, may ask a triggerer for a connection
        from asgiref.sync import sync_to_async

        return await sync_to_async(act, thread_sensitive=False, executor=_pool)(*arguments)

    @cached_property
    def _root(self) -> tuple[Any, str]:
        """The file system and the folder in it."""
        from airflow_provider_multikueue._compat import ObjectStoragePath

        path = ObjectStoragePath(self.uri)
        try:
            return path.fs, path.path.rstrip("/")
        except ValueError:  # a scheme that no Airflow provider brings, and fsspec may know
            if "@" in urlsplit(self.uri).netloc:  # a connection is named: only Airflow can use it
                raise
            from fsspec.core import url_to_fs

            fs, folder = url_to_fs(self.uri)
            return fs, folder.rstrip("/")

    def _exists(self, name: str) -> bool:
        fs, folder = self._root
        return bool(fs.exists(f"{folder}/{name}"))

    def _write(self, name: str, content: Content) -> None:
        fs, folder = self._root
        path = f"{folder}/{name}"
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        with fs.open(path, "wb") as file:
            for chunk in content:
                file.write(chunk)
