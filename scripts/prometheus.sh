#!/usr/bin/env bash
# Have a Prometheus, and print the path of its program; promtool is beside it.
#
# The one on PATH, or Debian's package, unpacked into the user's cache: nothing is installed, and no rights are needed.
set -euo pipefail

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
  command -v prometheus
  exit
fi

cache="${XDG_CACHE_HOME:-$HOME/.cache}/airflow-provider-multikueue"
folder="$cache/prometheus"
program="$folder/usr/bin/prometheus"

fetch() {
  local apt="$folder.partial/apt"
  rm -rf "$folder.partial"
  mkdir -p "$apt/lists/partial" "$apt/archives/partial"
  local options=(-qq -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt" -o APT::Sandbox::User=)
  echo "Fetching Debian's prometheus (first time: 20 MB)" >&2
  apt-get "${options[@]}" update >&2
  (cd "$folder.partial" && apt-get "${options[@]}" download prometheus >&2)
  dpkg-deb --extract "$folder.partial"/prometheus_*.deb "$folder.partial"
  rm -rf "$apt" "$folder.partial"/*.deb
  mv "$folder.partial" "$folder"
}

mkdir -p "$cache"
(
  flock 9
  [[ -x "$program" ]] || fetch
) 9>"$cache/prometheus.lock"
echo "$program"
