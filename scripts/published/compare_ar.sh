#!/usr/bin/env bash
# The autoregressive baseline compared with the diffusion models of its size, one sample at a time: results/published/autoregressive.
#   bash scripts/published/compare_ar.sh [RUNS_DIR] [REPORT_DIR]
# About 6 minutes on one CPU core; interrupted, it resumes where it stopped. Seconds need an otherwise idle machine.
set -euo pipefail
. "$(dirname "$0")/records.sh"
runs=${1:-results/runs/autoregressive}
report=${2:-results/published/autoregressive}
begin "$runs" "$report"
common=(limit=20 batch_size=1 seed=3)
python -m parallelbench run model=tiny_ar decoder=ar "${common[@]}" out_dir="$runs/ar"
python -m parallelbench run model=tiny_ar decoder=prompt_lookup "${common[@]}" out_dir="$runs/prompt_lookup"
python -m parallelbench run -m decoder=fixed decoder.rule.k=1,4 "${common[@]}" out_dir="$runs"
python -m parallelbench run -m decoder=threshold decoder.rule.tau=0.5,0.7,0.9,0.95 "${common[@]}" out_dir="$runs"
python -m parallelbench run -m decoder=eb decoder.rule.gamma=0.05,0.1,0.5,1.0 "${common[@]}" out_dir="$runs"
python -m parallelbench run -m model=tiny_block cache=block block_length=8 stop=block_eos decoder=prefix decoder.rule.tau=0.9,0.99 \
  "${common[@]}" out_dir="$runs"
python -m parallelbench run model=tiny_dparallel decoder=entropy decoder.rule.theta=0.02 "${common[@]}" out_dir="$runs/dparallel"
page "$runs" "$report"
