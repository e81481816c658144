"""The fleet file: read, checked against its schema, and as typed data. Pure, but for the schema in the package."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from airflow_provider_multikueue.exceptions import FleetConfigurationError
from airflow_provider_multikueue.setup.quantities import canonical

__all__ = ["Dws", "FleetDescription", "Kueue", "Names", "Queue", "Team", "Worker", "parse", "schema"]

Plain = Mapping[str, Any]
Quotas = Mapping[str, Mapping[str, str]]

OLDEST_KUEUE = (0, 17)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What objects are called; by default as in Google's example of DWS with MultiKueue."""

    multikueue_config: str = "multikueue-dws"
    multikueue_check: str = "sample-dws-multikueue"
    dws_check: str = "dws-prov"
    dws_config: str = "dws-config"
    account: str = "multikueue-sa"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kueue:
    """Which Kueue runs on all clusters, and how it is configured."""

    version: str | None = None
    manifests: str | None = None
    install: bool = True
    frameworks: tuple[str, ...] = ("batch/job",)
    configuration: Plain = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dws:
    """How workers ask for capacity."""

    enabled: bool = True
    provisioning_class: str = "queued-provisioning.gke.io"
    resources: tuple[str, ...] = ("nvidia.com/gpu",)
    parameters: Plain = field(default_factory=dict)
    retries: int = 3
    retry_seconds: int = 60
    retry_seconds_max: int = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker; ``name`` is that of its MultiKueueCluster."""

    name: str
    region: str
    cluster: Plain
    secret: str
    server: str | None = None
    authority: str = "cluster"
    cluster_profile: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A ClusterQueue, on the manager and on its workers."""

    name: str
    quotas: Quotas
    residency: str | None = None
    cohort: str | None = None
    manager_quotas: Quotas | None = None
    worker_quotas: Mapping[str, Quotas] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """A LocalQueue that leads to one of the queues."""

    namespace: str
    local_queue: str
    queue: str
    priority: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetDescription:
    """All that a fleet file says."""

    name: str
    where: str
    """The file, for error texts."""
    manager: Plain
    manager_region: str | None
    workers: Mapping[str, Worker]
    kueue: Kueue
    dws: Dws
    names: Names
    flavors: Mapping[str, Plain]
    cohorts: Mapping[str, Plain]
    residency: Mapping[str, tuple[str, ...]]
    queues: Mapping[str, Queue]
    teams: tuple[Team, ...]
    priorities: Mapping[str, Plain]
    credentials: str = "secret"
    credential_hours: int = 720
    pod_monitoring: bool = False
    monitoring_interval: str = "30s"
    gcp_conn_id: str | None = None
    project: str | None = None

    @property
    def by_profile(self) -> bool:
        """Whether the manager's Kueue gets at the workers by ClusterProfiles, and so without credentials of ours."""
        return self.credentials == "cluster_profile"

    def workers_of(self, queue: Queue) -> tuple[str, ...]:
        """Return the workers that a queue's jobs may run on."""
        return self.residency[queue.residency] if queue.residency else tuple(self.workers)

    def connection(self) -> dict[str, Any]:
        """Return the ``extra`` of the Airflow connection that leads to this fleet."""
        extra: dict[str, Any] = {f"manager_{key}": value for key, value in self._cluster(self.manager).items()}
        if "manager_gke_endpoint" in extra:
            extra["gke_endpoint"] = extra.pop("manager_gke_endpoint")
        if self.gcp_conn_id:
            extra["gcp_conn_id"] = self.gcp_conn_id
        extra |= {"namespace": self.teams[0].namespace, "queue_name": self.teams[0].local_queue}
        extra["workers"] = {
            name: {**self._cluster(worker.cluster), "region": worker.region} for name, worker in self.workers.items()
        }
        return extra

    @property
    def needs_project(self) -> bool:
        """Whether clusters are given by location and name, and nothing says in which project."""
        clusters = (self.manager, *(worker.cluster for worker in self.workers.values()))
        short = any(not str(each.get("gke_cluster", "projects/")).startswith("projects/") for each in clusters)
        return short and self.project is None

    def _cluster(self, each: Plain) -> Plain:
        """Return a cluster with its full resource name, where it is given by location and name."""
        location, _, name = str(each.get("gke_cluster", "")).partition("/")
        if not name or location == "projects":
            return each
        return {**each, "gke_cluster": f"projects/{self.project}/locations/{location}/clusters/{name}"}


def schema() -> dict[str, Any]:
    """Return the published JSON schema of fleet files."""
    text = (files("airflow_provider_multikueue.setup") / "fleet.schema.json").read_text("utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def parse(content: object, *, where: str) -> FleetDescription:
    """Return the fleet that the plain content of a fleet file describes; ``where`` names the file.

    Raises FleetConfigurationError that names each path that is wrong, and what to do about it.
    """
    problems = list(_against_schema(content))
    if not problems and isinstance(content, Mapping):
        fleet = _fleet(content, where)
        problems = list(_contradictions(fleet))
        if not problems:
            return fleet
    shown = "\n".join(f"- {problem}" for problem in problems[:20])
    raise FleetConfigurationError(f"{where} does not describe a fleet:\n{shown}")


def _against_schema(content: object) -> Iterator[str]:
    from jsonschema import Draft202012Validator

    errors = Draft202012Validator(schema()).iter_errors(content)
    for error in sorted(errors, key=lambda each: [str(part) for part in each.absolute_path]):
        path = ".".join(str(part) for part in error.absolute_path) or "the file"
        said = error.schema.get("description") if isinstance(error.schema, Mapping) else None
        yield f"`{path}`: {_remedy(error)}{f' ({said})' if said else ''}"


def _remedy(error: Any) -> str:
    """Return in words what is wrong and what would be right."""
    match error.validator:
        case "required":
            missing = [key for key in error.validator_value if key not in error.instance]
            return f"add {', '.join(f'`{key}`' for key in missing)}."
        case "additionalProperties":
            known = error.schema.get("properties", {})
            unknown = [key for key in error.instance if key not in known]
            return f"remove or correct {', '.join(f'`{key}`' for key in unknown)}; it takes {', '.join(known)}."
        case "type":
            wanted = error.validator_value
            kinds = wanted if isinstance(wanted, str) else " or ".join(wanted)
            return f"must be of type {kinds}, not {type(error.instance).__name__}."
        case "pattern":
            return f"{error.instance!r} must match {error.validator_value}."
        case "enum":
            return f"must be one of {', '.join(map(str, error.validator_value))}."
        case "minItems" | "minProperties":
            return "needs at least one entry."
    return f"{error.message}."


def _fleet(content: Plain, where: str) -> FleetDescription:
    kueue, monitoring = dict(content.get("kueue", {})), content.get("monitoring", {})
    if "frameworks" in kueue:
        kueue["frameworks"] = tuple(kueue["frameworks"])
    credentials = content.get("credentials", {})
    return FleetDescription(
        name=content["fleet"],
        where=where,
        manager=content["manager"]["cluster"],
        manager_region=content["manager"].get("region"),
        workers=MappingProxyType({name: _worker(name, each) for name, each in content["workers"].items()}),
        kueue=Kueue(**kueue),
        dws=_dws(content.get("dws", {})),
        names=Names(**content.get("names", {})),
        flavors=content["flavors"],
        cohorts=content.get("cohorts", {}),
        residency={name: tuple(each) for name, each in content.get("residency", {}).items()},
        queues={name: _queue(name, each) for name, each in content["queues"].items()},
        teams=tuple(Team(**each) for each in content["teams"]),
        priorities=content.get("priorities", {}),
        credentials=credentials.get("form", "secret"),
        credential_hours=credentials.get("hours", 720),
        pod_monitoring=monitoring.get("pod_monitoring", False),
        monitoring_interval=monitoring.get("interval", "30s"),
        gcp_conn_id=content.get("gcp_conn_id"),
        project=content.get("project"),
    )


def _worker(name: str, each: Plain) -> Worker:
    return Worker(name=name, **{"secret": f"worker-{each['region']}-secret", **each})


def _dws(each: Plain) -> Dws:
    values = {("provisioning_class" if key == "class" else key): value for key, value in each.items()}
    if "resources" in values:
        values["resources"] = tuple(values["resources"])
    return Dws(**values)


def _queue(name: str, each: Plain) -> Queue:
    values = dict(each)
    for key in ("quotas", "manager_quotas"):
        if key in values:
            values[key] = _quotas(values[key])
    if "worker_quotas" in values:
        values["worker_quotas"] = {worker: _quotas(quotas) for worker, quotas in values["worker_quotas"].items()}
    return Queue(name=name, **values)


def _quotas(quotas: Plain) -> Quotas:
    return {flavor: {name: canonical(str(value)) for name, value in each.items()} for flavor, each in quotas.items()}


def _contradictions(fleet: FleetDescription) -> Iterator[str]:
    yield from _kueue_problems(fleet.kueue)
    for group, workers in fleet.residency.items():
        for worker in workers:
            yield from _unknown(f"residency.{group}", worker, fleet.workers, "workers")
    for name, queue in fleet.queues.items():
        if queue.residency:
            yield from _unknown(f"queues.{name}.residency", queue.residency, fleet.residency, "residency")
        yield from _quota_problems(queue, fleet)
    for index, team in enumerate(fleet.teams):
        yield from _unknown(f"teams.{index}.queue", team.queue, fleet.queues, "queues")
        if team.priority:
            yield from _unknown(f"teams.{index}.priority", team.priority, fleet.priorities, "priorities")
    yield from _twice("teams", [f"{team.namespace}/{team.local_queue}" for team in fleet.teams])
    yield from _link_problems(fleet)


def _link_problems(fleet: FleetDescription) -> Iterator[str]:
    if not fleet.by_profile:
        yield from _twice("workers, secret", [worker.secret for worker in fleet.workers.values()])
    yield from _twice("workers, cluster_profile", [each.cluster_profile or "" for each in fleet.workers.values()])
    for name, worker in fleet.workers.items():
        if fleet.by_profile and not worker.cluster_profile:
            yield (
                f"`workers.{name}`: add `cluster_profile`, the name of its ClusterProfile in kueue-system on the "
                "manager, or choose another `credentials.form`."
            )
        if worker.cluster_profile and not fleet.by_profile:
            yield (
                f"`workers.{name}.cluster_profile`: Kueue uses it with `credentials: {{form: cluster_profile}}` alone. "
                "Set that, or remove it."
            )


def _kueue_problems(kueue: Kueue) -> Iterator[str]:
    if kueue.install and not (kueue.manifests and kueue.version):
        yield "`kueue`: add `version` and `manifests`, or `install: false` if Kueue is on the clusters already."
    if kueue.version and tuple(map(int, kueue.version.split(".")[:2])) < OLDEST_KUEUE:
        oldest = ".".join(map(str, OLDEST_KUEUE))
        yield f"`kueue.version`: {kueue.version} is too old: the objects are written for {oldest} and newer."


def _quota_problems(queue: Queue, fleet: FleetDescription) -> Iterator[str]:
    path = f"queues.{queue.name}"
    given = {f"{path}.quotas": queue.quotas, f"{path}.manager_quotas": queue.manager_quotas or {}}
    for worker, quotas in queue.worker_quotas.items():
        yield from _unknown(f"{path}.worker_quotas", worker, fleet.workers, "workers")
        given[f"{path}.worker_quotas.{worker}"] = quotas
    for place, quotas in given.items():
        for flavor in quotas:
            yield from _unknown(place, flavor, fleet.flavors, "flavors")
        if len({frozenset(each) for each in quotas.values()}) > 1:
            yield f"`{place}`: all flavors of a queue must have quotas of the same resources."


def _unknown(path: str, name: str, known: Mapping[str, object], section: str) -> Iterator[str]:
    if name not in known:
        yield f"`{path}`: `{section}` has no {name!r}; it has {', '.join(known) or 'nothing'}."


def _twice(path: str, names: list[str]) -> Iterator[str]:
    for name in sorted({name for name in names if name and names.count(name) > 1}):
        yield f"`{path}`: {name} is there twice. Give each its own."
