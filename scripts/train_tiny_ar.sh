#!/usr/bin/env bash
# Trains the shipped autoregressive baseline: tiny's tasks, tokenizer and size. Twelve tasks from random weights, then all
# tasks in all their wordings.
#   bash scripts/train_tiny_ar.sh [OUT_DIR]
# About two hours on one CPU core; interrupted, it continues from its last checkpoint. The result is OUT_DIR/second/model.
set -euo pipefail
out=${1:-results/runs/train-tiny-ar}
[ -f "$out/first/model/training.json" ] || python scripts/train.py objective=next_token \
  model._target_=dllm.training.scratch_causal name=tiny-ar threads=1 fit.steps=8000 out_dir="$out/first"
python scripts/train.py recipe=tiny_ar out_dir="$out/second" init="$out/first/model"
