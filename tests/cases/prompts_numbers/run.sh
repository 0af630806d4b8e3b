# Right answers may be numbers.
python -W ignore -m parallelbench run suite=prompts limit=3 gen_length=32 out_dir=out suite.tasks.0.source=rows.jsonl suite.tasks.0.answer=answer \
  suite.tasks.0.check=number && wc -l <out/samples.jsonl
