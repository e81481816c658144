"""Jobs on the manager by their labels, of one kind after the other: as far as our account may read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.client import ApiError
    from airflow_provider_multikueue.decisions.kinds import Kind
    from airflow_provider_multikueue.fleets.fleet import Fleet

__all__ = ["list_kind"]


async def list_kind(fleet: Fleet, kind: Kind, labels: str, namespace: str | None) -> list[dict[str, Any]] | ApiError:
    """Return the jobs of a kind, or the error of an account that may not read them.

    Without a namespace all are searched, or the connection's own where our account may not read all. A kind that the
    manager does not serve has none. Raises `ApiError` when the manager does not answer.
    """
    from airflow_provider_multikueue.clusters.client import ApiError

    try:
        resource = await fleet.manager.resource(kind.group, kind.plural)
        try:
            items, _ = await fleet.manager.list(resource, namespace, labels=labels)
        except ApiError as error:
            if error.status != 403 or namespace is not None:
                raise
            items, _ = await fleet.manager.list(resource, fleet.config.namespace or "default", labels=labels)
    except ApiError as error:
        if error.status == 403:
            return error
        if error.status == 404:
            return []
        raise
    # The items of a list do not say what they are.
    return [item | {"apiVersion": resource.api_version, "kind": kind.kind} for item in items]
