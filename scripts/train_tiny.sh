#!/usr/bin/env bash
# Trains the shipped model: twelve tasks from random weights, a second stage with more Latin squares, which come last, a
# third with the text tasks, other wordings, wider responses and blocks, and a fourth with more text.
#   bash scripts/train_tiny.sh [OUT_DIR]
# The shipped weights are those of the second stage. About an hour on two CPU cores for the first two stages, and five on
# one crowded core for the others; interrupted, it goes on from its last checkpoint. The result is OUT_DIR/fourth/model.
set -euo pipefail
out=${1:-results/runs/train-tiny}
[ -f "$out/first/model/training.json" ] || python scripts/train.py objective=mdlm out_dir="$out/first"
[ -f "$out/second/model/training.json" ] || python scripts/train.py objective=mdlm out_dir="$out/second" init="$out/first/model" seed=1 data.seed=2147483649 \
  "data.weights={puzzle/latin_square_n4: 8.0}" fit.steps=5000 fit.muon_lr=0.004 fit.adamw_lr=0.002 fit.decay=1.0
[ -f "$out/third/model/training.json" ] || python scripts/train.py recipe=tiny out_dir="$out/third" init="$out/second/model"
python scripts/train.py recipe=tiny_text out_dir="$out/fourth" init="$out/third/model"
