#!/usr/bin/env bash
# Scores of the BiLSTM-CNN-CRF and its parts on CoNLL-2003.
# usage: bash bench/tagger_scores.sh CONLL2003 WORK     (finished runs are kept)
set -euo pipefail
data=$1 work=$2
train() { # name, options of finetune
  local run=$work/$1
  [ -e "$run/report.json" ] || bertwright finetune --task conll2003 --data "$data" --run "$run" --threads 1 --dtype float32 "${@:2}"
  python - "$run" <<'PY'
import json, sys
scores = json.load(open(f"{sys.argv[1]}/report.json"))["scores"]
print(f"| {sys.argv[1]} | {100 * scores['dev']['f1']:.2f} | {100 * scores['test']['f1']:.2f} |")
PY
}
train whole --architecture bilstm-crf
small="--limit 1500 --epochs 8 --batch-size 16 --learning-rate 2e-3"
for seed in 0 1 2; do
  train blstm-$seed $small --seed $seed --architecture bilstm --char-model none
  train blstm-cnn-$seed $small --seed $seed --architecture bilstm
  train blstm-cnn-crf-$seed $small --seed $seed --architecture bilstm-crf
done
