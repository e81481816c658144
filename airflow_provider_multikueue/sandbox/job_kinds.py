"""The kinds of jobs that a fleet can have besides the batch Job: their definitions, and the controllers that run them.

``jobset`` and ``training`` bring the real controllers. The others bring the definitions, and have a stand-in on each
worker that makes their pods and writes their status (`stand_ins`). A Pod needs neither.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.sandbox.manifests import keep, terse, yaml_objects
from airflow_provider_multikueue.sandbox.paths import SandboxError

__all__ = ["JOB_KINDS", "Controller", "JobKinds", "chosen", "installation", "point_webhooks"]

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """A program that runs jobs, in every cluster; ``role`` and ``webhooks`` are folders of its module's manifests."""

    program: str
    account: str
    role: str
    webhooks: str

    @property
    def user(self) -> str:
        """The user that it comes as: the service account of its usual installation."""
        return f"system:serviceaccount:{self.account}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKinds:
    """Kinds of jobs that are installed together.

    ``frameworks`` are Kueue's names for them, ``definitions`` where their CustomResourceDefinitions are among the
    copied manifests, ``resources`` what the manager makes on the workers, by API group; ``needs`` names other kinds
    that these are made of.
    """

    name: str
    frameworks: tuple[str, ...]
    definitions: str = ""
    unwanted: tuple[str, ...] = ()
    resources: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    controller: Controller | None = None
    needs: tuple[str, ...] = ()


def _kubeflow(*names: str) -> tuple[str, ...]:
    return tuple(f"kubeflow.org/{name}" for name in names)


JOB_KINDS: dict[str, JobKinds] = {
    each.name: each
    for each in (
        JobKinds(
            name="jobset",
            frameworks=("jobset.x-k8s.io/jobset",),
            definitions="crd/bases",
            controller=Controller(
                program="jobset",
                account="jobset-system:jobset-controller-manager",
                role="rbac",
                webhooks="webhook",
            ),
        ),
        JobKinds(
            name="training",
            frameworks=_kubeflow("pytorchjob", "tfjob", "xgboostjob", "paddlejob", "jaxjob"),
            definitions="crds",
            unwanted=("mpijobs.kubeflow.org",),  # the MPI operator has a newer one of this name
            controller=Controller(
                program="training-operator",
                account="kubeflow:training-operator",
                role="rbac",
                webhooks="webhook",
            ),
        ),
        JobKinds(name="mpi", frameworks=_kubeflow("mpijob"), definitions="."),
        JobKinds(name="trainer", frameworks=("trainer.kubeflow.org/trainjob",), definitions=".", needs=("jobset",)),
        JobKinds(
            name="ray",
            frameworks=("ray.io/rayjob",),
            definitions=".",
            unwanted=("raycronjobs.ray.io", "rayservices.ray.io"),
        ),
        JobKinds(
            name="appwrapper",
            frameworks=("workload.codeflare.dev/appwrapper",),
            definitions=".",
            resources={"workload.codeflare.dev": ("appwrappers",)},
        ),
        JobKinds(name="pod", frameworks=("pod",), resources={"": ("pods",)}),
    )
}


def chosen(names: Collection[str]) -> tuple[JobKinds, ...]:
    """Return the kinds of these names and those that they need; SandboxError for one that there is not."""
    if unknown := sorted(set(names) - set(JOB_KINDS)):
        raise SandboxError(f"The sandbox has no kinds of jobs {', '.join(unknown)}; it has {', '.join(JOB_KINDS)}.")
    wanted = {*names, *(other for name in names for other in JOB_KINDS[name].needs)}
    return tuple(each for name, each in JOB_KINDS.items() if name in wanted)


def installation(kinds: JobKinds, sources: Path) -> Object:
    """Return ``definitions``, ``rights`` and ``webhooks`` of these kinds, plain JSON; ``sources`` has the manifests."""
    return keep(sources.parent, kinds.name, made_by=Path(__file__), make=lambda: _collect(kinds, sources))


def point_webhooks(webhooks: list[Object], *, url: str, authority: bytes) -> list[Object]:
    """Return the webhook configurations with webhooks at ``url`` that ``authority`` vouches for."""
    copies: list[Object] = json.loads(json.dumps(webhooks))
    ca = base64.b64encode(authority).decode()
    for hook in (hook for each in copies for hook in each["webhooks"]):
        hook["clientConfig"] = {"url": url + hook["clientConfig"]["service"]["path"], "caBundle": ca}
    return copies


def _collect(kinds: JobKinds, sources: Path) -> Object:
    definitions = [terse(each) for each in _definitions(kinds, sources)]
    controller = kinds.controller
    if controller is None:
        return {"definitions": definitions, "rights": [], "webhooks": []}
    return {
        "definitions": definitions,
        "rights": list(_rights(controller, sources / controller.role)),
        "webhooks": list(_webhooks(controller, sources / controller.webhooks)),
    }


def _definitions(kinds: JobKinds, sources: Path) -> Iterator[Object]:
    for each in yaml_objects(sources / kinds.definitions):
        if each["kind"] == "CustomResourceDefinition" and each["metadata"]["name"] not in kinds.unwanted:
            each["spec"].pop("conversion", None)  # each has one version that is served
            each.pop("status", None)
            yield each if kinds.controller else _loose(each)


def _loose(schema: Any) -> Any:
    """Return a definition that leaves the specs of pods unchecked, which are nearly all of it and cost much time."""
    if isinstance(schema, list):
        return [_loose(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(fields := schema.get("properties"), dict) and "containers" in fields:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {key: _loose(part) for key, part in schema.items()}


def _rights(controller: Controller, folder: Path) -> Iterator[Object]:
    """Yield the role that the controller's own manifests give it, and its binding."""
    role = next(each for each in yaml_objects(folder, only="role.yaml") if each["kind"] == "ClusterRole")
    role["metadata"] = {"name": controller.program}
    api = "rbac.authorization.k8s.io"
    yield role
    yield {
        "apiVersion": f"{api}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": controller.program},
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": controller.program},
        "subjects": [{"apiGroup": api, "kind": "User", "name": controller.user}],
    }


def _webhooks(controller: Controller, folder: Path) -> Iterator[Object]:
    """Yield the webhook configurations; pods are none of the controllers' business here."""
    for each in yaml_objects(folder, only="manifests"):
        each["metadata"]["name"] = controller.program
        each["webhooks"] = [
            hook for hook in each["webhooks"] if not any("pods" in rule["resources"] for rule in hook["rules"])
        ]
        yield each
