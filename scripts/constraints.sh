#!/usr/bin/env bash
# Choose the newest versions anew, for all environments, and write them to constraints/.
set -euo pipefail
cd "$(dirname "$0")/.."

python="$(scripts/environment.sh 3.3)"

resolve() { # environment, airflow version, uv's options and requirements
  local out="constraints/airflow-$1.txt"
  echo "Resolving the environment $1" >&2
  echo "# What the environment $1 of the tests has. Written by scripts/constraints.sh." >"$out.new"
  echo "apache-airflow==$2.*" | "$python" -m uv pip compile --quiet --universal --python-version 3.11 --no-header \
    --no-annotate --no-emit-index-url --no-emit-find-links --extra sandbox "${@:3}" pyproject.toml - >>"$out.new"
  mv "$out.new" "$out"
}

resolve 3.3 3.3 --group dev
resolve 2.11 2.11 --group test
resolve google 3.3 <(echo "apache-airflow-providers-google[cncf.kubernetes]")
