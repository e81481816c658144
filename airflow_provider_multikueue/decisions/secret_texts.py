"""Which texts of a kubeconfig are secrets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

__all__ = ["secret_leaves"]

SECRET_KEYS = {"token", "password", "client-key-data", "id-token", "refresh-token", "access-token", "client-secret"}


def secret_leaves(value: object, *, secret: bool = False) -> Iterator[str]:
    """Yield the texts under keys that hold secrets, at any depth."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from secret_leaves(item, secret=key in SECRET_KEYS)
            if key == "proxy-url" and isinstance(item, str) and (password := _password(item)):
                yield password
    elif isinstance(value, list):
        for item in value:
            yield from secret_leaves(item, secret=secret)
    elif secret and value is not None:
        yield str(value)


def _password(url: str) -> str | None:
    try:
        return urlsplit(url).password
    except ValueError:
        return None
