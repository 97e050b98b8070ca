"""The interface of a pre-training objective: its examples, its model, its loss, and how its scores are printed.

An objective is one file in the folder of its system and one entry in the system's record; the rest of pre-training
knows only this interface. An objective of BERT whose loss has weights of its own adds them in
`BertObjective.model_class`. Settings check themselves with an objective, so its modules import torch in the functions
that compute.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

if TYPE_CHECKING:
    import torch

    from bertwright.interop.sentence_modules import SentenceModules
    from bertwright.models.encoder import EncoderModel
    from bertwright.models.packing import Packing
    from bertwright.objectives.data import StoreSummary
    from bertwright.objectives.data_settings import DataSettings
    from bertwright.pretraining.settings import ModelSettings
    from bertwright.training.fit import CarriedState
    from bertwright.training.loop import LossOutput
    from bertwright.vocabulary.tokenizer import TextTokenizer


class MicroBatch(Protocol):
    """Some sequences of a step, with everything that the loss of an objective needs."""

    @property
    def packing(self) -> Packing: ...

    @property
    def num_predictions(self) -> int:
        """Number of predictions in these sequences."""

    def to(self, device: torch.device | str) -> Self: ...


B = TypeVar("B", bound=MicroBatch)
M = TypeVar("M", bound="EncoderModel")
LOSS = "loss"
"""Metric of the loss of every language model."""


class Column(NamedTuple):
    """A metric, and how it is printed and plotted."""

    metric: str
    """Name in metrics.jsonl."""
    label: str
    """Row of the table of scores, and axis of the plot."""
    template: str
    """Format of the value in the table, such as "{:.3f}"."""
    evaluation: str = ""
    """Format in the line that reports an evaluation, such as "accuracy {:.1%}". Empty: not printed there."""
    progress: str = ""
    """Format in the progress line, as short as possible. Empty: not printed there."""
    is_plotted: bool = False

    def format_value(self, value: float) -> str:
        """Format a value for the table; a huge one, such as the perplexity of a diverged run, with an exponent."""
        return self.template.format(value) if value < 1e9 else f"{value:.1e}"


class ShownExample(NamedTuple):
    """A training example for people."""

    text: str
    """Its tokens, with marks at the ones that are predicted."""
    targets: str
    """What is predicted, in words."""


class Examples(Protocol[B]):
    """Examples of one sequence length, by step."""

    settings: DataSettings

    @property
    def name(self) -> str:
        """Name of the data in the run's record of digests."""

    @property
    def examples_per_epoch(self) -> int: ...

    def batches_for_step(
        self, step: int, rank: int = 0, world_size: int = 1, micro_batch_size: int | None = None
    ) -> list[B]:
        """Return a rank's micro-batches in a step, each of `micro_batch_size` sequences (None: all of the rank)."""

    def validation_batches(self, sequences: int, micro_batch_size: int = 64) -> Iterator[B]:
        """Yield up to `sequences` examples for evaluation, the same in every run."""

    def describe(self, steps: int) -> StoreSummary: ...

    def describe_small_validation(self, sequences: int) -> str | None:
        """Return a notice with the standard errors if these are too few examples for exact scores; else None."""

    def digest(self) -> str:
        """Digest the content, to recognize it when a run is resumed."""

    def measure_baseline(self) -> float | None:
        """Compute the loss of a model that has learned nothing from context; None if it is unknown."""


class OneSentenceError(ValueError):
    """Error: a store has one sentence, and the objective reads pairs."""


class Objective(ABC, Generic[B, M]):
    """A pre-training objective for micro-batches of type B and models of type M."""

    name: ClassVar[str]
    """Value of --objective."""
    summary: ClassVar[str] = ""
    """What is predicted, for the help of --objective."""
    model_options: ClassVar[Sequence[str] | None] = None
    """Fields of `ModelSettings` that a model of this architecture has; None: all."""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Default settings that differ from BERT's, as a TOML table of `PretrainSettings`."""
    columns: ClassVar[Sequence[Column]]
    """Metrics to print and to plot. The first is the loss, which notices and comparisons of runs read."""
    trains_all_parameters: ClassVar[bool] = True
    """Every parameter of the model has a gradient in every step."""
    adapts_vocabulary: ClassVar[bool] = False
    """`load_model` gives a model of --init the store's vocabulary, if it has another one."""

    @property
    def loss_metric(self) -> str:
        return self.columns[0].metric

    @abstractmethod
    def check_settings(self, settings: DataSettings) -> None:
        """Raise ValueError for settings that the objective cannot use. Called before torch is imported."""

    @abstractmethod
    def open_examples(
        self, folder: Path, tokenizer: TextTokenizer, phases: Sequence[DataSettings], verify: bool = False
    ) -> Sequence[Examples[B]]:
        """Open the examples of a folder for each phase of a run.

        `verify`: compare all content with its digests, not only samples. Raises OneSentenceError if the store is too
        small for the objective, ValueError if it is damaged or has another vocabulary.
        """

    @abstractmethod
    def new_model(self, settings: ModelSettings, vocab_size: int, seed: int) -> M:
        """Return a model with its initial weights, which are a function of the seed.

        Raises ValueError for an impossible shape.
        """

    @abstractmethod
    def load_model(
        self, folder: Path, settings: ModelSettings, tokenizer: TextTokenizer, is_checkpoint: bool
    ) -> tuple[M, list[str]]:
        """Load the model of a checkpoint or of --init; return it with notices for the user.

        Raises ValueError for a folder whose model does not fit the objective.
        """

    def write_model(
        self, folder: Path, model: M, tokenizer: TextTokenizer, modules: SentenceModules | None = None
    ) -> None:
        """Write the model with its tokenizer into a folder, for a checkpoint or as the result.

        `modules`: of a folder of sentence-transformers from which the training started; they are carried along.
        """
        from bertwright.interop import huggingface

        huggingface.write_model(folder, model, tokenizer, modules=modules)

    def describe_initialization(self, settings: ModelSettings, model: M) -> str:
        return f"random, deviation {model.config.initializer_range:.3g}"

    @abstractmethod
    def loss(self, model: M, batch: B) -> LossOutput:
        """Compute the loss of a micro-batch: its share of the step's loss, and sums from which scores are computed.

        The sums include "tokens" and "flops", the operations of a forward and a backward pass.
        """

    def carried_state(self, model: M) -> CarriedState | None:
        """Return the state that the steps of a run hand on; None if there is none."""
        return None

    def compute_scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Compute the metrics of an evaluation or of some steps from the sums of `loss`.

        By default, the means of a language model over all predictions, losses in nats; without predictions they are 0.
        """
        count = max(sums["lm_count"], 1)
        loss = sums["lm_sum"] / count
        return {
            LOSS: loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "mlm_accuracy": sums["lm_correct"] / count,
        }

    def pad_batch(self, batch: B, sequences: int, settings: DataSettings) -> B:
        """Pad a micro-batch of at most `sequences` examples to shapes that only the settings decide."""
        raise ValueError(f"pad_batches: --objective {self.name} cannot pad; omit it")

    def format_examples(self, batch: B, tokenizer: TextTokenizer) -> list[ShownExample]:
        """Format the examples of a micro-batch with their targets, for people. Raises ValueError if it cannot."""
        raise ValueError(f"show_examples: --objective {self.name} cannot show its examples; omit it")

    def suggest_command(self, model: str) -> str:
        """Return a command line that tries the model; `model` is its folder, quoted."""
        return f"bertwright info {model}"

    def format_progress(self, metrics: Mapping[str, float]) -> str:
        values = [column.progress.format(metrics[column.metric]) for column in self.columns if column.progress]
        return " ".join([*values, f"{metrics['tokens_per_second']:,.0f} tok/s"])

    def format_evaluation(self, scores: Mapping[str, float]) -> str:
        text = ", ".join(
            column.evaluation.format(scores[column.metric]) for column in self.columns if column.evaluation
        )
        long_loss = scores.get(f"long_{self.loss_metric}")
        return text if long_loss is None else f"{text}; on long sequences loss {long_loss:.3f}"


AnyObjective = Objective[Any, Any]
