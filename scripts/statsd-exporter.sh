#!/usr/bin/env bash
# Build the exporter that turns StatsD into Prometheus' metrics, once, and print the path of the program.
set -euo pipefail
cd "$(dirname "$0")/.."

version=v0.28.0
cache="${XDG_CACHE_HOME:-$HOME/.cache}/airflow-provider-multikueue"
folder="$cache/statsd_exporter-$version"

build() {
  local go
  go="$(.venv/bin/python -c '
import sys
from airflow_provider_multikueue.sandbox.toolchain import find_go
print(find_go(lambda text: print(text, file=sys.stderr)))')"
  echo "Building statsd_exporter $version (first time: about a minute)" >&2
  env GOBIN="$folder.partial" GOTOOLCHAIN=local GOFLAGS=-trimpath CGO_ENABLED=0 \
    "$go" install "github.com/prometheus/statsd_exporter@$version" >&2
  mv "$folder.partial" "$folder"
}

mkdir -p "$cache"
(
  flock 9
  [[ -x "$folder/statsd_exporter" ]] || build
) 9>"$cache/statsd-exporter.lock"
echo "$folder/statsd_exporter"
