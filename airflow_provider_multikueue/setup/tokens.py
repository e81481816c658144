"""The token with which the manager's Kueue comes to a worker: made there, kept while it is good."""

from __future__ import annotations

import base64
import binascii
import json
import time
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_multikueue.clusters.client import CONFIGMAPS, SECRETS, ApiError, Cluster
from airflow_provider_multikueue.clusters.resources import Resource
from airflow_provider_multikueue.setup.desired import KUEUE_NAMESPACE

if TYPE_CHECKING:
    from airflow_provider_multikueue.setup.carry_out import Patience
    from airflow_provider_multikueue.setup.description import FleetDescription

__all__ = ["authority_of", "token_for"]

Object = dict[str, Any]

REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)
ROOT_AUTHORITY: Final = "kube-root-ca.crt"


async def authority_of(worker: Cluster) -> str | None:
    """Return the certificates (PEM) that vouch for the worker's API server, as it gives them to its own pods."""
    try:
        found = await worker.get(CONFIGMAPS, ROOT_AUTHORITY, KUEUE_NAMESPACE)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    authority: str | None = found.get("data", {}).get("ca.crt")
    return authority


async def token_for(
    fleet: FleetDescription, worker: Cluster, present: Object | None, patience: Patience | None
) -> str | None:
    """Return the token for the fleet's account on a worker; None when it is not there and must not be made.

    ``present`` is the manager's Secret with the credentials in use: a token that ends is kept while the worker takes it
    and a third of its life is left. Without ``patience`` nothing is made.
    """
    if fleet.credentials == "secret":
        return await _lasting(fleet.names.account, worker, patience)
    token = _token_of(present)
    left = _expiry(token) - time.time()
    if left > fleet.credential_hours * 3600 / 3 and await _accepted(worker, token):
        return token
    return await _fresh(fleet, worker) if patience is not None else None


async def _lasting(account: str, worker: Cluster, patience: Patience | None) -> str | None:
    """Return the token in the account's Secret, which Kubernetes fills in a moment after it was made."""
    token = ""

    async def filled() -> str:
        nonlocal token
        try:
            secret = await worker.get(SECRETS, f"{account}-token", KUEUE_NAMESPACE)
        except ApiError as error:
            if error.status == 404:
                return "it is not there"
            raise
        token = base64.b64decode((secret.get("data") or {}).get("token", "")).decode()
        return "" if token else "Kubernetes has not filled it"

    if patience is None:
        return token if not await filled() else None
    await patience.until(filled, what=f"The Secret {account}-token on {worker.name} had no token")
    return token


async def _fresh(fleet: FleetDescription, worker: Cluster) -> str:
    request = Resource("", "v1", f"serviceaccounts/{fleet.names.account}/token")
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": fleet.credential_hours * 3600},
    }
    answer = await worker.create(request, body, KUEUE_NAMESPACE)
    return str(answer["status"]["token"])


async def _accepted(worker: Cluster, token: str) -> bool:
    """Return whether the worker knows the token: a cluster that was made anew under the same name does not."""
    body = {"apiVersion": REVIEWS.api_version, "kind": "TokenReview", "spec": {"token": token}}
    answer = await worker.create(REVIEWS, body)
    return answer.get("status", {}).get("authenticated") is True


def _token_of(secret: Object | None) -> str:
    """Return the token in the credentials that the manager has; "" where there is none."""
    try:
        text = base64.b64decode((secret or {})["data"]["kubeconfig"])
        return str(json.loads(text)["users"][0]["user"]["token"])
    except (KeyError, IndexError, TypeError, ValueError):
        return ""


def _expiry(token: str) -> float:
    """Return the epoch seconds at which a service account's token ends; 0 for what is none."""
    try:
        body = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"])
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return 0.0
