"""What every benchmark is given, and the form of what it returns."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypedDict

from airflow_provider_multikueue.clusters.client import Cluster
from airflow_provider_multikueue.sandbox.api import Sandbox

__all__ = ["MANAGER_CONTEXT", "Benchmark", "Chart", "Context", "Results", "Row", "row"]

MANAGER_CONTEXT = "manager-europe-west4"


class Row(TypedDict):
    """One line of the table; numbers in ``unit``, None where something was not measured."""

    measure: str
    unit: str
    ours: float | None
    peer: float | None
    goal: str


class Chart(TypedDict):
    """One plot: lines by name, each a list of (x, y); both axes are logarithmic if ``log``."""

    title: str
    x: str
    y: str
    lines: dict[str, list[tuple[float, float]]]
    log: bool


class Results(TypedDict, total=False):
    """What a benchmark returns: plain JSON. ``raw`` is for whoever wants more than the table."""

    rows: list[Row]
    charts: dict[str, Chart]
    notes: list[str]
    raw: Any


class Benchmark(Protocol):
    """A module of this folder that is listed in ``__main__``."""

    def run(self, context: Context) -> Results:
        """Measure, and return what was measured."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The fleet to measure on, and how much to measure."""

    sandbox: Sandbox
    folder: Path
    """Where results go; benchmarks may leave files here."""
    sizes: tuple[int, ...]
    peer_sizes: tuple[int, ...]
    quick: bool = False
    attached: bool = False
    """Whether the fleet is somebody's, who wants it back as it was."""

    def say(self, text: str) -> None:
        """Tell whoever waits what is being done."""
        print(text, file=sys.stderr, flush=True)

    def environment(self) -> Mapping[str, str]:
        """Return the environment in which our provider and the peer's find the fleet."""
        peer = {
            "conn_type": "kubernetes",
            "extra": {"kube_config_path": str(self.sandbox.kubeconfig), "cluster_context": MANAGER_CONTEXT},
        }
        clean = {key: value for key, value in os.environ.items() if not key.startswith("AIRFLOW_")}
        home = self.folder / "airflow-home"
        return {
            **clean,
            **self.sandbox.env(),
            "AIRFLOW_HOME": str(home),
            "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(peer),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "PYTHONWARNINGS": "ignore",
        }

    @contextlib.asynccontextmanager
    async def cluster(self, context: str = MANAGER_CONTEXT) -> AsyncIterator[Cluster]:
        """Open one of the clusters as its admin."""
        path = str(self.sandbox.kubeconfig)
        async with await Cluster.from_kubeconfig(context, path=path, context=context) as cluster:
            yield cluster


def row(measure: str, unit: str, ours: float | None, peer: float | None = None, goal: str = "") -> Row:
    """Return a line of the table."""
    return {"measure": measure, "unit": unit, "ours": ours, "peer": peer, "goal": goal}
