# Both spellings of a longer context, which the published config has not.
python -W ignore - 2>/dev/null <<"EOF"
import json, pathlib, torch, dllm
ids, prompt, folder = torch.arange(30)[None], torch.tensor([4]), pathlib.Path("base")
plain, raw = dllm.load(folder).full_logits(ids, prompt), json.loads((folder / "config.json").read_text())
for name, rope in (
    ("rope_scaling", {"type": "linear", "factor": 4.0}),
    ("rope_parameters", {"rope_type": "linear", "factor": 4.0, "rope_theta": 700.0}),
):
    (folder / "config.json").write_text(json.dumps({**raw, name: rope}))
    print(name, "ignored" if dllm.load(folder).full_logits(ids, prompt).equal(plain) else "honoured")
EOF
