#!/usr/bin/env bash
# `tune` on the shipped model, what the whole grid says to it, and the page of its runs.
#   bash scripts/published/tune.sh [REPORT_DIR] [SAMPLES_PER_TASK]
# Interrupted, it resumes where it stopped. About 5 minutes on one core; the whole grid has the page on decoders.
set -euo pipefail
. "$(dirname "$0")/records.sh"
report=${1:-results/published/tune}
limit=${2:-100}
runs=results/runs/tune-$limit
grid=results/runs/decoders-50
words="model=tiny max_loss=1 limit=$limit batch_size=50"
begin "$runs" "$report"
begin "$grid" results/published/decoders
mkdir -p "$report"
python -m parallelbench tune $words out_dir="$runs" # decodes what is missing
told=$(python -m parallelbench tune $words out_dir="$runs")
whole=$(python -m parallelbench recommend "$grid"/tiny-{fixed,threshold,entropy,eb,credit,contention,factor,prefix}-none-* \
  max_loss=1 reference="fixed k=1 confidence=prob" | sed -n '/^## all/,/^## /{/^- \(reference\|fastest\)/p}')
cat > "$report/README.md" <<PAGE
# A decoder for tiny, found by tune

[Tuning](../../../docs/tuning.md) explains how a race works. This one is between the usual 57 configurations: eight
decoders over the values of their knobs. Each could decode $limit samples of twelve tasks, and up to 1 point may be
lost. It says of itself, without the lines on each run:

\`\`\`text
$told
\`\`\`

The whole grid is part of the [page on decoders](../decoders/report.md), where each run has 50 samples per task.
\`recommend\` says of it, against the same reference:

\`\`\`text
$whole
\`\`\`

The [report](report.md) shows the runs of the race. Most have few samples, and it compares those with equally many.
\`bash scripts/published/tune.sh\` makes this page.
PAGE
page "$runs" "$report"
