"""The names of a BERT's parameters in `transformers`: one ordered table, read in both directions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from torch import Tensor

WRAPPERS = re.compile(r"\b(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.")  # of torch
Names = tuple[tuple[str, tuple[str, ...]], ...]
# Our module, and theirs; several of theirs are concatenated to one of ours along the first dimension.
# The last word of a parameter's name, `weight` or `bias`, is the same. Import and export both read this table.
EMBEDDING_NAMES: Names = (
    ("encoder.embeddings.word", ("bert.embeddings.word_embeddings",)),
    ("encoder.embeddings.position", ("bert.embeddings.position_embeddings",)),
    ("encoder.embeddings.token_type", ("bert.embeddings.token_type_embeddings",)),
    ("encoder.embeddings.norm", ("bert.embeddings.LayerNorm",)),
)
LAYER_NAMES: Names = (
    ("qkv", ("attention.self.query", "attention.self.key", "attention.self.value")),
    ("attention_output", ("attention.output.dense",)),
    ("attention_norm", ("attention.output.LayerNorm",)),
    ("intermediate", ("intermediate.dense",)),
    ("output", ("output.dense",)),
    ("output_norm", ("output.LayerNorm",)),
)
HEAD_NAMES: Names = (
    ("pooler.dense", ("bert.pooler.dense",)),
    ("masked_token.dense", ("cls.predictions.transform.dense",)),
    ("masked_token.norm", ("cls.predictions.transform.LayerNorm",)),
    ("masked_token", ("cls.predictions",)),
    ("next_sentence", ("cls.seq_relationship",)),
)


def hf_names(name: str, classifier: str = "classifier") -> tuple[str, ...]:
    """Return the names in `transformers` of one of our parameters; several are concatenated.

    >>> hf_names("encoder.layers.3.qkv.bias")[1:]
    ('bert.encoder.layer.3.attention.self.key.bias', 'bert.encoder.layer.3.attention.self.value.bias')
    """
    module, _, kind = name.rpartition(".")
    prefix = ""
    table = dict((*EMBEDDING_NAMES, *HEAD_NAMES, ("classifier", (classifier,))))
    if layer := re.fullmatch(r"encoder\.layers\.(\d+)\.(\w+)", module):
        module, prefix, table = layer[2], f"bert.encoder.layer.{layer[1]}.", dict(LAYER_NAMES)
    return tuple(f"{prefix}{theirs}.{kind}" for theirs in table[module])


def is_of_a_head(foreign: str) -> bool:
    """Return whether a parameter of `transformers` is a head's, known here or not.

    >>> is_of_a_head("classifier.weight"), is_of_a_head("bert.pooler.dense.bias"), is_of_a_head("bert.pooler.extra")
    (True, True, False)
    """
    module = foreign.rpartition(".")[0]
    return not foreign.startswith(("bert.", "cls.")) or any(module in theirs for _, theirs in HEAD_NAMES)


def unwrap_names(tensors: Mapping[str, Tensor], is_of_a_head: Callable[[str], bool]) -> dict[str, Tensor]:
    """Return tensors without the names of modules around the model, which stand before every name, or inside."""
    named = {WRAPPERS.sub("", name): tensor for name, tensor in tensors.items()}
    prefix = min(named, default="").partition(".")[0] + "."
    if not named or not is_of_a_head(prefix) or not all(name.startswith(prefix) for name in named):
        return named
    return unwrap_names({name.removeprefix(prefix): tensor for name, tensor in named.items()}, is_of_a_head)


def normalize_names(foreign: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors under the names of the `BertFor…` classes, whichever class or version wrote them."""
    prefixed = any(name.startswith("bert.") for name in foreign)
    given: dict[str, Tensor] = {}
    for name, tensor in foreign.items():
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
        if not prefixed and name.startswith(("embeddings.", "encoder.", "pooler.")):
            name = f"bert.{name}"
        if not name.endswith(".position_ids"):  # a buffer of earlier versions: 0, 1, 2 …
            given[name] = tensor
    if "cls.predictions.decoder.bias" in given:
        bias = given.pop("cls.predictions.decoder.bias")
        given.setdefault("cls.predictions.bias", bias)
    return given
