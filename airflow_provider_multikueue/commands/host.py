"""What limits how many tasks a triggerer on this host can wait for: Airflow's own setting, and open files."""

from __future__ import annotations

import resource
from typing import Any

__all__ = ["host_limits", "judge_limits"]

FILES_WANTED = 4096
"""Waiting takes some twenty connections for however many tasks; each pod whose output is shown takes one more."""


def host_limits() -> dict[str, Any]:
    """Return how many tasks a triggerer with this host's configuration waits for, and how many files it may open."""
    from airflow_provider_multikueue._compat import AIRFLOW_2, conf

    option = "default_capacity" if AIRFLOW_2 else "capacity"  # until 2.11 goes
    capacity = conf.getint("triggerer", option, fallback=1000)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return judge_limits(capacity, files if files != resource.RLIM_INFINITY else None, option=option)


def judge_limits(capacity: int, files: int | None, *, option: str = "capacity") -> dict[str, Any]:
    """Return the limits (``files`` None: none) with what is worth saying about them."""
    findings = [
        {
            "level": "note",
            "text": f"a triggerer waits for at most {capacity:,} tasks at a time ([triggerer] {option}); further ones "
            "wait for their turn, and nobody follows their jobs meanwhile. Raise it, or run several triggerers.",
        }
    ]
    if files is not None and files < FILES_WANTED:
        text = (
            f"a process here may open {files:,} files (ulimit -n): each pod whose output is shown takes one in the "
            f"triggerer. Allow {FILES_WANTED:,} or more where triggerers run."
        )
        findings.append({"level": "warning", "text": text})
    return {"triggerer_capacity": capacity, "open_files": files, "findings": findings}
