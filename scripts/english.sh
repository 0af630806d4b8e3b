#!/usr/bin/env bash
# Trains smollm2-ar, smollm2-block and smollm2-draft, adapters of SmolLM2-135M (conf/recipe/smollm2_*.yaml):
#   bash scripts/english.sh [ar] [block] [draft]
# Hours on one CPU core each; killed, the same command goes on. The result is results/runs/english/NAME/adapter.
# block starts from the shipped smollm2-ar and has a second stage, whose result is in block-second/adapter.
set -euo pipefail
runs=results/runs/english
[ -d models/smollm2 ] || python -m dllm.training.smollm2 models/smollm2
[ -f $runs/prompts.jsonl ] || python scripts/chat_prompts.py $runs/prompts.jsonl
answer() { # FILE PROMPTS: SmolLM2's own answers to the first prompts
  python scripts/answer.py model.name_or_path=models/smollm2 model.dtype=bfloat16 prompts=$runs/prompts.jsonl \
    out="$1" limit="$2" threads=1
}
[ $# -gt 0 ] || set -- ar block draft
for name in "$@"; do
  case $name in
    ar | block) [ -f $runs/chat-ar.jsonl ] || answer $runs/chat-ar.jsonl 720 ;;
    draft) answer $runs/chat.jsonl 6000 ;;
  esac
  python scripts/train.py recipe="smollm2_$name" out_dir="$runs/$name"
  if [ "$name" = block ]; then # honest confidences (docs/training.md), groups of 8, half of them partly shown
    python scripts/train.py recipe=smollm2_block lora.start="$runs/block/adapter" out_dir="$runs/block-second" \
      objective.tv=0 objective.kl=1 objective.label=0 objective.decay=1 objective.reveal=0.5 \
      'objective.group_weights=[0.05,0.1,0.15,0.7]' fit.steps=1400 fit.decay=0.6428571428571429
  fi
done
