#!/usr/bin/env bash
# The main job on real text that every Python installation carries: the language manual and the standard library's
# docstrings. Raw text → survey → vocabulary → token store → pre-training → filled masks → a fine-tuned task. About five minutes on two
# cores.
set -euo pipefail
cd "$(dirname "$0")/.."
WORK=${1:-demo-run}
if [ -e "$WORK" ]; then
    echo "$WORK already exists; delete it (rm -r $WORK) or choose another folder: bash demo/run.sh FOLDER" >&2
    exit 2
fi

step() { printf '\n\033[1m── %s\033[0m\n$ %s\n' "$1" "${*:2}"; "${@:2}"; }

mkdir -p "$WORK"
step "Raw text: the manual and the docstrings of this Python" python demo/corpus.py "$WORK/corpus.txt"
step "Survey it" bertwright survey "$WORK/corpus.txt"
step "Learn its vocabulary" bertwright vocabulary "$WORK/corpus.txt" --size 6000 --output "$WORK/vocabulary"
step "Turn it into token ids; hold out a twentieth of the documents for validation" \
    bertwright prepare "$WORK/corpus.txt" --vocabulary "$WORK/vocabulary" --held-out 0.05 --store "$WORK/store"
step "Pre-train a small BERT" bertwright pretrain --config demo --store "$WORK/store" --run "$WORK/run"
step "Fill masks" bertwright fill-mask "$WORK/run" --top-k 3 \
    "Return True if the [MASK] is a directory." \
    "Raise a [MASK] if the file does not exist." \
    "Return a list of all the [MASK] in the given string."
step "A task: does a sentence describe a module, a class or a function?" python demo/labels.py "$WORK/labels"
step "Fine-tune on it" bertwright finetune --task classification --train "$WORK/labels/train.tsv" \
    --dev "$WORK/labels/dev.tsv" --model "$WORK/run" --run "$WORK/kinds" --learning-rate 5e-4 --epochs 5
step "Predict" bertwright predict "$WORK/kinds" \
    "Return the absolute path of a file." "Abstract base class of all loaders." "Tools for reading and writing zip files."
printf '\nThe loss over the steps, as a picture: %s\n' "$WORK/run/loss.png"
