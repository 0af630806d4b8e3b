#!/usr/bin/env bash
# Trains the shipped model: all tasks from random weights, then a second stage with more Latin squares, which come last.
#   bash scripts/train_tiny.sh [OUT_DIR]
# About an hour on two CPU cores; interrupted, it goes on from its last checkpoint. The result is OUT_DIR/second/model.
set -euo pipefail
out=${1:-results/runs/train-tiny}
[ -f "$out/first/model/training.json" ] || python scripts/train.py objective=mdlm out_dir="$out/first"
python scripts/train.py objective=mdlm out_dir="$out/second" init="$out/first/model" seed=1 data.seed=2147483649 \
  "data.weights={puzzle/latin_square_n4: 8.0}" fit.steps=5000 fit.muon_lr=0.004 fit.adamw_lr=0.002 fit.decay=1.0
