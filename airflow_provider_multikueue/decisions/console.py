"""Addresses that a browser can open: in the Google Cloud console, and of object storage.

The console shows a batch Job on a page of its own, with its pods. For the other kinds there is the list of what runs in
the job's namespace of the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlsplit

__all__ = ["job_url", "logs_filter", "logs_url", "storage_url"]

CONSOLE = "https://console.cloud.google.com/kubernetes"
LOGS = "https://console.cloud.google.com/logs/query"
JOB_LABELS = ("k8s-pod/airflow-provider-multikueue/job", "k8s-pod/batch_kubernetes_io/job-name")
"""Labels of log entries: those of the pod, with underscores for dots. The first is ours, the other a batch Job's."""
GKE_NAME = re.compile(r"projects/([^/]+)/(?:locations|zones)/([^/]+)/clusters/([^/]+)")


def job_url(gke_cluster: str | None, job: Mapping[str, Any]) -> str | None:
    """Return the console's address of a job (a report's ``job`` part) on a cluster; None without a GKE cluster.

    ``gke_cluster`` is a resource name, ``projects/PROJECT/locations/LOCATION/clusters/CLUSTER``.
    """
    match = GKE_NAME.fullmatch(gke_cluster or "")
    if match is None:
        return None
    project, location, cluster = (quote(part, safe="") for part in match.groups())
    namespace, name = (quote(str(job[key]), safe="") for key in ("namespace", "name"))
    if (job["kind"], str(job["api_version"]).partition("/")[0]) == ("Job", "batch"):
        return f"{CONSOLE}/job/{location}/{cluster}/{namespace}/{name}/details?project={project}"
    views = f'("savedViews":("c":["gke/{location}/{cluster}"],"n":["{namespace}"]))'
    return f"{CONSOLE}/workload/overview?project={project}&pageState={quote(views, safe='')}"


def logs_filter(gke_cluster: str, job: Mapping[str, Any]) -> str:
    """Return what selects the output of a job's pods on a GKE cluster in Cloud Logging's query language.

    Raises ValueError when ``gke_cluster`` is no resource name.
    """
    match = GKE_NAME.fullmatch(gke_cluster)
    if match is None:
        raise ValueError(f"{gke_cluster!r} is not projects/PROJECT/locations/LOCATION/clusters/CLUSTER")
    project, location, cluster = match.groups()
    resource = {
        "project_id": project,
        "location": location,
        "cluster_name": cluster,
        "namespace_name": str(job["namespace"]),
    }
    labels = " OR ".join(f"labels.{_quoted(label)}={_quoted(str(job['name']))}" for label in JOB_LABELS)
    where = [f"resource.labels.{key}={_quoted(value)}" for key, value in resource.items()]
    return "\n".join(['resource.type="k8s_container"', *where, f"({labels})"])


def logs_url(gke_cluster: str | None, job: Mapping[str, Any]) -> str | None:
    """Return where the console shows the output of a job's pods, whether they still exist or not."""
    match = GKE_NAME.fullmatch(gke_cluster or "")
    if match is None or gke_cluster is None:
        return None
    return f"{LOGS};query={quote(logs_filter(gke_cluster, job), safe='')}?project={quote(match[1], safe='')}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def storage_url(uri: str) -> str:
    """Return where a browser shows the objects below ``uri``: a console where there is one, else the URI itself.

    The Airflow connection that the URI may name is left out.
    """
    parts = urlsplit(uri)
    bucket, path = parts.netloc.rpartition("@")[2], quote(parts.path.strip("/"))
    if parts.scheme in ("gs", "gcs"):
        return f"https://console.cloud.google.com/storage/browser/{bucket}/{path}".rstrip("/")
    if parts.scheme in ("s3", "s3a"):
        return f"https://console.aws.amazon.com/s3/buckets/{bucket}?prefix={path}/"
    return parts._replace(netloc=bucket).geturl()
