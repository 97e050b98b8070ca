"""Settings of a feature probe: heads trained on a frozen BERT's states."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from bertwright.base.settings import MAX_BATCH_SIZE, MAX_SEED, check_distinct, check_limit, check_minimum, check_range
from bertwright.interop.model_files import check_model
from bertwright.models.pooling import HEAD_POOLINGS, HeadPoolingName, check_pooling
from bertwright.models.representations import REPRESENTATIONS, RepresentationName
from bertwright.tasks.presets import TaskSettings
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.run_folder import check_run_directory

# Settings that may change on resume: they add heads, or decide where to compute, not what is computed.
RESUME_OVERRIDES = ("run", "resume", "dry_run", "representations", "features", "seeds", "learning_rates", "device")


class ProbeTrial(NamedTuple):
    """Head to be trained."""

    representation: str
    learning_rate: float
    seed: int

    def __str__(self) -> str:
        return f"{self.representation}, rate {self.learning_rate:g}, seed {self.seed}"

    @property
    def name(self) -> str:
        """File name, without the suffix.

        >>> ProbeTrial("last", 1e-3, seed=0).name
        'last-lr0.001-seed0'
        """
        return f"{self.representation}-lr{self.learning_rate:.10g}-seed{self.seed}"


@dataclass(frozen=True)
class ProbeSettings:
    """Train heads on a frozen BERT to compare its layers (section 5.3); with --resume, train the missing ones."""

    run: Path
    """Run folder, to be created; with --resume, one that exists."""
    task: TaskSettings
    model: str | None = None
    """Model folder, run folder or hub name. Required, except with --resume."""
    validation_fraction: float = 0.0
    """Share of the training examples that becomes the dev split if there are no dev files."""
    limit: int | None = None
    """Use only this many randomly chosen examples of each split, the same as `finetune --limit`. Unset: all."""
    resume: bool = False
    """Train the heads that are missing in the run folder. Representations, rates and seeds that are given with it
    are added to the run's."""
    representations: tuple[RepresentationName, ...] = tuple(REPRESENTATIONS)
    """Layers that make up a word's vector (paper, table 7: these six). A sum has learned weights; the embeddings are
    the input of the first layer. each-layer: the embeddings and every layer by itself, with a plot."""
    features: Path | None = None
    """Folder for the states of all words, which are computed once; runs with the same model and files may share it.
    Unset: in the run folder. Its size is 2 bytes × words × hidden size × layers."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """One head per seed, which decides its weights, the order of the examples and dropout (paper: 5 restarts)."""
    learning_rates: tuple[float, ...] = (1e-3,)
    """Peak rates; the table shows the rate that is best on dev."""
    epochs: int = 10
    """Passes over the training examples; the epoch that is best on dev counts."""
    batch_size: int = 32
    """Examples per step."""
    lstm_size: int = 768
    """Output size of the BiLSTM, both directions together (paper: "768-dimensional")."""
    lstm_layers: int = 2
    """Layers of the BiLSTM (paper: 2), which only tagging has. 0: a linear layer alone, which shows what each layer of
    the model contains by itself (with --representations each-layer); a BiLSTM makes up for what is missing. A text has
    a single vector (--pooling), which a linear layer reads."""
    pooling: HeadPoolingName | None = None
    """Vector of a text, in tasks with a label per text. cls: the state of [CLS] or, in a left-to-right model, of the
    last token; mean, max: over the states of all tokens; concat: these three. Unset: as `finetune` chooses it."""
    dropout: float = 0.3
    """Dropout before, between and after the layers of the BiLSTM (the paper names no value)."""
    dry_run: bool = False
    """Print the data, the heads that are missing, and the time, estimated from a few examples; then stop. Nothing is
    written."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_distinct(self, "representations", "seeds", "learning_rates")
        check_range(self, 0, MAX_SEED, "seeds")
        check_range(self, 1, MAX_BATCH_SIZE, "batch_size")
        check_limit(self, "above 0", "learning_rates")
        check_limit(self, "from 0 to below 1", "dropout", "validation_fraction")
        check_minimum(self, 1, "limit", "epochs")
        check_minimum(self, 0, "lstm_layers")
        check_pooling(self.pooling, tuple(HEAD_POOLINGS))
        check_minimum(self, 2, "lstm_size")
        if self.lstm_size % 2:
            raise ValueError(f"lstm_size must be even, half for each direction, not {self.lstm_size}")
        if self.task.overrides.both_orders:
            raise ValueError("both_orders = True: a probe reads each pair in one order; omit it")
        if (head := self.task.overrides.tag_head) not in (None, "linear"):
            raise ValueError(f"tag_head = {head!r}: a probe's heads are linear (section 5.3); omit it")

    def extend(self, saved: ProbeSettings) -> ProbeSettings:
        """Return these settings with the heads of saved ones, in their order, before the new heads."""
        return replace(
            self,
            representations=tuple(dict.fromkeys(saved.representations + self.representations)),
            learning_rates=tuple(dict.fromkeys(saved.learning_rates + self.learning_rates)),
            seeds=tuple(dict.fromkeys(saved.seeds + self.seeds)),
        )


def check_inputs(settings: ProbeSettings) -> None:
    """Check run folder, model and files, without torch."""
    check_run_directory(settings, RESUME_OVERRIDES)
    check_model(settings.model)
    settings.task.check_files(*(("train",) if settings.validation_fraction else ("train", "dev")))
