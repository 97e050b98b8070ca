"""Context from a frozen model, for the words of a task's model.

TagLM (Peters et al. 2017) joins the last states of a bidirectional language model to those between two task layers;
ELMo (Peters et al. 2018, section 3.3) joins a learned mean of all its layers to the words' vectors; CoVe (McCann et al.
2017, section 4) joins the last states of a translation model's encoder to them. N words, H size of the states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, cast

import torch
from torch import Tensor, nn

from bertwright.base.settings import check_choice, check_limit
from bertwright.models.layer_mix import LayerMix
from bertwright.models.packing import WordBatch
from bertwright.systems.cove.mt_lstm import CoveConfig, CoveEncoder
from bertwright.systems.elmo.elmo import ElmoConfig, ElmoEncoder
from bertwright.systems.word_config import WordConfig
from bertwright.systems.word_settings import LmDirections, LmLayers
from bertwright.vocabulary.word_tokenizer import UNKNOWN

if TYPE_CHECKING:
    from bertwright.models.heads import TaskBatch
    from bertwright.systems.word_encoder import Texts


@dataclass(frozen=True)
class ContextConfig(WordConfig):
    """What a word model's configuration says of the frozen model that it reads."""

    language_model: ElmoConfig | CoveConfig | None = None
    """A frozen bidirectional language model, or encoder of a translation model, whose states are joined to the
    words'."""
    lm_layers: LmLayers = "mix"
    """mix: a learned mean of its layers (ELMo); top: its last one (TagLM, CoVe)."""
    lm_layer_norm: bool = False
    """Normalize the states of each layer before they are mixed."""
    lm_mix_penalty: float = 0.0
    """λ; training adds λ‖w‖² to the loss for the weights w of each mix."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "lm_layers")
        check_limit(self, "from 0", "lm_mix_penalty")

    def describe_words(self) -> str:
        context = f", {self.language_model} ({self.lm_layers})" if self.language_model else ""
        return super().describe_words() + context


NUM_LETTERS = 257  # rows of a table of letters for models that read bytes: one per byte, and 0, which fills up


class LanguageModelStates(nn.Module):
    """A model that is neither trained nor dropped out, and how its layers are joined at each place.

    A language model reads the bytes of words; a translation model reads their ids, by vectors for the task's words.
    """

    def __init__(
        self,
        word_config: ContextConfig,
        places: Sequence[int],
        directions: LmDirections = "both",
    ) -> None:
        super().__init__()
        config, layers = word_config.language_model, word_config.lm_layers
        assert config is not None
        if isinstance(config, CoveConfig) and layers != "top":
            raise ValueError(f"lm_layers = {layers!r}: expected top for a translation model; set it")
        model = CoveEncoder(config) if isinstance(config, CoveConfig) else ElmoEncoder(config)
        self.model = model.requires_grad_(False)
        norm, mixed = word_config.lm_layer_norm, places if layers == "mix" else ()
        self.mixes = nn.ModuleDict({str(n): LayerMix(config.num_layers + 1, norm) for n in mixed})
        self.mix_penalty = word_config.lm_mix_penalty if mixed else 0.0
        self.places = places
        half = config.hidden_size // 2  # a state is the forward direction's, then the backward one's
        self.columns = {"both": slice(None), "forward": slice(half), "backward": slice(half, None)}[directions]

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all but the language model, which stays without dropout."""
        super().train(mode)
        self.model.eval()
        return self

    def penalty(self, batch: TaskBatch) -> Tensor:
        """Compute a micro-batch's share, by its sequences, of λ‖w‖² for all mixes (Peters et al. 2018, section 3.2)."""
        squares = [cast(LayerMix, mix).weights.square().sum() for mix in self.mixes.values()]
        return self.mix_penalty * torch.stack(squares).sum() * (len(batch.packing) / batch.num_sequences)

    def forward(self, batch: WordBatch, texts: Texts, dtype: torch.dtype) -> dict[int, Tensor]:
        """Return the states of the batch's words to join at each place, N × H; `dtype`: of CoVe's products."""
        with torch.no_grad():
            if isinstance(self.model, CoveEncoder):
                ids = batch.rows[texts.words, 0]
                ids = ids.masked_fill(ids < 0, UNKNOWN)  # words that determine their vectors themselves
                states = self.model(ids, texts.lengths[texts.lengths > 0], dtype=dtype).layers[-1:]
            else:
                layers = None if self.mixes else [self.model.config.num_layers]
                states = self.model.hidden_states(batch, layers, texts.words)
        states = [layer[:, self.columns] for layer in states]
        return {place: self.mixes[str(place)](states) if self.mixes else states[0] for place in self.places}
