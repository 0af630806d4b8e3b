#!/usr/bin/env bash
# Makes the shipped tiny-dparallel: tiny, distilled on its own correct decodes, and beside it what the log compares it to.
#   bash scripts/distill_tiny.sh [OUT_DIR] [ablations]
# Trajectories by a threshold of 0.99, which commits as one token per step does where that matters, at a sixth of its
# forwards. Interrupted, it goes on from where it was. The result is OUT_DIR/full/model.
set -euo pipefail
out=${1:-results/runs/distill-tiny}
distill() {
  local name=$1
  shift
  python scripts/distill.py model=tiny decoder=threshold decoder.rule.tau=0.99 trajectories="$out/trajectories" \
    out_dir="$out/$name" name="$name" threads=1 batch_size=16 fit.steps=300 "$@"
}
distill full objective.mask_ratio=uniform
if [ "${2:-}" = ablations ]; then
  distill consistency objective.mask_ratio=uniform objective.certainty=0
  distill certainty objective.mask_ratio=uniform objective.consistency=0
  distill control objective=mdlm
fi
