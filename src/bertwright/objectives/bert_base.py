"""The base of BERT's objectives: the model, its two losses, and their scores.

Losses are sums, divided once by the counts of the whole step. B sequences of T tokens, M of them to be predicted,
H hidden size.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from bertwright.kernels.cpu import available_memory
from bertwright.objectives.data import StepTexts
from bertwright.objectives.language_model import load_first_model
from bertwright.objectives.masking import Masked
from bertwright.objectives.objective import ShownExample
from bertwright.objectives.store_objective import StoreObjective
from bertwright.vocabulary.tokenizer import TextTokenizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bertwright.models.heads import BertForPretraining
    from bertwright.models.packing import Packing, TokenBatch
    from bertwright.objectives.data_settings import DataSettings
    from bertwright.pretraining.settings import ModelSettings
    from bertwright.systems.bert.bert_config import BertConfig
    from bertwright.training.loop import LossOutput


@dataclass(frozen=True)
class BertBatch:
    """A micro-batch: B sequences of T tokens, M of them to be predicted."""

    input: TokenBatch
    mlm_positions: Tensor
    """M int64, positions in the T tokens whose states predict."""
    mlm_labels: Tensor
    """M int64, the ids to predict; `IGNORED_LABEL` for predictions that `pad_batch` added."""
    nsp_labels: Tensor
    """B int64: 0, B follows A; 1, B is random (as in `transformers`). Empty if the objective has no NSP.
    `IGNORED_LABEL` for sequences that `pad_batch` added."""
    mlm_count: int
    """Predicted tokens of the whole step, all ranks and micro-batches; the summed loss is divided by it."""
    nsp_count: int
    """Next-sentence answers of the whole step; 0 if the objective has no NSP."""
    added_sequences: int = 0
    """Sequences at the end of `input` that `pad_batch` added."""
    added_predictions: int = 0
    """Predictions at the end of `mlm_positions` that `pad_batch` added."""

    @property
    def packing(self) -> Packing:
        return self.input.packing

    @property
    def num_sequences(self) -> int:
        """Number of sequences without the added ones."""
        return len(self.packing) - self.added_sequences

    @property
    def num_predictions(self) -> int:
        """Number of predictions without the added ones."""
        return len(self.mlm_labels) - self.added_predictions

    def to(self, device: torch.device | str) -> BertBatch:
        return replace(
            self,
            input=self.input.to(device),
            mlm_positions=self.mlm_positions.to(device, non_blocking=True),
            mlm_labels=self.mlm_labels.to(device, non_blocking=True),
            nsp_labels=self.nsp_labels.to(device, non_blocking=True),
        )


class BertObjective(StoreObjective[BertBatch, "BertForPretraining"]):
    """A language model in BERT's shape; a subclass chooses the targets."""

    direction: ClassVar[str] = "bidirectional"
    """Which tokens a token attends to: bidirectional, left-to-right, right-to-left."""
    has_next_sentence: ClassVar[bool] = False
    trains_all_parameters: ClassVar[bool] = False

    @property
    def model_class(self) -> type[BertForPretraining]:
        """The model to train; an objective with weights of its own has a subclass that adds a module for them."""
        from bertwright.models.heads import BertForPretraining

        return BertForPretraining

    @abstractmethod
    def choose_targets(self, step: StepTexts) -> Masked:
        """Choose the tokens of a step to predict, and change the input accordingly."""

    @abstractmethod
    def most_predictions(self, settings: DataSettings) -> int:
        """Return the maximum of predicted tokens in an example."""

    def check_settings(self, settings: DataSettings) -> None:
        super().check_settings(settings)
        limit, most = settings.max_predictions_per_seq, self.max_num_tokens(settings)
        if limit is not None and not 1 <= limit <= most:
            raise ValueError(
                f"max_predictions_per_seq is {limit}; expected 1 … {most}, the tokens of text in an example of "
                f"{settings.max_length}; lower it, or leave it out"
            )

    def make_batches(self, step: StepTexts, micro_batches: Sequence[range]) -> list[BertBatch]:
        import torch

        masked = self.choose_targets(step)
        answers = (step.is_random_next if self.has_next_sentence else step.is_random_next[:0]).astype(np.int64)
        batches = []
        for sequences in micro_batches:
            tokens, packed = step.pack(sequences, masked.input_ids)
            chosen = slice(*np.searchsorted(masked.positions, [tokens.start, tokens.stop]))
            batches.append(
                BertBatch(
                    input=packed,
                    mlm_positions=torch.from_numpy(masked.positions[chosen] - tokens.start),
                    mlm_labels=torch.from_numpy(masked.labels[chosen]),
                    nsp_labels=torch.from_numpy(answers[sequences.start : sequences.stop]),
                    mlm_count=len(masked.positions) if step.is_whole else step.num_predictions,
                    nsp_count=step.num_sequences if self.has_next_sentence else 0,
                )
            )
        return batches

    def pad_batch(self, batch: BertBatch, sequences: int, settings: DataSettings) -> BertBatch:
        from bertwright.objectives.padding import pad_batch

        return pad_batch(batch, sequences, settings.max_length, self.most_predictions(settings))

    def new_model(self, settings: ModelSettings, vocab_size: int, seed: int) -> BertForPretraining:
        is_causal, is_reversed = self.direction != "bidirectional", self.direction == "right-to-left"
        config = settings.config(vocab_size, is_causal, is_reversed)
        check_memory(config)
        return new_bert(settings, config, seed, self.model_class)

    def load_model(
        self, folder: Path, settings: ModelSettings, tokenizer: TextTokenizer, is_checkpoint: bool
    ) -> tuple[BertForPretraining, list[str]]:
        heads: Literal["required", "optional"] = "required" if is_checkpoint else "optional"
        model, loaded = load_first_model(folder, self.model_class, "a BERT", settings, tokenizer, heads)
        if model.config.direction != self.direction:
            raise ValueError(f"{folder}: a {model.config.direction} model does not fit --objective {self.name}")
        if self.has_next_sentence and model.config.type_vocab_size < 2:
            raise ValueError(
                f"type_vocab_size = 1: the model has one segment type, and --objective {self.name} reads pairs; choose "
                "--objective mlm"
            )
        return model, [f"{folder} has no {head} head: it starts from random weights" for head in loaded.missing_heads]

    def describe_initialization(self, settings: ModelSettings, model: BertForPretraining) -> str:
        config = model.config
        return f"random, initialization {settings.scheme_for(config)}, deviation {config.initializer_range:.3g}"

    def loss(self, model: BertForPretraining, batch: BertBatch) -> LossOutput:
        """Compute mean masked-LM + mean next-sentence cross entropy (appendix A.2), in nats.

        The last layer computes only the states that are read: B at [CLS], M at predicted tokens. Logits exist only for
        the predicted tokens, and never for all at once.
        """
        import torch
        import torch.nn.functional as F

        from bertwright.kernels.fused_ops import linear_cross_entropy
        from bertwright.training.loop import LossOutput

        firsts = batch.packing.first_positions[: len(batch.nsp_labels)]
        hidden = model.encoder(batch.input, torch.cat([firsts, batch.mlm_positions]))  # B + M  H
        first, masked = hidden.split([len(firsts), len(batch.mlm_positions)])
        states, head = model.masked_token(masked), model.masked_token  # M H
        mlm_count = max(batch.mlm_count, 1)
        loss, mlm_correct = linear_cross_entropy(
            states, model.word_embeddings, head.bias, batch.mlm_labels, scale=1 / mlm_count
        )
        mlm_sum = loss.detach() * mlm_count
        nsp_sum = nsp_correct = torch.zeros((), device=hidden.device)
        if len(batch.nsp_labels):
            answers = model.next_sentence(model.pooler(first)).float()  # B 2
            nsp_sum = F.cross_entropy(answers, batch.nsp_labels, reduction="sum")
            nsp_correct = (answers.argmax(-1) == batch.nsp_labels).sum()
            loss = loss + nsp_sum / batch.nsp_count

        lengths, predictions = batch.packing.lengths[: batch.num_sequences], batch.num_predictions
        counts = {
            "mlm_count": predictions,
            "nsp_count": batch.num_sequences if batch.nsp_count else 0,
            "tokens": int(lengths.sum()),
            "flops": model.config.count_training_flops(lengths, predictions, pooled=batch.nsp_count > 0),
        }
        sums = {"mlm_sum": mlm_sum, "mlm_correct": mlm_correct, "nsp_sum": nsp_sum.detach(), "nsp_correct": nsp_correct}
        return LossOutput.of(loss, sums, counts)

    def format_examples(self, batch: BertBatch, tokenizer: TextTokenizer) -> list[ShownExample]:
        """Format the tokens of each sequence; a predicted token is shown in brackets after the token that stands there.

        Tokens with a causal objective have no brackets: each one predicts its neighbour.
        """
        ids, bounds = batch.input.input_ids.tolist(), batch.packing.cu_seqlens.tolist()
        labels = dict(zip(batch.mlm_positions.tolist(), batch.mlm_labels.tolist(), strict=True))
        answers = batch.nsp_labels.tolist()
        shown = []
        for number, (begin, end) in enumerate(pairwise(bounds)):
            tokens = [tokenizer.token(token) for token in ids[begin:end]]
            if self.direction != "bidirectional":
                side = "left to right" if self.direction == "left-to-right" else "right to left"
                shown.append(ShownExample(" ".join(tokens), f"every token predicts the next one, {side}"))
                continue
            counts = Counter[str]()
            for position in range(begin, end):
                if (label := labels.get(position)) is not None:
                    stands = ids[position]
                    counts["masked" if stands == tokenizer.mask_id else "kept" if stands == label else "replaced"] += 1
                    tokens[position - begin] += f" ({tokenizer.token(label)})"
            targets = ", ".join(f"{counts[name]} {name}" for name in ("masked", "replaced", "kept"))
            if answers:
                targets += "; B is random" if answers[number] else "; B follows A"
            shown.append(ShownExample(" ".join(tokens), targets))
        return shown

    def compute_scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Compute means over all predictions and answers, losses in nats; without predictions or answers they are 0."""
        scores = super().compute_scores(sums)
        if "nsp_count" in sums:
            answers = max(sums["nsp_count"], 1)
            scores |= {"nsp_loss": sums["nsp_sum"] / answers, "nsp_accuracy": sums["nsp_correct"] / answers}
        return scores


def new_bert(
    settings: ModelSettings, config: BertConfig, seed: int, model_class: type[BertForPretraining] | None = None
) -> BertForPretraining:
    from bertwright.models.heads import BertForPretraining
    from bertwright.models.mimetic_init import mimetic_init_

    model = (model_class or BertForPretraining)(config, seed)
    if settings.scheme_for(config) == "mimetic":
        mimetic_init_(model.encoder)
    return model


def check_memory(config: BertConfig) -> None:
    """Raise ValueError if the model does not fit in memory; Linux would kill this process or another one."""
    needed, available = 4 * config.num_parameters, available_memory()
    if available is not None and needed > available:
        raise ValueError(
            f"{config.num_parameters:,} parameters take {needed / 1e9:,.0f} GB, and this machine has "
            f"{available / 1e9:,.0f} GB of memory; lower --num-layers ({config.num_layers:,}) or --hidden-size "
            f"({config.hidden_size:,})"
        )
