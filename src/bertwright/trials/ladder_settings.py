"""Settings of a ladder: the systems that BERT is compared with, on one task. The module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertwright.base.settings import (
    check_choice,
    check_distinct,
    check_limit,
    check_minimum,
    from_table,
    merge,
    to_table,
)
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.model_files import check_model
from bertwright.systems.registry import LadderStep, ladder_steps
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.tagging import Tagging
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.run_folder import check_run_directory
from bertwright.trials.probe_settings import ProbeSettings

RESUME_OVERRIDES = ("run", "resume", "linear_floor", "device")
FLOOR, FEATURES = "most frequent answer", "features"


class Rung(NamedTuple):
    """A system of the ladder."""

    step: LadderStep
    table: Mapping[str, Any]
    """Its own settings, as a TOML table of fine-tuning."""
    over: str | None
    """The system from which it differs in what its name says alone; None: there is none."""

    @property
    def name(self) -> str:
        return self.step.name

    def sources(self) -> list[str]:
        """Return the folders and files of everything trained that the system starts from."""
        if self.table.get("tuning", {}).get("from_scratch"):
            return []
        words = self.table.get("words", {})
        sources = self.table.get("model"), *map(words.get, ("vectors", "language_model", "translation_model"))
        return [str(source) for source in sources if source is not None]


@dataclass(frozen=True)
class LadderSettings:
    """Compare the systems that led to BERT on one task: same data, same scorer, same seeds.

    Rungs whose files are not given are left out. Each run equals a run of `finetune` with the settings that are
    recorded in its folder; after an interruption, --resume continues.
    """

    run: Path
    """Folder of the ladder, to be created; with --resume, one that exists."""
    task: TaskSettings
    resume: bool = False
    """Continue with the settings in the folder."""
    vectors: str | None = None
    """File of word vectors, or run of word-vectors."""
    elmo: str | None = None
    """Run or folder of pretrain --architecture elmo: for TagLM, and for ELMo."""
    cove: str | None = None
    """Run or folder of train-translation --architecture mt-lstm: for CoVe and, on texts, for BCN."""
    ulmfit: str | None = None
    """Run or folder of pretrain --architecture ulmfit, best one that has been fine-tuned on the task's text."""
    gpt: str | None = None
    """Run or folder of pretrain --architecture gpt."""
    bert: str | None = None
    """Run, folder or hub name of a BERT: from random weights, with frozen layers, and fine-tuned."""
    seeds: int = 5
    """Runs per rung and rate, with seeds from 0."""
    learning_rates: tuple[float, ...] = (1e-4, 5e-4, 2e-3, 1e-2)
    """Peak rates of every rung; the table shows the one with the best mean on dev."""
    published: Literal["conll2003", "trec6"] | None = None
    """Data set whose published figures stand beside the scores. Unset: conll2003 with --task conll2003, else none."""
    word_epochs: float = 20.0
    """Passes over the training examples for models of whole words, which start from random weights."""
    epochs: float | None = None
    """Passes for pre-trained models. Unset: the defaults of finetune."""
    validation_fraction: float = 0.0
    """Share of the training examples that becomes dev if there are no dev files."""
    limit: int | None = None
    """Use only this many randomly chosen examples of each split. Unset: all."""
    linear_floor: bool = True
    """Also have a row for a linear model that is trained on the same examples, in seconds; in tagging, and one for a
    lookup of the names in training."""
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        check_minimum(self, 1, "seeds", "limit")
        check_limit(self, "above 0 and up to 10,000", "word_epochs", "epochs")
        check_limit(self, "from 0 to below 1", "validation_fraction")
        check_limit(self, "above 0", "learning_rates")
        check_distinct(self, "learning_rates")
        check_choice(self, "published")

    def rungs(self) -> list[Rung]:
        """Return the systems from the lowest to the highest.

        All that read a file of word vectors read new words by it.
        """
        is_tagging = isinstance(self.task.build_task(), Tagging)
        rungs, kinds = list[Rung](), ("all", "tagging" if is_tagging else "texts")
        for step in ladder_steps():
            if step.tasks not in kinds or any(getattr(self, option) is None for option in step.needs):
                continue
            table = merge(dict(step.table), dict(step.tagging) if is_tagging else {})
            for name, option in step.inputs.items():
                if (value := getattr(self, option)) is not None:
                    part, _, setting = name.rpartition(".")
                    table = merge(table, {part: {setting: value}} if part else {setting: value})
            if "vectors" in table.get("words", {}):
                table = merge(table, {"words": {"unknown_words": "pretrained"}})
            names = [rung.name for rung in rungs]
            over = names[-1:] if step.over is None else [name for name in step.over if name in names]
            rungs.append(Rung(step, table, next(iter(over), None)))
        return rungs

    def finetune_settings(self, rung: Rung, seed: int, rate: float) -> FinetuneSettings:
        """Return the settings of one run: the system's own, with the ladder's task, seed, rate, device and limits.

        Where both set an option of the task, or the validation fraction, the system's counts.
        """
        from_words = "architecture" in rung.table
        epochs = self.word_epochs if from_words else self.epochs
        task = {name: value for name, value in to_table(self.task).items() if name != "overrides"}
        overrides = {name: value for name, value in asdict(self.task.overrides).items() if value is not None}
        table = dict(rung.table)
        task["overrides"] = overrides | table.pop("overrides", {})
        tuning = {"head_init": "random"} | {"validation_fraction": self.validation_fraction, **table.pop("tuning", {})}
        tuning |= {} if self.limit is None else {"limit": self.limit}
        name = self.run_name(rung, seed, rate)
        table |= {"run": str(self.run / "runs" / name), "task": task, "tuning": tuning}
        table["optimizer"] = {"learning_rate": rate}
        table |= {"seed": seed, "linear_floor": False, "device": to_table(self.device)} | (
            {} if epochs is None else {"epochs": epochs}
        )
        return from_table(FinetuneSettings, table, "ladder")

    def probe_settings(self, rung: Rung, seed: int, rate: float) -> ProbeSettings:
        """Return the settings of a head on the states of a frozen model: all layers, summed with learned weights."""
        settings = self.finetune_settings(rung, seed, rate)
        return ProbeSettings(
            settings.run,
            settings.task,
            settings.model,
            self.validation_fraction,
            self.limit,
            representations=("sum-all",),
            features=self.run / FEATURES,
            seeds=(seed,),
            learning_rates=(rate,),
            epochs=max(round(self.word_epochs), 1),
            device=self.device,
        )

    def run_name(self, rung: Rung, seed: int, rate: float) -> str:
        return f"{slug(rung.name)}-rate{rate:g}-seed{seed}"


def slug(name: str) -> str:
    """Return a name as a folder has it.

    >>> slug("+ word vectors"), slug("BERT, fine-tuned")
    ('word-vectors', 'bert-fine-tuned')
    """
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())


def check_inputs(settings: LadderSettings) -> None:
    """Check the folder and the models, without torch."""
    check_run_directory(settings, RESUME_OVERRIDES)
    for model in (settings.cove, settings.elmo, settings.ulmfit, settings.gpt, settings.bert):
        if model is not None:
            check_model(model)
    for rung in settings.rungs():
        settings.finetune_settings(rung, 0, settings.learning_rates[0])
