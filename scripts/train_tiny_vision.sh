#!/usr/bin/env bash
# Trains tiny-vision, which does not ship: a model of Dimple's layout from random weights, on questions about pictures of
# shapes, then a second stage with rates that are high again.
#   bash scripts/train_tiny_vision.sh [OUT_DIR]
# Took about 40 minutes on a tenth of a CPU core; interrupted, it goes on from its last checkpoint. The result is
# OUT_DIR/second/model.
set -euo pipefail
out=${1:-results/runs/train-tiny-vision}
[ -f "$out/first/model/training.json" ] || python scripts/train.py recipe=tiny_vision out_dir="$out/first"
python scripts/train.py recipe=tiny_vision init="$out/first/model" tokenizer=null out_dir="$out/second" \
  seed=1 data.seed=2147483649 fit.steps=1000 fit.muon_lr=0.01
