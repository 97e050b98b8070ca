"""Objectives of language models: the base of BERT's and GPT's, and what the recurrent ones share with it."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from bertwright.objectives import masking
from bertwright.objectives.data import StepTexts
from bertwright.objectives.objective import LOSS, Column, M, ShownExample
from bertwright.objectives.store_objective import StoreObjective
from bertwright.systems.registry import system_of_folder

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bertwright.interop.huggingface import LoadResult
    from bertwright.models.encoder import EncoderModel
    from bertwright.models.packing import Packing, TokenBatch
    from bertwright.objectives.data_settings import DataSettings
    from bertwright.pretraining.settings import ModelSettings
    from bertwright.vocabulary.tokenizer import TextTokenizer


@dataclass(frozen=True)
class LanguageModelBatch:
    """A micro-batch: B sequences of T tokens, M of them to be predicted."""

    input: TokenBatch
    mlm_positions: Tensor
    """M int64, positions in the T tokens whose states predict."""
    mlm_labels: Tensor
    """M int64, the ids to predict; `IGNORED_LABEL` for predictions that `pad_batch` added."""
    nsp_labels: Tensor
    """B int64: 0, B follows A; 1, B is random (as in `transformers`). Empty if the objective has no NSP.
    `IGNORED_LABEL` for sequences that `pad_batch` added."""
    lm_count: int
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

    def to(self, device: torch.device | str) -> LanguageModelBatch:
        return replace(
            self,
            input=self.input.to(device),
            mlm_positions=self.mlm_positions.to(device, non_blocking=True),
            mlm_labels=self.mlm_labels.to(device, non_blocking=True),
            nsp_labels=self.nsp_labels.to(device, non_blocking=True),
        )


class LanguageModelObjective(StoreObjective[LanguageModelBatch, M]):
    """A language model; by default every token predicts its neighbour in the `direction` of reading."""

    direction: ClassVar[str] = "bidirectional"
    """Which tokens a token attends to: bidirectional, left-to-right, right-to-left."""
    has_next_sentence: ClassVar[bool] = False
    """True if the model also predicts whether segment B follows A."""
    model_name: ClassVar[str]
    """Name of the model for people, such as "a BERT"."""

    @property
    @abstractmethod
    def model_class(self) -> type[M]:
        """The model to train; an objective with weights of its own has a subclass that adds a module for them."""

    @property
    def first_model_class(self) -> type[M]:
        """The kind of model that a run may start from; by default the model to train."""
        return self.model_class

    def choose_targets(self, step: StepTexts) -> masking.Masked:
        """Choose the tokens of a step to predict, and change the input accordingly."""
        return masking.causal_lm_targets(step.ids, step.lengths, self.direction == "right-to-left")

    def most_predictions(self, settings: DataSettings) -> int:
        return settings.max_length - 1

    def check_settings(self, settings: DataSettings) -> None:
        super().check_settings(settings)
        limit, most = settings.max_predictions_per_seq, self.max_num_tokens(settings)
        if limit is not None and not 1 <= limit <= most:
            raise ValueError(
                f"max_predictions_per_seq is {limit}; expected 1 … {most}, the tokens of text in an example of "
                f"{settings.max_length}; lower it, or leave it out"
            )

    def make_batches(self, step: StepTexts, micro_batches: Sequence[range]) -> list[LanguageModelBatch]:
        import torch

        masked = self.choose_targets(step)
        answers = (step.is_random_next if self.has_next_sentence else step.is_random_next[:0]).astype(np.int64)
        batches = []
        for sequences in micro_batches:
            tokens, packed = step.pack(sequences, masked.input_ids)
            chosen = slice(*np.searchsorted(masked.positions, [tokens.start, tokens.stop]))
            batches.append(
                LanguageModelBatch(
                    input=packed,
                    mlm_positions=torch.from_numpy(masked.positions[chosen] - tokens.start),
                    mlm_labels=torch.from_numpy(masked.labels[chosen]),
                    nsp_labels=torch.from_numpy(answers[sequences.start : sequences.stop]),
                    lm_count=len(masked.positions) if step.is_whole else step.num_predictions,
                    nsp_count=step.num_sequences if self.has_next_sentence else 0,
                )
            )
        return batches

    def pad_batch(self, batch: LanguageModelBatch, sequences: int, settings: DataSettings) -> LanguageModelBatch:
        from bertwright.objectives.padding import pad_batch

        return pad_batch(batch, sequences, settings.max_length, self.most_predictions(settings))

    def load_model(
        self, folder: Path, settings: ModelSettings, tokenizer: TextTokenizer, is_checkpoint: bool
    ) -> tuple[M, list[str]]:
        heads: Literal["required", "optional"] = "required" if is_checkpoint else "optional"
        model, loaded = load_first_model(folder, self.first_model_class, self.model_name, settings, tokenizer, heads)
        self.check_model(model, folder)
        return model, [f"{folder} has no {head} head: it starts from random weights" for head in loaded.missing_heads]

    def check_model(self, model: M, folder: Path) -> None:
        """Raise ValueError for a model to start from that does not fit the objective."""

    def format_examples(self, batch: LanguageModelBatch, tokenizer: TextTokenizer) -> list[ShownExample]:
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


def language_model_columns(label: str) -> tuple[Column, ...]:
    """Return the columns of a language model; `label`: its name for people."""
    return (
        Column(LOSS, f"{label} loss (nats)", "{:.3f}", f"{label} loss {{:.3f}}", "loss {:.3f}", True),
        Column("perplexity", f"{label} perplexity", "{:,.1f}"),  # the figure of the paper's table 6
        Column("mlm_accuracy", f"{label} accuracy", "{:.1%}", "accuracy {:.1%}", is_plotted=True),
    )


def load_first_model(
    folder: Path,
    kind: type[M],
    name: str,
    settings: ModelSettings,
    tokenizer: TextTokenizer,
    heads: Literal["required", "optional"],
) -> tuple[M, LoadResult[EncoderModel]]:
    """Load the model of a checkpoint or of --init, with the dropouts of the settings.

    `name`: of `kind`, for people. Raises ValueError for another kind of model, and for another vocabulary.
    """
    from bertwright.interop.huggingface import check_vocabulary

    model, loaded = load_kind(folder, kind, name, heads, settings.dropouts)
    check_vocabulary(tokenizer, model.config, folder)
    return model, loaded


def load_kind(
    folder: Path, kind: type[M], name: str, heads: Literal["required", "optional"], changes: Mapping[str, float]
) -> tuple[M, LoadResult[EncoderModel]]:
    """Load a model of one kind, with `changes` of its configuration. Raises ValueError for another kind of model."""
    from bertwright.interop.huggingface import load_model

    loaded = load_model(folder, heads, kind, **changes)
    if not isinstance(loaded.model, kind):
        model_type = loaded.model.encoder.model_type
        system = system_of_folder(model_type)
        own = f"--architecture {system.name}, or " if system and system.objectives else ""
        raise ValueError(f"{folder}: expected {name}, got model_type {model_type}; give {own}another --init")
    return loaded.model, loaded
