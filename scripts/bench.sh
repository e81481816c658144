#!/usr/bin/env bash
# Measure what importing the operators costs on top of Airflow's SDK: median of seven runs, in milliseconds of CPU time.
set -euo pipefail
cd "$(dirname "$0")/.."

cost() { # Python of one environment
  local _
  for _ in 1 2 3 4 5 6 7; do
    "$1" -W ignore - <<'PYTHON'
import time

from airflow.providers.common.compat.sdk import BaseHook, BaseOperator, BaseSensorOperator

start = time.process_time()
import airflow_provider_multikueue.operators

print(round((time.process_time() - start) * 1000, 1))
PYTHON
  done | sort -n | sed -n 4p
}

for airflow in 3.3 2.11; do
  python="$(scripts/environment.sh "$airflow")"
  echo "import of the operators, Airflow $airflow: $(cost "$python") ms"
done
for benchmark in benchmarks/*.py; do
  [[ -e "$benchmark" ]] || { echo "Benchmarks of waiting: none yet."; break; }
  .venv/bin/python "$benchmark"
done
