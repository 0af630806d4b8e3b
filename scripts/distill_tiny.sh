#!/usr/bin/env bash
# Distils the shipped model in rounds (dParallel): each model learns from the decodes of the one before.
#   bash scripts/distill_tiny.sh [OUT_DIR] [ROUNDS] [key=value ...]
# Trajectories by a threshold of 0.99: nearly the tokens of one per step, in a sixth of the forwards. Interrupted, it goes
# on where it was. With objective=mdlm, objective.certainty=0 or objective.consistency=0 (and another OUT_DIR) it makes
# the control and the ablations.
set -euo pipefail
out=${1:-results/runs/distill-tiny}
rounds=${2:-3}
shift $(($# < 2 ? $# : 2))
model=tiny
for round in $(seq "$rounds"); do
  [ -f "$out/$round/model/training.json" ] || python scripts/distill.py model=local model.name_or_path="$model" \
    decoder=threshold decoder.rule.tau=0.99 data_seed=$((2147484647 + round)) out_dir="$out/$round" \
    name="round-$round" threads=1 batch_size=16 fit.steps=300 "$@"
  model=$out/$round/model
done
