# A raw text begins with BOS where the checkpoint's own tokenizer writes it.
python -W ignore - <<"PYTHON"
import dllm
from transformers import AutoTokenizer

print(AutoTokenizer.from_pretrained("model")("w1 w2")["input_ids"], dllm.load("model").encode("w1 w2"))
PYTHON
