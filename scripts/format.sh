#!/usr/bin/env bash
# Format the code and fix what the linter can fix by itself.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/ruff check --fix --exit-zero --quiet
.venv/bin/ruff format
