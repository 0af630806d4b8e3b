#!/usr/bin/env bash
# Trains the shipped tiny-uniform: tiny, taught to see noise where it saw MASK, on answers of 32 columns.
#   bash scripts/train_tiny_uniform.sh [OUT_DIR]
# About eight minutes on one CPU core; interrupted, it goes on from its last checkpoint. The result is OUT_DIR/model.
set -euo pipefail
python scripts/train.py objective=uniform init=tiny name=tiny-uniform threads=1 objective.content_fraction=0.5 \
  data.batch_size=32 '+data.response_lens=[32]' data.long_share=0.0 \
  fit.steps=1200 fit.muon_lr=0.006 fit.adamw_lr=0.003 fit.decay=0.9 fit.save_every=200 fit.validate_every=300 \
  out_dir="${1:-results/runs/train-tiny-uniform}"
