#!/usr/bin/env bash
# What was learned compared with what was not, on the shipped models and fresh samples: results/published/learned.
#   bash scripts/published/learned.sh [RUNS_DIR] [REPORT_DIR] [SAMPLES_PER_TASK] [ABLATION ...]
# About 40 minutes; interrupted, it resumes where it stopped. ABLATION: full, consistency, certainty or control, one round of
# dParallel with both parts of its loss, with one of them, and plain training on the same decodes. They are not shipped: each
# that is named is trained first, about 15 minutes on an idle core.
set -euo pipefail
. "$(dirname "$0")/records.sh"
runs=${1:-results/runs/learned}
report=${2:-results/published/learned}
limit=${3:-100}
shift $(($# < 3 ? $# : 3))
begin "$runs" "$report"
declare -A changed=([full]="" [consistency]="objective.certainty=0" [control]="objective=mdlm"
  [certainty]="objective.certainty=0.5 objective.consistency=0")
for name in "$@"; do
  bash scripts/distill_tiny.sh "results/runs/distill-$name" 1 ${changed[$name]}
done

sweep() {
  python -m parallelbench run -m launcher=local "$@" limit="$limit" seed=2511 batch_size=50 out_dir="$runs"
}
sweep decoder=threshold decoder.rule.tau=0.5,0.6,0.7,0.8,0.85,0.9,0.95,0.99
sweep decoder=factor decoder.rule.factor=0.25,0.5,0.75,1.0,1.5
sweep decoder=credit decoder.rule.tau=0.7,0.8,0.9,0.95,0.99
sweep decoder=eb decoder.rule.gamma=0.02,0.05,0.1,0.2,0.5
sweep decoder=oracle
sweep decoder=learn2pd decoder.rule.tau=0.8,0.9,0.96,0.98,0.99,0.995
sweep decoder=agreement decoder.rule.tau=0.8,0.9,0.95,0.97,0.98,0.99,0.995
sweep model=tiny_dparallel decoder=entropy decoder.rule.theta=0.02,0.05,0.1,0.2,0.5
sweep model=tiny_dparallel decoder=eb decoder.rule.gamma=0.02,0.05,0.1
for name in "$@"; do
  sweep model=local model.name_or_path=results/runs/distill-$name/1/model decoder=entropy decoder.rule.theta=0.02,0.1,0.5
done
sweep decoder=entropy decoder.rule.theta=0.1,0.25,0.5,0.75
sweep decoder=prefix decoder.rule.tau=0.8,0.9,0.95,0.99
block=(model=tiny_block block_length=8 stop=block_eos)
sweep "${block[@]}" cache=block decoder=prefix decoder.rule.tau=0.8,0.9,0.95,0.98,0.99,0.998
sweep "${block[@]}" cache=block decoder=threshold decoder.rule.tau=0.7,0.9,0.99
sweep "${block[@]}" cache=block decoder=left decoder.rule.k=1
sweep "${block[@]}" cache=none decoder=prefix decoder.rule.tau=0.99
sweep model=tiny_block stop=block_eos cache=sub_block block_length=4 decoder=prefix decoder.rule.tau=0.99
sweep model=tiny_ar decoder=ar
for length in 64 128; do # EoTP, where the canvas is 4 and 8 times as long as an answer
  sweep decoder=threshold gen_length=$length block_length=$length stop=strict_eos,eotp_committed
  sweep decoder=threshold gen_length=$length block_length=$length stop=eotp stop.order=committed
done
page "$runs" "$report"
