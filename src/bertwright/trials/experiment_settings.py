"""Settings of an experiment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from bertwright.base.settings import Positional, check_limit, check_minimum, check_not_str, did_you_mean
from bertwright.executors.executor import ExecutorSettings
from bertwright.interop.model_files import check_model
from bertwright.tasks.presets import PRESETS
from bertwright.tokenstore.store import read_header
from bertwright.training.device_settings import DeviceSettings
from bertwright.trials.levels import LevelName
from bertwright.trials.paper import describe_tables, find_table, suggest_table, table_names
from bertwright.trials.paper_table import PaperTable

BUDGETED = ("steps", "limit", "word_task_limit")  # settings that a budget decides


@dataclass(frozen=True)
class ExperimentSettings:
    """Repeat the paper's experiments (tables 1 to 8, figure 5) at your budget; the same command resumes them.

    Start the same command several times, on one machine or on several with a shared disk, to share the work; on several
    GPUs: torchrun --nproc-per-node 8 -m -- bertwright experiment ...
    """

    experiment: Positional[str]
    """Name of a table or figure of the paper."""
    work: Path
    """Folder for jobs and reports. Experiments that share it share their pre-trainings."""
    store: Path | None = None
    """Token store that `bertwright prepare` wrote, with held-out documents. All models are pre-trained on it."""
    model: str | None = None
    """Model folder, run folder or hub name for table1 and table7. The model is fine-tuned on all examples, as in the
    paper, unless --limit and --word-task-limit are given. Unset: a model is pre-trained on the store."""
    data: Path | None = None
    """Folder whose sub-folders have the files of published tasks under their own names, such as MRPC/train.tsv."""
    level: LevelName = "demo"
    """demo: tiny, at most 20 minutes on two cores; evening and night: mini on some 10 and 30 million tokens; paper:
    the paper's settings. --dry-run measures the time, which is many hours for evening and several nights for night."""
    budget: float | None = None
    """Minutes of one process. The steps of pre-training and the examples per task of the level are changed so that the
    estimated time of all jobs is at most this."""
    tasks: tuple[str, ...] = ()
    """Tasks by their preset, such as mrpc. Unset: the tasks of the paper's table whose files are found."""
    seeds: int | None = None
    """Restarts of fine-tuning. Unset: the level's."""
    pretraining_seeds: int | None = None
    """Pre-trainings of each row; with two or more, intervals are of the objectives, not of one checkpoint each, and a
    verdict needs three. Unset: 1."""
    steps: int | None = None
    """Steps of each pre-training. Unset: the level's."""
    limit: int | None = None
    """Examples of each split of a sentence task. Unset: the level's; with --model all."""
    word_task_limit: int | None = None
    """Examples of each split of tagging and question answering. Unset: the level's; with --model all."""
    bias_correction: bool = True
    """Adam's bias correction in fine-tuning. Google's code, and so the paper, has none; on small data sets, runs then
    often end at the most frequent label."""
    linear_floor: bool = True
    """Also have rows for a linear model that is trained on the same examples, in seconds; in tagging, and for a lookup
    of the names in training. No claim is checked in a column where no row is above them."""
    dry_run: bool = False
    """Only print the plan and the estimated time, measured with a few steps; nothing is run."""
    report_only: bool = False
    """Only report the results of the jobs that are finished: print them, and write report.md, report.json and
    plot.png."""
    device: DeviceSettings = field(default_factory=DeviceSettings)
    execution: ExecutorSettings = field(default_factory=ExecutorSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "tasks")
        check_minimum(self, 1, "seeds", "pretraining_seeds", "limit", "word_task_limit")
        check_minimum(self, 10, "steps")
        if self.experiment not in table_names():
            raise ValueError(f'EXPERIMENT: no experiment "{self.experiment}"; {suggest_table(self.experiment)}')
        for task in self.tasks:
            if task not in PRESETS:
                raise ValueError(f'--tasks: no task "{task}"; {did_you_mean(task, PRESETS)}')
        check_limit(self, "above 0", "budget")
        given = [name for name in BUDGETED if getattr(self, name) is not None]
        if self.budget is not None and given:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
            raise ValueError(f"--budget decides {flags}; omit one or the other")
        if self.model is not None and not self.table.takes_model:
            raise ValueError(f"--model: {self.experiment} compares pre-trainings, so it needs a --store; omit --model")
        for name in ("store", "steps", "pretraining_seeds"):
            if self.model is not None and getattr(self, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise ValueError(f"{flag}: with --model, nothing is pre-trained; omit {flag} or --model")
        if (only := self.table.only_task) and self.tasks not in ((), (only,)):
            raise ValueError(f"--tasks: {self.experiment} is about {only}, got {', '.join(self.tasks)}; omit --tasks")
        if self.execution.executor == "local" and self.execution.workers is not None:
            raise ValueError(
                f"--workers {self.execution.workers}: expected --executor ray with it; on one machine, start the same "
                "command several times"
            )
        if self.dry_run and self.report_only:
            raise ValueError("--dry-run and --report-only: choose one")

    @property
    def table(self) -> PaperTable:
        return find_table(self.experiment)


ExperimentSettings.__doc__ = f"{ExperimentSettings.__doc__}\n\n{describe_tables()}"


def check_inputs(settings: ExperimentSettings) -> None:
    """Check model and store, without torch."""
    if settings.model is not None:
        check_model(settings.model)
    if settings.store is not None:
        read_header(settings.store / "train")
