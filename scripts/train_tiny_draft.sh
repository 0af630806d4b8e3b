#!/usr/bin/env bash
# Trains the shipped tiny-draft: tiny-ar keeps its next-token mode and learns to draft after any column of its text.
#   bash scripts/train_tiny_draft.sh [OUT_DIR]
# About 25 minutes on one CPU core; interrupted, it continues from its last checkpoint. The result is OUT_DIR/model.
set -euo pipefail
python scripts/train.py objective=drafting init=tiny-ar name=tiny-draft threads=1 \
  'spec={shift: 1, block: 8, context_causal: true}' \
  data=tasks 'data.least_lens=[0]' objective.causal=1.0 objective.label=0.0 objective.tv=1.0 objective.kl=0.3 \
  'objective.groups=[4,8]' 'objective.group_weights=[0.3,0.7]' objective.anchors=8 \
  data.batch_size=16 fit.steps=3000 fit.muon_lr=0.004 fit.adamw_lr=0.002 fit.save_every=200 fit.validate_every=100 \
  out_dir="${1:-results/runs/train-tiny-draft}"
