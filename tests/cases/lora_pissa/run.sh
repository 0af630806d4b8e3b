# The adapter as PEFT saves it after init_lora_weights='pissa': it took a part out of the base weights.
python -W ignore - 2>/dev/null <<"EOF"
import torch, dllm
plain, prompt = dllm.load("base"), torch.tensor([4])
ids = torch.tensor([[1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14]])
try:
    got = dllm.load("base", adapter="adapter").full_logits(ids, prompt)[..., :39]
    print("differs by", float((got - plain.full_logits(ids, prompt)[..., :39]).abs().max()))
except ValueError as error:
    print("refused:", error)
EOF
