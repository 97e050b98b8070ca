"""Context from a frozen bidirectional language model, for the words of a task's model.

TagLM (Peters et al. 2017) joins the model's last states to those between two task layers; ELMo (Peters et al. 2018,
section 3.3) joins a learned mean of all layers to the words' vectors. T rows of the batch, N words, H states' size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import torch
from torch import Tensor, nn

from bertwright.baselines.elmo import ElmoConfig, ElmoEncoder, ScalarMix
from bertwright.models.packing import WordBatch

LmLayers = Literal["mix", "top"]
NUM_LETTERS = 257  # rows of a table of letters for models that read bytes: one per byte, and 0, which fills up


class LanguageModelStates(nn.Module):
    """A language model that is neither trained nor dropped out, and how its layers are joined at each place."""

    def __init__(self, config: ElmoConfig, layers: LmLayers, places: Sequence[int]) -> None:
        super().__init__()
        self.model = ElmoEncoder(config).requires_grad_(False)
        self.mixes = nn.ModuleDict(
            {str(n): ScalarMix(config.num_layers + 1) for n in places} if layers == "mix" else {}
        )
        self.places = places

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all but the language model, which stays without dropout."""
        super().train(mode)
        self.model.eval()
        return self

    def forward(self, batch: WordBatch, words: Tensor) -> dict[int, Tensor]:
        """Return the states to join at each place, N × H; `words`: N int64, rows of the batch."""
        with torch.no_grad():
            layers = None if self.mixes else [self.model.config.num_layers]
            states = self.model.hidden_states(batch, layers, words)
        return {place: self.mixes[str(place)](states) if self.mixes else states[0] for place in self.places}
