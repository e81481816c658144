"""The output of pods as Google Cloud Logging has it: for GKE clusters whose pods can't be read, or are gone.

Google's client blocks, so it works in a thread. A project may read 60 times a minute in all, so the tasks of a process
take turns, one request in some seconds.
"""

from __future__ import annotations

import asyncio
import json
import time
import weakref
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_multikueue.clusters.gke import credentials_of, google_errors
from airflow_provider_multikueue.clusters.google_client import google_client
from airflow_provider_multikueue.clusters.kubeconfig import configuration_error

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.google_account import GoogleAccount

__all__ = ["API_ENDPOINT", "CloudEntry", "CloudLogging"]

API_ENDPOINT: Final = "AIRFLOW_PROVIDER_MULTIKUEUE_LOGGING_API"
"""Environment variable: another address of Cloud Logging's API, ``https://HOST`` or, without TLS and only on loopback,
``http://127.0.0.1:PORT``."""

PAGE: Final = 1000
TIMEOUT: Final = 20.0
TURN_SECONDS: Final = 2.0
"""Seconds between two requests of this process for one project: half of what a project may do."""
MISSING: Final = "Install airflow-provider-multikueue[cloud-logging] on the worker and the triggerer."


@dataclass(frozen=True, slots=True)
class CloudEntry:
    """One entry: usually a line of a container."""

    id: str
    time: str
    """RFC 3339 in UTC, to the nanosecond: the one that the container's runtime gave the line."""
    pod: str
    container: str
    text: str
    severity: str
    """What the line's own JSON says; "" for text, whose severity only tells stdout from stderr."""
    labels: dict[str, str]


@dataclass(slots=True)
class _Turns:
    """Requests of one project, one after the other."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    next: float = 0.0


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Turns]] = weakref.WeakKeyDictionary()


class CloudLogging:
    """Reads entries of one project."""

    def __init__(self, project: str, account: GoogleAccount) -> None:
        self.project = project
        self._account = account

    async def entries(self, query: str, *, since: str) -> list[CloudEntry]:
        """Return the entries that ``query`` selects from ``since`` on, the oldest first, at most some thousand.

        Raises FleetConfigurationError for what only a person can mend, ConnectionError for what may pass.
        """
        turns = _turns.setdefault(asyncio.get_running_loop(), {}).setdefault(self.project, _Turns())
        async with turns.lock:
            await asyncio.sleep(turns.next - time.monotonic())
            turns.next = time.monotonic() + TURN_SECONDS
            return await asyncio.to_thread(self._read, f'{query}\ntimestamp>="{since}"')

    def _read(self, query: str) -> list[CloudEntry]:
        what = f"the logs of project {self.project} ({self._account.where})"
        with google_errors(what, "logging.logEntries.list", "roles/logging.viewer"):
            pager = self._client.list_log_entries(
                {
                    "resource_names": [f"projects/{self.project}"],
                    "filter": query,
                    "order_by": "timestamp asc",
                    "page_size": PAGE,
                },
                timeout=TIMEOUT,
                retry=None,
            )
            return [_entry(each) for each in next(pager.pages).entries]

    @cached_property
    def _client(self) -> Any:
        try:
            from google.cloud.logging_v2.services.logging_service_v2 import LoggingServiceV2Client, transports
        except ImportError as error:
            raise configuration_error("google-cloud-logging is not installed.", MISSING) from error
        credentials, _ = credentials_of(self._account)
        transport = transports.LoggingServiceV2GrpcTransport
        return google_client(LoggingServiceV2Client, transport, credentials, address_variable=API_ENDPOINT)


def _entry(entry: Any) -> CloudEntry:
    from google.logging.type.log_severity_pb2 import LogSeverity

    at = entry.timestamp or entry.receive_timestamp
    return CloudEntry(
        id=entry.insert_id,
        time=at.rfc3339(),
        pod=entry.resource.labels.get("pod_name", ""),
        container=entry.resource.labels.get("container_name", ""),
        text=_text(entry),
        severity=LogSeverity.Name(int(entry.severity)) if "json_payload" in entry else "",
        labels=dict(entry.labels),
    )


def _text(entry: Any) -> str:
    """Return the line: one that is JSON is stored in its parts, the message apart."""
    if "json_payload" not in entry:
        return str(entry.text_payload)
    payload = json.loads(type(entry).to_json(entry))["jsonPayload"]
    message = payload.pop("message", None)
    if isinstance(message, str):
        return f"{message} {json.dumps(payload, ensure_ascii=False)}" if payload else message
    return json.dumps(payload if message is None else {"message": message, **payload}, ensure_ascii=False)
