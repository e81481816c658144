#!/usr/bin/env bash
# Choose the newest versions anew, for both Airflow versions, and write them to constraints/.
set -euo pipefail
cd "$(dirname "$0")/.."

python="$(scripts/environment.sh 3.3)"

resolve() { # airflow version, dependency group
  local out="constraints/airflow-$1.txt"
  echo "Resolving for Airflow $1" >&2
  echo "# What the tests of Airflow $1 run on. Written by scripts/constraints.sh." >"$out.new"
  echo "apache-airflow==$1.*" | "$python" -m uv pip compile --quiet --universal --python-version 3.11 --no-header \
    --no-annotate --no-emit-index-url --no-emit-find-links --extra sandbox --group "$2" pyproject.toml - >>"$out.new"
  mv "$out.new" "$out"
}

resolve 3.3 dev
resolve 2.11 test
