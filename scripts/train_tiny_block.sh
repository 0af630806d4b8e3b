#!/usr/bin/env bash
# Trains the shipped tiny-block: tiny-ar's first stage turned into a block-diffusion LM, then all tasks in all their wordings.
#   bash scripts/train_tiny_block.sh [OUT_DIR] [FIRST_STAGE_OF_TINY_AR]
# About 95 minutes on one crowded core for the first stage and an hour for the second; interrupted, it goes on from its last
# checkpoint. The result is OUT_DIR/second/model.
set -euo pipefail
out=${1:-results/runs/train-tiny-block}
from=${2:-results/runs/train-tiny-ar/first/model}
[ -f "$out/first/model/training.json" ] || python scripts/train.py objective=block_diffusion objective.block_first=clean \
  objective.eos_fill=true objective.content_fraction=0.5 init="$from" 'spec={shift: 1, block: 8}' name=tiny-block threads=1 \
  fit.steps=8000 data.batch_size=32 out_dir="$out/first"
python scripts/train.py recipe=tiny_block out_dir="$out/second" init="$out/first/model"
