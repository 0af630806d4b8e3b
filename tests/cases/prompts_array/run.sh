# One array of objects is read as one object a line is.
python -W ignore -m parallelbench run suite=prompts limit=3 gen_length=32 out_dir=out suite.tasks.0.source=rows.json && wc -l <out/samples.jsonl
