"""Settings of a fine-tuning run."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from bertwright.base.settings import (
    MAX_BATCH_SIZE,
    MAX_SEED,
    check_choice,
    check_limit,
    check_minimum,
    check_range,
    from_table,
    written_docs,
)
from bertwright.interop.model_files import check_model, read_model_config, system_of_model
from bertwright.models.pooling import HEAD_POOLINGS, HeadPoolingName, check_pooling
from bertwright.systems import registry
from bertwright.systems.registry import BASE_HIDDEN_SIZE, FinetuneRequest, default_learning_rate
from bertwright.systems.word_settings import WordModelSettings
from bertwright.tasks.embedding import Embedding
from bertwright.tasks.embedding_data import Schedule, default_schedule
from bertwright.tasks.presets import PRESETS, SPLITS, TaskSettings, paper_settings
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task_data import read_examples
from bertwright.tasks.task_types import TASK_TYPES
from bertwright.text.sources import check_exist
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.optimizer_settings import OptimizerSettings
from bertwright.training.run_folder import check_run_directory, explain_move
from bertwright.training.tracking import TrackerName, check_tracker

# Settings that may change on resume: they decide where to compute, and how often to save and report.
RESUME_OVERRIDES = (
    "run",
    "resume",
    "dry_run",
    "show_examples",
    "eval_every",
    "save_every",
    "log_every",
    "keep_checkpoints",
    "linear_floor",
    "device",
    "track",
)


HeadInit = Literal["random", "fit"]
# Training items up to which a head is fitted by default, in all and per label (decision 26).
MAX_FITTED_ITEMS, MAX_FITTED_PER_LABEL = 512, 10


def hidden_size_of(values: Mapping[str, Any]) -> int:
    """Return the hidden size in a `config.json`, or BASE's; whether a model is usable is checked when it is opened."""
    size = values.get("hidden_size", values.get("n_embd"))
    return size if type(size) is int and size > 0 else BASE_HIDDEN_SIZE


def paper_optimizer() -> OptimizerSettings:
    """Return the settings of section A.3, with Adam's bias correction: without it, small data sets often fail."""
    return OptimizerSettings(learning_rate=3e-5, warmup_ratio=0.1, bias_correction=True)


def base_learning_rate(task: str) -> float:
    """Return the peak rate for BASE on a task type, unless the paper names one for a published task."""
    own = TASK_TYPES[task].base_learning_rate if task in TASK_TYPES else None
    return own or paper_optimizer().learning_rate


def task_name(table: Mapping[str, Any]) -> str:
    """Return the value of --task in a TOML table of fine-tuning; empty if there is none."""
    task = table.get("task")
    return str(task.get("task")) if isinstance(task, Mapping) else ""


def embedding_defaults(table: Mapping[str, Any], hidden_size: int) -> dict[str, Any]:
    """Return the settings that suit the training rows of text vectors, as sentence-transformers recommends them.

    Files that cannot be read are reported when they are read again.
    """
    with suppress(ValueError, OSError, KeyError):
        settings = from_table(TaskSettings, dict(table["task"]), "task")
        task = settings.build_task()
        rows = read_examples(task, settings, "train")
        if isinstance(task, Embedding) and rows:
            return schedule_for(default_schedule(task.vector_loss, rows), hidden_size)
    rate = default_learning_rate(base_learning_rate(Embedding.kind), hidden_size)
    return {"optimizer": {"learning_rate": rate, "weight_decay": 0.0}}


def schedule_for(schedule: Schedule, hidden_size: int) -> dict[str, Any]:
    """Return a schedule of text vectors as a TOML table, with its rate for a model's hidden size."""
    rate = default_learning_rate(schedule.learning_rate, hidden_size)
    optimizer = {"learning_rate": rate, "weight_decay": 0.0}
    return {"epochs": schedule.epochs, "batch_size": schedule.batch_size, "optimizer": optimizer}


def make_request(table: Mapping[str, Any], hidden_size: int) -> FinetuneRequest:
    """Return what the default settings of a system depend on, from a TOML table of fine-tuning."""
    name, words = task_name(table), table.get("words")
    preset = PRESETS[name].task if name in PRESETS else None
    return FinetuneRequest(
        task=name,
        is_tagging=isinstance(preset, Tagging) or TASK_TYPES.get(name) is Tagging,
        has_context=getattr(preset, "context", False),
        given_words=tuple(name for name, value in words.items() if value is not None)
        if isinstance(words, Mapping)
        else (),
        hidden_size=hidden_size,
    )


@dataclass(frozen=True)
class TuningSettings:
    """Settings that fine-tuning and a grid of fine-tuning runs share."""

    validation_fraction: float = 0.0
    """Share of the training examples that becomes the dev split if there are no dev files."""
    limit: int | None = None
    """Use only this many randomly chosen examples of each split, for a quick trial. Unset: all."""
    from_scratch: bool = False
    """Start from random weights, as a baseline; only the configuration and the tokenizer of --model are used."""
    keep_head: bool = False
    """Start from the head of --model as well, which must be fine-tuned on a task of the same type and labels (paper,
    4.2: TriviaQA, then SQuAD). By default, the head is new."""
    pooling: HeadPoolingName | None = None
    """What the head reads in classification, multi-label, regression and multiple choice. cls: the pooler's output for
    [CLS] (paper); mean, max, weightedmean (later tokens count more), mean_sqrt_len_tokens: over the states of all
    tokens; lasttoken: the last one's state; concat: the state of [CLS], the maximum and the mean.
    Unset: as modules.json says in a folder of sentence-transformers; mean if the folder has no pooler, or one that was
    never trained (pre-training without next-sentence prediction does not use it); else cls."""
    head_init: HeadInit | None = None
    """Initial weights of a new head. random: small random numbers (paper). fit: those that minimize the loss on the
    states of the pre-trained encoder, computed in one pass over the training examples, of at most 8,192 of them. Unset:
    fit for up to 512 training examples (question answering, tagging: windows), or 10 per label where these are more,
    if the encoder is a BERT and the head is one linear layer, else random. `experiment` and `ladder` use random."""
    dropout: float | None = None
    """Dropout of states, attention weights and the head's input. Unset: the model's own (paper: 0.1)."""
    label_smoothing: float = 0.0
    """Share of a target's probability that is spread over all labels (paper: none)."""
    auxiliary_lm: float = 0.0
    """Weight of the language model's loss on the tokens of the examples, which is added to the task's loss: for models
    that predict the next token (GPT, section 3.2: 0.5). Unset: 0.5 for a GPT, else 0."""
    class_weights: str | None = None
    """Weights of the labels in the loss (classification, tagging; in multi-label, of the examples that have the label).
    balanced: inversely proportional to their frequency in training. Or a JSON file of labels and numbers above 0, such
    as {"spam": 5}; labels that it lacks have 1. Unset: no weights (paper)."""
    freeze_layers: int | None = None
    """Freeze the embeddings and this many of the lowest layers; 0: only the embeddings. Unset: nothing."""
    layerwise_lr_decay: float = 1.0
    """A layer's learning rate as a multiple of the rate of the layer above it; below 1, lower layers change less
    (ULMFiT)."""
    unfreeze: Literal["all", "gradual"] = "all"
    """all: train every layer from the first step. gradual: the head alone in the first epoch, and one more layer in
    each epoch after it, from the top; layers beyond the number of epochs keep their weights (ULMFiT). Each layer
    begins a new triangle of the schedule slanted-triangular."""
    patience: int | None = None
    """Stop early, after this many evaluations in a row without a better dev score. The learning rate still falls over
    all epochs. Unset: train to the end."""

    def __post_init__(self) -> None:
        check_minimum(self, 1, "limit", "patience")
        check_minimum(self, 0, "freeze_layers")
        check_limit(self, "from 0 to below 1", "dropout", "label_smoothing", "validation_fraction")
        check_limit(self, "above 0 and up to 1", "layerwise_lr_decay")
        check_limit(self, "from 0", "auxiliary_lm")
        check_pooling(self.pooling, tuple(HEAD_POOLINGS))
        if self.from_scratch and self.keep_head:
            raise ValueError("from_scratch and keep_head: random weights include a random head; set only one of them")
        check_choice(self, "unfreeze")
        if self.head_init is not None and self.head_init not in get_args(HeadInit):
            raise ValueError(f"head_init: expected random or fit, got {self.head_init!r}")
        if self.head_init == "fit" and (self.from_scratch or self.keep_head):
            option = "from_scratch" if self.from_scratch else "keep_head"
            raise ValueError(f"head_init = 'fit' and {option}: a fit needs a new head on a trained encoder; omit it")

    def choose_head_init(self, num_items: int, num_labels: int, can_be_fitted: bool) -> HeadInit:
        """Return the start of a new head; `can_be_fitted`: it is one linear layer on a BERT."""
        if self.head_init is not None:
            return self.head_init
        is_small = num_items <= max(MAX_FITTED_ITEMS, MAX_FITTED_PER_LABEL * num_labels)
        return "fit" if can_be_fitted and not self.from_scratch and is_small else "random"


@dataclass(frozen=True)
class FinetuneSettings:
    """Fine-tune a BERT on a task; with --resume, continue an interrupted run."""

    run: Path
    """Run folder, to be created; with --resume, one that exists."""
    task: TaskSettings
    model: str | None = None
    """Model folder, run folder or hub name to start from. Required, except with --architecture and --resume."""
    architecture: str | None = None
    """Train a new model from the task's examples alone, as a baseline. It reads words and their characters, by
    {architectures}. Their settings are other defaults: --help shows them."""
    resume: bool = False
    """Continue after the run's newest checkpoint with the settings in the run folder. On a CPU, the run ends with the
    same bits as an uninterrupted one if these are the same: PyTorch's version, the processor, the kernels' instruction
    set, the numbers of threads and of processes, and the dtype. A notice reports changes."""
    epochs: float = 3.0
    """Passes over the training examples (paper, A.3: 2, 3 or 4; SQuAD 2.0: 2)."""
    batch_size: int = 32
    """Examples per step; in question answering and tagging, windows per step (paper, A.3: 16 or 32; SQuAD 2.0: 48)."""
    seed: int = 0
    """Seed of the new head's weights, the order of the examples, and dropout."""
    eval_every: int | None = None
    """Steps between evaluations on dev; unset: once per epoch."""
    save_every: int | None = None
    """Steps between checkpoints; unset: at each evaluation."""
    log_every: int = 10
    """Steps per record of metrics.jsonl; a record also ends at each checkpoint."""
    track: TrackerName | None = None
    """Also send each record of metrics.jsonl to Weights & Biases or MLflow, which their environment variables configure
    (WANDB_PROJECT, MLFLOW_TRACKING_URI). Needs `pip install "bertwright[tracking]"`. Unset: nothing is sent."""
    keep_checkpoints: bool = False
    """Keep the newest and the best checkpoint after the run has finished. By default only the model remains."""
    show_examples: int = 0
    """Print how often each gold answer occurs, and this many examples of each split as they were read (a dry run: one);
    with --dry-run, only look at them: no step is measured."""
    linear_floor: bool = True
    """Also print the scores of a linear model that is trained on the same examples, in seconds; in tagging, and of a
    lookup of the names in training. Question answering has none."""
    dry_run: bool = False
    """Print the data, the settings and the time, estimated from a few measured steps; then stop. Nothing is written."""
    tuning: TuningSettings = field(default_factory=TuningSettings)
    optimizer: OptimizerSettings = field(default_factory=paper_optimizer)
    device: DeviceSettings = field(default_factory=DeviceSettings)
    words: WordModelSettings = field(default_factory=WordModelSettings)

    def __post_init__(self) -> None:
        self._check_architecture()
        check_range(self, 1, MAX_BATCH_SIZE, "batch_size")
        check_minimum(self, 1, "eval_every", "save_every", "log_every")
        check_minimum(self, 0, "show_examples")
        check_range(self, 0, MAX_SEED, "seed")
        check_limit(self, "above 0 and up to 10,000", "epochs")
        task = self.task.build_task()
        if self.tuning.label_smoothing and task.is_regression:
            raise ValueError(f"label_smoothing = {self.tuning.label_smoothing}: a regression has no labels; omit it")
        if self.tuning.label_smoothing and task.scores_paths:
            raise ValueError(
                f"label_smoothing = {self.tuning.label_smoothing}: the head scores whole sentences; omit it"
            )

    def _check_architecture(self) -> None:
        """Raise ValueError for settings that do not go together with a new word-level model."""
        if self.architecture is None:
            if self.words != WordModelSettings():
                names = " or ".join(registry.word_models())
                raise ValueError(f"word_size, char_model and the like are for a new model; set architecture = {names}")
            return
        known = registry.word_models()
        if self.architecture not in known:
            raise ValueError(f"architecture: expected {' or '.join(known)}, got {self.architecture!r}")
        tuning = self.tuning
        given = {"model": self.model, "keep_head": tuning.keep_head, "from_scratch": tuning.from_scratch}
        if odd := [name for name, value in (given | {"pooling": tuning.pooling}).items() if value]:
            raise ValueError(f"{', '.join(odd)}: architecture = {self.architecture!r} starts a new model; omit it")
        known[self.architecture].accepts(self.architecture, self.task.build_task(), self.words)

    @classmethod
    def defaults(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the paper's settings for the published task that a TOML table names, the rate by the model's size.

        For a new word-level model, its own.
        """
        values = read_model_config(table.get("model"))
        hidden_size = hidden_size_of(values)
        if architecture := table.get("architecture"):
            model = registry.word_models().get(str(architecture))
            return {} if model is None else model.defaults(make_request(table, hidden_size))
        system = registry.system_of_folder(str(values.get("model_type")))
        if system is not None and system.finetune_defaults is not None:
            return system.finetune_defaults(make_request(table, hidden_size))
        if task_name(table) == Embedding.kind:
            return embedding_defaults(table, hidden_size)
        paper = paper_settings(table)
        base = paper.learning_rate if paper else base_learning_rate(task_name(table))
        rate = {"learning_rate": default_learning_rate(base, hidden_size)}
        if paper is None:
            return {"optimizer": rate}
        return {"epochs": paper.epochs, "batch_size": paper.batch_size, "optimizer": rate}

    @classmethod
    def field_docs(cls) -> dict[str, str]:
        """Return the help of each option, with the architectures by name."""
        listed = "; ".join(f"{name}: {model.summary}" for name, model in registry.word_models().items())
        return written_docs(cls, architectures=listed)

    def describe_hyperparams(self, hidden_size: int = BASE_HIDDEN_SIZE) -> str:
        """Describe batch size, epochs and learning rate, with the paper's values if it states them for the task."""
        own = (self.optimizer.learning_rate, self.batch_size, self.epochs)
        epochs = f"{self.epochs:g} epoch{'' if self.epochs == 1 else 's'}"
        text = f"batch size {self.batch_size}, {epochs}, learning rate {self.optimizer.learning_rate:g}"
        system = system_of_model(self.model)
        rate = system.finetune_rate if system else None
        paper = paper_settings({"task": {"task": self.task.task}}) if rate is None else None
        base = rate or (paper.learning_rate if paper else base_learning_rate(self.task.task))
        if base < own[0] == default_learning_rate(base, hidden_size):
            text += f" (chosen by the hidden size, {hidden_size}; BASE: {base:g})"
        if paper is None:
            return text
        rates = " or ".join(f"{rate:g}" for rate in paper.rates or (paper.learning_rate,))
        if own[1:] == (paper.batch_size, paper.epochs) and own[0] in (paper.rates or (paper.learning_rate,)):
            one_of = f", where dev selects among {rates}" if paper.rates else ""
            return f"{text} (paper, {paper.section}{one_of})"
        return f"{text} (paper, {paper.section}: {paper.batch_size}, {paper.epochs:g}, {rates})"

    def num_steps(self, num_items: int) -> int:
        # Rounded first: 1.1 * 100 / 10 is 11.000000000000002 in floating point and must not become 12.
        return max(1, math.ceil(round(self.epochs * num_items / self.batch_size, 6)))

    def eval_steps(self, num_items: int) -> Collection[int]:
        """Return the steps after which the model is evaluated, by default the ends of epochs; the last always is."""
        steps = self.num_steps(num_items)
        if self.eval_every:
            return range(self.eval_every, steps, self.eval_every)
        epochs = range(1, steps * self.batch_size // num_items + 1)
        return frozenset(-(-epoch * num_items // self.batch_size) for epoch in epochs)


def check_inputs(settings: FinetuneSettings) -> None:
    """Check the run folder and, for a new run, model and files, without torch. A finished run needs neither of them."""
    check_run_directory(settings, RESUME_OVERRIDES)
    check_tracker(settings.track)
    if not settings.resume:
        if settings.architecture is None:
            check_model(settings.model)
        settings.task.check_files("train")
    elif not (settings.run / "model").is_dir():
        for split in SPLITS:
            with explain_move(f"--{split}" if getattr(settings.task, split) else "--data"):
                check_exist(settings.task.files(split))
        if settings.architecture is None and not any(settings.run.glob("checkpoints/step-*")):
            with explain_move("--model"):
                check_model(settings.model)
