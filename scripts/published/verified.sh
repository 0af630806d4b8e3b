#!/usr/bin/env bash
# Lossless and lossy decoders side by side, in forwards and in seconds, one sample at a time and eight:
# results/published/verified and results/published/verified/batch-8.
#   bash scripts/published/verified.sh [RUNS_DIR] [REPORT_DIR] [SAMPLES_PER_TASK]
# About 8 minutes on one CPU core; interrupted, it resumes where it stopped. Seconds need an otherwise idle machine.
set -euo pipefail
. "$(dirname "$0")/records.sh"
runs=${1:-results/runs/verified}
report=${2:-results/published/verified}
limit=${3:-20}
begin "$runs/batch-1" "$report"
begin "$runs/batch-8" "$report/batch-8"
sweep() { # BATCH_SIZE OPTIONS
  python -m parallelbench run -m "${@:2}" limit="$limit" seed=16 batch_size="$1" out_dir="$runs/batch-$1"
}
sweep 1 model=tiny decoder=fixed decoder.rule.k=1
sweep 1 model=tiny decoder=freedave decoder.states=2,4,8
sweep 1 model=tiny decoder=threshold decoder.rule.tau=0.5,0.7,0.9,0.95
sweep 1 model=tiny decoder=lopa decoder.branches=2,4 decoder.rule.tau=0.7,0.9,0.95
sweep 1 model=tiny decoder=linear_spec decoder.verifier=tiny-ar
sweep 1 model=tiny_ar decoder=ar,prompt_lookup
sweep 1 model=tiny_draft decoder=ar
sweep 1 model=tiny_draft decoder=linear_spec decoder.masks=4,8
sweep 1 model=tiny_draft decoder=self_spec decoder.next=last,all decoder.masks=4,8
sweep 8 model=tiny decoder=freedave,threshold,lopa
sweep 8 model=tiny_ar decoder=ar,prompt_lookup
sweep 8 model=tiny_draft decoder=ar,linear_spec
sweep 8 model=tiny_draft decoder=self_spec decoder.next=last,all
page "$runs/batch-1" "$report"
page "$runs/batch-8" "$report/batch-8"
