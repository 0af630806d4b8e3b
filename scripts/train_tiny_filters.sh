#!/usr/bin/env bash
# Trains the shipped filters: learn2pd-tiny and agreement-tiny, on one recording of what tiny decodes.
#   bash scripts/train_tiny_filters.sh [OUT_DIR]
# About ten minutes on one CPU core; interrupted, it continues where it was. The results are OUT_DIR/block/filter and
# OUT_DIR/position/filter.
set -euo pipefail
out=${1:-results/runs/train-tiny-filters}
python scripts/collect_traces.py model=tiny decoder=oracle limit=5120 out_dir="$out/traces"
python scripts/train_filter.py recipe=minibatch filter=block traces=["$out/traces"] out_dir="$out/block"
python scripts/train_filter.py recipe=minibatch filter=position traces=["$out/traces"] fit.steps=6000 \
  out_dir="$out/position"
