"""A real Prometheus on loopback that scrapes a fleet's Kueue as the fleet's own PodMonitoring says."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_multikueue.sandbox.api import Sandbox
from airflow_provider_multikueue.sandbox.fleet_file import fleet_file
from airflow_provider_multikueue.sandbox.spec import FleetSpec
from airflow_provider_multikueue.setup.description import parse
from airflow_provider_multikueue.setup.monitoring import monitoring_objects

ROOT = Path(__file__).parents[1]
MONITORING = ROOT / "deploy" / "monitoring"
SCRAPE_SECONDS = 1


def program(script: str) -> Path:
    """Return the program that one of the project's scripts installs."""
    done = subprocess.run([ROOT / "scripts" / script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def free_port() -> int:
    """Return a port on loopback that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kueue_clusters(fleet: Sandbox) -> dict[str, tuple[str, str]]:
    """Return context and region of each cluster, by the fleet's own name for it."""
    workers = {worker.region: (worker.context, worker.region) for worker in fleet.spec.workers}
    return {"manager": (fleet.spec.manager_context, "europe-west4"), **workers}


def manifest(key: str) -> list[dict[str, Any]]:
    """Return what setting a fleet up makes on the manager, or on a worker, so that its metrics are collected.

    A unit test holds deploy/monitoring to the same.
    """
    described = parse(fleet_file(FleetSpec(bare=True), Path("kubeconfig")), where="the sandbox")
    return monitoring_objects(described, "manager" if key == "manager" else "worker")


def scrape_config(fleet: Sandbox, key: str, token: str) -> dict[str, Any]:
    """Return what Google's collector makes of the PodMonitoring, for the Kueue of one cluster.

    The labels are those that it forces on each target; a label of Kueue's own that clashes becomes ``exported_...``.
    """
    monitoring = next(each for each in manifest(key) if each["kind"] == "PodMonitoring")
    (endpoint,) = monitoring["spec"]["endpoints"]
    context, region = kueue_clusters(fleet)[key]
    configuration = json.loads((fleet.folder / "run" / f"{key}-kueue" / "configuration.json").read_text())
    name = monitoring["metadata"]["name"]
    labels = {
        "job": name,
        "project_id": "sandbox",
        "location": region,
        "cluster": context,
        "namespace": monitoring["metadata"]["namespace"],
    }
    return {
        "job_name": f"{name}-{key}",
        "scheme": endpoint["scheme"],
        "authorization": {"type": endpoint["authorization"]["type"], "credentials": token},
        "tls_config": {"insecure_skip_verify": endpoint["tls"]["insecureSkipVerify"]},
        "static_configs": [{"targets": [configuration["metrics"]["bindAddress"]], "labels": labels}],
        "metric_relabel_configs": [
            {"source_labels": each["sourceLabels"], "regex": each["regex"], "action": each["action"]}
            for each in endpoint["metricRelabeling"]
        ],
    }


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that runs, by the address of its API."""

    url: str

    def get(self, path: str, **parameters: str | float) -> Any:
        """Return ``data`` of an answer; AssertionError with Prometheus' own words if it refuses."""
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from error

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Return the series of an expression as they are now, each with labels and value."""
        found: list[dict[str, Any]] = self.get("query", query=expr)["result"]
        return found

    def value(self, expr: str) -> float:
        """Return the sum of an expression's values; 0 without any."""
        return sum(float(each["value"][1]) for each in self.query(expr))


@contextmanager
def running(folder: Path, scrapes: list[dict[str, Any]], rules: Path) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes every second and evaluates the alerts."""
    configuration = {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"},
        "rule_files": [str(rules)],
        "scrape_configs": scrapes,
    }
    file = folder / "prometheus.yml"
    file.touch(mode=0o600)
    file.write_text(json.dumps(configuration))
    address = f"127.0.0.1:{free_port()}"
    command = [
        program("prometheus.sh"),
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with (folder / "prometheus.log").open("wb") as log, started(command, log):
        prometheus = Prometheus(f"http://{address}")
        until(lambda: _ready(prometheus), within=30, what=f"Prometheus to be ready, see {folder / 'prometheus.log'}")
        yield prometheus


@contextmanager
def started(command: list[Any], log: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for the length of the block."""
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def until(done: Callable[[], object], *, within: float, what: str) -> None:
    """Wait until ``done()`` is true."""
    deadline = time.monotonic() + within
    while not done():
        assert time.monotonic() < deadline, f"waited {within:g} s for {what}"
        time.sleep(0.25)


def _ready(prometheus: Prometheus) -> bool:
    try:
        with urllib.request.urlopen(f"{prometheus.url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def labels_of(exposition: str) -> Mapping[str, set[str]]:
    """Return the labels that each metric of an endpoint's text has."""
    found: dict[str, set[str]] = {}
    for line in exposition.splitlines():
        if (parts := re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? ", line)) and not line.startswith("#"):
            found.setdefault(parts[1], set()).update(re.findall(r'(\w+)="', parts[2] or ""))
    return found
