# An empty prompt is named by file and line.
python -W ignore -m parallelbench run suite=prompts limit=3 gen_length=32 out_dir=out suite.tasks.0.source=rows.jsonl
