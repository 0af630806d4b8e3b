#!/usr/bin/env bash
# What caches cost in quality on the shipped model: one and four tokens per step and a threshold under each cache.
#   bash scripts/published/sweep_caches.sh [REPORT_DIR] [SAMPLES_PER_TASK]
# Interrupted, it resumes where it stopped. What they save in time: scripts/bench/cache.py.
set -euo pipefail
. "$(dirname "$0")/records.sh"
report=${1:-results/published/caches}
limit=${2:-50}
runs=results/runs/caches-$limit
begin "$runs" "$report"
caches=none,prefix,dual,vicinity,interval,prefill,delayed,delayed_prefill,greedy
run() { python -m parallelbench run -m limit="$limit" batch_size=50 out_dir="$runs" cache=$caches "$@"; }
run decoder=fixed decoder.rule.k=1,4
run decoder=threshold
page "$runs" "$report"
