#!/usr/bin/env bash
# Decoders with and without a constraint, on models that were not trained on JSON: results/published/structured.
#   bash scripts/published/structured.sh [RUNS_DIR] [REPORT_DIR] [SAMPLES_PER_TASK]
# Each decoder decodes every sample twice, free and held to the sample's own constraint, on one CPU core. bfloat16 is for
# processors with instructions for it: DTYPE=float32 for others. Interrupted, the same command resumes.
set -euo pipefail
. "$(dirname "$0")/records.sh"
runs=${1:-results/runs/structured}
report=${2:-results/published/structured}
limit=${3:-12}
[ -d models/smollm2 ] || python -m dllm.training.fetch smollm2
begin "$runs" "$report"
both() { # MODEL NAME OPTIONS
  for half in free held; do
    constraint=()
    [ $half = free ] || constraint=(constraint=task)
    python -m parallelbench run model="$1" limit="$limit" seed=12 "${@:3}" "${constraint[@]}" out_dir="$runs/$half/$1/$2"
  done
}
json() { both "$1" "$2" suite=json gen_length=64 model.dtype="${DTYPE:-bfloat16}" "${@:3}"; }
blocks() { json "$1" "$2" cache=block block_length=8 stop=block_eos batch_size=48 "${@:3}"; }
each() { # MODEL DECODER ...
  for decoder in "${@:2}"; do blocks "$1" "$decoder" decoder="$decoder"; done
}

# 1. SmolLM2 as it is, and the adapter that drafts its text, as blocks
json smollm2 ar decoder=ar block_length=64 batch_size=48
each smollm2_draft left threshold prefix entropy eb klass fixed

# 2. The same model, trained on answers of other forms
json smollm2_ar ar decoder=ar block_length=64 batch_size=48
each smollm2_block left threshold prefix
blocks smollm2_block multi_bd decoder=multi_bd decoder@decoder.decoder=prefix

# 3. tiny: the shortest JSON, which it never saw, and lists, which it knows, at knobs that break them. It is quick, and so
# has four times the samples.
line() { limit=$((4 * limit)) both tiny "line-$1" suite=json 'suite.tasks=[json/line]' batch_size=48 "${@:2}"; }
lists() { limit=$((4 * limit)) both tiny "$1" suite=waiting_line batch_size=40 "${@:2}"; }
for decoder in fixed threshold; do line $decoder decoder=$decoder; done
lists fixed-1 decoder=fixed decoder.rule.k=1
lists fixed-4 decoder=fixed decoder.rule.k=4
lists threshold-0.5 decoder=threshold decoder.rule.tau=0.5
lists eb-1.0 decoder=eb decoder.rule.gamma=1.0
lists entropy-1.0 decoder=entropy decoder.rule.theta=1.0
lists slerp-0.5 decoder=slerp decoder.rule.tau=0.5
lists maskgit-8 decoder=maskgit decoder.rule.steps=8
lists dream-8 decoder=dream decoder.rule.steps=8

# 4. Verified decoding, whose text is that of ar held to the same constraint
for decoder in self_spec linear_spec; do
  json smollm2_draft $decoder decoder=$decoder block_length=64 batch_size=8
done
json smollm2_block self_spec decoder=self_spec block_length=64 batch_size=8

page "$runs" "$report"
python "$(dirname "$0")/structured_page.py" "$runs" "$report"
