#!/usr/bin/env bash
# What the shipped model can do with one token per step: 200 fresh samples per task, lists of 3 to 6 and of 7 to 10 people.
#   bash scripts/published/evaluate_tiny.sh [REPORT_DIR]
set -euo pipefail
. "$(dirname "$0")/records.sh"
report=${1:-results/published/tiny}
runs=results/runs/evaluate-tiny
begin "$runs" "$report"
run() { python -m parallelbench run decoder=fixed limit=200 seed=777 batch_size=50 "$@"; }
run suite=default out_dir="$runs/lists-3-6"
run suite=waiting_line suite.lengths=[7,8,9,10] gen_length=48 block_length=48 out_dir="$runs/lists-7-10"
page "$runs" "$report"
