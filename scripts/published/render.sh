#!/usr/bin/env bash
# Pages again from the records that are published with them, with report.html and tasks.csv, which are not: no model,
# minutes of one CPU core for all.
#   bash scripts/published/render.sh [PAGE ...]
# PAGE: folders below results/published that hold runs.tar.xz, such as first-look or verified/batch-8; all of them if none
# is named.
set -euo pipefail
[ $# -gt 0 ] || set -- $(cd results/published && find . -name runs.tar.xz -printf '%h\n' | sort | cut -c3-)
for name in "$@"; do
  runs=results/runs/published/$name
  rm -rf "$runs" && mkdir -p "$runs"
  tar xJf "results/published/$name/runs.tar.xz" -C "$runs"
  python -m parallelbench report "$runs" out_dir="results/published/$name"
done
