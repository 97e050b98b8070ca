#!/usr/bin/env bash
# A real run: BERT-mini on 100 English books and 442 Wikipedia articles for about an hour of one core.
#   bash bench/hour.sh DATA WORK [THREADS]
set -euo pipefail
DATA=$1 WORK=$2 THREADS=${3:-1}
text=("file=$DATA/corpora/english_books" "$DATA/corpora/english_wikipedia/train.txt")
bertwright vocabulary "${text[@]}" --output "$WORK/vocabulary"
bertwright prepare "${text[@]}" --held-out-inputs "$DATA/corpora/english_wikipedia/heldout.txt" \
    --vocabulary "$WORK/vocabulary" --store "$WORK/store"
time bertwright pretrain --store "$WORK/store" --run "$WORK/run" --size mini --max-positions 128 --long-share 0 \
    --initializer-range 0.02 --steps 3800 --batch-size 16 --learning-rate 1e-3 --warmup-share 0.05 --bias-correction --threads "$THREADS" \
    --evaluate-every 380 --evaluate-sequences 512 --save-every 500
bertwright fill-mask "$WORK/run" "The city is the capital of the [MASK]." "He was born in the [MASK] of 1912." \
    "She looked at him and [MASK]." "The two teams played in the final [MASK]."
