"""The settings of a fine-tuning run, and how one begins or goes on; `runs.finetune` carries it out."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from bertwright.console import notice
from bertwright.files import digest_bytes, digest_file
from bertwright.interop.huggingface import check_vocabulary, start_task_model
from bertwright.interop.model_files import CONFIG, model_folder
from bertwright.io.sources import HF_SCHEME, check_unique, expand_files, resolve_files
from bertwright.models.heads import EncoderForTask
from bertwright.seeding import check_seed
from bertwright.tasks.collation import check_segments
from bertwright.tasks.presentation import truncation_warnings
from bertwright.tasks.presets import SPLITS, TaskOptions, TaskSettings
from bertwright.tasks.regression import Regression
from bertwright.tasks.splits import train_validation_split
from bertwright.tasks.task import Encoded
from bertwright.tasks.task_io import AnyTask, load_task, read_task
from bertwright.training import checkpoint
from bertwright.training.context import DeviceSettings, ExecutionContext
from bertwright.training.loop import check_finite_weights
from bertwright.training.optimizer import AdamW, OptimizerSettings
from bertwright.training.run_directory import changed_files, prepare_model, read_digests, record_run
from bertwright.vocabulary.tokenizer import Tokenizer


def paper_optimizer() -> OptimizerSettings:
    """Section A.3, with the bias correction that Google's code leaves out: without it small sets often fail."""
    return OptimizerSettings(learning_rate=3e-5, warmup_ratio=0.1, bias_correction=True)


@dataclass(frozen=True)
class FinetuneSettings:
    """Fine-tune a BERT on a task; with --resume, go on where a run stopped."""

    run: Path
    """Run folder, to be made; with --resume, one that exists."""
    task: TaskSettings
    model: str | None = None
    """Model folder, run folder or hub name to start from. Needed unless --resume finds it in the run's settings."""
    validation_fraction: float = 0.0
    """Share of the training examples to set aside as dev where there are no dev files."""
    resume: bool = False
    """Go on from the run's newest checkpoint with the settings that stand in the run folder, to the bit."""
    epochs: float = 3.0
    """Passes over the training examples (paper, A.3: 2, 3 or 4)."""
    batch_size: int = 32
    """Examples a step (paper, A.3: 16 or 32); for question answering, windows."""
    seed: int = 0
    """What the new head's weights, the order of the examples and dropout are drawn from."""
    dropout: float = 0.1
    """Dropout of states, attention weights and the head's input, whatever the model was trained with (paper: 0.1)."""
    label_smoothing: float = 0.0
    """Share of a target's probability that is spread over all labels (paper: none)."""
    freeze_layers: int | None = None
    """Leave the embeddings and this many of the lowest layers as they are; 0: the embeddings alone. Unset: all move."""
    layerwise_lr_decay: float = 1.0
    """Factor between a layer's rate and that of the layer above it; below 1, lower layers move less (ULMFiT)."""
    eval_every: int | None = None
    """Steps between evaluations on dev; unset: once an epoch."""
    save_every: int | None = None
    """Steps between checkpoints; unset: at every evaluation."""
    log_every: int = 10
    """Steps that one line of metrics.jsonl sums up, or fewer: a line ends at every checkpoint."""
    optimizer: OptimizerSettings = field(default_factory=paper_optimizer)
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        for name in ("batch_size", "eval_every", "save_every", "log_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        check_seed(self.seed)
        if not (self.epochs > 0 and math.isfinite(self.epochs)):
            raise ValueError(f"epochs must be above 0, not {self.epochs}")
        for name in ("dropout", "label_smoothing", "validation_fraction"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is a share, from 0 to below 1, not {getattr(self, name)}")
        if self.label_smoothing and isinstance(self.task.build_task(), Regression):
            raise ValueError(f"label_smoothing = {self.label_smoothing}: a regression has no labels; leave it at 0")
        if not 0 < self.layerwise_lr_decay <= 1:
            raise ValueError(f"layerwise_lr_decay is a factor, above 0 and at most 1, not {self.layerwise_lr_decay}")
        if self.freeze_layers is not None and self.freeze_layers < 0:
            raise ValueError(f"freeze_layers is a number of layers, not {self.freeze_layers}")


START = "the weights to start from"  # among the digests of a run

# May differ between a run and its resumption: they say where and how often, not what is computed.
RESUME_OVERRIDES = ("run", "resume", "eval_every", "save_every", "log_every", "device")


class SplitData(NamedTuple):
    """The examples of one part of the data, as read and as the model reads them."""

    name: str
    examples: Sequence[Any]
    encoded: Encoded


@dataclass
class FinetuneState:
    """What a run's steps touch, as it is after the steps done so far."""

    task: AnyTask
    tokenizer: Tokenizer
    model: EncoderForTask
    optimizer: AdamW
    train: SplitData
    dev: SplitData | None
    test: SplitData | None


def open_run(
    settings: FinetuneSettings,
    place: ExecutionContext,
    console: Console,
    examples: Mapping[str, Sequence[Any]] | None = None,
) -> FinetuneState:
    """Examples, model and optimizer, from the newest checkpoint where there is one; `examples` as `finetune` has them.

    Raises ValueError for what is missing, damaged, or does not fit together; nothing has been written then.
    """
    if settings.model is None:
        raise ValueError("no model given: --model FOLDER, a pre-trained BERT of yours or of the hub")
    if settings.batch_size < place.world_size:
        raise ValueError(
            f"batch_size = {settings.batch_size} leaves some of {place.world_size} ranks without an example"
        )
    latest = checkpoint.latest(settings.run / "checkpoints")
    source = latest or model_folder(settings.model)
    tokenizer = Tokenizer.load(source)
    task, read = _fitted(settings, examples)
    model = _starting_model(settings, task, source, latest is not None, console if place.is_main_process else None)
    check_vocabulary(tokenizer, model.config, source)
    check_finite_weights(model, 0)
    task = within_positions(task, settings.task.overrides, model.config.max_positions)
    parts = {
        name: SplitData(name, part, task.encode(part, tokenizer, labelled=name == "train"))
        for name, part in read.items()
    }
    for part in parts.values():
        check_segments(part.encoded, model.config)
    if not len(parts["train"].encoded.labels):
        raise ValueError(
            f"{read['train'][0].location}: neither this nor any other training example can be learned from"
        )
    prepare_model(model, place)
    factors = rate_factors(model, settings.freeze_layers, settings.layerwise_lr_decay)
    moved = {name: parameter for name, parameter in model.named_parameters() if factors[name] > 0}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in moved)
    optimizer = AdamW(moved, settings.optimizer, factors)
    if latest is not None:
        optimizer.load_state(checkpoint.load_optimizer(latest))
        if place.is_main_process and (changes := checkpoint.environment_changes(latest)):
            notice(console, changes)
        task = read_task(latest) or task
    return FinetuneState(task, tokenizer, model, optimizer, parts["train"], parts.get("dev"), parts.get("test"))


def _fitted(
    settings: FinetuneSettings, examples: Mapping[str, Sequence[Any]] | None
) -> tuple[AnyTask, dict[str, Sequence[Any]]]:
    """The task, fitted to its training examples, and those of every part that there is, with labels that it knows."""
    task = settings.task.build_task()
    read = examples or {name: read_examples(task, settings.task, name) for name in SPLITS}
    parts = {name: read[name] for name in SPLITS if read.get(name)}
    if "train" not in parts:
        raise ValueError("nothing to train on: name files with --train, or a published task's folder with --data")
    task = task.with_labels_of(parts["train"])
    if settings.validation_fraction and "dev" not in parts:
        parts["train"], parts["dev"] = train_validation_split(
            parts["train"], task.group_keys(parts["train"]), settings.validation_fraction
        )
        try:
            task.check(parts["dev"])
        except ValueError as error:
            raise ValueError(
                f"validation_fraction = {settings.validation_fraction}: what it sets aside cannot choose the best epoch; give a larger "
                f"share, or dev examples of their own ({error})"
            ) from None
    for name in ("dev", "test"):
        task.check(parts.get(name, ()))
    return task, parts


def read_examples(task: AnyTask, settings: TaskSettings, part: str) -> list[Any]:
    """The labelled examples of all files of a part, in order; raises ValueError for a file without any."""
    found: list[Any] = []
    check_unique(settings.files(part), f" with --{part}")
    for path in settings.files(part):
        before = len(found)
        found += task.read(path)
        if len(found) == before:
            raise ValueError(f"{path}: no examples in it")
    return found


def notes(task: AnyTask, settings: TaskSettings, parts: Sequence[SplitData], positions: int) -> list[str]:
    """What a user should know of files and examples before they are learned from, one sentence each.

    `parts`: the training part first; `positions`: the model's.
    """
    told: list[str] = []
    for part in parts:
        cut = truncation_warnings(task, len(part.examples), part.encoded.truncated, positions)
        told += [f"{part.name}: {note}" for note in cut + task.warnings(part.examples, settings.files(part.name))]
    real = {name: {file for place in settings.files(name) for file in resolve_files(place)} for name in SPLITS}
    if shared := real["train"] & (real["dev"] | real["test"]):
        place = min(shared)
        place = place if place.startswith(HF_SCHEME) else os.path.relpath(place)
        told.append(f"{place}: trained on and scored; such a score says little about others")
    return told


def _starting_model(
    settings: FinetuneSettings, task: AnyTask, source: Path, resumed: bool, console: Console | None
) -> EncoderForTask:
    if resumed:
        found = load_task(source)
        assert found is not None, f"{source}: a checkpoint without a task"
        return found.model
    started = start_task_model(source, task.head, settings.seed, dropout=settings.dropout)
    if "pooler" in started.newly_initialized and console is not None:
        notice(console, f"{source} has no pooler: it starts from random weights, as the classifier does")
    task.initialize_head(started.model.classifier)
    return started.model


def within_positions(task: AnyTask, asked: TaskOptions, positions: int) -> AnyTask:
    """The task for a model of so many positions: default lengths give way to them, those asked for do not."""
    if asked.max_length is not None and asked.max_length > positions:
        raise ValueError(f"max_length = {asked.max_length}: the model has {positions} positions; ask for that or less")
    found = task.limited_to(positions)
    if asked.max_query_length is not None and asked.max_query_length != getattr(found, "max_query_length", None):
        raise ValueError(
            f"max_query_length = {asked.max_query_length}: no room for a context is left in the model's {positions} positions; "
            "ask for less"
        )
    return found


def rate_factors(model: EncoderForTask, freeze_layers: int | None, decay: float) -> dict[str, float]:
    """What each parameter's rate is multiplied by: 0 where it is frozen, else `decay` for each layer above it."""
    layers = model.config.num_layers
    frozen = -1 if freeze_layers is None else freeze_layers
    if frozen > layers:
        raise ValueError(f"freeze_layers = {freeze_layers}: this model has {layers} layers")
    factors = {}
    for name, _ in model.named_parameters():
        layer = re.match(r"encoder\.layers\.(\d+)\.", name)
        depth = int(layer[1]) + 1 if layer else 0 if name.startswith("encoder.embeddings.") else layers + 1
        factors[name] = 0.0 if depth <= frozen else decay ** (layers + 1 - depth)
    return factors


def begin(settings: FinetuneSettings) -> None:
    """Write down what is run, once all of it has been opened; hold a resumed run to the files that it began with."""
    data = digests(settings.task)
    if checkpoint.latest(settings.run / "checkpoints") is None:
        data |= start_digest(settings.model)
    else:  # which is past; a run that it came from may have gone on since
        data |= {name: digest for name, digest in read_digests(settings.run).items() if name == START}
    if settings.resume:
        check_data_unchanged(settings.run, data)
    record_run(settings, "finetune", data)


def check_data_unchanged(run: Path, data: Mapping[str, str]) -> None:
    """Raise ValueError where a run's files, by their digests, are not what they were when it began."""
    for path in changed_files(run, data):
        raise ValueError(f"{path}: not what the run began with; give the file its content back, or start anew")


def digests(task: TaskSettings) -> dict[str, str]:
    """What every file, folder or glob of a task holds; of a data set on the hub, its name."""
    return {path: _digest(path) for part in SPLITS for path in task.files(part)}


def start_digest(model: str | None) -> dict[str, str]:
    """What weights a model stands for today: those of a run that goes on, or of the hub's latest revision, move."""
    assert model is not None  # `open_run` has refused that
    folder = model_folder(model)
    files = [folder / CONFIG, *sorted(folder.glob("*.safetensors"))]
    return {START: digest_bytes(*(digest_file(file).encode() for file in files))}


def _digest(path: str) -> str:
    files = [] if path.startswith(HF_SCHEME) else expand_files(path)
    return digest_bytes(path.encode(), *(digest_file(Path(file)).encode() for file in files))
