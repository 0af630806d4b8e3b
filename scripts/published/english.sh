#!/usr/bin/env bash
# An English LM of 135M parameters compared with the tiny models: all 17 tasks, every decoder that needs no training for it:
# results/published/english, with english/ranks-*, which of the decoders' rankings hold on it, and english/close, those
# that the claims are about over 50 samples a task.
#   bash scripts/published/english.sh [RUNS_DIR] [REPORT_DIR] [SAMPLES_PER_TASK]
# Three to twenty minutes of one CPU core a run of 50 samples a task, so some ten hours in all. bfloat16 is for processors
# with instructions for it, with AVX2 alone it takes nine times as long as float32: DTYPE=float32. The parts come in the
# order of their use, and the page is made after part 3 and at the end. Interrupted, the same command continues, also with
# more samples. It begins with the runs that are published (REPORT_DIR/runs.tar.xz), so that those are decoded which are
# not there yet. Latency means nothing here: the slots share it. wino takes no model with token shift.
set -euo pipefail
runs=${1:-results/runs/english-page}
report=${2:-results/published/english}
limit=${3:-50}
few=$(((limit + 9) / 10))
[ -d models/smollm2 ] || python -m dllm.training.fetch smollm2
mkdir -p "$runs"
published=$report/runs.tar.xz
[ -d "$runs/smollm2" ] || [ -n "${DTYPE:-}" ] || [ ! -f "$published" ] || tar xJf "$published" -C "$runs"
block=(cache=block block_length=8 stop=block_eos)
sweep() { python -m parallelbench run -m seed=12 batch_size=64 "$@"; }
english() { sweep suite=all gen_length=64 limit="$limit" model.dtype="${DTYPE:-bfloat16}" "$@"; }
page() {
  python -m parallelbench report "$runs/smollm2" out_dir="$report"
  [ ! -d "$runs/smollm2" ] || tar cJf "$published" -C "$runs" --exclude '*.tmp' smollm2
  for twin in tiny tiny-block; do
    python -m parallelbench analyze compare "$runs/$twin" "$runs/smollm2/block" out_dir="$report/ranks-$twin"
  done
}

# 1. SmolLM2 itself, drafted for: 500 questions of chats that no training saw, answered by transformers' greedy
# `generate`. A score of 100 % is the same text. Two hours of a crowded core; seconds do not compare, slots differ.
chat=$runs/chat-data
# scripts/english.sh trains on answers to the first 6,000 questions
[ -f "$chat/prompts.jsonl" ] || python scripts/chat_prompts.py "$chat/prompts.jsonl" --skip 6000
python scripts/answer.py model.name_or_path=models/smollm2 prompts="$chat/prompts.jsonl" out="$chat/answers.jsonl" \
  limit=1100 batch_size=20 threads=1
asked() {
  sweep suite=prompts suite.tasks.0.source="$chat/answers.jsonl" suite.tasks.0.answer=answer suite.tasks.0.check=same \
    gen_length=null limit=500 batch_size=16 out_dir="$runs/chat" "$@"
}
asked model=smollm2 decoder=ar,prompt_lookup
asked model=smollm2_draft decoder=self_spec decoder.masks=4 batch_size=2
python -m parallelbench report "$runs/chat" out_dir="$report/chat"

# 2. The text that everything is measured by, and the same text in fewer forwards
english model=smollm2_ar decoder=ar,prompt_lookup out_dir="$runs/smollm2/ar"
english model=smollm2_block decoder=self_spec,linear_spec out_dir="$runs/smollm2/verified"

# 3. Every decoder at its usual knob, and its twins on the tiny models, over the same samples (the tiny models know twelve
# of the tasks). Steps are per block of 8.
usual=threshold,prefix,left,fixed,factor,eb,entropy,credit,klass,dynamic,frechet,contention,hierarchical,llada2
usual+=,factor_released,first_alone,credit_free,klass_window,dilated,dilated_remask,density,slerp,smoothing_window,horizon
usual+=,prophet,pc,eos_last,saber,slowfast,remdm_loop,edit,prefix_edit,dmax,agreement
everyone() { # SWEEP OPTIONS
  "$@" decoder="$usual"
  for decoder in schedule dream maskgit origin remdm dimple; do
    "$@" decoder=$decoder decoder.rule.steps=8
  done
  "$@" decoder=rcr decoder.revise.schedule.steps=8
}
everyone sweep model=tiny limit="$limit" out_dir="$runs/tiny"
everyone sweep model=tiny_block limit="$limit" "${block[@]}" out_dir="$runs/tiny-block"
everyone english model=smollm2_block "${block[@]}" out_dir="$runs/smollm2/block"
page

# 4. The knobs of those that the page is about
on_block() { english model=smollm2_block "${block[@]}" "$@" out_dir="$runs/smollm2/knobs"; }
on_block decoder=threshold decoder.rule.tau=0.6,0.8,0.99
on_block decoder=prefix decoder.rule.tau=0.6,0.8,0.99
on_block decoder=fixed decoder.rule.k=2,4
on_block decoder=left decoder.rule.k=2,4
on_block decoder=factor decoder.rule.factor=0.5,2.0
on_block decoder=eb decoder.rule.gamma=0.02,0.5
on_block decoder=entropy decoder.rule.theta=0.1,1.0
on_block decoder=credit decoder.rule.tau=0.7,0.99
on_block decoder=klass decoder.rule.tau=0.7
on_block decoder=edit decoder.rule.tau=0.3,0.5,0.9
on_block decoder=prefix_edit decoder.rule.tau=0.9
on_block decoder=prefix_edit decoder.revise.tau=0.5

# 5. Caches: parts of a block, and none, which computes every column in every forward and so gets a tenth of the samples
cached() { english model=smollm2_block stop=block_eos "$@" out_dir="$runs/smollm2/caches"; }
cached cache=sub_block block_length=4 decoder=threshold,prefix,eb,left
limit=$few cached cache=none block_length=8 decoder=threshold,prefix,eb,left

# 6. Several states and several blocks at once
on_block decoder=freedave decoder.states=2 decoder.tau=null,0.9
on_block decoder=lopa decoder.branches=2
on_block decoder=multi_bd decoder@decoder.decoder=prefix
on_block decoder=d2f decoder@decoder.decoder=prefix
on_block decoder=multi_bd decoder@decoder.decoder=prefix_edit decoder.running.open_at=0.25 \
  decoder.decoder.revise.tau=0.0,0.5

# 7. Filters trained on recordings of this model, as Learn2PD's are: from the same 512 prompts, at training seeds
filters=$runs/filters
python scripts/collect_traces.py model=smollm2_block model.dtype="${DTYPE:-bfloat16}" decoder=oracle cache=block \
  stop=block_eos gen_length=64 block_length=8 limit=512 data=tasks data.batch_size=64 data.seed=2147484001 \
  data.long_share=0 'data.templates=[0]' data.response_lens=null 'data.least_lens=[0]' out_dir="$filters/traces"
filter() { python scripts/train_filter.py recipe=minibatch traces=["$filters/traces"] "$@"; }
filter filter=block filter.block_len=8 out_dir="$filters/block"
filter filter=position fit.steps=6000 out_dir="$filters/position"
learned() { english model=smollm2_block "${block[@]}" "$@" out_dir="$runs/smollm2/learned"; }
learned decoder=learn2pd decoder.rule.filter="$filters/block/filter"
learned decoder=agreement decoder.rule.filter="$filters/position/filter"
page

# 8. Those that the claims are about, closer, in float32, in which verified text is that of ar bit for bit
close() { python -m parallelbench run -m seed=12 batch_size=32 suite=all gen_length=64 limit=50 "$@"; }
close model=smollm2_ar decoder=ar out_dir="$runs/close/ar"
close model=smollm2_block decoder=self_spec decoder.masks=8 decoder.next=last out_dir="$runs/close/verified"
close model=smollm2_block "${block[@]}" decoder=fixed,threshold,prefix out_dir="$runs/close/block"
close model=smollm2_block "${block[@]}" decoder=prefix decoder.rule.tau=0.99 out_dir="$runs/close/knobs"
close model=smollm2_block stop=block_eos cache=sub_block block_length=4 decoder=threshold out_dir="$runs/close/caches"
python -m parallelbench report "$runs/close" out_dir="$report/close"
