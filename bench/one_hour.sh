#!/usr/bin/env bash
# A real run: BERT-mini on 100 English books and 442 Wikipedia articles for about an hour of one core.
#   bash bench/one_hour.sh DATA WORK [THREADS] [short|long] [OTHER SETTINGS]
# long: 30,000 tokens, sequences of 128, dropout, initial weights as in BASE.
# short: 8,000 tokens, sequences and positions of 64, no dropout, initial weights of a narrow model: what so little time
#   needs. Until 2026-11-26 the model had 128 positions, of which 64 to 127 stayed untrained; all other weights and all
#   losses have the same bits (compared for six steps).
set -euo pipefail
DATA=$1 WORK=$2 THREADS=${3:-1} RECIPE=${4:-short}
case $RECIPE in
long)
    size=30000
    recipe=(--max-positions 128 --learning-rate 1e-3 --initializer-range 0.02 --init-scheme normal --steps 3800
        --eval-every 380 --save-every 500)
    ;;
short)
    size=8000
    recipe=(--max-positions 64 --learning-rate 8e-4 --max-length 64 --hidden-dropout 0 --attention-dropout 0 --steps 10000
        --eval-every 1000 --save-every 500)
    ;;
*) echo "$RECIPE: no such recipe; long or short" >&2 && exit 2 ;;
esac
text=("file=$DATA/corpora/english_books" "$DATA/corpora/english_wikipedia/train.txt")
bertwright vocabulary "${text[@]}" --size "$size" --output "$WORK/vocabulary"
bertwright prepare "${text[@]}" --held-out-inputs "$DATA/corpora/english_wikipedia/heldout.txt" \
    --vocabulary "$WORK/vocabulary" --store "$WORK/store"
time bertwright pretrain --store "$WORK/store" --run "$WORK/run" --size mini --long-ratio 0 \
    --batch-size 16 --warmup-ratio 0.05 --bias-correction --threads "$THREADS" \
    --eval-sequences 512 "${recipe[@]}" "${@:5}"
bertwright fill-mask "$WORK/run" "The city is the capital of the [MASK]." "He was born in the [MASK] of 1912." \
    "She opened the [MASK] and went in." "She looked at him and [MASK]."
