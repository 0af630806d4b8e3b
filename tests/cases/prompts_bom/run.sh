# A byte order mark does not belong to the first row.
python -W ignore -m parallelbench run suite=prompts limit=3 gen_length=32 out_dir=out suite.tasks.0.source=rows.jsonl && wc -l <out/samples.jsonl
