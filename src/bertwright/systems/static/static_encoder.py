"""Static vectors: a vector per token, whatever its neighbours, in a folder that sentence-transformers reads.

A text's vector is the mean of its tokens' vectors, scaled to length 1. Special tokens have the vector 0, so that the
mean over all tokens has the same direction as the mean over the words.

T tokens of the batch, R positions whose states are read, V vocabulary size, H numbers per vector.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from torch import Tensor, nn

from bertwright.base.settings import check_minimum
from bertwright.interop.model_files import MODULES
from bertwright.interop.model_format import Architecture
from bertwright.interop.sentence_modules import SentenceModules
from bertwright.models.encoder import TextEncoder
from bertwright.models.packing import TokenBatch

IN_FILE = "embedding.weight"
KINDS = {"StaticEmbedding": "", "Normalize": "1_Normalize"}  # modules of sentence-transformers and their folders


@dataclass(frozen=True)
class StaticConfig:
    """Sizes of a `StaticEncoder`."""

    type_vocab_size: ClassVar[int] = 2
    is_causal: ClassVar[bool] = False
    num_layers: ClassVar[int] = 0
    initializer_range: ClassVar[float] = 0.02

    vocab_size: int
    hidden_size: int
    max_positions: int = 100_000
    """Longest sequence; the model has no positions, so that this bounds memory only."""
    hidden_dropout: float = 0.0
    """Dropout of the input of a task's head."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "vocab_size", "hidden_size", "max_positions")

    def __str__(self) -> str:
        return f"static vectors, H{self.hidden_size}"

    @property
    def num_parameters(self) -> int:
        return self.vocab_size * self.hidden_size

    def with_dropout(self, rate: float) -> Self:
        return replace(self, hidden_dropout=rate)


class StaticEncoder(TextEncoder):
    """A table of vectors."""

    model_type: ClassVar[str] = "static"
    config: StaticConfig

    def __init__(self, config: StaticConfig, seed: int = 0) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.initialize(seed)

    def hidden_states(
        self, batch: TokenBatch, layers: Sequence[int] | None = None, positions: Tensor | None = None
    ) -> list[Tensor]:
        """Look up the vectors, T × H or R × H, which are all layers that there are."""
        ids = batch.input_ids if positions is None else batch.input_ids[positions]
        return [self.embeddings(ids) for _ in ([0] if layers is None else layers)]


class StaticArchitecture(Architecture):
    """The folder of a table of vectors, with the weights of the module `StaticEmbedding`."""

    def file_names(self, name: str, kind: str = "") -> tuple[str, ...]:
        return (IN_FILE,) if name == "encoder.embeddings.weight" else super().file_names(name, kind)

    def is_of_a_head(self, file_name: str) -> bool:
        return not file_name.startswith("embedding.")

    def check_sizes(self, tensors: Mapping[str, Tensor], config: Any, path: Path) -> None:
        """Raise ValueError if the table has another size than the configuration."""
        expected = (config.vocab_size, config.hidden_size)
        if IN_FILE in tensors and (found := tuple(tensors[IN_FILE].shape)) != expected:
            raise ValueError(f"{path}: {IN_FILE}: expected {expected[0]} x {expected[1]} numbers, got {found}")


FOLDER = StaticArchitecture(StaticEncoder, StaticConfig, "Static")


def static_modules() -> SentenceModules:
    """Return the modules of a folder of static vectors, as sentence-transformers names them."""
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(KINDS.items())
    ]
    return SentenceModules(
        modes=("mean",), layers=(nn.functional.normalize,), files={MODULES: json.dumps(listed, indent=2).encode()}
    )
