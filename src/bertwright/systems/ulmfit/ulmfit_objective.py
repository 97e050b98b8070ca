"""Pre-training of ULMFiT's AWD-LSTM (Howard & Ruder 2018, section 3.1): every token of running text predicts the next.

Steps hand the states of all streams on, and gradients do not (truncated back-propagation through time). S streams of a
micro-batch, N tokens of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from bertwright.objectives.language_model_objective import (
    language_model_columns,
    load_kind,
)
from bertwright.objectives.objective import Objective
from bertwright.systems.ulmfit.defaults import ACTIVATION_PENALTY, SLOWNESS_PENALTY
from bertwright.systems.ulmfit.streams import Streams, StreamText
from bertwright.tokenstore.store import TokenStore
from bertwright.vocabulary.tokenizer import TextTokenizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bertwright.models.packing import Packing, TokenBatch
    from bertwright.objectives.data_settings import DataSettings
    from bertwright.pretraining.settings import ModelSettings
    from bertwright.systems.ulmfit.awd_lstm import AwdLstmLanguageModel
    from bertwright.training.fit import CarriedState
    from bertwright.training.loop import LossOutput


@dataclass(frozen=True)
class StreamBatch:
    """Some streams of a step."""

    input: TokenBatch
    labels: Tensor
    """S · N int64, the token after each token."""
    streams: slice
    """These streams among all of the step."""
    num_streams: int
    """Streams of the step."""
    is_start: bool
    """The streams start here, from a state of 0."""

    @property
    def packing(self) -> Packing:
        return self.input.packing

    @property
    def num_predictions(self) -> int:
        return len(self.labels)

    @property
    def num_step_tokens(self) -> int:
        """Tokens of the whole step, all of which predict."""
        return self.num_streams * (len(self.labels) // len(self.packing))

    def to(self, device: torch.device | str) -> StreamBatch:
        return replace(self, input=self.input.to(device), labels=self.labels.to(device, non_blocking=True))


class StreamExamples(Streams):
    """Streams of a store as micro-batches."""

    def batches_for_step(
        self, step: int, rank: int = 0, world_size: int = 1, micro_batch_size: int | None = None
    ) -> list[StreamBatch]:
        """Return the micro-batches of a step, each of `micro_batch_size` streams. States belong to one rank."""
        size = self.settings.batch_size
        starts = range(0, size, micro_batch_size or size)
        texts = (self.read_step(step, range(at, min(at + starts.step, size))) for at in starts)
        return [make_batch(text, self.is_reversed) for text in texts]

    def validation_batches(self, sequences: int, micro_batch_size: int = 64) -> Iterator[StreamBatch]:
        """Yield the text from its begin, up to a number of sequences, the same in every run."""
        return (make_batch(text, self.is_reversed) for text in self.read_validation(sequences))


def make_batch(text: StreamText, is_reversed: bool = False) -> StreamBatch:
    """Pack streams side by side; `is_reversed`: each token predicts the one before it."""
    import torch

    from bertwright.models.packing import from_flat

    streams, length = text.ids.shape[0], text.ids.shape[1] - 1
    read, predicted = text.ids[:, :-1], text.ids[:, 1:]
    if is_reversed:
        read, predicted = predicted, read
    packed = from_flat(read.reshape(-1), None, np.full(streams, length))
    dropped = packed.with_dropout(text.dropout_key, first_token=text.streams.start * length)
    labels = torch.from_numpy(predicted.reshape(-1))
    return StreamBatch(dropped, labels, text.streams, text.num_streams, text.is_start)


class RecurrentLanguageModel(Objective[StreamBatch, "AwdLstmLanguageModel"]):
    """A language model from left to right, with activation regularization (Merity et al. 2017, section 4.6)."""

    name: ClassVar[str] = "recurrent"
    summary: ClassVar[str] = "every next word of running text, whose states are handed on"
    model_options: ClassVar[Sequence[str] | None] = ("size", "num_layers", "hidden_dropout")
    # ULMFiT, section 4.1; the norm of gradients: AWD-LSTM's code.
    defaults: ClassVar[Mapping[str, Any]] = {
        "data": {"max_length": 70, "batch_size": 64},
        "long": {"long_ratio": 0.0},
        "optimizer": {
            "learning_rate": 4e-3, "schedule": "slanted-triangular", "warmup_ratio": 0.1, "beta1": 0.7, "beta2": 0.99,
            "bias_correction": True, "weight_decay": 0.0, "max_grad_norm": 0.25,
        },
    }  # fmt: skip
    columns = language_model_columns("LM")
    adapts_vocabulary: ClassVar[bool] = True
    is_reversed: ClassVar[bool] = False
    """True if the model reads from right to left."""

    def check_settings(self, settings: DataSettings) -> None:
        if settings.segments == "pair":
            raise ValueError(f"segments is 'pair'; --objective {self.name} reads running text; omit it")
        if settings.max_length < 2:
            raise ValueError(f"max_length is {settings.max_length}; {self.name} needs at least 2 (paper: 70)")

    def open_examples(
        self, folder: Path, tokenizer: TextTokenizer, phases: Sequence[DataSettings], verify: bool = False
    ) -> list[StreamExamples]:
        store = TokenStore.open(folder, tokenizer.digest, verify=verify)
        return [StreamExamples(store, tokenizer, settings, self.is_reversed) for settings in phases]

    def new_model(self, settings: ModelSettings, vocab_size: int, seed: int) -> AwdLstmLanguageModel:
        from bertwright.systems.ulmfit.awd_lstm import AwdLstmConfig, AwdLstmLanguageModel

        layers = {} if settings.num_layers is None else {"num_layers": settings.num_layers}
        config = AwdLstmConfig.from_size(settings.size, vocab_size, is_reversed=self.is_reversed, **layers)
        rate = settings.hidden_dropout
        return AwdLstmLanguageModel(config if rate is None else config.with_dropout(rate), seed)

    def load_model(
        self, folder: Path, settings: ModelSettings, tokenizer: TextTokenizer, is_checkpoint: bool
    ) -> tuple[AwdLstmLanguageModel, list[str]]:
        from bertwright.systems.ulmfit.awd_lstm import AwdLstmLanguageModel, adapt_vocabulary
        from bertwright.vocabulary.open_tokenizer import open_tokenizer

        model, _ = load_kind(folder, AwdLstmLanguageModel, "an AWD-LSTM", "required", {})
        if model.config.is_reversed != self.is_reversed:
            expected, got = ("right to left", "left to right")[:: 1 if self.is_reversed else -1]
            raise ValueError(
                f"{folder}: expected a model that reads from {expected}, got one from {got}; give another --objective"
            )
        notices = list[str]()
        own = open_tokenizer(folder)
        if own.digest != tokenizer.digest:
            model, known = adapt_vocabulary(model, own.tokens, tokenizer.tokens)
            notices.append(
                f"{folder}: has vectors for {known:,} of the {tokenizer.vocab_size:,} words; the others start at the "
                "mean of its vectors"
            )
        if settings.hidden_dropout is not None and not is_checkpoint:
            model.encoder.config = model.config.with_dropout(settings.hidden_dropout)
        return model, notices

    def describe_initialization(self, settings: ModelSettings, model: AwdLstmLanguageModel) -> str:
        return "random, uniform"

    def carried_state(self, model: AwdLstmLanguageModel) -> CarriedState:
        return model.carried

    def loss(self, model: AwdLstmLanguageModel, batch: StreamBatch) -> LossOutput:
        """Compute the mean cross entropy in nats, and in training the penalties of the states.

        α · mean(h²) is of the states after dropout, β · mean((h_t − h_t+1)²) of the states before it.
        """
        from bertwright.training.loop import LossOutput

        carried = model.carried if model.training else model.evaluated
        if batch.is_start and batch.streams.start == 0:
            carried.start(batch.num_streams, batch.labels.device)
        reading = model.encoder.read(batch.input, carried.read(batch.streams))
        carried.write(batch.streams, reading.last)
        output, total = reading.outputs[-1], batch.num_step_tokens
        loss, correct = model.cross_entropy(output, batch.labels, 1 / total)
        sums = {"lm_sum": loss.detach() * total, "lm_correct": correct}
        if model.training:
            states = reading.states.view(len(batch.packing), -1, output.shape[1])  # S N H
            loss = loss + ACTIVATION_PENALTY * output.square().sum() / (total * output.shape[1])
            if states.shape[1] > 1:
                differences = (total - batch.num_streams) * output.shape[1]
                loss = loss + SLOWNESS_PENALTY * states.diff(dim=1).square().sum() / differences
        flops = model.config.count_training_flops(len(batch.labels))
        counts = {"lm_count": len(batch.labels), "tokens": len(batch.labels), "flops": flops}
        return LossOutput.of(loss, sums, counts)

    def suggest_command(self, model: str) -> str:
        return f"bertwright finetune --model {model} --task classification --train train.tsv --run RUN"


class BackwardLanguageModel(RecurrentLanguageModel):
    """The same language model from right to left, whose classifier is averaged with the other's (section 3.3)."""

    name: ClassVar[str] = "recurrent-rtl"
    summary: ClassVar[str] = "the same from right to left"
    is_reversed: ClassVar[bool] = True
