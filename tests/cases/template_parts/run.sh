# A template that walks through a message's parts shows what is said, be it given as a text or as parts.
python -W ignore - <<"PYTHON"
import dllm

model = dllm.load("tiny", chat_template="parts.jinja")
for content in ("Say hello.", [{"type": "text", "text": "Say hello."}]):
    print(model.tokenizer.decode(model.encode([{"role": "user", "content": content}])), end=" ")
PYTHON
