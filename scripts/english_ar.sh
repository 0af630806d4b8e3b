#!/usr/bin/env bash
# Trains smollm2-ar: SmolLM2-135M with a LoRA adapter, by the next-token loss on all tasks and on its own chat answers.
# Needs models/smollm2 (python -m dllm.training.smollm2 models/smollm2). Killed, the same command goes on.
set -euo pipefail
runs=results/runs/english
[ -f $runs/prompts.jsonl ] || python scripts/chat_prompts.py $runs/prompts.jsonl
[ -f $runs/chat-ar.jsonl ] || {
  python scripts/answer.py model.name_or_path=models/smollm2 model.dtype=bfloat16 prompts=$runs/prompts.jsonl \
    out=$runs/chat-ar.jsonl limit=720 threads=1
}
python scripts/train.py objective=next_token data=english data.parts.chat.source=$runs/chat-ar.jsonl name=smollm2-ar \
  init=models/smollm2 dtype=bfloat16 lora='{r: 32, alpha: 64}' threads=1 fit.steps=600 fit.accumulate=3 \
  fit.muon_lr=null fit.adamw_lr=0.001 fit.warmup=20 fit.decay=0.5 fit.weight_decay=0 fit.precision=bf16 \
  fit.save_every=10 fit.validate_every=100 out_dir=$runs/ar
