"""Settings of a grid of fine-tuning runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product, starmap
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.settings import check_distinct, check_range
from bertwright.finetuning.settings import (
    FinetuneSettings,
    TuningSettings,
    base_learning_rate,
    hidden_size_of,
    paper_optimizer,
    task_name,
)
from bertwright.interop.model_files import check_model, read_model_config
from bertwright.systems.registry import default_learning_rate
from bertwright.tasks.presets import TaskSettings, paper_settings
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.optimizer_settings import OptimizerSettings
from bertwright.training.run_folder import check_run_directory

# Settings that may change on resume.
RESUME_OVERRIDES = ("run", "resume", "dry_run", "keep_all", "linear_floor", "device")
MAX_SEEDS = 1_000
PAPER_RATES = (5e-5, 4e-5, 3e-5, 2e-5)  # section 4.1


class GridPoint(NamedTuple):
    """Hyper-parameters that a grid varies, and a seed."""

    learning_rate: float
    batch_size: int
    epochs: float
    seed: int

    @property
    def setting(self) -> str:
        """The hyper-parameters, as in the name."""
        return f"lr{self.learning_rate:.10g}-bs{self.batch_size}-ep{self.epochs:.10g}"

    @property
    def name(self) -> str:
        """Folder name.

        >>> GridPoint(5e-5, 32, 3.0, seed=0).name
        'lr5e-05-bs32-ep3-seed0'
        """
        return f"{self.setting}-seed{self.seed}"


@dataclass(frozen=True)
class GridSettings:
    """Fine-tune with each learning rate, batch size and number of epochs.

    The setting with the best mean on dev is chosen, and the best of its runs. Each run equals a run of
    `finetune` with the same settings.
    """

    run: Path
    """Folder of the grid, to be created; with --resume, one that exists."""
    task: TaskSettings
    model: str | None = None
    """Model folder, run folder or hub name to start from. Required, except with --resume."""
    learning_rates: tuple[float, ...] = PAPER_RATES
    """Peak rates to try (paper, 4.1). Unset: these for BASE, higher for narrower encoders, in proportion to the default
    rate of finetune."""
    batch_sizes: tuple[int, ...] = (16, 32)
    """Examples per step to try (paper, A.3: 16, 32; GLUE, 4.1: 32)."""
    epochs: tuple[float, ...] = (2.0, 3.0, 4.0)
    """Passes over the training examples to try (paper, A.3: 2, 3, 4; GLUE, 4.1: 3)."""
    seeds: int = 1
    """Runs with each setting, with seeds 0, 1, 2 …; small data sets need several, because single runs can fail on them
    (paper, 4.1)."""
    keep_all: bool = False
    """Keep the weights of all runs, not only of the chosen run. Metrics and logs are always kept."""
    linear_floor: bool = True
    """Also have a row for a linear model that is trained on the same examples, in seconds; in tagging, and one for a
    lookup of the names in training."""
    resume: bool = False
    """Continue with the settings in the folder: finished runs are not repeated, and an interrupted one is resumed."""
    dry_run: bool = False
    """Print the number of runs and the estimated time, write nothing, and stop."""
    tuning: TuningSettings = field(default_factory=TuningSettings)
    optimizer: OptimizerSettings = field(default_factory=paper_optimizer)
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_distinct(self, "learning_rates", "batch_sizes", "epochs")
        check_range(self, 1, MAX_SEEDS, "seeds")
        if self.optimizer.learning_rate != paper_optimizer().learning_rate:
            rate = self.optimizer.learning_rate
            raise ValueError(f"learning_rate = {rate:g}: a grid varies the rate; use --learning-rates {rate:g}")
        for point in self.points():
            self.finetune_settings(point)  # checks its values

    @classmethod
    def defaults(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch size and epochs of the published task that a TOML table names, and the rates to try.

        Where the paper names a single rate, the other tasks' are tried.
        """
        paper = paper_settings(table)
        base = paper.learning_rate if paper else base_learning_rate(task_name(table))
        factor = default_learning_rate(base, hidden_size_of(read_model_config(table.get("model")))) / base
        rates = (paper.rates if paper else ()) or PAPER_RATES
        found: dict[str, Any] = {"learning_rates": [float(f"{factor * rate:.6g}") for rate in rates]}
        return found | ({"batch_sizes": [paper.batch_size], "epochs": [paper.epochs]} if paper else {})

    def points(self) -> list[GridPoint]:
        """Return all runs in order of their settings, so that rejected weights are deleted early."""
        return [*starmap(GridPoint, product(self.learning_rates, self.batch_sizes, self.epochs, range(self.seeds)))]

    def finetune_settings(self, point: GridPoint) -> FinetuneSettings:
        return FinetuneSettings(
            run=self.run / "runs" / point.name,
            task=self.task,
            model=self.model,
            epochs=point.epochs,
            batch_size=point.batch_size,
            seed=point.seed,
            keep_checkpoints=self.keep_all,
            linear_floor=False,
            tuning=self.tuning,
            optimizer=replace(self.optimizer, learning_rate=point.learning_rate),
            device=self.device,
        )


def check_inputs(settings: GridSettings) -> None:
    """Check folder, model and files, without torch. A resumed grid may be finished, and then reads neither."""
    check_run_directory(settings, RESUME_OVERRIDES)
    if not settings.resume:
        check_model(settings.model)
        settings.task.check_files("train")
