"""Google's own BERT releases: `bert_config.json`, `vocab.txt` and the TensorFlow bundle `bert_model.ckpt.*`."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from bertwright.files import read_json
from bertwright.interop.huggingface import LoadResult, build_model, config_from
from bertwright.interop.tf_checkpoint import read_bundle

CONFIG = "bert_config.json"

# The optimizer's variables; everything else is the model's.
NOT_OF_THE_MODEL = re.compile(r"(.*/)?(adam_[mv]|beta[12]_power|global_step|loss_scale|good_steps|bad_steps)(/.*)?")
# Endings of Google's names, and what `transformers` calls them. Kernels are stored input × output: transposed.
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
    """Read a folder of Google's release; the result is as of `huggingface.load_model` with optional heads.

    The tokenizer is the folder's vocab.txt, which does not say whether it is cased: the folder's name does.
    Raises ValueError for what is missing or damaged, naming the file.
    """
    indexes = sorted(folder.glob("*.index"))
    if not (folder / CONFIG).is_file() or len(indexes) != 1:
        raise ValueError(f"{folder}: {CONFIG} and one *.ckpt.index expected, as in Google's release")
    config = config_from(read_json(folder / CONFIG), folder / CONFIG)
    variables = read_bundle(indexes[0], wanted=lambda name: not NOT_OF_THE_MODEL.fullmatch(name))
    return build_model(config, dict(renamed(name, torch.from_numpy(array)) for name, array in variables), indexes[0])


def renamed(name: str, tensor: Tensor) -> tuple[str, Tensor]:
    """A variable of Google's as `transformers` names and lays it.

    >>> renamed("bert/encoder/layer_3/attention/self/key/kernel", torch.zeros(2, 5))[0]
    'bert.encoder.layer.3.attention.self.key.weight'
    """
    foreign = name.replace("/", ".")
    for pattern, replacement in ENDINGS:
        foreign = re.sub(pattern, replacement, foreign)
    return foreign, tensor.T if name.endswith("/kernel") else tensor
