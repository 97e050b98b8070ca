"""Google's own BERT releases: `bert_config.json`, `vocab.txt` and the TensorFlow bundle `bert_model.ckpt.*`."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from bertwright.files import read_json
from bertwright.interop.architectures import BERT
from bertwright.interop.huggingface import LoadResult, ModelSource, build_model
from bertwright.interop.tf_checkpoint import read_bundle

CONFIG = "bert_config.json"

OPTIMIZER_VARIABLES = re.compile(r"(.*/)?(adam_[mv]|beta[12]_power|global_step|loss_scale|good_steps|bad_steps)(/.*)?")
# Ends of Google's names, and of those in `transformers`. Kernels are stored input × output: transposed.
ENDINGS = (
    (r"\.kernel$", ".weight"),
    (r"\.gamma$", ".weight"),
    (r"\.beta$", ".bias"),
    (r"\.output_weights$", ".weight"),
    (r"\.output_bias$", ".bias"),
    (r"(\.\w+_embeddings)$", r"\1.weight"),
    (r"\.layer_(\d+)\.", r".layer.\1."),
)


def load_checkpoint(folder: Path) -> LoadResult:
    """Read a folder of Google's release; the result is that of `huggingface.load_model` with optional heads.

    The tokenizer is the folder's vocab.txt, which does not say whether it is cased; the folder's name does.
    Raises ValueError for missing or damaged files, naming them.
    """
    indexes, path = sorted(folder.glob("*.index")), folder / CONFIG
    if not path.is_file() or len(indexes) != 1:
        raise ValueError(f"{folder}: expected {CONFIG} and one *.ckpt.index, as in Google's release")
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(values).__name__}")
    config = BERT.parse_config(values, path)
    variables = read_bundle(indexes[0], wanted=lambda name: not OPTIMIZER_VARIABLES.fullmatch(name))
    tensors = dict(to_hf(name, torch.from_numpy(array)) for name, array in variables)
    return build_model(ModelSource(BERT, config, BERT.normalize(tensors, values, indexes[0]), indexes[0]))


def to_hf(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """Convert name and layout of one of Google's variables to those of `transformers`.

    >>> to_hf("bert/encoder/layer_3/attention/self/key/kernel", torch.zeros(2, 5))[0]
    'bert.encoder.layer.3.attention.self.key.weight'
    """
    hf_name = name.replace("/", ".")
    for pattern, replacement in ENDINGS:
        hf_name = re.sub(pattern, replacement, hf_name)
    return hf_name, tensor.T if name.endswith("/kernel") else tensor
