"""The names of a Transformer's parameters in `transformers`: one table for each system, read in both directions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from bertwright.interop.head_config import HEAD_CLASSES

WRAPPERS = re.compile(r"\b(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.")  # of torch
Names = Mapping[str, str]
"""Our module → theirs. The last word of a parameter's name, `weight` or `bias`, is the same. Several of theirs, divided
by spaces, are concatenated to one of ours along the first dimension."""


@dataclass(frozen=True)
class WeightNames:
    """The names of one system's parameters. Import and export both read these tables."""

    prefix: str
    """The encoder's, in classes that have a head, such as "bert."."""
    encoder: Names
    """Modules of the encoder outside its layers, without the prefix; the words are `embeddings.word`."""
    layer: str
    """A layer by its number N, without the prefix, such as "encoder.layer.N."."""
    layers: Names
    """Modules of a layer."""
    heads: Names
    """Modules of the heads of pre-training."""
    decoder: str
    """The module whose weight is tied to the words, and whose bias is `masked_token.bias`."""
    tasks: Mapping[str, Names] = field(default_factory=dict)
    """Kind of a task's head (`HeadSpec`) → its modules, where they are not as in `HEAD_CLASSES`."""
    inside: tuple[str, ...] = ()
    """Further prefixes, whose parameters are all known here."""

    def of(self, name: str, kind: str = "") -> tuple[str, ...]:
        """Return the names in `transformers` of one of our parameters; several are concatenated.

        `kind`: of the task's head, for the parameters of heads.
        """
        module, _, last = name.rpartition(".")
        if layer := re.fullmatch(r"encoder\.layers\.(\d+)\.(\w+)", module):
            prefix, theirs = self.prefix + self.layer.replace("N", layer[1]), self.layers[layer[2]]
        elif module.startswith("encoder."):
            prefix, theirs = self.prefix, self.encoder[module.removeprefix("encoder.")]
        else:
            classifier = {"classifier": HEAD_CLASSES[kind].classifier if kind else "classifier"}
            prefix, theirs = "", (classifier | {**self.heads} | {**self.tasks.get(kind, {})})[module]
        return tuple(f"{prefix}{each}.{last}" for each in theirs.split())

    def is_of_a_head(self, foreign: str) -> bool:
        """Return whether a parameter of `transformers` is a head's, known here or not."""
        module = foreign.rpartition(".")[0]
        return not foreign.startswith((self.prefix, *self.inside)) or module in self.heads.values()

    def normalize(self, foreign: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors under the names of the classes with heads, whichever class or version wrote them."""
        heads = (name.removeprefix(self.prefix) for name in self.heads.values() if name.startswith(self.prefix))
        roots = tuple(name.partition(".")[0] + "." for name in (*self.encoder.values(), self.layer, *heads))
        is_bare = not any(name.startswith(self.prefix) for name in foreign)
        given: dict[str, Tensor] = {}
        for name, tensor in foreign.items():
            name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name))
            if is_bare and name.startswith(roots):
                name = self.prefix + name
            if not name.endswith(".position_ids"):  # a buffer of earlier versions: 0, 1, 2 …
                given[name] = tensor
        if (bias := given.pop(f"{self.decoder}.bias", None)) is not None:
            given.setdefault(self.of("masked_token.bias")[0], bias)
        return given


def unwrap_names(tensors: Mapping[str, Tensor], is_of_a_head: Callable[[str], bool]) -> dict[str, Tensor]:
    """Return tensors without the names of modules around the model, which stand before every name, or inside."""
    named = {WRAPPERS.sub("", name): tensor for name, tensor in tensors.items()}
    prefix = min(named, default="").partition(".")[0] + "."
    if not named or not is_of_a_head(prefix) or not all(name.startswith(prefix) for name in named):
        return named
    return unwrap_names({name.removeprefix(prefix): tensor for name, tensor in named.items()}, is_of_a_head)
