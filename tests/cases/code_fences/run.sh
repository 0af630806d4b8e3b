# Each completion holds the right program; only its fence is not where it should be.
python -W ignore - <<"END"
import json
from parallelbench.tasks.code.tasks import HumanEval
task = HumanEval("rows.jsonl")
(sample,) = task.samples(1, 0)
texts = [json.loads(line)["completion"] for line in open("completions.jsonl")]
print(sum(task.score(sample, text)["score"] for text in texts), "of", len(texts))
END
