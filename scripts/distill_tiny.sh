#!/usr/bin/env bash
# Distils the shipped model in rounds (dParallel), which gave `tiny-dparallel`: each model learns from the decodes of the one
# before.
#   bash scripts/distill_tiny.sh [OUT_DIR] [ROUNDS] [key=value ...]
# About 15 minutes a round on one idle core; interrupted, it continues where it was. All tasks, 250 prompts each; of the text
# tasks it learns the answers of score 1 alone. Trajectories by a threshold of 0.99: nearly the tokens of one per step, in a
# sixth of the forwards. The weight of certainty is small until the answers have become one.
# Keys of the objective replace all of these: objective=mdlm is the control, objective.certainty=0 and
# objective.consistency=0 are the ablations, each with an OUT_DIR of its own.
set -euo pipefail
out=${1:-results/runs/distill-tiny}
rounds=${2:-3}
shift $(($# < 2 ? $# : 2))
model=tiny
for round in $(seq "$rounds"); do
  objective=("objective.certainty=$([ "$round" -lt 3 ] && echo 0.5 || echo 1)")
  [[ " $*" == *" objective"* ]] && objective=()
  [ -f "$out/$round/model/training.json" ] || python scripts/distill.py model=local model.name_or_path="$model" \
    decoder=threshold decoder.rule.tau=0.99 data_seed=$((2147484647 + round)) out_dir="$out/$round" name="round-$round" \
    threads=1 recipe=dparallel_tiny suite=all gen_length=64 block_length=64 limit=250 fit.steps=500 "${objective[@]}" "$@"
  model=$out/$round/model
done
