"""Clients of Google's gRPC APIs, made to take the same proxies as all other calls of ours.

gRPC itself reads the variables in lower case alone, and falls back to the one for plain HTTP.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from typing import Any

from airflow_provider_multikueue.clusters.kubeconfig import configuration_error
from airflow_provider_multikueue.clusters.proxy import proxy_for

__all__ = ["LOOPBACK", "google_client"]

LOOPBACK = ("127.0.0.1:", "localhost:", "[::1]:")
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy")


def google_client(client: Any, transport: Any, credentials: Any, *, address_variable: str) -> Any:
    """Return a ``client`` over a ``transport``, both classes of a Google library for the same API.

    The environment variable may hold another address of the API: ``https://HOST`` or, without TLS and only on
    loopback, ``http://127.0.0.1:PORT``.
    """
    other = os.environ.get(address_variable, "").rstrip("/")
    scheme, _, address = other.partition("://")
    if scheme == "http" and address.startswith(LOOPBACK):
        import grpc

        return client(transport=transport(channel=grpc.insecure_channel(address)))
    if other and scheme != "https":
        raise configuration_error(
            f"{address_variable} must be https://HOST, or http:// on loopback; it is {other!r}.",
            "Unset it to use Google's own address.",
        )
    return client(
        credentials=credentials,
        client_options={"api_endpoint": address} if other else {},
        transport=partial(transport, channel=partial(_channel, transport.create_channel)),
    )


def _channel(create: Any, host: str, *, options: Iterable[tuple[str, Any]] = (), **how: Any) -> Any:
    return create(host, options=[*options, *_proxy_options(host)], **how)


def _proxy_options(host: str) -> list[tuple[str, Any]]:
    if not any(os.environ.get(name) for name in PROXY_VARIABLES):
        return []
    proxy = proxy_for(f"https://{host}", os.environ)
    return [("grpc.http_proxy", proxy)] if proxy else [("grpc.enable_http_proxy", 0)]
