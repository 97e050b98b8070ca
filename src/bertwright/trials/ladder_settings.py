"""Settings of a ladder: the systems that BERT is compared with, on one task. The module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bertwright.base.files import read_json
from bertwright.base.settings import check_limit, check_minimum, from_table, merge, to_table
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.model_files import check_model, locate_config, model_folder
from bertwright.systems.registry import ladder_steps
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.tagging import Tagging
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.run_folder import check_run_directory

RESUME_OVERRIDES = ("run", "resume", "linear_floor", "device")
FLOOR = "most frequent answer"


class Rung(NamedTuple):
    """A system of the ladder."""

    name: str
    published: float | None
    """F1 on the test set of CoNLL-2003, in percent, of the paper that introduced it."""
    table: Mapping[str, Any]
    """Its own settings, as a TOML table of fine-tuning."""
    is_frozen: bool = False
    """True if all layers of the model keep their weights, so that only the head is trained."""

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
    """Runs per rung, with seeds from 0."""
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

    def rungs(self) -> list[Rung]:
        """Return the systems from the lowest to the highest.

        Published: Collobert et al. 2011, Ma & Hovy 2016 (tables 3 and 6), Peters et al. 2017 and 2018, Devlin et al.
        2019 (table 7).
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
            rungs.append(Rung(step.name, step.published, table, step.is_frozen))
        return rungs

    def finetune_settings(self, rung: Rung, seed: int) -> FinetuneSettings:
        """Return the settings of one run: the system's own, with the ladder's folder, task, seed, device and limits.

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
        if rung.is_frozen:
            tuning["freeze_layers"] = count_layers(table["model"])
        table |= {"run": str(self.run / "runs" / f"{slug(rung.name)}-seed{seed}"), "task": task, "tuning": tuning}
        table |= {"seed": seed, "linear_floor": False, "device": to_table(self.device)} | (
            {} if epochs is None else {"epochs": epochs}
        )
        return from_table(FinetuneSettings, table, "ladder")


def slug(name: str) -> str:
    """Return a name as a folder has it.

    >>> slug("+ word vectors"), slug("BERT, fine-tuned")
    ('word-vectors', 'bert-fine-tuned')
    """
    return "-".join("".join(letter if letter.isalnum() else " " for letter in name.lower()).split())


def count_layers(model: str) -> int:
    """Return the layers of a model by its config.json, without torch."""
    values = read_json(locate_config(model_folder(model)))
    return int(values.get("num_hidden_layers", values.get("num_layers", 12)))


def check_inputs(settings: LadderSettings) -> None:
    """Check the folder and the models, without torch."""
    check_run_directory(settings, RESUME_OVERRIDES)
    for model in (settings.cove, settings.elmo, settings.ulmfit, settings.gpt, settings.bert):
        if model is not None:
            check_model(model)
    for rung in settings.rungs():
        settings.finetune_settings(rung, 0)
