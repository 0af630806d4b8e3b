#!/usr/bin/env bash
# The page on English again from the runs that are published beside it: no model, minutes of one CPU core.
#   bash scripts/published/render.sh [RUNS_DIR] [REPORT_DIR]
set -euo pipefail
runs=${1:-results/runs/english-page}
report=${2:-results/published/english}
mkdir -p "$runs"
[ -d "$runs/smollm2" ] || tar xJf "$report/runs.tar.xz" -C "$runs"
python -m parallelbench report "$runs/smollm2" out_dir="$report"
