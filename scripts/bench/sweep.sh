#!/usr/bin/env bash
# What `launcher=local` saves: 24 configurations on the shipped model as one sweep, and as 24 processes one after the other.
#   bash scripts/bench/sweep.sh [RUNS_DIR] [SAMPLES_PER_TASK]
# Prints both wall times and their ratio. Needs an otherwise idle machine; RUNS_DIR must not hold these runs already.
set -euo pipefail
runs=${1:-$(mktemp -d)}
limit=${2:-50}
mkdir -p "$runs"
seconds() { date +%s.%N; }
start=$(seconds)
python -m parallelbench run -m launcher=local decoder=threshold,credit decoder.rule.tau=0.6,0.7,0.8,0.9,0.95,0.99 cache=none,dual \
  limit="$limit" out_dir="$runs/sweep" > "$runs/sweep.log" 2>&1
middle=$(seconds)
for decoder in threshold credit; do
  for tau in 0.6 0.7 0.8 0.9 0.95 0.99; do
    for cache in none dual; do
      python -m parallelbench run decoder=$decoder decoder.rule.tau=$tau cache=$cache limit="$limit" \
        out_dir="$runs/alone/$decoder-$tau-$cache" > "$runs/alone.log" 2>&1
    done
  done
done
awk -v a="$start" -v b="$middle" -v c="$(seconds)" \
  'BEGIN { printf "one sweep %.0f s, one by one %.0f s: %.2f times as fast\n", b - a, c - b, (c - b) / (b - a) }'
