"""An API server as far as setting a fleet up needs one: it keeps what is applied, and everything is active at once."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from tests.unit.apiserver import Answer, ApiServer, Seen, status

Object = dict[str, Any]

READY = {
    "observedGeneration": 1,
    "replicas": 1,
    "updatedReplicas": 1,
    "availableReplicas": 1,
}


class SetupServer(ApiServer):
    """Objects by path; what a test scripts goes first."""

    def __init__(self) -> None:
        super().__init__()
        self.objects: dict[str, Object] = {}
        self.on("GET", "/apis/kueue.x-k8s.io", {"versions": [{"version": "v1beta1"}, {"version": "v1beta2"}]})
        self.on("POST", "/apis/kueue.x-k8s.io/v1beta2/resourceflavors", {})

    async def _unscripted(self, seen: Seen, request: web.Request) -> web.StreamResponse:
        answer = getattr(self, f"_{seen.method.lower()}", self._missing)(seen)
        response: web.StreamResponse = await answer(request)
        return response

    def _patch(self, seen: Seen) -> Answer:
        known = self.objects.get(seen.path, {})
        made = {**seen.body, "metadata": {**seen.body["metadata"], "uid": seen.path, "generation": 1}}
        made["status"] = known.get("status", {"conditions": [_true("Active"), _true("Established")], **READY})
        if "dryRun" not in seen.query:
            self.objects[seen.path] = made
        return Answer(made)

    def _get(self, seen: Seen) -> Answer:
        if seen.path in self.objects:
            return Answer(self.objects[seen.path])
        if "labelSelector" not in seen.query:
            return self._missing(seen)
        wanted = dict(each.split("=") for each in seen.query["labelSelector"].split(","))
        items = [
            each
            for path, each in self.objects.items()
            if _collection(path) == seen.path and wanted.items() <= each["metadata"].get("labels", {}).items()
        ]
        return Answer({"metadata": {"resourceVersion": "1"}, "items": items})

    def _delete(self, seen: Seen) -> Answer:
        return Answer(self.objects.pop(seen.path, {}))

    def _missing(self, _: Seen) -> Answer:
        return status(404, "the server has no such thing")


def _true(kind: str) -> Object:
    return {"type": kind, "status": "True"}


def _collection(path: str) -> str:
    parts = path.split("/")[:-1]
    if "namespaces" in parts[:-1]:
        at = parts.index("namespaces")
        del parts[at : at + 2]
    return "/".join(parts)
