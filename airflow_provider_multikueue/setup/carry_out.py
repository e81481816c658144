"""Makes a plan true on one cluster: applies, deletes, and waits for what later steps rest on."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, Final

from airflow_provider_multikueue.clusters.client import ApiError, Cluster
from airflow_provider_multikueue.exceptions import FleetConfigurationError, MultiKueueError
from airflow_provider_multikueue.setup.plan import Action, Change, Plan
from airflow_provider_multikueue.setup.state import FIELD_MANAGER, resource_of

__all__ = ["Patience", "carry_out", "refuse_foreign", "until_active", "until_kueue_answers"]

Object = dict[str, Any]

PAUSE: Final = 0.5
BEFORE_THE_REST: Final = ("Namespace", "CustomResourceDefinition")
PROBE: Final = "airflow-provider-multikueue-probe"
HINTS: Final[Mapping[str, str]] = {
    "MultiKueueClusterProfileFeatureDisabled": "Switch MultiKueueClusterProfile on under featureGates in the "
    "configuration of the manager's Kueue",
    "BadClusterProfile": "It must be in kueue-system on the manager, and its kind of access under "
    "multiKueue.clusterProfile in the configuration of the manager's Kueue",
}
"""What to do about a reason that Kueue gives."""
FLAVORS: Final = resource_of("kueue.x-k8s.io/v1beta2", "ResourceFlavor")


class Patience:
    """Seconds that a step may take in all, and how it says what it has waited for."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    async def until(self, done: Callable[[], Awaitable[str]], *, what: str) -> None:
        """Wait until ``done()`` has no more objection; MultiKueueError with ``what`` and the last objection."""
        while objection := await done():
            if time.monotonic() > self._end:
                raise MultiKueueError(
                    f"{what} within {self._seconds:.0f} s: {objection.rstrip('.')}. "
                    "Running the same again continues from here; a longer time can be given."
                )
            await asyncio.sleep(PAUSE)


def refuse_foreign(plan: Plan) -> None:
    """Raise FleetConfigurationError when carrying the plan out would take over what is someone else's."""
    if plan.foreign:
        shown = "\n".join(f"- {each.cluster}: {each.object_name}: {each.reason}" for each in plan.foreign[:10])
        more = f"\n- and {len(plan.foreign) - 10} more" if len(plan.foreign) > 10 else ""
        raise FleetConfigurationError(
            f"Nothing was changed, since these objects are someone else's:\n{shown}{more}\n"
            "Give other names in the fleet file, delete them, or take them over with force."
        )


async def carry_out(cluster: Cluster, plan: Plan, patience: Patience, *, force: bool = False) -> None:
    """Make the plan true. What was done stays done when it fails; the same plan made anew continues from there."""
    refuse_foreign(plan)
    making = plan.having(Action.CREATE, Action.CHANGE)
    first = [each for each in making if each.kind in BEFORE_THE_REST]
    for group in (first, [each for each in making if each.kind not in BEFORE_THE_REST]):
        for _, same in groupby(group, key=lambda change: change.kind):
            await asyncio.gather(*(_apply(cluster, change, patience, force=force) for change in same))
        await _until_established(cluster, group, patience)
    await delete(cluster, plan.having(Action.DELETE), patience)


async def _apply(cluster: Cluster, change: Change, patience: Patience, *, force: bool) -> None:
    desired: Mapping[str, Any] = change.desired or {}
    resource = resource_of(desired["apiVersion"], desired["kind"])

    async def applied() -> str:
        try:
            await cluster.patch(
                *(resource, change.name, dict(desired), change.namespace),
                kind="apply",
                field_manager=FIELD_MANAGER,
                force=force,
            )
        except ApiError as error:
            if error.passing:  # a webhook that is about to answer
                return error.message or str(error)
            raise _explained(error, change) from error
        return ""

    await patience.until(applied, what=f"{change.object_name} could not be applied to {cluster.name}")


def _explained(error: ApiError, change: Change) -> MultiKueueError:
    if error.status == 404:
        hint = "Its kind is not served there: is Kueue installed"
        if change.kind == "PodMonitoring":
            hint = "Managed Prometheus is off there: switch it on, or set `monitoring.pod_monitoring: false`"
        return FleetConfigurationError(f"{change.cluster}: {change.object_name} could not be applied (404). {hint}?")
    if error.status in (401, 403, 400, 422, 409):
        return FleetConfigurationError(f"{change.object_name}: {error}")
    return MultiKueueError(f"{change.object_name}: {error}")


async def _until_established(cluster: Cluster, changes: Iterable[Change], patience: Patience) -> None:
    resource = resource_of("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    for change in changes:
        if change.kind != "CustomResourceDefinition":
            continue

        async def established(name: str = change.name) -> str:
            established = _condition(await cluster.get(resource, name), "Established")
            return "" if established.get("status") == "True" else "it is not established"

        await patience.until(established, what=f"{change.object_name} was not served by {cluster.name}")


async def delete(cluster: Cluster, changes: Iterable[Change], patience: Patience) -> None:
    """Delete objects, one sort after the other, each as it was seen, and wait until they are gone."""
    todo = list(changes)
    while todo:
        group = [each for each in todo if each.kind == todo[0].kind]
        todo = [each for each in todo if each.kind != group[0].kind]
        await asyncio.gather(*(_begin_deletion(cluster, each) for each in group))
        for each in group:
            await _until_gone(cluster, each, patience)


async def _begin_deletion(cluster: Cluster, change: Change) -> None:
    live: Mapping[str, Any] = change.live or {}
    try:
        await cluster.delete(
            *(resource_of(live["apiVersion"], change.kind), change.name, change.namespace),
            uid=live["metadata"]["uid"],
        )
    except ApiError as error:
        if error.status not in (404, 409):  # gone already, or another one of that name
            raise


async def _until_gone(cluster: Cluster, change: Change, patience: Patience) -> None:
    live: Mapping[str, Any] = change.live or {}

    async def gone() -> str:
        try:
            now = await cluster.get(resource_of(live["apiVersion"], change.kind), change.name, change.namespace)
        except ApiError as error:
            if error.status == 404:
                return ""
            if error.passing:
                return str(error)
            raise
        if now["metadata"]["uid"] != live["metadata"]["uid"]:
            return ""
        finalizers = ", ".join(now["metadata"].get("finalizers") or []) or "nothing that can be seen"
        return f"{finalizers} holds it; jobs that use it must end first"

    await patience.until(gone, what=f"{change.object_name} was not gone from {cluster.name}")


async def until_active(cluster: Cluster, objects: Iterable[Object], patience: Patience) -> None:
    """Wait until Kueue says of each object that can be active that it is."""
    kinds = ("MultiKueueCluster", "AdmissionCheck", "ClusterQueue", "LocalQueue")
    for each in (each for each in objects if each["kind"] in kinds):
        resource = resource_of(each["apiVersion"], each["kind"])
        name, namespace = each["metadata"]["name"], each["metadata"].get("namespace")

        async def active(resource: Any = resource, name: str = name, namespace: str | None = namespace) -> str:
            try:
                now = await cluster.get(resource, name, namespace)
            except ApiError as error:
                if error.passing:
                    return str(error)
                raise
            return _inactive(now)

        await patience.until(active, what=f"{each['kind']} {name} on {cluster.name} did not become active")


def _inactive(now: Mapping[str, Any]) -> str:
    """Return why Kueue does not take the object for active; "" when it does."""
    condition = _condition(now, "Active")
    if not condition:
        return "Kueue has not looked at it"
    if condition.get("observedGeneration", now["metadata"]["generation"]) < now["metadata"]["generation"]:
        return "Kueue has not looked at its newest state"
    if condition["status"] == "True":
        return ""
    reason = str(condition.get("reason"))
    hint = f". {HINTS[reason]}" if reason in HINTS else ""
    return f"{reason}: {str(condition.get('message')).rstrip('.')}{hint}"


def _condition(each: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return a condition; an empty one where there is none (the list may be null)."""
    conditions = (each.get("status") or {}).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == kind), {})


async def until_kueue_answers(cluster: Cluster, deployment: str, namespace: str, patience: Patience) -> None:
    """Wait until Kueue's newest pods are available, and its webhooks answer."""
    resource = resource_of("apps/v1", "Deployment")

    async def available() -> str:
        now = await cluster.get(resource, deployment, namespace)
        status, wanted = now.get("status", {}), now["spec"].get("replicas", 1)
        seen = status.get("observedGeneration", 0) >= now["metadata"]["generation"]
        good = seen and min(status.get("availableReplicas", 0), status.get("updatedReplicas", 0)) >= wanted
        return "" if good and status.get("replicas", 0) == wanted else _why_not_available(status)

    async def answers() -> str:
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": PROBE}}
        try:
            await cluster.create(FLAVORS, body, dry_run=True)
        except ApiError as error:
            if error.status == 409:
                return ""
            if error.passing or error.status == 404:
                return error.message or str(error)
            raise
        return ""

    with contextlib.suppress(KeyError):
        await patience.until(available, what=f"Kueue's Deployment on {cluster.name} did not become available")
    await patience.until(answers, what=f"Kueue's webhooks on {cluster.name} did not answer")


def _why_not_available(status: Mapping[str, Any]) -> str:
    said = [
        str(each.get("message"))
        for each in status.get("conditions", [])
        if each["status"] != ("False" if each["type"] == "ReplicaFailure" else "True")
    ]
    return "; ".join(said) or "its pods are not ready; look at their events"
