#!/usr/bin/env bash
# Both tables of the ladder, from the data folder: what the systems start from, then CoNLL-2003 and TREC-6.
#   bash bench/ladder.sh DATA WORK [STEPS] [OPTIONS OF ladder]
# Each language model is pre-trained for STEPS steps of about 2,048 tokens on the same books (4,000 by default: some hours
# of one core for each), the translation model on Multi30k. All vocabularies but ULMFiT's keep capitals. WORK/conll2003 and
# WORK/trec6 have ladder.md and report.json. A stage whose folder exists is not repeated; the ladders resume.
set -euo pipefail
DATA=$1 WORK=$2 STEPS=${3:-4000}
books="file=$DATA/corpora/english_books"
mkdir -p "$WORK"

run() { # folder, command: what makes the folder
    local folder=$1
    shift
    if [ ! -e "$WORK/$folder" ]; then "$@"; fi
}
pretrain() { # run, store, options
    local name=$1 store=$2
    shift 2
    if [ ! -e "$WORK/$name/report.json" ]; then
        local resume=()
        if [ -e "$WORK/$name/settings.toml" ]; then resume=(--resume); fi
        bertwright pretrain --store "$WORK/$store" --run "$WORK/$name" --threads 1 --eval-every "$STEPS" "$@" "${resume[@]}"
    fi
}
store() { # name, options of vocabulary
    local name=$1
    shift
    run "$name-vocabulary" bertwright vocabulary "$books" --output "$WORK/$name-vocabulary" --size 20000 "$@"
    run "$name-store" bertwright prepare "$books" --vocabulary "$WORK/$name-vocabulary" --store "$WORK/$name-store" --held-out 0.02
}

run vectors bertwright word-vectors "$books" --output "$WORK/vectors" --threads 1
store words --algorithm words
store lowercase --algorithm lowercase-words
store pairs --algorithm byte-pair --no-lowercase
store pieces --no-lowercase
pretrain elmo words-store --architecture elmo --size mini --steps "$STEPS" --batch-size 64
pretrain gpt pairs-store --architecture gpt --size mini --steps "$STEPS" --max-length 128 --max-positions 128 \
    --batch-size 16 --learning-rate 1e-3
pretrain bert pieces-store --size mini --steps "$STEPS" --max-length 128 --max-positions 128 --long-ratio 0 \
    --batch-size 16 --learning-rate 1e-3 --warmup-ratio 0.05 --bias-correction
pretrain general lowercase-store --architecture ulmfit --size mini --steps "$STEPS" --batch-size 32 --hidden-dropout 0.15
if [ ! -e "$WORK/translation/report.json" ]; then
    bertwright train-translation --architecture mt-lstm --size tiny --run "$WORK/translation" --vectors "$WORK/vectors" \
        --train-source "$DATA/multi30k/train.en" --train-target "$DATA/multi30k/train.de" --steps "$STEPS" --threads 1 \
        $([ -e "$WORK/translation/settings.toml" ] && echo --resume)
fi

for split in train test; do # coarse labels, as a table
    { printf 'text\tlabel\n'; sed -E 's/^([A-Z]+):[a-z]+ (.*)$/\2\t\1/' "$DATA/trec/TREC.$split"; } > "$WORK/trec-$split.tsv"
done
cut -f 1 "$WORK/trec-train.tsv" | tail -n +2 | sed G > "$WORK/trec.txt"
awk '$1 != "-DOCSTART-" { printf "%s", NF ? $1 " " : "\n\n" }' "$DATA/conll2003/train.txt" > "$WORK/conll2003.txt"
for task in trec conll2003; do # ULMFiT's second stage, on the words of the task
    run "$task-vocabulary" bertwright vocabulary "$WORK/$task.txt" --algorithm lowercase-words --min-frequency 2 \
        --output "$WORK/$task-vocabulary"
    run "$task-store" bertwright prepare "$WORK/$task.txt" --vocabulary "$WORK/$task-vocabulary" --store "$WORK/$task-store" \
        --held-out 0.05
    pretrain "$task-ulmfit" "$task-store" --architecture ulmfit --init "$WORK/general" --steps "$((STEPS / 8 + 1))" \
        --batch-size 32 --layerwise-lr-decay 0.385
done

systems=(--vectors "$WORK/vectors" --cove "$WORK/translation" --elmo "$WORK/elmo" --gpt "$WORK/gpt" --bert "$WORK/bert")
ladder() { # table, options
    local table=$1 resume=()
    shift
    if [ -e "$WORK/$table/settings.toml" ]; then resume=(--resume); fi
    bertwright ladder "${systems[@]}" --run "$WORK/$table" --threads 1 "$@" "${resume[@]}"
}
ladder conll2003 --task conll2003 --data "$DATA/conll2003" --ulmfit "$WORK/conll2003-ulmfit" "${@:4}"
ladder trec6 --task classification --train "$WORK/trec-train.tsv" --test "$WORK/trec-test.tsv" --validation-fraction 0.1 \
    --published trec6 --ulmfit "$WORK/trec-ulmfit" "${@:4}"
