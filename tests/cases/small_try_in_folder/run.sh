# A try over a few samples beside a sweep takes neither its headline nor its lead, and is named apart.
run() { python -W ignore -m parallelbench run -m "$@" >/dev/null 2>&1; }
run decoder=threshold decoder.rule.tau=0.5,0.9 limit=4 'suite.tasks=[waiting_line/copy]' out_dir=runs
run decoder=eb limit=1 'suite.tasks=[waiting_line/copy]' out_dir=runs
python -W ignore -m parallelbench report runs out_dir=page 2>&1 | tr -s '\n ' ' '
