#!/usr/bin/env bash
# An English LM of 135M parameters beside the tiny models: all 17 tasks, every decoder that needs no training for it:
# results/published/english, and results/published/english/ranks-*, which of the decoders' rankings hold on it.
#   bash scripts/published/english.sh [RUNS_DIR] [REPORT_DIR] [SAMPLES_PER_TASK]
# Hours of one CPU core at 50 samples, in proportion to them: part 1 about 3, part 2 25, part 3 12, part 4 6, part 5 5.
# (Measured on 6 samples at batch 1, float32, a crowded core: 13 ms a queried column; 220 columns a sample by threshold
# 0.9, 310 with one token per forward, 180 by prefix 0.9. cache=none and several states were not timed.) 10 samples give
# a first page in a night. The parts come in the order of their use, and the page is made after part 2 and at the end.
# Interrupted, the same command goes on. Only seconds need an idle machine. wino takes no model with token shift.
set -euo pipefail
runs=${1:-results/runs/english-page}
report=${2:-results/published/english}
limit=${3:-50}
few=$(((limit + 9) / 10))
[ -d models/smollm2 ] || python -m dllm.training.smollm2 models/smollm2
block=(cache=block block_length=8 stop=block_eos)
english=(suite=all gen_length=64 limit="$limit") # the tiny models know twelve of the tasks, the samples are the same
sweep() { python -m parallelbench run -m seed=12 "$@"; }
page() {
  python -m parallelbench report "$runs/smollm2" out_dir="$report"
  for twin in tiny tiny-block; do
    python -m parallelbench analyze compare "$runs/$twin" "$runs/smollm2/block" out_dir="$report/ranks-$twin"
  done
}

# 1. The text that everything is measured by, and the same text in fewer forwards
sweep "${english[@]}" model=smollm2_ar decoder=ar,prompt_lookup out_dir="$runs/smollm2/ar"
sweep "${english[@]}" model=smollm2_block decoder=self_spec,linear_spec out_dir="$runs/smollm2/verified"

# 2. Every decoder at its usual knob, and its twins on the tiny models, over the same samples. Steps are per block of 8.
usual=threshold,prefix,left,fixed,factor,eb,entropy,credit,klass,dynamic,frechet,contention,hierarchical,llada2
usual+=,factor_released,first_alone,credit_free,klass_window,dilated,dilated_remask,density,slerp,smoothing,horizon
usual+=,prophet,pc,saber,slowfast,remdm_loop,edit,dmax,agreement
everyone() { # OPTIONS
  sweep "$@" decoder="$usual"
  for decoder in schedule dream maskgit origin remdm dimple; do
    sweep "$@" decoder=$decoder decoder.rule.steps=8
  done
  sweep "$@" decoder=rcr decoder.revise.schedule.steps=8
}
everyone model=tiny limit="$limit" out_dir="$runs/tiny"
everyone model=tiny_block limit="$limit" "${block[@]}" out_dir="$runs/tiny-block"
everyone model=smollm2_block "${english[@]}" "${block[@]}" out_dir="$runs/smollm2/block"
page

# 3. The knobs of those that the page is about
on_block() { sweep model=smollm2_block "${english[@]}" "${block[@]}" "$@" out_dir="$runs/smollm2/knobs"; }
on_block decoder=threshold decoder.rule.tau=0.6,0.8,0.99
on_block decoder=prefix decoder.rule.tau=0.6,0.8,0.99
on_block decoder=fixed decoder.rule.k=2,4
on_block decoder=left decoder.rule.k=2,4
on_block decoder=factor decoder.rule.factor=0.5,2.0
on_block decoder=eb decoder.rule.gamma=0.02,0.5
on_block decoder=entropy decoder.rule.theta=0.1,1.0
on_block decoder=credit decoder.rule.tau=0.7,0.99
on_block decoder=klass decoder.rule.tau=0.7

# 4. Caches: parts of a block, and none, which computes every column in every forward and so gets a tenth of the samples
cached() { sweep model=smollm2_block suite=all gen_length=64 stop=block_eos "$@" out_dir="$runs/smollm2/caches"; }
cached limit="$limit" cache=sub_block block_length=4 decoder=threshold,prefix,eb,left
cached limit="$few" cache=none block_length=8 decoder=threshold,prefix,eb,left

# 5. Several states and several blocks at once
on_block decoder=freedave decoder.states=2 decoder.tau=null,0.9
on_block decoder=lopa decoder.branches=2
on_block decoder=multi_bd decoder@decoder.decoder=prefix
on_block decoder=d2f decoder@decoder.decoder=prefix
page
