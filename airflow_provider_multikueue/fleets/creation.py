"""Create a job on the manager, or say everything that the manager and its webhooks find wrong with it.

A job that is created outside its queue is no business of Kueue's yet, so Kueue would only refuse it when it joins. A
server-side dry run of the job *with* its queue asks for that opinion before anything exists.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_multikueue.exceptions import FleetConfigurationError, ManifestError, MultiKueueError

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.client import ApiError, Cluster, Resource

__all__ = ["create", "refused"]

Object = dict[str, Any]

RETRY_SECONDS = 120.0
"""How long a refused or unanswered POST is repeated: Kueue's webhook answers 500 while Kueue restarts."""

STRICT = "strict decoding error"
UNKNOWN_FIELD = re.compile(r'(unknown|duplicate) field "([^"]+)"')
NO_DRY_RUN = "does not support dry run"
QUOTA = "exceeded quota"


async def create(manager: Cluster, resource: Resource, wanted: Object, *, held: Object | None = None) -> Object | None:
    """Return the job as created; None when one of its name is there (also after a POST whose answer was lost).

    ``held`` is the form of ``wanted`` that is created, where that differs; ``wanted`` is then tried first.

    Raises:
        ManifestError: the manager or a webhook refuses it; each mistake that can be known at once has a line.
        FleetConfigurationError: our account may not create it.
        MultiKueueError: the manager did not take it within two minutes.
    """
    from airflow_provider_multikueue.clusters.client import ApiError

    namespace = wanted["metadata"]["namespace"]
    untried = held is not None and held != wanted

    async def post() -> Object:
        nonlocal untried
        if untried:
            await _try(manager, resource, wanted, namespace)
            untried = False
        return await manager.create(resource, held or wanted, namespace, strict=True)

    try:
        return await _persist(post)
    except ApiError as error:
        if error.status == 409:
            return None
        raise refused(error, wanted, also=await _other_mistakes(error, manager, resource, wanted)) from error


async def _try(manager: Cluster, resource: Resource, wanted: Object, namespace: str, *, strict: bool = True) -> None:
    """Let the manager and its webhooks judge the job without creating it."""
    from airflow_provider_multikueue.clusters.client import ApiError

    try:
        await manager.create(resource, wanted, namespace, dry_run=True, strict=strict)
    except ApiError as error:
        # Some webhook on this cluster can't be tried without effect: what is wrong shows at the POST itself.
        if NO_DRY_RUN not in error.message:
            raise


async def _persist(post: Callable[[], Awaitable[Object]]) -> Object:
    from airflow_provider_multikueue.clusters.client import ApiError

    loop = asyncio.get_running_loop()
    deadline = loop.time() + RETRY_SECONDS
    pause = 0.5
    while True:
        try:
            return await post()
        except ApiError as error:
            passing = error.status in (0, 429) or error.status >= 500
            if not passing or loop.time() + pause > deadline:
                raise
            await asyncio.sleep(max(pause, error.retry_after or 0.0))
            pause = min(pause * 2, 10.0)


async def _other_mistakes(error: ApiError, manager: Cluster, resource: Resource, wanted: Object) -> list[str]:
    """Return what is wrong besides unknown fields, for which the server refuses a manifest before it looks further."""
    from airflow_provider_multikueue.clusters.client import ApiError

    if STRICT not in error.message:
        return []
    try:
        await _try(manager, resource, wanted, wanted["metadata"]["namespace"], strict=False)
    except ApiError as further:
        return _mistakes(further) if _is_about_manifest(further) else []
    return []


def _is_about_manifest(error: ApiError) -> bool:
    return error.status in (400, 422) or error.denied


def _mistakes(error: ApiError) -> list[str]:
    """Return each mistake that the answer names, with its field."""
    unknown = UNKNOWN_FIELD.findall(error.message) if STRICT in error.message else []
    if unknown:
        return [f"{field}: {what} field" for what, field in unknown]
    causes = [(str(cause.get("field") or ""), str(cause.get("message") or "")) for cause in error.causes]
    return [f"{field}: {message}" if field else message for field, message in causes if message] or [error.message]


def refused(error: ApiError, wanted: Mapping[str, Any], *, also: list[str] | None = None) -> MultiKueueError:
    """Return what a refusal of the job means to its author; ``also`` has further mistakes of the manifest."""
    what = f"{wanted['kind']} {wanted['metadata']['namespace']}/{wanted['metadata']['name']}"
    if _is_about_manifest(error):
        mistakes = "".join(f"\n- {each}" for each in dict.fromkeys([*_mistakes(error), *(also or ())]))
        return ManifestError(
            f"Cluster {error.cluster} refuses {what}:{mistakes}\nCorrect the manifest. Nothing was submitted."
        )
    if error.status == 403 and QUOTA in error.message:
        return MultiKueueError(f"{what} could not be submitted, as the namespace's ResourceQuota is used up: {error}")
    if error.status in (401, 403, 404):
        return FleetConfigurationError(f"{what} could not be submitted: {error}")
    return MultiKueueError(
        f"{what} could not be submitted within {RETRY_SECONDS:.0f} s: {error}. Is the manager's Kueue running? If a "
        f"POST did reach the server, the next try of this task takes the job over."
    )
