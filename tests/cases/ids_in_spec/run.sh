# config.json names no MASK; spec= or dllm.json does.
cp model/model.safetensors with_json
python -W ignore - 2>/dev/null <<"EOF"
import dllm
for folder, spec in (("model", {"mask_id": 39}), ("with_json", None)):
    print(folder, dllm.load(folder, spec=spec).spec.mask_id)
EOF
