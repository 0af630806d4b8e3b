#!/usr/bin/env bash
# Diffusion forcing on the shipped depth-recurrent model, from one column at a time to a wide front: results/published/recurrent.
#   bash scripts/published/recurrent_curve.sh [RUNS_DIR] [REPORT_DIR] [SAMPLES_PER_TASK]
# About five minutes on one CPU core; interrupted, it resumes where it stopped.
set -euo pipefail
. "$(dirname "$0")/records.sh"
runs=${1:-results/runs/recurrent}
report=${2:-results/published/recurrent}
limit=${3:-50}
begin "$runs" "$report"
tasks=waiting_line/copy,waiting_line/reverse,waiting_line/shuffle,waiting_line/insert_index,waiting_line/remove_index,waiting_line/replace_index
common=(model=tiny_recurrent decoder=diffusion_forcing_prefix "suite.tasks=[$tasks]" "suite.lengths=[3,4,5]" limit="$limit" seed=2511 batch_size=1)
python -m parallelbench run -m "${common[@]}" decoder.wavefront=1 decoder.inner=4 decoder.eps=0 decoder.eta=0 out_dir="$runs"
python -m parallelbench run -m "${common[@]}" decoder.wavefront=2,4,8 decoder.inner=1,2 decoder.eps=0.03,0.1,0.3 out_dir="$runs"
page "$runs" "$report"
