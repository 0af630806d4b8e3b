# A pattern of names in a sweep, in Hydra's own grammar: one run for each decoder that it fits.
python -W ignore -m parallelbench run -m 'decoder=glob(thresh*)' limit=1 'suite.tasks=[waiting_line/copy]' out_dir=out >/dev/null 2>&1
ls out
