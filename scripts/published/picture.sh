#!/usr/bin/env bash
# The moving picture of the README: one token per forward next to EB-Sampler, on the same Latin square.
#   bash scripts/published/picture.sh [FILE]
set -euo pipefail
python -m parallelbench demo decoder=fixed versus=eb task=puzzle/latin_square_n4 svg="${1:-docs/images/decoding.svg}"
