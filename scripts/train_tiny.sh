#!/usr/bin/env bash
# Trains the shipped model: twelve tasks from random weights, a second stage with more Latin squares, which come last, a
# third with the text tasks, other wordings, wider responses and blocks, a fourth with more text, and a fifth with lists
# and text in balance.
#   bash scripts/train_tiny.sh [OUT_DIR]
# About an hour on two CPU cores for the first two stages, and six on one crowded core for the others; interrupted, it goes
# on from its last checkpoint. The result is OUT_DIR/fifth/model.
set -euo pipefail
out=${1:-results/runs/train-tiny}
[ -f "$out/first/model/training.json" ] || python scripts/train.py objective=mdlm out_dir="$out/first"
[ -f "$out/second/model/training.json" ] || python scripts/train.py objective=mdlm out_dir="$out/second" init="$out/first/model" seed=1 data.seed=2147483649 \
  "data.weights={puzzle/latin_square_n4: 8.0}" fit.steps=5000 fit.muon_lr=0.004 fit.adamw_lr=0.002 fit.decay=1.0
[ -f "$out/third/model/training.json" ] || python scripts/train.py recipe=tiny out_dir="$out/third" init="$out/second/model"
[ -f "$out/fourth/model/training.json" ] || python scripts/train.py recipe=tiny_text out_dir="$out/fourth" init="$out/third/model"
python scripts/train.py recipe=tiny_text out_dir="$out/fifth" init="$out/fourth/model" fit.steps=3000 seed=4 data.seed=2147483653 \
  objective.stale=0.4 "data.weights={waiting_line/sort: 1.6, waiting_line/shuffle: 1.8, waiting_line/insert_random: 0.8, waiting_line/remove_random: 0.6,
  waiting_line/replace_random: 1.0, text/words_to_sentence_easy: 3.0, text/words_to_sentence_medium: 2.0,
  text/words_to_sentence_hard: 2.0, text/paraphrase: 5.0, text/summary: 6.0}"
