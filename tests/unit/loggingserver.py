"""Cloud Logging's LoggingServiceV2 on loopback, as far as a reader needs it: entries, and filters such as ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import grpc
from google.api.monitored_resource_pb2 import MonitoredResource
from google.cloud.logging_v2.types import ListLogEntriesRequest, ListLogEntriesResponse, LogEntry
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp

SERVICE = "google.logging.v2.LoggingServiceV2"
TERM = re.compile(r'(resource\.type|resource\.labels\.\w+|labels\."[^"]+"|timestamp)(>=|=)"((?:[^"\\]|\\.)*)"')


@dataclass
class LoggingServer:
    """The entries of a project; what a test changes holds for the next call."""

    entries: list[LogEntry] = field(default_factory=list)
    refusal: tuple[grpc.StatusCode, str] | None = None
    requests: list[ListLogEntriesRequest] = field(default_factory=list)
    address: str = ""

    def write(self, text: str | dict[str, Any], *, pod: str, job: str, at: float | None = None, **known: Any) -> None:
        """Have a line of a container, as GKE's agent sends it."""
        moment = at if at is not None else datetime.now(UTC).timestamp()
        labels = {
            "project_id": "team",
            "location": "us-east4",
            "cluster_name": "worker-us",
            "namespace_name": "default",
            "pod_name": pod,
            "container_name": "main",
        } | known.pop("resource", {})
        payload: dict[str, Any] = {"text_payload": text}
        if isinstance(text, dict):
            struct = Struct()
            struct.update(text)
            payload = {"json_payload": struct}
        stamp = Timestamp(seconds=int(moment), nanos=int(moment % 1 * 1e9))
        self.entries.append(
            LogEntry(
                insert_id=f"id{len(self.entries)}",
                resource=MonitoredResource(type="k8s_container", labels=labels),
                labels={"k8s-pod/airflow-provider-multikueue/job": job} | known.pop("labels", {}),
                timestamp=stamp,
                **payload,
                **known,
            )
        )

    @contextmanager
    def running(self) -> Iterator[LoggingServer]:
        """Serve until the end of the block."""
        server = grpc.server(futures.ThreadPoolExecutor(4))
        handler = grpc.unary_unary_rpc_method_handler(
            self.list, ListLogEntriesRequest.deserialize, ListLogEntriesResponse.serialize
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"ListLogEntries": handler}),))
        self.address = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield self
        finally:
            server.stop(None).wait()

    def list(self, request: ListLogEntriesRequest, context: grpc.ServicerContext) -> ListLogEntriesResponse:
        self.requests.append(request)
        if self.refusal is not None:
            context.abort(*self.refusal)
        chosen = [entry for entry in self.entries if _matches(entry, request.filter)]
        chosen.sort(key=lambda entry: entry.timestamp)
        page = chosen[: request.page_size]
        token = "more" if len(page) < len(chosen) else ""
        return ListLogEntriesResponse(entries=page, next_page_token=token)


def _matches(entry: LogEntry, query: str) -> bool:
    """Return whether each line of the query holds: a term, or terms of which one must."""
    return all(any(_holds(entry, *term) for term in TERM.findall(line)) for line in query.split("\n"))


def _holds(entry: LogEntry, key: str, operator: str, value: str) -> bool:
    if key == "timestamp":
        assert operator == ">="
        return bool(entry.timestamp.rfc3339() >= value)
    if key == "resource.type":
        return bool(entry.resource.type == value)
    if key.startswith("resource.labels."):
        return bool(entry.resource.labels[key.removeprefix("resource.labels.")] == value)
    return bool(entry.labels.get(key.removeprefix("labels.").strip('"')) == value)
