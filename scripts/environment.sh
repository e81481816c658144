#!/usr/bin/env bash
# Make, or bring up to date, one of the virtual environments, and print the path of its Python.
#
#   scripts/environment.sh 3.3     .venv here: Airflow 3.3, all development tools
#   scripts/environment.sh 2.11    in the user's cache: Airflow 2.11, what the tests need
#   scripts/environment.sh google  in the user's cache: Airflow 3.3 with the Google provider, for the tutorial alone:
#                                  that provider does not go together with what the tests need
#
# The versions come from constraints/. Nothing is done when nothing changed since the last time.
set -euo pipefail
cd "$(dirname "$0")/.."

name="${1:?usage: scripts/environment.sh 3.3|2.11|google}"
airflow="$name" constraints="constraints/airflow-$name.txt"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/airflow-provider-multikueue"
case "$name" in
  3.3) folder="$PWD/.venv" more=(--group dev) ;;
  2.11) folder="$cache/venv-2.11" more=(--group test) ;;
  google) folder="$cache/venv-google" airflow=3.3 more=("apache-airflow-providers-google[cncf.kubernetes]") ;;
  *) echo "No environment $name: constraints/ has airflow-3.3, airflow-2.11 and airflow-google." >&2; exit 2 ;;
esac

say() { echo "$@" >&2; }

# Airflow 2.11 ends at Python 3.12, and the project begins at 3.11.
find_python() {
  local newest=14 candidate
  [[ "$airflow" == 2.11 ]] && newest=12
  for candidate in python3 python3.12 python3.11 python3.13; do
    if "$candidate" -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, $newest))" 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  say "Airflow $airflow needs Python 3.11 to 3.$newest: put one on PATH, as python3 or python3.12."
  return 1
}

install() {
  local python="$folder/bin/python"
  if [[ ! -x "$python" ]]; then
    say "Making the environment $name"
    "$(find_python)" -m venv "$folder"
  fi
  if ! "$python" -m uv --version >/dev/null 2>&1; then
    "$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip --upgrade >/dev/null
    "$python" -m pip install --quiet --disable-pip-version-check --constraint "$constraints" uv >&2
  fi
  say "Installing packages of the environment $name (first time: a minute or two)"
  "$python" -m uv pip install --quiet --python "$python" --constraint "$constraints" \
    "${more[@]}" --editable ".[sandbox]" "apache-airflow==$airflow.*" >&2
}

mkdir -p "$cache"
stamp="$folder/.installed"
wanted="$(sha256sum pyproject.toml "$constraints" scripts/environment.sh airflow_provider_multikueue/__init__.py) $PWD"
(
  flock 9
  if [[ ! -x "$folder/bin/python" || "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]]; then
    install
    echo "$wanted" >"$stamp"
  fi
) 9>"$cache/environment-$name.lock"
echo "$folder/bin/python"
