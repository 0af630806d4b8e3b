# HumanEval+'s tests import numpy: without leave the run is refused, with it the canonical solution passes.
python -W ignore -m parallelbench run suite=humaneval suite.tasks.0.source=rows.jsonl out_dir=run 2>&1 | tail -1 | tr '\n' ' '
python -W ignore - <<"END"
from parallelbench.tasks.code.tasks import HumanEval
task = HumanEval("rows.jsonl", packages=["numpy"])
(sample,) = task.samples(1, 0)
print(task.score(sample, sample.target)["score"])
END
