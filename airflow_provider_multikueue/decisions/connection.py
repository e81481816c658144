"""What an Airflow connection of type ``multikueue`` says about the fleet.

The connection's ``extra`` is flat, so that the form can show it; a form stores text, so a mapping may come as JSON text
and a flag as ``"true"``. Parsing is strict: an unknown key is an error, since a misspelt one would silently change
where jobs run.
"""

from __future__ import annotations

import difflib
import hashlib
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_multikueue.decisions.plain_yaml import plain_yaml
from airflow_provider_multikueue.decisions.secret_texts import secret_leaves
from airflow_provider_multikueue.exceptions import FleetConfigurationError

if TYPE_CHECKING:
    from airflow_provider_multikueue.clusters.google_account import GoogleAccount

__all__ = ["MANAGER_KEYS", "WORKER_KEYS", "ClusterConfig", "FleetConfig", "Form", "deployment_name", "gke_region"]


class Form(StrEnum):
    """How a cluster is given; the value is the worker's key, and the manager's without its ``manager_``."""

    PATH = "kube_config_path"
    INLINE = "kube_config"
    IN_CLUSTER = "in_cluster"
    CONN_ID = "conn_id"
    GKE = "gke_cluster"


PREFIX = "manager_"
FORM_PREFIX = "extra__multikueue__"
MANAGER_FORMS = {f"{PREFIX}{form}": form for form in Form}
WORKER_FORMS = {str(form): form for form in Form if form is not Form.INLINE}
FLEET_KEYS = ("namespace", "queue_name", "deployment", "workers", "gcp_conn_id", "gke_endpoint", "cloud_logging")
MANAGER_KEYS = frozenset({*MANAGER_FORMS, "manager_context", *FLEET_KEYS})
WORKER_KEYS = frozenset({*WORKER_FORMS, "context", "region", "gke_endpoint", "cloud_logging"})
WORKER_SOURCES = ("gke", "cluster_profiles", "manager_secrets")
GKE_ENDPOINTS = ("public", "private", "dns")
GKE_NAME = re.compile(r"projects/[^/]+/(?:locations|zones)/(?P<location>[a-z0-9-]+)/clusters/[^/]+")
SECRET_LENGTH = 5
"""Shorter texts are not masked: masking them would hide half of every log line."""


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """One cluster as the connection gives it."""

    name: str
    form: Form
    value: str = field(repr=False)
    """Path, kubeconfig text, connection id or GKE resource name; "" in-cluster."""
    context: str | None = None
    region: str | None = None
    key: str
    """The connection's key that gave it, for error texts."""
    google_conn_id: str | None = None
    """The connection of type ``google_cloud_platform`` for a GKE cluster."""
    google: GoogleAccount | None = None
    """What that connection says, once it was read."""
    endpoint: str | None = None
    """Which of a GKE cluster's endpoints to use: "public", "private" or "dns"; None: the one that GKE names."""

    cloud_logging: bool = False
    """Whether Cloud Logging has the output of its pods, and may be read where they can't be."""

    @property
    def parts(self) -> list[object]:
        """Return what tells this way to a cluster from another one."""
        google = self.google.parts if self.google else self.google_conn_id
        return [self.name, self.form, self.value, self.context, self.region, google, self.endpoint, self.cloud_logging]

    @cached_property
    def content(self) -> object:
        """What the text of an inline kubeconfig holds, or the ValueError that says why it can't be read.

        Read once; as that can take a while, where nobody waits for the thread.
        """
        try:
            return plain_yaml(self.value)
        except ValueError as error:
            return error

    def secrets(self) -> set[str]:
        """Return the texts that must be masked wherever they appear; reads `content`."""
        inline = secret_leaves(self.content) if self.form is Form.INLINE else ()
        return {*inline, *(self.google.secrets() if self.google else ())}


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """A fleet as the connection gives it; its repr holds no secret."""

    conn_id: str
    manager: ClusterConfig
    workers: Mapping[str, ClusterConfig]
    workers_from: str | None = None
    """Where workers are found instead of listed: one of "gke", "cluster_profiles", "manager_secrets"."""
    namespace: str | None = None
    queue_name: str | None = None
    deployment: str | None = None
    gcp_conn_id: str | None = None
    """The connection of type ``google_cloud_platform`` for all GKE clusters that name no other."""
    google: GoogleAccount | None = None
    """What that connection says, once it was read."""
    gke_endpoint: str | None = None
    cloud_logging: bool = False
    """That of the workers that are found, not listed."""

    @classmethod
    def from_extra(cls, extra: Mapping[str, Any] | str | None, *, conn_id: str) -> FleetConfig:
        """Return the fleet that ``extra`` (mapping or JSON text) describes.

        Raises FleetConfigurationError that names the key, and the nearest one that there is.
        """
        connection = f"Connection {conn_id!r}"
        values = _present(_mapping(extra or {}, "extra", connection))
        _check_keys(values, MANAGER_KEYS, connection)
        workers = values.get("workers", {})
        listed = not (isinstance(workers, str) and workers.strip() in WORKER_SOURCES)
        google: dict[str, Any] = {key: _text(values, key, connection) for key in ("gcp_conn_id", "gke_endpoint")}
        google["cloud_logging"] = _flag(values.get("cloud_logging", False), "cloud_logging", connection)
        return cls(
            conn_id=conn_id,
            manager=_manager(values, connection),
            workers=MappingProxyType(_workers(workers, google, connection) if listed else {}),
            workers_from=None if listed else str(workers).strip(),
            namespace=_text(values, "namespace", connection),
            queue_name=_text(values, "queue_name", connection),
            deployment=_text(values, "deployment", connection),
            gcp_conn_id=google["gcp_conn_id"],
            gke_endpoint=_endpoint(google, connection),
            cloud_logging=google["cloud_logging"],
        )

    @cached_property
    def digest(self) -> str:
        """A text that is equal for two connections that lead to the same clusters in the same way."""
        clusters = (self.manager, *(self.workers[name] for name in sorted(self.workers)))
        found = [
            self.workers_from,
            self.gke_endpoint,
            self.cloud_logging,
            self.google.parts if self.google else self.gcp_conn_id,
        ]
        return hashlib.sha256(json.dumps([[c.parts for c in clusters], found]).encode()).hexdigest()

    def secrets(self) -> list[str]:
        """Return the texts that must be masked wherever they appear."""
        found = set(self.google.secrets() if self.google else ())
        found.update(*(cluster.secrets() for cluster in (self.manager, *self.workers.values())))
        return sorted((text for text in found if len(text) >= SECRET_LENGTH), key=len, reverse=True)


def _mapping(value: object, key: str, where: str) -> Mapping[str, Any]:
    """Return ``value`` as a mapping, read from JSON when it is text."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else {}
        except (ValueError, RecursionError):
            raise FleetConfigurationError(f"{where}: `{key}` is not valid JSON. Give a JSON object.") from None
    if not isinstance(value, Mapping):
        raise FleetConfigurationError(f"{where}: `{key}` must be a JSON object, not {type(value).__name__}.")
    return value


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are set; forms store what was left empty as "" or false."""
    return {
        str(key).removeprefix(FORM_PREFIX): value
        for key, value in values.items()
        if value not in (None, "", False) and not (isinstance(value, str) and not value.strip())
    }


def _check_keys(values: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean `{near[0]}`?" if near else f"Known keys: {', '.join(sorted(known))}."
            raise FleetConfigurationError(f"{where} has an unknown key `{key}`. {hint}")


def _text(values: Mapping[str, Any], key: str, where: str) -> str | None:
    value = values.get(key)
    if value is None or isinstance(value, str):
        return value.strip() if value else None
    raise FleetConfigurationError(f"{where}: `{key}` must be text, not {type(value).__name__}.")


def _flag(value: object, key: str, where: str) -> bool:
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off"):
        return False
    raise FleetConfigurationError(f"{where}: `{key}` must be true or false.")


def _manager(values: Mapping[str, Any], connection: str) -> ClusterConfig:
    return _cluster("manager", values, MANAGER_FORMS, f"{PREFIX}context", values, where=connection)


def _workers(value: object, fleet: Mapping[str, Any], connection: str) -> dict[str, ClusterConfig]:
    """Return the workers by the names of their MultiKueueClusters."""
    if isinstance(value, str) and value.strip()[:1] != "{":
        raise FleetConfigurationError(
            f"{connection}: `workers` must be a JSON object by MultiKueueCluster name, or one of "
            f"{', '.join(WORKER_SOURCES)}."
        )
    workers = {}
    for name, entry in _mapping(value, "workers", connection).items():
        where = f"{connection}, worker {name!r}"
        values = _present(_mapping(entry, f"workers.{name}", connection))
        if Form.INLINE in values:
            raise FleetConfigurationError(
                f"{where} has an inline `kube_config`, which is not taken: extras are shown in the UI. "
                "Give `kube_config_path`, `conn_id` or `gke_cluster`."
            )
        _check_keys(values, WORKER_KEYS, where)
        workers[name] = _cluster(name, values, WORKER_FORMS, "context", fleet, where=where)
    return workers


def _cluster(
    name: str,
    values: Mapping[str, Any],
    forms: Mapping[str, Form],
    context_key: str,
    fleet: Mapping[str, Any],
    *,
    where: str,
) -> ClusterConfig:
    """Return the cluster that exactly one of ``forms`` gives; ``fleet`` has what holds for all GKE clusters."""
    key = _form_key(name, values, forms, where)
    form = forms[key]
    context = _text(values, context_key, where)
    if context and form not in (Form.PATH, Form.INLINE):
        raise FleetConfigurationError(f"{where}: `{context_key}` goes with a kubeconfig, not with `{key}`.")
    value = _value(values, key, form, where)
    region = _text(values, "region", where) or (gke_region(value) if form is Form.GKE else None)
    logging = _flag(values.get("cloud_logging", fleet.get("cloud_logging", False)), "cloud_logging", where)
    if form is not Form.GKE and "cloud_logging" in values and fleet is not values and logging:
        raise FleetConfigurationError(f"{where}: `cloud_logging` goes with `gke_cluster`, not with `{key}`.")
    if form is not Form.GKE:
        return ClusterConfig(name=name, form=form, value=value, context=context, region=region, key=key)
    google = _text(values, _key_of(Form.CONN_ID, forms), where) or _text(fleet, "gcp_conn_id", where)
    endpoint = _endpoint(values, where) or _endpoint(fleet, where)
    return ClusterConfig(
        name=name,
        form=form,
        value=value,
        region=region,
        key=key,
        google_conn_id=google,
        endpoint=endpoint,
        cloud_logging=logging,
    )


def _form_key(name: str, values: Mapping[str, Any], forms: Mapping[str, Form], where: str) -> str:
    """Return the one key that says where the cluster is; a Google connection may go with a GKE cluster."""
    flags = {key for key, form in forms.items() if form is Form.IN_CLUSTER and key in values}
    unset = {key for key in flags if not _flag(values[key], key, where)}
    given = [key for key in forms if key in values and key not in unset]
    if sorted(forms[key] for key in given) == sorted((Form.CONN_ID, Form.GKE)):
        return _key_of(Form.GKE, forms)
    if len(given) != 1:
        have = ", ".join(f"`{key}`" for key in given) or "none of them"
        choice = ", ".join(f"`{key}`" for key in forms)
        raise FleetConfigurationError(
            f"{where} must say where the {name} is by exactly one of {choice}; it has {have}."
        )
    return given[0]


def _key_of(form: Form, forms: Mapping[str, Form]) -> str:
    return next(key for key in forms if forms[key] is form)


def _endpoint(values: Mapping[str, Any], where: str) -> str | None:
    endpoint = _text(values, "gke_endpoint", where)
    if endpoint is not None and endpoint not in GKE_ENDPOINTS:
        raise FleetConfigurationError(f"{where}: `gke_endpoint` must be one of {', '.join(GKE_ENDPOINTS)}.")
    return endpoint


def _value(values: Mapping[str, Any], key: str, form: Form, where: str) -> str:
    if form is Form.IN_CLUSTER:
        return ""
    if form is Form.INLINE and isinstance(values[key], Mapping):
        return _json(values[key], key, where)
    value = _text(values, key, where) or ""
    if form is Form.GKE and not GKE_NAME.fullmatch(value):
        raise FleetConfigurationError(
            f"{where}: `{key}` must be projects/PROJECT/locations/LOCATION/clusters/NAME, not {value!r}."
        )
    return value


def _json(value: object, key: str, where: str) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        raise FleetConfigurationError(f"{where}: `{key}` is not plain JSON. Give the kubeconfig as text.") from None


def gke_region(name: str) -> str | None:
    """Return the region of a GKE cluster's location, which is a region or a zone of one."""
    match = GKE_NAME.fullmatch(name)
    return re.sub(r"-[a-z]$", "", match["location"]) if match else None


def deployment_name(config: FleetConfig, *, base_url: str | None, manager_server: str) -> str:
    """Return the name of this Airflow, which is part of every job's identity.

    The connection's own, else host and path of Airflow's base URL, else "local" when the manager is on this machine.
    Raises FleetConfigurationError when none of these tells this Airflow from another one.
    """
    if config.deployment:
        return config.deployment
    url = urlsplit(base_url or "")
    if url.hostname and not _loopback(url.hostname):
        return f"{url.netloc.rpartition('@')[2].lower()}{url.path.rstrip('/')}"
    if _loopback(urlsplit(manager_server).hostname or ""):
        return "local"
    raise FleetConfigurationError(
        f"Connection {config.conn_id!r} does not say which Airflow this is, and its base URL "
        f"({base_url or 'not set'}) does not either: another Airflow on the same fleet could take its jobs for its "
        "own. "
        'Set `deployment` in the connection, for example "prod-eu", differently in each Airflow.'
    )


def _loopback(host: str) -> bool:
    if host.lower() in ("localhost", "0.0.0.0"):  # noqa: S104 - compared, not bound
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
