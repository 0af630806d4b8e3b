#!/usr/bin/env bash
# Trains smollm2-ar, smollm2-block and smollm2-draft, adapters of SmolLM2-135M (conf/recipe/smollm2_*.yaml):
#   bash scripts/english.sh [ar] [block] [draft]
# Hours on one CPU core each; killed, the same command continues. The result is results/runs/english/NAME/adapter.
# block starts from the shipped smollm2-ar and has four stages; the result is in block-fourth/adapter.
set -euo pipefail
runs=results/runs/english
[ -d models/smollm2 ] || python -m dllm.training.fetch smollm2
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
  if [ "$name" = block ]; then # honest confidences (docs/training.md), tokens kept after a MASK, more text
    lists="waiting_line/insert_random: 1.5, waiting_line/remove_random: 1.5, waiting_line/replace_random: 1.5"
    several="waiting_line/shuffle: 1.8, puzzle/latin_square_n4: 3.0" # tasks with several right answers
    text="waiting_line/shuffle: 2.5, waiting_line/sort: 2.5, puzzle/latin_square_n4: 2.0, text/paraphrase: 1.5"
    text+=", text/words_to_sentence_easy: 1.2, text/words_to_sentence_medium: 1.2, text/words_to_sentence_hard: 1.2"
    text+=", text/summary: 1.5"
    honest=(recipe=smollm2_block objective.tv=0 objective.kl=1 objective.label=0 objective.decay=1
      'objective.group_weights=[0.05,0.1,0.15,0.7]')
    shown=("${honest[@]}" objective.reveal=0.6 'objective.groups=[3,5,7,9]' fit.decay=0.7)
    python scripts/train.py "${honest[@]}" lora.start="$runs/block/adapter" out_dir="$runs/block-second" \
      objective.reveal=0.5 fit.steps=1400 fit.decay=0.6428571428571429
    python scripts/train.py "${shown[@]}" lora.start="$runs/block-second/adapter" out_dir="$runs/block-third" \
      fit.steps=600 "data.parts.tasks.weights={$lists, $several}"
    python scripts/train.py "${shown[@]}" lora.start="$runs/block-third/adapter" out_dir="$runs/block-fourth" \
      fit.steps=500 data.parts.tasks.seed=2147484648 "data.parts.tasks.weights={$lists, $text}"
  fi
done
