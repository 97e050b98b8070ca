"""The settings of a grid, its runs, and which of them is best; `runs.grid` carries it out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.commands.finetune.setup import FinetuneSettings, paper_optimizer
from bertwright.files import write_text
from bertwright.metrics.seed_summary import SeedSummary, summarize_seeds
from bertwright.tasks.presets import TaskSettings
from bertwright.training.context import DeviceSettings
from bertwright.training.optimizer import OptimizerSettings


class HyperParams(NamedTuple):
    """What a grid varies."""

    learning_rate: float
    batch_size: int
    epochs: float

    def __str__(self) -> str:
        return f"lr{self.learning_rate:.10g}-bs{self.batch_size}-ep{self.epochs:.10g}"


class Trial(NamedTuple):
    """One run of a grid."""

    setting: HyperParams
    seed: int

    @property
    def name(self) -> str:
        """Its folder.

        >>> Trial(HyperParams(5e-5, 32, 3.0), seed=0).name
        'lr5e-05-bs32-ep3-seed0'
        """
        return f"{self.setting}-seed{self.seed}"


@dataclass(frozen=True)
class GridSettings:
    """Fine-tune with every rate, batch size and number of epochs; the setting with the best mean on dev is chosen, and
    of its runs the best. Each run is what `bertwright finetune` makes of the same settings."""

    run: Path
    """Folder of the grid, to be made; with --resume, one that exists."""
    task: TaskSettings
    model: str | None = None
    """Model folder, run folder or hub name to start from. Needed unless --resume finds it in the grid's settings."""
    validation_fraction: float = FinetuneSettings.validation_fraction
    """Share of the training examples to set aside as dev where there are no dev files."""
    learning_rates: tuple[float, ...] = (5e-5, 4e-5, 3e-5, 2e-5)
    """Peak rates to try (paper, 4.1)."""
    batch_sizes: tuple[int, ...] = (16, 32)
    """Examples a step to try (paper, A.3)."""
    epochs: tuple[float, ...] = (2.0, 3.0, 4.0)
    """Passes over the training examples to try (paper, A.3)."""
    seeds: int = 1
    """Runs with each setting, with seeds 0, 1, 2 …; small sets need several, as single runs fail there (paper, 4.1)."""
    keep_all: bool = False
    """Keep the weights of every run, not of the chosen one alone. Figures and logs stay in any case."""
    resume: bool = False
    """Go on with the settings that stand in the folder: runs that are done are not done again, an interrupted one goes
    on from its checkpoint."""
    dry_run: bool = False
    """Only say how many runs there are and about how long they take; nothing is written."""
    dropout: float = FinetuneSettings.dropout
    """Dropout of states, attention weights and the head's input, whatever the model was trained with (paper: 0.1)."""
    label_smoothing: float = FinetuneSettings.label_smoothing
    """Share of a target's probability that is spread over all labels (paper: none)."""
    freeze_layers: int | None = FinetuneSettings.freeze_layers
    """Leave the embeddings and this many of the lowest layers as they are; 0: the embeddings alone. Unset: all move."""
    layerwise_lr_decay: float = FinetuneSettings.layerwise_lr_decay
    """Factor between a layer's rate and that of the layer above it; below 1, lower layers move less (ULMFiT)."""
    optimizer: OptimizerSettings = field(default_factory=paper_optimizer)
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        for name in ("learning_rates", "batch_sizes", "epochs"):
            values = [f"{value:.10g}" for value in getattr(self, name)]
            if not values:
                raise ValueError(f"{name} is empty; name one value or more")
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"{name} holds {twice[0]} twice; name each value once")
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, not {self.seeds}")
        if self.optimizer.learning_rate != paper_optimizer().learning_rate:
            rate = self.optimizer.learning_rate
            raise ValueError(
                f"a grid takes its rates from learning_rates, not learning_rate; --learning-rates {rate:g}"
            )
        for trial in self.trials():
            self.finetuning(trial)  # which checks its own

    def trials(self) -> list[Trial]:
        """All runs, those of a setting together, so that the weights of settings that lost can go early."""
        found = product(self.learning_rates, self.batch_sizes, self.epochs, range(self.seeds))
        return [Trial(HyperParams(rate, size, epochs), seed) for rate, size, epochs, seed in found]

    def finetuning(self, trial: Trial) -> FinetuneSettings:
        """The settings of one run, as of a new one."""
        return FinetuneSettings(
            run=self.run / "runs" / trial.name,
            task=self.task,
            model=self.model,
            validation_fraction=self.validation_fraction,
            epochs=trial.setting.epochs,
            batch_size=trial.setting.batch_size,
            seed=trial.seed,
            dropout=self.dropout,
            label_smoothing=self.label_smoothing,
            freeze_layers=self.freeze_layers,
            layerwise_lr_decay=self.layerwise_lr_decay,
            optimizer=replace(self.optimizer, learning_rate=trial.setting.learning_rate),
            device=self.device,
        )


# May differ between a grid and its resumption.
FREE = ("run", "resume", "dry_run", "keep_all", "device")


class TrialResult(NamedTuple):
    """What one run came to."""

    trial: Trial
    scores: dict[str, dict[str, float]]
    """Of the run's best checkpoint: by part ("dev", "test"), by name. Empty for a run that failed."""
    failure: str | None = None
    """Why it diverged."""


class SettingSummary(NamedTuple):
    """What a setting's runs came to, on dev."""

    setting: HyperParams
    spread: SeedSummary | None
    """The task's metric over the seeds; None where every run failed."""
    failures: int
    best: TrialResult
    """The run with the best score; of equal ones the first."""


def rank_settings(outcomes: Iterable[TrialResult], metric: str) -> list[SettingSummary]:
    """Settings from the best to the last: by their mean on dev, of equal ones the first.

    A setting of which a run failed stands behind all that never did: the mean of its other runs flatters it.
    """
    by_setting: dict[HyperParams, list[TrialResult]] = {}
    for outcome in outcomes:
        by_setting.setdefault(outcome.trial.setting, []).append(outcome)
    found = []
    for setting, runs in by_setting.items():
        ended = [run for run in runs if run.failure is None]
        scores = [run.scores["dev"][metric] for run in ended]
        best = ended[scores.index(max(scores))] if ended else runs[0]
        found.append(SettingSummary(setting, summarize_seeds(scores) if scores else None, len(runs) - len(ended), best))
    return sorted(found, key=lambda one: (one.failures > 0, -one.spread.mean if one.spread else float("inf")))


def live_candidates(outcomes: Sequence[TrialResult], metric: str, seeds: int) -> set[Trial]:
    """The runs so far that can still be chosen: the best of the best whole setting, and of each that is not whole."""
    counts: dict[HyperParams, int] = {}
    for outcome in outcomes:
        counts[outcome.trial.setting] = counts.get(outcome.trial.setting, 0) + 1
    whole = [outcome for outcome in outcomes if counts[outcome.trial.setting] == seeds]
    begun = [outcome for outcome in outcomes if counts[outcome.trial.setting] < seeds]
    return {one.best.trial for one in [*rank_settings(whole, metric)[:1], *rank_settings(begun, metric)]}


# --- on disk


def row(outcome: TrialResult) -> dict[str, Any]:
    """What a file tells of a run."""
    trial = outcome.trial
    ended = {"scores": outcome.scores} if outcome.failure is None else {"failure": outcome.failure}
    return {"run": trial.name} | trial.setting._asdict() | {"seed": trial.seed} | ended


def write_results(path: Path, outcomes: Iterable[TrialResult]) -> None:
    """Write one line of JSON a run, whole: a kill leaves the file as it was."""
    write_text(path, "".join(json.dumps(row(outcome)) + "\n" for outcome in outcomes))


def read_results(path: Path, trials: Iterable[Trial]) -> list[TrialResult]:
    """What is done of these runs, in their order; none where the file is missing.

    Raises ValueError for a line that is none of them.
    """
    if not path.is_file():
        return []
    by_name = {trial.name: trial for trial in trials}
    outcomes = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            found = json.loads(line)
            outcome = TrialResult(by_name[found["run"]], found.get("scores", {}), found.get("failure"))
            if outcome.failure is None:
                _ = outcome.scores["dev"].items()
            outcomes.append(outcome)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                f"{path}, line {number}: no result of this grid; delete the line, and its run is done again"
            ) from None
    return in_order(outcomes, by_name.values())


def in_order(outcomes: Iterable[TrialResult], trials: Iterable[Trial]) -> list[TrialResult]:
    """Outcomes in the order of their trials, in which the first of equals is chosen, whenever each was done."""
    places = {trial: place for place, trial in enumerate(trials)}
    return sorted(outcomes, key=lambda outcome: places[outcome.trial])
