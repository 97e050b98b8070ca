#!/usr/bin/env bash
# Korean: vocabulary, store and a short run of BERT-mini on 3,691 petitions.
# Until 2026-11-26 the model had 128 positions, of which 64 to 127 stayed untrained; all other weights and all losses
# have the same bits (compared for six steps of one_hour.sh).
#   bash bench/korean.sh DATA WORK [THREADS] [OTHER SETTINGS]
set -euo pipefail
DATA=$1 WORK=$2 THREADS=${3:-1}
text="$DATA/corpora/korean_petitions"
bertwright vocabulary "$text" --column content --no-lowercase --size 8000 --output "$WORK/vocabulary"
bertwright prepare "$text" --column content --held-out 0.03 --vocabulary "$WORK/vocabulary" --store "$WORK/store"
time bertwright pretrain --store "$WORK/store" --run "$WORK/run" --size mini --max-positions 64 --long-ratio 0 \
    --max-length 64 --steps 1100 --batch-size 16 --learning-rate 8e-4 --warmup-ratio 0.1 --bias-correction \
    --hidden-dropout 0 --attention-dropout 0 --threads "$THREADS" --eval-every 275 --eval-sequences 256 "${@:4}"
bertwright fill-mask "$WORK/run" "국민의 [MASK] 을 지켜주세요." "아이들의 [MASK] 을 위해 청원합니다." \
    "대한민국의 [MASK] 으로서 부탁드립니다."
