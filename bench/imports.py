"""What the provider costs where nothing is waited for: importing it, and parsing DAG files that use it."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Mapping

from bench.context import Context, Results, row

__all__ = ["run"]

RUNS = 7
OPERATORS = 500
SDK = "from airflow.providers.common.compat.sdk import BaseHook, BaseOperator, BaseSensorOperator"
OURS = "import airflow_provider_multikueue.operators"
PEER = "import airflow.providers.cncf.kubernetes.operators.job"
TIMED = "import time\n{before}\nstart = time.process_time()\n{timed}\nprint(1000 * (time.process_time() - start))"
DAG = """
with DAG("bench", schedule=None):
    for number in range({count}):
        {operator}
"""
OUR_OPERATOR = 'MultiKueueJobOperator(task_id=f"train-{number}", job="train.yaml", deferrable=True)'
PEER_OPERATOR = 'KubernetesJobOperator(task_id=f"train-{number}", name="train", image="busybox", deferrable=True)'


def run(context: Context) -> Results:
    """Measure processor time in processes of their own; the median of several."""
    runs = 3 if context.quick else RUNS
    environment = context.environment()
    dag = f"{SDK}\nfrom airflow.sdk import DAG\n"
    ours, peer = (
        {
            "import": _median(runs, environment, SDK, module),
            "parse": _median(
                runs, environment, f"{dag}{module.replace('import ', 'from ')} import {name}", _dag(operator)
            ),
        }
        for module, name, operator in (
            (OURS, "MultiKueueJobOperator", OUR_OPERATOR),
            (PEER, "KubernetesJobOperator", PEER_OPERATOR),
        )
    )
    return {
        "rows": [
            row("import of the operators, above Airflow's SDK", "ms", ours["import"], peer["import"], "< 50"),
            row(f"parsing a DAG of {OPERATORS} operators", "ms", ours["parse"], peer["parse"]),
        ],
        "notes": [f"Processor time, median of {runs} processes. Parsing: without the imports."],
        "raw": {"ours": ours, "peer": peer},
    }


def _dag(operator: str) -> str:
    return DAG.format(count=OPERATORS, operator=operator)


def _median(runs: int, environment: Mapping[str, str], before: str, timed: str) -> float:
    return statistics.median(_timed(environment, TIMED.format(before=before, timed=timed)) for _ in range(runs))


def _timed(environment: Mapping[str, str], program: str) -> float:
    command = (sys.executable, "-W", "ignore", "-c", program)
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])
