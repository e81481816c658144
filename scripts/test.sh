#!/usr/bin/env bash
# Run the tests.
#
#   scripts/test.sh          unit tests on both Airflow versions, then all that needs a fleet, on Airflow 3.3
#   scripts/test.sh unit     the unit tests alone, on both versions
#   scripts/test.sh fleet    the long tests (marker fleet), on both versions
#
# All parts are run, so that one round shows everything; fails if any part did.
set -uo pipefail
cd "$(dirname "$0")/.."

python="$PWD/.venv/bin/python"
python_2="$(scripts/environment.sh 2.11)" || exit
failed=()

part() { # title, command...
  echo "== $1"
  "${@:2}" || failed+=("$1")
}

unit() {
  part "unit tests, Airflow 3.3" "$python" -m pytest tests/unit -n 2 --dist loadgroup --cov --cov-report= "$@"
  part "unit tests, Airflow 2.11" "$python_2" -m pytest tests/unit -n 2 --dist loadgroup "$@"
}

fleet_programs() {
  part "programs of the sandbox" "$python" -m airflow_provider_multikueue sandbox build
}

case "${1:-all}" in
  all)
    "$python" -m coverage erase
    unit
    fleet_programs
    part "tests on a fleet, Airflow 3.3" "$python" -m pytest tests/sandbox tests/airflow -m "not fleet" \
      --cov --cov-append --cov-report=term --durations=10
    ;;
  unit) unit "${@:2}" ;;
  fleet)
    fleet_programs
    part "long tests, Airflow 2.11" "$python_2" -m pytest tests -m fleet --durations=10 "${@:2}"
    part "long tests, Airflow 3.3" "$python" -m pytest tests -m fleet --durations=10 "${@:2}"
    ;;
  *) echo "usage: scripts/test.sh [unit|fleet] [pytest's options]" >&2; exit 2 ;;
esac

if ((${#failed[@]})); then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
