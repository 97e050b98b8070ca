#!/usr/bin/env bash
# Test and measure on a machine with a GPU, in one run of at most ten minutes.
#
#   bench/gpu.sh [OUT]     tests, then one pre-training step of base and large beside transformers; writes OUT/gpu.json
#   bench/gpu.sh --wheels  downloads what such a machine may lack (for Python 3.12, x86-64) into .wheels
#
# It runs from the source tree and needs torch ≥ 2.11, transformers, tensorboard, pytest and hypothesis. The machine may have
# no network: the other packages that the tests and the benchmark import are installed from .wheels.
set -euo pipefail
cd "$(dirname "$0")/.."
packages=(google-crc32c nanotoken tomli-w zstandard)

if [[ ${1:-} == --wheels ]]; then
    pip download --quiet --no-deps --only-binary=:all: --python-version 3.12 --implementation cp --dest .wheels \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        --constraint constraints.txt "${packages[@]}"
    exit
fi

out=${1:-bench/results}
mkdir -p "$out"
export PYTHONPATH=src:bench
if ! python3 -c 'import google_crc32c, nanotoken, tomli_w, zstandard' 2> /dev/null; then
    site=$(mktemp -d)
    python3 -m pip install --quiet --no-index --no-deps --no-compile --target "$site" .wheels/*.whl
    export PYTHONPATH=$PYTHONPATH:$site
fi
python3 -m pytest -q -p no:cacheprovider tests/training/test_gpu.py tests/kernels/test_attention.py
timeout 480 python3 bench/pretraining.py --device cuda --sequences 256 --sizes base large --rounds 20 --warmup 4 \
    --json "$out/gpu.json"
