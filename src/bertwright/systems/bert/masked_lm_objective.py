"""Masked language models, with and without next-sentence prediction (section 3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bertwright.base.example_order import uniform
from bertwright.base.seeding import derive_key
from bertwright.objectives import masking
from bertwright.objectives.language_model_objective import language_model_columns
from bertwright.objectives.objective import LOSS, Column
from bertwright.systems.bert.bert_objective import BertObjective

if TYPE_CHECKING:
    from bertwright.objectives.data import StepTexts
    from bertwright.objectives.data_settings import DataSettings
    from bertwright.systems.bert.bert_for_pretraining import MaskedLanguageModel


class MaskedLM(BertObjective["MaskedLanguageModel"]):
    """Masked tokens alone ("No NSP", section 5.1)."""

    name: ClassVar[str] = "mlm"
    summary: ClassVar[str] = "masked tokens alone (No NSP, section 5.1)"
    model_name: ClassVar[str] = "a BERT, or a model with a masked-LM head"
    masks_tokens: ClassVar[bool] = True
    columns = language_model_columns("masked-LM")

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

    @property
    def first_model_class(self) -> type[MaskedLanguageModel]:
        """The kind of model that a run may start from: any masked LM of BERT's layers, if no other loss is added."""
        from bertwright.systems.bert.bert_for_pretraining import BertForPretraining, MaskedLanguageModel

        is_general = self.model_class is BertForPretraining and not self.has_next_sentence
        return MaskedLanguageModel if is_general else self.model_class

    def suggest_command(self, model: str) -> str:
        return f'bertwright fill-mask {model} "Some text with a [MASK] in it."'


class MaskedLMWithNextSentence(MaskedLM):
    """Masked tokens in pairs of segments, and whether B follows A: the objective of BERT."""

    name: ClassVar[str] = "mlm+nsp"
    summary: ClassVar[str] = "masked tokens and next-sentence prediction (paper, section 3.1)"
    model_name: ClassVar[str] = "a BERT"
    needs_pairs: ClassVar[bool] = True
    accuracy_per_sequence: ClassVar[str] = "next-sentence accuracy"
    has_next_sentence: ClassVar[bool] = True
    trains_all_parameters: ClassVar[bool] = True
    columns = (
        *(column._replace(is_plotted=column.metric == LOSS) for column in MaskedLM.columns),
        Column("nsp_accuracy", "next-sentence accuracy", "{:.1%}", "next sentence {:.1%}", "nsp {:.0%}", True),
    )


class FamilyMaskedLM(MaskedLM):
    """Masked tokens of single texts, for a system with BERT's encoder: consecutive sentences, as many as fit."""

    single_reads: ClassVar[str] = "single texts"
    trains_all_parameters: ClassVar[bool] = True
