"""What objectives on a token store have in common: examples of one segment or two, from consecutive text."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from bertwright.objectives.data import StepTexts, StoreExamples
from bertwright.objectives.objective import B, M, Objective
from bertwright.tokenstore.store import TokenStore
from bertwright.vocabulary.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from bertwright.objectives.data_settings import DataSettings


class StoreObjective(Objective[B, M]):
    """An objective on a token store: its examples have one segment or, with `--segments pair`, two."""

    needs_pairs: ClassVar[bool] = False
    """True if a loss compares the two segments of an example."""
    single_reads: ClassVar[str] = ""
    """What is read by an objective whose examples are always single, such as "running text"; empty for others."""
    has_specials: ClassVar[bool] = True
    """False if examples are running text, without the special tokens of the tokenizer's layout."""
    masks_tokens: ClassVar[bool] = False
    """True if tokens are replaced by [MASK], which the vocabulary must have."""
    accuracy_per_sequence: ClassVar[str | None] = None
    """Name of an accuracy with one answer per sequence, whose standard error is reported."""

    @abstractmethod
    def make_batches(self, step: StepTexts, micro_batches: Sequence[range]) -> list[B]:
        """Choose what is predicted, and pack micro-batches; each is a range of the step's sequences.

        The batches of a step must not depend on how its sequences are divided into micro-batches.
        """

    def count_predictions(self, lengths: np.ndarray, settings: DataSettings) -> np.ndarray:
        """Return the number of predicted tokens per sequence; for whole words, their maximum."""
        return lengths - 1

    def needs_whole_step(self, settings: DataSettings) -> bool:
        """Return whether `make_batches` must read all sequences of a step, also of other ranks."""
        return False

    def num_segments(self, settings: DataSettings) -> int:
        """Return the number of segments in an example: also the minimum of sentences that it is made of."""
        return 2 if self.needs_pairs or settings.segments == "pair" else 1

    def num_specials(self, settings: DataSettings) -> int:
        """Return the special tokens of an example in BERT's layout."""
        return self.num_segments(settings) + 1 if self.has_specials else 0

    def max_num_tokens(self, settings: DataSettings) -> int:
        """Return the tokens of text in a full-length example."""
        return settings.max_length - self.num_specials(settings)

    def check_settings(self, settings: DataSettings) -> None:
        if self.needs_pairs and settings.segments == "single":
            raise ValueError(
                f"segments is 'single'; --objective {self.name} compares two segments; omit it, or use --objective mlm"
            )
        if self.single_reads and settings.segments == "pair":
            raise ValueError(f"segments is 'pair'; --objective {self.name} reads {self.single_reads}; omit it")
        specials = self.num_specials(settings)
        if settings.max_length < specials + 2:
            raise ValueError(
                f"max_length is {settings.max_length}; {self.name} needs at least {specials + 2}: "
                f"{specials} for [CLS] and [SEP], 2 for text (paper: 128 and 512)"
            )

    def open_examples(
        self, folder: Path, tokenizer: TextTokenizer, phases: Sequence[DataSettings], verify: bool = False
    ) -> list[StoreExamples[B]]:
        store = TokenStore.open(folder, tokenizer.digest, verify=verify)
        return [StoreExamples(store, tokenizer, settings, self) for settings in phases]
