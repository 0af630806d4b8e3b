#!/usr/bin/env bash
# Every decoder over its knob's grid (conf/experiment) on the shipped model, and the page that compares them.
#   bash scripts/published/sweep_decoders.sh [REPORT_DIR] [SAMPLES_PER_TASK] [EXPERIMENT ...]
# Without names, all but the protocols of ParallelBench, which need its data. Interrupted, it resumes where it stopped. All
# take about 80 minutes on one core.
set -euo pipefail
. "$(dirname "$0")/records.sh"
report=${1:-results/published/decoders}
limit=${2:-50}
shift $(($# < 2 ? $# : 2))
runs=results/runs/decoders-$limit
begin "$runs" "$report"
[ $# -gt 0 ] || set -- $(basename -s .yaml conf/experiment/*.yaml | grep -v published)
for experiment in "$@"; do
  python -m parallelbench run -m experiment="$experiment" limit="$limit" batch_size=50 out_dir="$runs"
done
page "$runs" "$report"
