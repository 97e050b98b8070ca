"""Levels of experiments: sizes of models and runs, from twenty minutes on a laptop to the paper's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from bertwright.finetuning.settings import paper_optimizer
from bertwright.pretraining.settings import LongPhase, ModelSettings
from bertwright.training.optimizer_settings import OptimizerSettings

LevelName = Literal["demo", "evening", "night", "paper"]
InitScheme = Literal["mimetic", "normal"]
Shape = tuple[int, int, int]
"""Layers, hidden size, attention heads."""


@dataclass(frozen=True)
class TaskRecipe:
    """Hyper-parameters of fine-tuning; if there are several learning rates, the best one on dev counts."""

    epochs: float
    batch_size: int
    learning_rates: tuple[float, ...]

    def __str__(self) -> str:
        """Format as "3 epochs in batches of 32, rate 5e-05"."""
        rates = " or ".join(f"{rate:g}" for rate in self.learning_rates)
        return f"{self.epochs:g} epochs in batches of {self.batch_size}, rate {rates}"


@dataclass(frozen=True)
class ExperimentLevel:
    """Sizes and hyper-parameters of an experiment; all pre-trainings of an experiment share them."""

    shape: Shape
    shapes: tuple[Shape, ...]
    """Shapes of table 6, smallest first."""
    steps: int
    batch_size: int
    max_length: int
    """Length of the first nine tenths of the steps."""
    max_positions: int
    """Length of the last tenth of the steps, and the longest sequence in fine-tuning. Below level "paper" it is
    `max_length`: a tenth of a short pre-training is too little for the other positions."""
    short_seq_prob: float
    """Share of short examples."""
    dropout: float
    """Dropout of pre-training. Fine-tuning has 0.1 (paper)."""
    init_scheme: InitScheme
    optimizer: OptimizerSettings
    pretraining_rates: tuple[float, ...]
    """Peak rates of pre-training; if there are several, every row has the best one on held-out loss."""
    pretraining_seeds: int
    """Pre-trainings of each row."""
    recipe: TaskRecipe
    task_recipes: dict[str, TaskRecipe]
    """Recipes of tasks with their own hyper-parameters."""
    limit: int | None
    """Examples of each split of a sentence task. None: all."""
    word_task_limit: int | None
    """Examples of each split of tagging and question answering: a small model learns little from few of them."""
    seeds: int
    """Restarts of fine-tuning."""
    curve_seeds: int
    curve_learning_rates: tuple[float, ...]
    """Restarts and rates of figure 5, in which each of 20 checkpoints is fine-tuned."""
    probe_epochs: int
    lstm_size: int
    """Outputs of the BiLSTM in heads on frozen features. LTR + BiLSTM has as many outputs as its encoder."""
    lstm_layers: int
    """Layers of both BiLSTMs; the paper gives no number for LTR + BiLSTM."""
    lstm_learning_rate: float = 1e-3
    """Peak learning rate of both BiLSTMs: their weights are new, so the encoder's rate does not apply."""
    bias_correction: bool = True
    """Adam's bias correction in fine-tuning, which Google's code leaves out (decision 8)."""

    @property
    def long(self) -> LongPhase:
        """The last tenth of the steps, at the model's full length; none if all steps have this length."""
        ratio = 0.1 if self.max_positions > self.max_length else 0.0
        return LongPhase(long_ratio=ratio, long_length=self.max_positions)

    @property
    def tuning_optimizer(self) -> OptimizerSettings:
        """Optimizer of fine-tuning, at the paper's rate."""
        return replace(paper_optimizer(), bias_correction=self.bias_correction)

    def model(self, shape: Shape) -> ModelSettings:
        layers, hidden, heads = shape
        return ModelSettings(
            num_layers=layers,
            hidden_size=hidden,
            num_heads=heads,
            max_positions=self.max_positions,
            hidden_dropout=self.dropout,
            attention_dropout=self.dropout,
            init_scheme=self.init_scheme,
        )


# `mini` on some 30 million tokens.
NIGHT = ExperimentLevel(
    shape=(4, 256, 4),
    shapes=((1, 256, 4), (2, 256, 1), (2, 256, 4), (4, 256, 4), (4, 384, 6), (8, 384, 6)),
    steps=28_000,
    batch_size=8,
    max_length=128,
    max_positions=128,
    short_seq_prob=0.1,
    dropout=0.0,
    init_scheme="mimetic",
    optimizer=OptimizerSettings(8e-4, warmup_ratio=0.05, bias_correction=True),
    pretraining_rates=(4e-4, 8e-4),
    pretraining_seeds=1,
    recipe=TaskRecipe(3.0, 32, (1e-4, 3e-4)),
    task_recipes={},
    limit=10_000,
    word_task_limit=20_000,
    seeds=5,
    curve_seeds=2,
    curve_learning_rates=(1e-4, 3e-4),
    probe_epochs=5,
    lstm_size=256,
    lstm_layers=2,
)

LEVELS: dict[LevelName, ExperimentLevel] = {
    "demo": replace(
        NIGHT,
        shape=(2, 128, 2),
        shapes=((1, 128, 2), (2, 128, 1), (2, 128, 2), (4, 128, 2), (4, 192, 3), (6, 192, 3)),
        steps=2_000,
        batch_size=16,
        max_length=64,
        max_positions=64,
        pretraining_rates=(5e-4, 1e-3),
        recipe=TaskRecipe(3.0, 32, (3e-4,)),
        curve_learning_rates=(3e-4,),
        limit=1_000,
        word_task_limit=1_500,
        seeds=2,
        curve_seeds=1,
        probe_epochs=20,  # as many steps of a head as at "evening": 20 × 1,500 or 5 × 6,000 sentences
        lstm_size=128,
        lstm_layers=1,
    ),
    # `mini` on some 10 million tokens.
    "evening": replace(NIGHT, steps=10_000, limit=4_000, word_task_limit=6_000, curve_seeds=1),
    "night": NIGHT,
    # Sections 4, A.2 and A.3; table 6.
    "paper": ExperimentLevel(
        shape=(12, 768, 12),
        shapes=((3, 768, 12), (6, 768, 3), (6, 768, 12), (12, 768, 12), (12, 1024, 16), (24, 1024, 16)),
        steps=1_000_000,
        batch_size=256,
        max_length=128,
        max_positions=512,
        short_seq_prob=0.2,  # as Google's code at 128 tokens (decision 1)
        dropout=0.1,
        init_scheme="normal",
        optimizer=OptimizerSettings(),
        pretraining_rates=(1e-4,),
        pretraining_seeds=1,
        recipe=TaskRecipe(3.0, 32, (5e-5, 4e-5, 3e-5, 2e-5)),
        task_recipes={
            "squad": TaskRecipe(3.0, 32, (5e-5,)),
            "squad_v2": TaskRecipe(2.0, 48, (5e-5,)),
            "swag": TaskRecipe(3.0, 16, (2e-5,)),
        },
        limit=None,
        word_task_limit=None,
        seeds=5,
        curve_seeds=5,
        curve_learning_rates=(5e-5, 4e-5, 3e-5, 2e-5),
        probe_epochs=10,
        lstm_size=768,
        lstm_layers=2,
    ),
}
