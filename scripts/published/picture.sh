#!/usr/bin/env bash
# The moving pictures of the README: one token per forward next to EB-Sampler, on the same Latin square; and English by
# SmolLM2-135M with a verified decoder, where its weights are (python -m dllm.training.fetch smollm2).
#   bash scripts/published/picture.sh [FOLDER]
set -euo pipefail
folder=${1:-docs/images}
python -m parallelbench demo decoder=fixed versus=eb task=puzzle/latin_square_n4 svg="$folder/decoding.svg"
[ ! -d models/smollm2 ] ||
  python -m parallelbench demo "Why is the sky blue?" model=smollm2_draft decoder=self_spec decoder.masks=4 gen_length=64 \
    svg="$folder/english.svg"
