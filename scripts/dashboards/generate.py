"""Write deploy/monitoring's dashboards and alerts from their one description; `--check` only compares."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import alerts
import cloud_monitoring
import grafana
import yaml
from panels import ROWS

TARGET = Path(__file__).resolve().parents[2] / "deploy" / "monitoring"
_HEADER = "# Written by scripts/dashboards/generate.py.\n"


def files() -> dict[str, str]:
    """Return what each file is to contain."""
    return {
        "grafana-dashboard.json": _json(grafana.dashboard(ROWS)),
        "cloud-monitoring-dashboard.json": _json(cloud_monitoring.dashboard(ROWS)),
        "alerts.yaml": _yaml(alerts.rule_file(alerts.ALERTS)),
        "alerts-gmp.yaml": _yaml(alerts.global_rules(alerts.ALERTS)),
    }


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _yaml(content: dict[str, Any]) -> str:
    return _HEADER + yaml.safe_dump(content, sort_keys=False, width=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a file is not as it would be written")
    check = parser.parse_args().check
    stale = [name for name, text in files().items() if _read(TARGET / name) != text]
    if check:
        for name in stale:
            print(f"deploy/monitoring/{name} is not what its description says: run scripts/dashboards/generate.py")
        return 1 if stale else 0
    for name in stale:
        (TARGET / name).write_text(files()[name])
        print(f"wrote deploy/monitoring/{name}")
    return 0


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
