# A checkpoint of MLX, whose weights have other shapes.
python -W ignore - 2>/dev/null <<"EOF"
import dllm
try:
    print("loaded", dllm.load("model").name)
except ValueError as error:
    print("refused:", error)
EOF
