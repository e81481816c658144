#!/usr/bin/env bash
# Run the tests.
#
#   scripts/test.sh          unit tests on both Airflow versions, then the core on a fleet, on Airflow 3.3
#   scripts/test.sh unit     the unit tests alone, on both versions
#   scripts/test.sh on-fleet the core on a fleet alone
#   scripts/test.sh broad    the tests with the marker broad, which CI runs too
#   scripts/test.sh long     these and the marked fleet; the others on Airflow 2.11 and with the accounts of deploy/rbac
#
# All parts are run, so that one round shows everything; fails if any part did.
set -uo pipefail
cd "$(dirname "$0")/.."

python="$PWD/.venv/bin/python"
python_2="$(scripts/environment.sh 2.11)" || exit
export MULTIKUEUE_TEST_AIRFLOW_2_PYTHON="$python_2"
failed=()

part() { # title, command...
  echo "== $1"
  "${@:2}" || failed+=("$1")
}

unit() {
  part "unit tests, Airflow 3.3" "$python" -m pytest tests/unit -n 2 --dist loadgroup --cov --cov-report= "$@"
  part "unit tests, Airflow 2.11" "$python_2" -m pytest tests/unit -n 2 --dist loadgroup "$@"
}

# One fleet for all parts that need one; the first time its programs are built, which shows its progress here.
fleet() {
  [[ -n "${MULTIKUEUE_TEST_SANDBOX:-}" ]] && return
  local name="test-$$"
  part "a fleet" "$python" -m airflow_provider_multikueue sandbox up --name "$name"
  trap '"$python" -m airflow_provider_multikueue sandbox down --name "'"$name"'" >/dev/null' EXIT
  export MULTIKUEUE_TEST_SANDBOX="$name"
}

on_fleet() {
  fleet
  part "tests on a fleet, Airflow 3.3" "$python" -m pytest tests/sandbox tests/airflow -m "not fleet and not broad" \
    --cov --cov-append --cov-report=term --durations=10 "$@"
}

# The tests with the marker fleet come in parts, so that the fleets of one are gone before the next.
faults=(tests/sandbox/test_faults_*.py)
kinds=(tests/sandbox/test_*kind*.py tests/airflow/test_jobset.py)
setups=(tests/sandbox/test_{setup,from_file}.py tests/airflow/test_{setup_operators,seed_tutorial}.py)

marked() { # what pytest takes of them
  "$python" -m pytest -m fleet --durations=10 "$@"
}

broad() {
  fleet
  part "broad tests on a fleet, Airflow 3.3" "$python" -m pytest tests/sandbox tests/airflow -m broad --durations=10 "$@"
}

long() {
  MULTIKUEUE_TEST_GOOGLE_PYTHON="$(scripts/environment.sh google)" || exit
  export MULTIKUEUE_TEST_GOOGLE_PYTHON
  part "faults of a fleet" marked "${faults[@]}" "$@"
  part "kinds of jobs" marked "${kinds[@]}" "$@"
  part "setting fleets up" marked "${setups[@]}" "$@"
  broad "$@"
  part "other long tests" marked tests/sandbox tests/airflow \
    "${faults[@]/#/--ignore=}" "${kinds[@]/#/--ignore=}" "${setups[@]/#/--ignore=}" "$@"
  part "tests on a fleet, Airflow 2.11" env "MULTIKUEUE_TEST_AIRFLOW_PYTHON=$python_2" \
    "$python" -m pytest tests/airflow -m "not fleet" --durations=10 "$@"
  part "tests with the accounts of deploy/rbac" env MULTIKUEUE_TEST_ACCOUNTS=shipped \
    "$python" -m pytest tests/sandbox tests/airflow -m "not fleet" --durations=10 "$@"
}

case "${1:-all}" in
  all)
    "$python" -m coverage erase
    unit
    on_fleet
    ;;
  unit) unit "${@:2}" ;;
  on-fleet) on_fleet "${@:2}" ;;
  broad) broad "${@:2}" ;;
  long) long "${@:2}" ;;
  *) echo "usage: scripts/test.sh [unit|on-fleet|broad|long] [pytest's options]" >&2; exit 2 ;;
esac

if ((${#failed[@]})); then
  printf 'failed: %s\n' "${failed[@]}" >&2
  exit 1
fi
