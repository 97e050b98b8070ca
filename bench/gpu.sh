#!/usr/bin/env bash
# Test and measure on a machine with a GPU, in stages of at most STAGE_SECONDS (100); each writes its table as it goes.
#
#   bench/gpu.sh OUT [STAGE…]   stages, by default all in this order: tests steps pretrain finetune
#   bench/gpu.sh --prepare TEXT…   collects in .gpu/ what such a machine may lack: wheels (for Python 3.12, x86-64), a
#                               vocabulary and a token store of the text files; SST2=FILE adds examples to fine-tune on
#
# It runs from the source tree and needs torch ≥ 2.11, Triton, transformers, tensorboard, pytest, hypothesis and pytest-xdist.
set -uo pipefail
cd "$(dirname "$0")/.."
packages=(google-crc32c nanotoken tomli-w zstandard)
export PYTHONPATH=src:bench${PYTHONPATH:+:$PYTHONPATH}

if [[ ${1:-} == --prepare ]]; then
    set -e
    mkdir -p .gpu/wheels
    pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --dest .gpu/wheels \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        --constraint constraints.txt "${packages[@]}"
    rm -rf .gpu/vocabulary .gpu/store
    python3 -m bertwright vocabulary "${@:2}" --size 30522 --output .gpu/vocabulary
    python3 -m bertwright prepare "${@:2}" --vocabulary .gpu/vocabulary --held-out 0.02 --store .gpu/store
    if [[ -n ${SST2:-} ]]; then head -n 20001 "$SST2" > .gpu/sst2.tsv; fi
    exit
fi

export OUT=${1:-bench/results}
mkdir -p "$OUT"
if ! python3 -c 'import google_crc32c, nanotoken, tomli_w, zstandard' 2> /dev/null; then
    site=$(mktemp -d)
    python3 -m pip install --quiet --no-index --no-deps --no-compile --target "$site" .gpu/wheels/*.whl
    export PYTHONPATH=$PYTHONPATH:$site
fi

tests() {
    python3 -m pytest -q -p no:cacheprovider -W ignore -n 8 tests/kernels/test_triton.py tests/training/test_gpu.py \
        tests/kernels/test_attention.py -k 'test_triton or gpu or cuda'
}
steps() {
    python3 bench/pretraining.py --device cuda --sequences 256 --sizes base --rounds 8 --steps 5 --warmup 2 \
        --without 'without Triton' --json "$OUT/gpu-steps.json"
}
pretrain() { python3 bench/gpu_pretrain.py .gpu/store; }
finetune() { python3 bench/gpu_tasks.py; }

failed=0
stages=("${@:2}")
[[ ${#stages[@]} -gt 0 ]] || stages=(tests steps pretrain finetune)
for stage in "${stages[@]}"; do
    started=$SECONDS
    echo "== $stage"
    export -f "$stage"
    timeout "${STAGE_SECONDS:-100}" bash -c "set -o pipefail; $stage 2>&1 | tee '$OUT/gpu-$stage.log'" || { echo "$stage: failed"; failed=1; }
    echo "== $stage: $((SECONDS - started)) s"
done
exit $failed
