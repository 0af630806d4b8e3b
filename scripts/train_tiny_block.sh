#!/usr/bin/env bash
# Trains the shipped tiny-block: tiny-ar turned into a block-diffusion LM; then groups of blocks that are masked together,
# with longer lists; then the same with more Latin squares.
#   bash scripts/train_tiny_block.sh [OUT_DIR] [TINY_AR]
# About five and a half hours of one crowded core. Interrupted, it continues from its last checkpoint. The result is OUT_DIR/third/model.
set -euo pipefail
out=${1:-results/runs/train-tiny-block}
from=${2:-tiny-ar}
stage() { python scripts/train.py recipe=tiny_block "$@"; }
stage init="$from" 'spec={shift: 1, block: 8}' out_dir="$out/first"
stage init="$out/first/model" objective.group=4 data.long_share=0.25 fit.steps=5000 out_dir="$out/second"
stage init="$out/second/model" objective.group=4 data.long_share=0.2 'data.weights={puzzle/latin_square_n4: 5.0}' \
  fit.steps=6000 out_dir="$out/third"
