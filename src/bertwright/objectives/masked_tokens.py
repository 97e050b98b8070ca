"""The targets of masked language models (section 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bertwright.base.example_order import uniform
from bertwright.base.seeding import derive_key
from bertwright.objectives import masking
from bertwright.objectives.language_model_objective import LanguageModelObjective
from bertwright.objectives.objective import M

if TYPE_CHECKING:
    from bertwright.objectives.data import StepTexts
    from bertwright.objectives.data_settings import DataSettings


class MaskedTokens(LanguageModelObjective[M]):
    """A language model that predicts some tokens of each text, which its input hides."""

    masks_tokens: ClassVar[bool] = True

    def needs_whole_step(self, settings: DataSettings) -> bool:
        """Whole words: how many tokens a sequence predicts depends on its words."""
        return settings.whole_word_mask

    def count_predictions(self, lengths: np.ndarray, settings: DataSettings) -> np.ndarray:
        share, most = settings.mlm_probability, settings.max_predictions
        return masking.mask_counts(lengths, self.num_specials(settings), share, most)

    def most_predictions(self, settings: DataSettings) -> int:
        share = max(1, round(settings.mlm_probability * settings.max_length))
        return min(share, settings.max_predictions, self.max_num_tokens(settings))

    def choose_targets(self, step: StepTexts) -> masking.Masked:
        assert step.vocab is not None  # because `masks_tokens`
        scores = uniform(step.positions, derive_key(step.mask_key, 2))
        if step.settings.whole_word_mask:
            continues = step.vocab.continuation[step.ids]
            chosen = masking.choose_whole_words(step.lengths, step.is_text, continues, step.counts, scores)
        else:
            chosen = masking.choose_tokens(step.lengths, step.is_text, step.counts, scores)
        mix = step.settings.mask_mix
        return masking.mask_tokens(step.ids, chosen, step.positions[chosen], step.vocab, mix, step.mask_key)
