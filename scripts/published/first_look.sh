#!/usr/bin/env bash
# The first look: tokens per step, confidence thresholds and credit on the shipped model, and their report.
#   bash scripts/published/first_look.sh [REPORT_DIR] [SAMPLES_PER_TASK]
# Interrupted, it resumes where it stopped.
set -euo pipefail
. "$(dirname "$0")/records.sh"
report=${1:-results/published/first-look}
limit=${2:-200}
runs=results/runs/first-look-$limit
begin "$runs" "$report"
run() { python -m parallelbench run -m limit="$limit" batch_size=50 out_dir="$runs" "$@"; }
run decoder=fixed decoder.rule.k=1,2,4,8,16,all
run decoder=threshold decoder.rule.tau=0.5,0.6,0.7,0.8,0.9,0.95,0.99
run decoder=credit decoder.rule.tau=0.5,0.6,0.7,0.8,0.9,0.95,0.99
page "$runs" "$report"
