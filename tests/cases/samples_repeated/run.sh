# A prompt that is asked eight times at temperature 1 gets samples, not one sample eight times.
python -W ignore - <<"PYTHON"
import dllm
from decoders import Decoder, FixedK, generate

asked = 'These people wait: ["Ada Bach", "Ben Cole", "Eva Frost"]. Write the line in a random order, as a list.'
prompts = [[{"role": "user", "content": asked}]] * 8
outputs = generate(dllm.load("tiny"), prompts, decoder=Decoder(FixedK(1), temperature=1.0))
print(len({output.text for output in outputs}), "different texts of", len(outputs))
PYTHON
