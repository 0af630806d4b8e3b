#!/usr/bin/env bash
# Trains the shipped tiny-vision: a model of Dimple's layout from random weights, on questions about pictures of shapes.
#   bash scripts/train_tiny_vision.sh [OUT_DIR]
# About 20 minutes on one crowded CPU core; interrupted, it continues from its last checkpoint. The result is OUT_DIR/model.
set -euo pipefail
python scripts/train.py recipe=tiny_vision out_dir="${1:-results/runs/train-tiny-vision}"
