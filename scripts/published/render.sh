#!/usr/bin/env bash
# The page on English again from the runs that are published beside it: no model, minutes of one CPU core.
#   bash scripts/published/render.sh [REPORT_DIR]
set -euo pipefail
report=${1:-results/published/english}
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
tar xJf "$report/runs.tar.xz" -C "$runs"
cd "$runs" # so that folders are named alike everywhere
PYTHONPATH=${PYTHONPATH:-$OLDPWD} python -m parallelbench report smollm2 out_dir="$OLDPWD/$report"
