# An answer that was cut does not end where it was cut.
python -W ignore - <<"PYTHON"
import dllm
from parallelbench.training.sources import Rows

tokenizer = dllm.load("tiny").tokenizer
batch = Rows("rows.jsonl", max_length=24, too_long="cut", batch_size=2).open(tokenizer).batch(0)
print([int(row[end - 1]) == tokenizer.eos_token_id for row, end in zip(batch.canvas, batch.text_end)])
PYTHON
