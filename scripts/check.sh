#!/usr/bin/env bash
# Format, lint, types, layers. All four are run, so that one round shows everything; fails if any did.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
step() {
  echo "== $1"
  shift
  "$@" || failed+=("$1")
}

step format .venv/bin/ruff format --check --quiet
step lint .venv/bin/ruff check --quiet
step types .venv/bin/mypy
step layers .venv/bin/lint-imports --no-logo

if ((${#failed[@]})); then
  echo "check failed: ${failed[*]##*/}" >&2
  exit 1
fi
echo "check passed"
