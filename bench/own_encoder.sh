#!/usr/bin/env bash
# BERT-mini from scratch on 100 English novels or on 3,691 Korean petitions: 20 minutes of one core with bf16 units.
# The other corpora have SQuAD's or KorQuAD's paragraphs, on which bench/vector_studies.py scores it.
#   bash bench/own_encoder.sh DATA WORK english|korean [OTHER SETTINGS]
set -euo pipefail
DATA=$1 WORK=$2
case $3 in
english) text=("file=$DATA/corpora/english_books") read=() held_out=0.02 ;;
korean) text=("$DATA/corpora/korean_petitions") read=(--column content --no-lowercase) held_out=0.03 ;;
*) echo "$3: no such text; english or korean" >&2 && exit 2 ;;
esac
bertwright vocabulary "${text[@]}" "${read[@]}" --size 8000 --output "$WORK/vocabulary"
bertwright prepare "${text[@]}" "${read[@]:0:2}" --held-out "$held_out" --vocabulary "$WORK/vocabulary" --store "$WORK/store"
bertwright pretrain --store "$WORK/store" --run "$WORK/run" --size mini --max-positions 128 --max-length 64 \
    --long-ratio 0.1 --long-length 128 --steps 8000 --batch-size 16 --learning-rate 8e-4 --warmup-ratio 0.05 \
    --bias-correction --hidden-dropout 0 --attention-dropout 0 --eval-every 2000 --eval-sequences 512 --save-every 1000 "${@:4}"
