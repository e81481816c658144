"""A sandbox from a fleet file: its regions, queues, quotas, teams and priorities, on clusters of this machine.

The clusters that the file names, and where it has Kueue from, are replaced by the sandbox's own. All else is made as
``multikueue fleet apply`` makes it anywhere.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.sandbox.access import CONNECTION
from airflow_provider_multikueue.sandbox.api import Sandbox
from airflow_provider_multikueue.sandbox.components import KUEUE_VERSIONS
from airflow_provider_multikueue.sandbox.files import write_private
from airflow_provider_multikueue.sandbox.fleet_file import RELEASE
from airflow_provider_multikueue.sandbox.paths import SandboxError
from airflow_provider_multikueue.sandbox.spec import FleetSpec

__all__ = ["kueue_of", "read_fleet", "regions_of", "set_up", "with_clusters_of"]

Content = dict[str, Any]

_OF_CLUSTERS = ("server", "authority", "cluster_profile")
"""What a file says of workers that holds for its own clusters alone."""


def read_fleet(path: Path) -> Content:
    """Return what a fleet file holds; SandboxError that says what is wrong with it."""
    import yaml

    from airflow_provider_multikueue.exceptions import FleetConfigurationError
    from airflow_provider_multikueue.setup.source import read_fleet_file

    try:
        read_fleet_file(path)
    except FleetConfigurationError as error:
        raise SandboxError(str(error)) from error
    content: Content = yaml.safe_load(path.read_text("utf-8"))
    return content


def regions_of(content: Content) -> tuple[str, ...]:
    """Return the workers' regions; SandboxError when two workers share one."""
    regions = tuple(each["region"] for each in content["workers"].values())
    if len(set(regions)) != len(regions):
        raise SandboxError(
            f"The sandbox has one worker in each region, and the fleet file has several in one: {', '.join(regions)}."
        )
    return regions


def kueue_of(content: Content) -> str | None:
    """Return the version of Kueue that the file names, if the sandbox has it."""
    version = content.get("kueue", {}).get("version")
    return version if version in KUEUE_VERSIONS else None


def with_clusters_of(content: Content, spec: FleetSpec, folder: Path) -> Content:
    """Return the fleet file for the clusters of the bare sandbox in ``folder``."""
    contexts = {worker.region: worker.context for worker in spec.workers}

    def cluster(context: str) -> Content:
        return {"cluster": {"kube_config_path": str(folder / "kubeconfig"), "context": context}}

    kept = {key: value for key, value in content.items() if key not in ("gcp_conn_id", "project")}
    if kept.get("credentials", {}).get("form") == "cluster_profile":  # the profiles lead to the file's clusters
        del kept["credentials"]
    workers = {
        name: {
            **{key: value for key, value in each.items() if key not in _OF_CLUSTERS},
            **cluster(contexts[each["region"]]),
        }
        for name, each in content["workers"].items()
    }
    kueue = {"version": spec.kueue, "manifests": str(folder / RELEASE), "install": True}
    return {
        **kept,
        "manager": {**content["manager"], **cluster(spec.manager_context)},
        "workers": workers,
        "kueue": {**content.get("kueue", {}), **kueue},
    }


def set_up(sandbox: Sandbox, content: Content, *, progress: Callable[[str], None] = lambda _: None) -> None:
    """Make the fleet on a bare sandbox; its fleet file and its connection are the fleet's from then on."""
    fleet = with_clusters_of(content, sandbox.spec, sandbox.folder)
    write_private(sandbox.fleet_file, json.dumps(fleet, indent=1))
    _run(sandbox, "apply", progress)
    connection = json.loads(_run(sandbox, "connection", lambda _: None))
    connection["extra"]["deployment"] = f"sandbox-{sandbox.name}"
    write_private(sandbox.folder / CONNECTION, json.dumps(connection, indent=1))


def _run(sandbox: Sandbox, action: str, progress: Callable[[str], None]) -> str:
    """Run ``multikueue fleet`` on the sandbox's file and return what it printed."""
    command = [sys.executable, "-m", "airflow_provider_multikueue", "fleet", action, "-f", str(sandbox.fleet_file)]
    printed: list[str] = []
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True) as process:
            for line in process.stdout or ():
                printed.append(line)
                progress(line.rstrip())
        if process.returncode:
            said.seek(0)
            raise SandboxError(
                f"The fleet could not be made on the sandbox {sandbox.name!r}, which stays up as it is:\n{said.read()}"
            )
    return "".join(printed)
