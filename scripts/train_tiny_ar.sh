#!/usr/bin/env bash
# Trains the shipped autoregressive baseline: tiny's tasks, tokenizer and size.
#   bash scripts/train_tiny_ar.sh [OUT_DIR]
# About an hour on one CPU core; interrupted, it goes on from its last checkpoint. The result is OUT_DIR/model.
set -euo pipefail
python scripts/train.py objective=next_token model._target_=dllm.training.scratch_causal name=tiny-ar threads=1 \
  fit.steps=8000 out_dir="${1:-results/runs/train-tiny-ar}"
