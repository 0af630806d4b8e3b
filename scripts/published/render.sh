#!/usr/bin/env bash
# The page on English again from the runs that are published beside it: no model, minutes of one CPU core.
#   bash scripts/published/render.sh [RUNS_DIR] [REPORT_DIR]
set -euo pipefail
runs=${1:-results/runs/english-page}
report=${2:-results/published/english}
mkdir -p "$runs"
if [ -f "$report/runs.tar.xz" ] && [ ! -d "$runs/smollm2" ]; then tar xJf "$report/runs.tar.xz" -C "$runs"; fi
python -m parallelbench report "$runs/smollm2" out_dir="$report"
