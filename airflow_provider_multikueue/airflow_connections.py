"""Clusters and Google accounts that are Airflow connections of their own: of type kubernetes, google_cloud_platform.

Their extras are read in the words of the cncf and Google providers, which need not be installed.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

from airflow_provider_multikueue.clusters.google_account import GoogleAccount, google_account
from airflow_provider_multikueue.decisions.connection import ClusterConfig, FleetConfig, Form
from airflow_provider_multikueue.exceptions import FleetConfigurationError

__all__ = ["resolve_connections"]

PREFIX = "extra__kubernetes__"
FORMS = {"in_cluster": Form.IN_CLUSTER, "kube_config_path": Form.PATH, "kube_config": Form.INLINE}


class AirflowConnection(Protocol):
    """What is read of an Airflow connection."""

    @property
    def conn_type(self) -> Any: ...
    @property
    def extra(self) -> Any: ...


LookUp = Callable[[str], Awaitable[AirflowConnection]]


async def resolve_connections(config: FleetConfig, look_up: LookUp) -> FleetConfig:
    """Return ``config`` with each Airflow connection that it names replaced by what that connection says.

    Raises FleetConfigurationError for a connection of another type, or one that says too much or too little.
    """
    reader = _Reader(look_up)
    manager, namespace = await reader.cluster(config.manager)
    workers = {name: (await reader.cluster(worker))[0] for name, worker in config.workers.items()}
    return replace(
        config,
        manager=manager,
        workers=MappingProxyType(workers),
        namespace=config.namespace or namespace,
        google=await reader.google(config.gcp_conn_id) if config.gcp_conn_id else None,
    )


class _Reader:
    """Looks each connection up once."""

    def __init__(self, look_up: LookUp) -> None:
        self._look_up = look_up
        self._known: dict[str, AirflowConnection] = {}

    async def cluster(self, config: ClusterConfig) -> tuple[ClusterConfig, str | None]:
        """Return the cluster in a form that needs no Airflow, and the namespace that its connection names."""
        if config.google_conn_id:
            return replace(config, google=await self.google(config.google_conn_id)), None
        if config.form is not Form.CONN_ID:
            return config, None
        connection = await self._get(config.value)
        if connection.conn_type == "google_cloud_platform":
            raise FleetConfigurationError(
                f"`{config.key}` names {config.value!r}, a Google connection, which does not say which cluster is "
                f"meant. Give `{config.key.replace('conn_id', 'gke_cluster')}` besides."
            )
        if connection.conn_type != "kubernetes":
            raise FleetConfigurationError(
                f"`{config.key}` names connection {config.value!r} of type {connection.conn_type!r}. It must be of "
                "type kubernetes, or of type google_cloud_platform together with a GKE cluster."
            )
        return kubernetes_cluster(config, _extra(connection.extra, config.value))

    async def google(self, conn_id: str) -> GoogleAccount:
        """Return the account of a Google connection."""
        connection = await self._get(conn_id)
        if connection.conn_type != "google_cloud_platform":
            raise FleetConfigurationError(
                f"Connection {conn_id!r} is of type {connection.conn_type!r}; for a GKE cluster it must be of type "
                "google_cloud_platform."
            )
        return google_account(_extra(connection.extra, conn_id), conn_id=conn_id)

    async def _get(self, conn_id: str) -> AirflowConnection:
        if conn_id not in self._known:
            self._known[conn_id] = await self._look_up(conn_id)
        return self._known[conn_id]


def kubernetes_cluster(config: ClusterConfig, extra: Mapping[str, Any]) -> tuple[ClusterConfig, str | None]:
    """Return the cluster and the namespace of a connection of type ``kubernetes``.

    As in the cncf provider, an empty one means the default kubeconfig; in a pod, say ``in_cluster``.
    """
    where = f"connection {config.value!r} (`{config.key}`)"
    values = {str(key).removeprefix(PREFIX): value for key, value in extra.items() if value not in (None, "", False)}
    if str(values.get("in_cluster", "true")).lower() == "false":
        del values["in_cluster"]
    given = [key for key in FORMS if key in values]
    if len(given) > 1:
        raise FleetConfigurationError(
            f"The {where} has {' and '.join(f'`{key}`' for key in given)}, which exclude each other. Keep one."
        )
    if str(values.get("disable_verify_ssl", "")).lower() == "true":
        raise FleetConfigurationError(
            f"The {where} switches TLS verification off for everyone (`disable_verify_ssl`), which is not done here. "
            "Give the cluster's certificate authority in its kubeconfig."
        )
    key = given[0] if given else "kube_config_path"
    value = values.get(key, "~/.kube/config")
    context = values.get("cluster_context") if FORMS[key] is not Form.IN_CLUSTER else None
    named = f"{key} of connection {config.value}"
    text = "" if key == "in_cluster" else json.dumps(value) if isinstance(value, Mapping) else str(value)
    cluster = replace(config, form=FORMS[key], value=text, context=str(context) if context else None, key=named)
    namespace = values.get("namespace")
    return cluster, str(namespace) if namespace else None


def _extra(extra: object, conn_id: str) -> Mapping[str, Any]:
    try:
        values = json.loads(extra) if isinstance(extra, str) and extra.strip() else extra or {}
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, Mapping):
        raise FleetConfigurationError(f"The extra of connection {conn_id!r} is not a JSON object. Correct it.")
    return values
