"""Settings of a run, from its model size and its number of tokens."""

from __future__ import annotations

import math
from pathlib import Path

from bertwright.objectives.data_settings import DataSettings
from bertwright.pretraining.settings import LongPhase, ModelSettings, PretrainSettings
from bertwright.training.optimizer_settings import OptimizerSettings

# Tiny and mini: the best of trials on 100 novels; base and large: the paper's (A.2); small and medium: between them.
LEARNING_RATES = {"tiny": 1e-3, "mini": 8e-4, "small": 4e-4, "medium": 3e-4, "base": 1e-4, "large": 1e-4}

# Tokens per step grow with the root of the run's tokens, from a run of an hour on 100 novels (30 million
# tokens, 16 × 64 per step) to the paper (A.2; 256 × 128).
MIN_STEP_TOKENS, MAX_STEP_TOKENS = 16 * 64, 256 * 128
MIN_STEP_RUN_TOKENS = 30e6
SHORT_LENGTH, LENGTH = 64, 128
PAPER_TOKENS = 1e9  # at least this many: the paper's schedule, dropout, long phase
DROPOUT_EPOCHS = 12.0  # above this many: the paper's dropout; else none, as in the recipe demo
EVALUATIONS = 20


def choose_settings(size: str, tokens: float, epochs: float) -> PretrainSettings:
    """Return the settings of a run over a number of tokens, which are a number of epochs of the text.

    >>> run = choose_settings("mini", tokens=30e6, epochs=1.5)
    >>> run.steps, run.data.batch_size, run.data.max_length, run.optimizer.learning_rate
    (29296, 16, 64, 0.0008)
    """
    ideal = MIN_STEP_TOKENS * math.sqrt(tokens / MIN_STEP_RUN_TOKENS)
    step_tokens = min(max(2 ** round(math.log2(ideal)), MIN_STEP_TOKENS), MAX_STEP_TOKENS)
    length = SHORT_LENGTH if step_tokens < 4 * MIN_STEP_TOKENS else LENGTH
    is_long_run = tokens >= PAPER_TOKENS
    long = LongPhase() if is_long_run else LongPhase(long_ratio=0.0)
    if length < LENGTH:  # the last tenth trains the other positions, on as many tokens per step
        long = LongPhase(long_length=LENGTH, long_batch_size=step_tokens // LENGTH)
    dropout = None if is_long_run or epochs > DROPOUT_EPOCHS else 0.0
    growth = long.long_length / length if is_long_run else 1.0  # of a step's tokens in the long phase
    steps = max(1, int(tokens / step_tokens / (1 + long.long_ratio * (growth - 1))))
    every = max(1, steps // EVALUATIONS)
    return PretrainSettings(
        run=Path("run"),
        store=Path("store"),
        steps=steps,
        save_every=every,
        eval_every=every,
        model=ModelSettings(
            size=size,  # type: ignore[arg-type]  # PlanSettings has checked it
            max_positions=None if is_long_run else LENGTH,
            hidden_dropout=dropout,
            attention_dropout=dropout,
        ),
        data=DataSettings(max_length=length, batch_size=step_tokens // length),
        long=long,
        optimizer=OptimizerSettings(
            learning_rate=LEARNING_RATES[size],
            warmup_ratio=0.01 if is_long_run else 0.05,
            bias_correction=not is_long_run,
        ),
    )
