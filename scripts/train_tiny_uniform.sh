#!/usr/bin/env bash
# Trains the shipped tiny-uniform: tiny, taught to see noise where it saw MASK, on answers of 32 columns, then a second
# stage with more Latin squares and random edits, which come last.
#   bash scripts/train_tiny_uniform.sh [OUT_DIR]
# About twenty minutes on one CPU core; interrupted, it continues from its last checkpoint. The result is OUT_DIR/second/model.
set -euo pipefail
out=${1:-results/runs/train-tiny-uniform}
train() {
  python scripts/train.py objective=uniform name=tiny-uniform threads=1 objective.content_fraction=0.5 \
    data.batch_size=32 '+data.response_lens=[32]' data.long_share=0.0 fit.save_every=200 fit.validate_every=300 "$@"
}
[ -f "$out/first/model/training.json" ] || train init=tiny out_dir="$out/first" \
  fit.steps=1200 fit.muon_lr=0.006 fit.adamw_lr=0.003 fit.decay=0.9
train init="$out/first/model" out_dir="$out/second" seed=1 data.seed=2147483649 \
  "data.weights={puzzle/latin_square_n4: 5.0, waiting_line/insert_random: 1.5, waiting_line/remove_random: 1.5, waiting_line/replace_random: 2.0}" \
  fit.steps=1500 fit.muon_lr=0.006 fit.adamw_lr=0.003 fit.decay=1.0
