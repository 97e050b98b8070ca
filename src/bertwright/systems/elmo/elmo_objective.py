"""The bidirectional language model of ELMo and TagLM: each word predicts the next one, and the word before it.

M predictions of both directions together, P projection size, V vocabulary size, S words of the sampled softmax.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from bertwright.base.example_order import uniform
from bertwright.objectives.data import StepTexts, StoreExamples, count_tokens, entropy
from bertwright.objectives.language_model_objective import (
    language_model_columns,
    load_first_model,
)
from bertwright.objectives.masking import causal_lm_targets
from bertwright.objectives.store_objective import StoreObjective
from bertwright.tokenstore.store import TokenStore
from bertwright.vocabulary.tokenizer import TextTokenizer
from bertwright.vocabulary.word_tokenizer import UNKNOWN, WordTokenizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bertwright.models.packing import Packing, WordBatch
    from bertwright.objectives.data_settings import DataSettings
    from bertwright.pretraining.settings import ModelSettings
    from bertwright.systems.elmo.elmo import BidirectionalLM
    from bertwright.training.loop import LossOutput


MAX_SAMPLED = 8192  # words of the sampled softmax in the released code
SAMPLED_SHARE = 16  # a smaller vocabulary than the released one (793,471 words) samples this fraction of its words
MIN_SAMPLED = 64  # below it, the softmax has all words


class SampledWords(NamedTuple):
    """The words that share a softmax with the right ones in a step (Jozefowicz et al. 2016)."""

    ids: np.ndarray
    """S int64, different words, drawn by P(k) = log((k + 2) / (k + 1)) / log(V + 1): near a language's frequencies."""
    draws: int
    """Number of draws until S different words had come."""

    @classmethod
    def draw(cls, vocab_size: int, number: int, key: int) -> SampledWords:
        """Draw words with ids in order of frequency; `key` decides them.

        >>> words = SampledWords.draw(1000, 5, key=1)
        >>> len({*words.ids.tolist()}), words.draws >= 5
        (5, True)
        """
        number, size = min(number, vocab_size // 2), 4 * number
        while True:
            drawn = np.exp(uniform(np.arange(size), key) * math.log(vocab_size + 1)).astype(np.int64) - 1
            drawn = np.clip(drawn, 0, vocab_size - 1)
            ids, first = np.unique(drawn, return_index=True)
            if len(ids) >= number:
                chosen = np.sort(first)[:number]
                return cls(drawn[chosen], int(chosen[-1]) + 1)
            size *= 2

    def log_expected_counts(self, ids: Tensor, vocab_size: int) -> Tensor:
        """Return log P(word is among the sampled ones), float32, by which logits are corrected."""
        import torch

        share = torch.log1p(1 / (ids.double() + 1)) / math.log(vocab_size + 1)
        return torch.log(-torch.expm1(self.draws * torch.log1p(-share))).float()


@dataclass(frozen=True)
class BidirectionalBatch:
    """A micro-batch: sequences of words, and what each direction predicts."""

    input: WordBatch
    positions: tuple[Tensor, Tensor]
    """Positions whose states predict, M / 2 int64, forward and backward."""
    labels: Tensor
    """M int64, ids of the words to predict: forward, then backward."""
    sampled: SampledWords | None
    """None: the softmax has all words."""
    count: int
    """Predictions of the whole step; the summed loss is divided by it."""

    @property
    def packing(self) -> Packing:
        return self.input.packing

    @property
    def num_predictions(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> BidirectionalBatch:
        forward, backward = (positions.to(device, non_blocking=True) for positions in self.positions)
        labels = self.labels.to(device, non_blocking=True)
        return replace(self, input=self.input.to(device), positions=(forward, backward), labels=labels)


class WordExamples(StoreExamples[BidirectionalBatch]):
    """Examples of words; words beyond the vocabulary are read, and predicted as the unknown word."""

    def measure_baseline(self) -> float:
        counts, size = count_tokens(self.store), self.tokenizer.vocab_size
        counts[UNKNOWN] += counts[size:].sum()
        return entropy(counts[:size])


class BidirectionalLanguageModel(StoreObjective[BidirectionalBatch, "BidirectionalLM"]):
    """Two language models with one table of words (Peters et al. 2018, section 3.1)."""

    name: ClassVar[str] = "bilm"
    summary: ClassVar[str] = "every next and every previous word"
    model_options = ("size", "num_layers", "hidden_dropout")
    # Batch, norm of gradients and no decay: bilm-tf, whose 20 words per row are 32 here, because no state is handed to
    # the next step. Adam takes the place of Adagrad; its rate is bertwright's own.
    defaults: ClassVar[Mapping[str, Any]] = {
        "data": {"max_length": 32, "batch_size": 128, "short_seq_prob": 0.0},
        "long": {"long_ratio": 0.0},
        "optimizer": {
            "learning_rate": 1e-3, "bias_correction": True, "weight_decay": 0.0, "max_grad_norm": 10.0,
        },
    }  # fmt: skip
    columns = language_model_columns("bidirectional LM")
    vocab_size: int
    """V, words that are predicted; set on the copy that `open_examples` makes, as the next field."""
    token_rows: np.ndarray
    """Id and bytes of each word of the store, 1 + W numbers: the vocabulary's V, then the rarer ones."""

    def open_examples(
        self, folder: Path, tokenizer: TextTokenizer, phases: Sequence[DataSettings], verify: bool = False
    ) -> list[StoreExamples[BidirectionalBatch]]:
        if not isinstance(tokenizer, WordTokenizer) or not tokenizer.rules.bytes:
            raise ValueError(
                f"{folder.parent}: expected a vocabulary of words with their bytes, got another; make one with "
                "bertwright vocabulary --algorithm words, and prepare the text again"
            )
        reader = copy(self)
        reader.vocab_size, reader.token_rows = tokenizer.vocab_size, tokenizer.token_rows()
        store = TokenStore.open(folder, tokenizer.digest, verify=verify)
        return [WordExamples(store, tokenizer, settings, reader) for settings in phases]

    def count_predictions(self, lengths: np.ndarray, settings: DataSettings) -> np.ndarray:
        return 2 * (lengths - 1)

    def make_batches(self, step: StepTexts, micro_batches: Sequence[range]) -> list[BidirectionalBatch]:
        import torch

        from bertwright.models.packing import WordBatch

        number = min(MAX_SAMPLED, self.vocab_size // SAMPLED_SHARE)
        sampled = SampledWords.draw(self.vocab_size, number, step.mask_key) if number >= MIN_SAMPLED else None
        batches = []
        for sequences in micro_batches:
            tokens, packed = step.pack(sequences, step.ids)
            ids, lengths = step.ids[tokens], packed.packing.lengths
            words = np.where(ids < self.vocab_size, ids, UNKNOWN)
            targets = [causal_lm_targets(words, lengths, is_reversed) for is_reversed in (False, True)]
            forward, backward = (torch.from_numpy(direction.positions) for direction in targets)
            batches.append(
                BidirectionalBatch(
                    input=WordBatch(packed.packing, torch.from_numpy(self.token_rows[ids].astype(np.int64))),
                    positions=(forward, backward),
                    labels=torch.from_numpy(np.concatenate([direction.labels for direction in targets])),
                    sampled=sampled,
                    count=step.num_predictions,
                )
            )
        return batches

    def new_model(self, settings: ModelSettings, vocab_size: int, seed: int) -> BidirectionalLM:
        from bertwright.systems.elmo.elmo import BidirectionalLM, ElmoConfig

        given = {"num_layers": settings.num_layers, "hidden_dropout": settings.hidden_dropout}
        changes = {name: value for name, value in given.items() if value is not None}
        return BidirectionalLM(ElmoConfig.from_size(settings.size, vocab_size, **changes), seed)

    def load_model(
        self, folder: Path, settings: ModelSettings, tokenizer: TextTokenizer, is_checkpoint: bool
    ) -> tuple[BidirectionalLM, list[str]]:
        from bertwright.systems.elmo.elmo import BidirectionalLM

        return load_first_model(folder, BidirectionalLM, "an ELMo", settings, tokenizer, "required")[0], []

    def loss(self, model: BidirectionalLM, batch: BidirectionalBatch) -> LossOutput:
        """Compute the mean cross entropy of both directions, in nats.

        In training, the softmax has only the right word and the sampled ones; in an evaluation, the whole vocabulary.
        """
        from bertwright.training.loop import LossOutput

        states = model.predicting_states(batch.input, batch.positions)  # M P
        sampled = batch.sampled if model.training else None
        if sampled:
            loss, correct = sampled_cross_entropy(model, states, batch.labels, sampled, 1 / max(batch.count, 1))
        else:
            loss, correct = model.cross_entropy(states, batch.labels, 1 / max(batch.count, 1))
        words = batch.packing.num_tokens
        sums = {"lm_sum": loss.detach() * max(batch.count, 1), "lm_correct": correct}
        candidates = len(sampled.ids) if sampled else model.config.vocab_size
        flops = model.config.count_training_flops(words, len(states), candidates)
        counts = {"lm_count": len(states), "tokens": words, "flops": flops}
        return LossOutput.of(loss, sums, counts)


def sampled_cross_entropy(
    model: BidirectionalLM, states: Tensor, labels: Tensor, sampled: SampledWords, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute `scale` × the summed loss of M × P states among each right word and the S sampled words.

    Returns it with the number of states whose right word has the largest logit of these.
    """
    import torch
    import torch.nn.functional as F

    from bertwright.kernels.fused_ops import linear
    from bertwright.models.packed_lstm import as_factor

    sampled_ids = torch.from_numpy(sampled.ids).to(states.device)
    ids, right = torch.cat([labels, sampled_ids]), slice(len(states))
    vectors = F.embedding(ids, model.softmax.weight, sparse=model.encoder.sparse_gradients)  # M + S  P
    shifts = model.softmax.bias[ids] - sampled.log_expected_counts(ids, model.config.vocab_size)
    logits = (states * vectors[right]).sum(1) + shifts[right]  # M
    factor = as_factor(states, model.encoder.compute_dtype)
    others = linear(factor, vectors[len(states) :], shifts[len(states) :]).to(states.dtype)  # M S
    others = others.masked_fill(labels[:, None] == sampled_ids, -math.inf)
    losses = torch.logsumexp(torch.cat([logits[:, None], others], 1), 1) - logits
    return losses.sum() * scale, (logits > others.amax(1)).sum()
