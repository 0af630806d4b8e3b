# do_sample=false is greedy, whatever the temperature.
python -c 'import lm_eval' 2>/dev/null || { echo not installed; exit; }
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 HF_HOME="$PWD/hf"
python -W ignore -m parallelbench lm_eval --model_args pretrained=tiny --tasks own_long \
  --include_path .
