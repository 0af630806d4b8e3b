#!/usr/bin/env bash
# The moving picture of the README: one token per forward beside EB-Sampler, on the same Latin square.
#   bash scripts/published/picture.sh [FILE]
set -euo pipefail
runs=results/runs/picture
run() { python -m parallelbench run "suite.tasks=[puzzle/latin_square_n4]" limit=1 traces=1 "$@"; }
run decoder=fixed out_dir="$runs/fixed"
run decoder=eb out_dir="$runs/eb"
sample=puzzle/latin_square_n4/0/0
python -m parallelbench trace "$runs/fixed" "$sample" other="$runs/eb" svg="${1:-docs/images/decoding.svg}"
