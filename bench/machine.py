"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

__all__ = ["describe"]

PACKAGES = (
    "airflow-provider-multikueue",
    "apache-airflow",
    "apache-airflow-providers-cncf-kubernetes",
    "aiohttp",
    "kubernetes",
    "kubernetes_asyncio",
)


def describe() -> dict[str, object]:
    """Return processor, memory, load, versions and revision."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": _field("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "revision": _revision(),
    }


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "unknown"


def _revision() -> str:
    asked = subprocess.run(("git", "describe", "--always", "--dirty"), capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"
