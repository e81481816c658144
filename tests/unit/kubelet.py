"""Pods whose logs are served as an API server and a kubelet serve them, with faults on demand."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

OPEN_END = 4_000_000_000 * 10**9


def stamp(nanoseconds: int) -> str:
    moment = datetime.fromtimestamp(nanoseconds // 10**9, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds % 10**9:09d}Z"


@dataclass
class ContainerRun:
    """One run of a container and its log: (time, bytes without newline)."""

    lines: list[tuple[str, bytes]] = field(default_factory=list)
    open_end: bytes = b""
    exit_code: int | None = None
    number: int = 0

    def text(self, since: str | None, *, timestamps: bool = True) -> bytes:
        if not timestamps:
            return b"".join(body + b"\n" for _, body in self.lines) + self.open_end
        kept = [(at, body) for at, body in self.lines if since is None or at >= since.removesuffix("Z")]
        whole = b"".join(f"{at} ".encode() + body + b"\n" for at, body in kept)
        return whole + (f"{stamp(OPEN_END)} ".encode() + self.open_end if self.open_end else b"")


class Pod:
    """A pod with one container, ``main``."""

    def __init__(self, kubelet: Kubelet, name: str, **labels: str) -> None:
        self.kubelet, self.name, self.labels = kubelet, name, labels
        self.uid = f"uid-of-{name}"
        self.runs: list[ContainerRun] = []
        self.gone = False
        self.told = 0
        """How many runs the status tells of; it lags behind in some tests."""
        kubelet.pods[name] = self

    def start(self) -> ContainerRun:
        self.runs.append(ContainerRun(number=len(self.runs)))
        return self.runs[-1]

    def write(self, *texts: str | bytes, at: str | None = None) -> None:
        for text in texts:
            body = text.encode() if isinstance(text, str) else text
            self.runs[-1].lines.append((at or stamp(time.time_ns()), body))
        self.kubelet.changed()

    def end(self, code: int = 0) -> None:
        self.runs[-1].exit_code = code
        self.kubelet.changed()

    def delete(self) -> None:
        self.gone = True
        self.kubelet.changed()

    def status(self, runs: int | None = None) -> dict[str, Any]:
        """Return the pod as the API shows it, knowing of its first ``runs`` runs."""
        known = self.runs[: len(self.runs) if runs is None else runs]
        entry: dict[str, Any] = {"name": "main", "restartCount": max(len(known) - 1, 0), "state": {"waiting": {}}}
        if known:
            entry["containerID"] = f"fake://{self.name}-{known[-1].number}"
            entry["state"] = self._state(known[-1])
        if len(known) > 1:
            entry["lastState"] = self._state(known[-2])
        return {
            "metadata": {"name": self.name, "namespace": "default", "uid": self.uid, "labels": self.labels},
            "spec": {"containers": [{"name": "main"}]},
            "status": {"phase": "Running", "containerStatuses": [entry]},
        }

    def _state(self, run: ContainerRun) -> dict[str, Any]:
        name = f"fake://{self.name}-{run.number}"
        if run.exit_code is None:
            return {"running": {"startedAt": "2026-01-02T03:04:05Z"}}
        return {
            "terminated": {
                "exitCode": run.exit_code,
                "containerID": name,
                "startedAt": "2026-01-02T03:04:05Z",
                "finishedAt": stamp(time.time_ns())[:19] + "Z",
            }
        }


class Kubelet:
    """Serves ``pods``; ``faults`` are used up one a request: a status, bytes to cut after, or "silent"."""

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.faults: list[web.HTTPException | tuple[str, int] | Any] = []
        self.requests: list[dict[str, str]] = []
        self.statuses: Counter[int] = Counter()
        self.url = ""
        self.buffering = False
        """Whether answers are held back until they are complete, as by some gateways."""
        self._change = asyncio.Event()

    def changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Kubelet]:
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{pod}/log", self._log)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        try:
            yield self
        finally:
            self.changed()
            await runner.cleanup()

    async def _log(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.requests.append(query)
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, int):
            return _status(fault, "scripted")
        pod = self.pods.get(request.match_info["pod"])
        if pod is None or pod.gone:
            return _status(404, "pods not found")
        runs = pod.runs[:-1] if query.get("previous") == "true" else pod.runs
        if not runs:
            return _status(400, 'container "main" in pod "x" is waiting to start: ContainerCreating')
        while self.buffering and query.get("follow") == "true" and runs[-1].exit_code is None and not pod.gone:
            await self._change.wait()
        response = web.StreamResponse()
        await response.prepare(request)
        if fault == "silent":
            await asyncio.sleep(3600)
        await self._send(request, response, pod, runs[-1], query, fault)
        return response

    async def _send(self, request, response, pod: Pod, run: ContainerRun, query: dict[str, str], fault: Any) -> None:
        if query.get("timestamps") != "true":
            await response.write(run.text(None, timestamps=False))
            return
        sent = len(run.text(None)) - len(run.text(query.get("sinceTime")))
        total = 0
        while True:
            change = self._change
            data = run.text(None)[sent:]
            if isinstance(fault, tuple) and total + len(data) >= fault[1]:
                await response.write(data[: fault[1] - total])
                if fault[0] == "cut":
                    await asyncio.sleep(0.01)
                    request.transport.abort()
                return
            if data:
                await response.write(data)
                sent, total = sent + len(data), total + len(data)
            if query.get("follow") != "true" or run.exit_code is not None or pod.gone:
                return
            await change.wait()


def _status(code: int, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return web.json_response(body, status=code)
