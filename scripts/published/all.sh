#!/usr/bin/env bash
# Every published page again, and the start page that tells their story: results/published/index.html.
#   bash scripts/published/all.sh [NAME ...]
# NAME: scripts of this folder without .sh, in the order of the story if none is named; theory is made without one.
# Each begins with the records that are published with its page, so that nothing is decoded which is there. Interrupted,
# it resumes where it stopped.
set -euo pipefail
here=$(dirname "$0")
story="evaluate_tiny first_look sweep_decoders sweep_caches learned compare_ar verified english structured recurrent_curve theory"
for name in ${*:-$story}; do
  if [ "$name" = theory ]; then
    python -m parallelbench analyze theory out_dir=results/published/theory
  elif [ $# -gt 0 ] || [ -f "$here/$name.sh" ]; then # without names, those that are there
    bash "$here/$name.sh"
  fi
done
python "$here/start_page.py"
