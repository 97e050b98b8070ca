"""Open a fine-tuning run, new or resumed: read and check examples, model and optimizer."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console

from bertwright.batching.permutation import permute
from bertwright.commands.finetune.settings import FinetuneSettings
from bertwright.console import notice
from bertwright.files import digest_bytes, digest_file
from bertwright.interop.huggingface import check_vocabulary, random_task_model, start_task_model
from bertwright.interop.model_files import CONFIG, model_folder
from bertwright.io.sources import HF_SCHEME, check_unique, expand_files, resolve_files
from bertwright.models.encoder import layer_matrices
from bertwright.models.heads import EncoderForTask
from bertwright.seeding import derive_key
from bertwright.tasks.collation import check_segments, micro_batches
from bertwright.tasks.presentation import truncation_warnings
from bertwright.tasks.presets import SPLITS, TaskOptions, TaskSettings
from bertwright.tasks.splits import SPLIT_SEED, train_validation_split
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask, Encoded, TaskBatch
from bertwright.tasks.task_io import load_task
from bertwright.training import checkpoint
from bertwright.training.context import ExecutionContext
from bertwright.training.definition import Training
from bertwright.training.loop import LossOutput, check_finite_weights
from bertwright.training.optimizer import Optimizer
from bertwright.training.run_directory import changed_files, prepare_model, read_digests, record_run
from bertwright.training.throughput import default_micro_batch_tokens
from bertwright.vocabulary.tokenizer import Tokenizer

INITIAL_WEIGHTS = "the initial weights"  # name among the digests of a run


class SplitData(NamedTuple):
    """Examples of a split, as they were read and as the model reads them."""

    name: str
    examples: Sequence[Any]
    encoded: Encoded


@dataclass
class FinetuneState:
    """State of a run after its finished steps, and its data."""

    task: AnyTask
    tokenizer: Tokenizer
    model: EncoderForTask
    optimizer: Optimizer
    train: SplitData
    dev: SplitData | None
    test: SplitData | None


def open_run(
    settings: FinetuneSettings,
    context: ExecutionContext,
    console: Console,
    examples: Mapping[str, Sequence[Any]] | None = None,
) -> FinetuneState:
    """Read examples, and model and optimizer, from the newest checkpoint if there is one; `examples` as in `finetune`.

    Nothing is written. Raises ValueError for missing, damaged or inconsistent input.
    """
    if settings.model is None:
        raise ValueError("no model given: --model FOLDER, a pre-trained BERT of yours or of the hub")
    if settings.batch_size < context.world_size:
        raise ValueError(
            f"batch_size = {settings.batch_size} leaves some of {context.world_size} ranks without an example"
        )
    latest = checkpoint.verify_latest(settings.run / "checkpoints")
    source = latest or model_folder(settings.model)
    tokenizer = Tokenizer.load(source)
    task, examples = _fit_task(settings, examples)
    resumed = load_task(source) if latest else None
    model = resumed.model if resumed else _initial_model(settings, task, source, console)
    check_vocabulary(tokenizer, model.config, source)
    check_finite_weights(model, 0)
    task = within_positions(task, settings.task.overrides, model.config.max_positions)
    splits = {
        name: SplitData(name, split, task.encode(split, tokenizer, labeled=name == "train"))
        for name, split in examples.items()
    }
    for split in splits.values():
        check_segments(split.encoded, model.config)
    if not len(splits["train"].encoded.labels):
        raise ValueError(f"{examples['train'][0].location}: no target, and no other training example has one either")
    prepare_model(model, context)
    lr_scales = layerwise_lr_scales(model, settings.tuning.freeze_layers, settings.tuning.layerwise_lr_decay)
    trained = {name: parameter for name, parameter in model.named_parameters() if lr_scales[name] > 0}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
    optimizer = Optimizer(trained, settings.optimizer, lr_scales, layer_matrices(model))
    if latest is not None:
        optimizer.load_state(checkpoint.load_optimizer(latest))
    if resumed is not None:
        task = resumed.task  # with what it chose on dev, such as a threshold
    return FinetuneState(task, tokenizer, model, optimizer, splits["train"], splits.get("dev"), splits.get("test"))


def _fit_task(
    settings: FinetuneSettings, examples: Mapping[str, Sequence[Any]] | None
) -> tuple[AnyTask, dict[str, Sequence[Any]]]:
    """Return the task with the labels of its training examples, and the examples of each split that is not empty."""
    task, tuning = settings.task.build_task(), settings.tuning
    read = examples or {name: read_examples(task, settings.task, name) for name in SPLITS}
    splits = {name: read[name] for name in SPLITS if read.get(name)}
    if "train" not in splits:
        raise ValueError("nothing to train on: name files with --train, or a published task's folder with --data")
    task = task.with_labels_of(splits["train"])
    if tuning.validation_fraction and "dev" not in splits:
        splits["train"], splits["dev"] = train_validation_split(
            splits["train"], task.group_keys(splits["train"]), tuning.validation_fraction
        )
        try:
            task.check(splits["dev"])
        except ValueError as error:
            raise ValueError(
                f"validation_fraction = {tuning.validation_fraction}: this dev split cannot select the best epoch; "
                f"choose a larger fraction, or name --dev files ({error})"
            ) from None
    if tuning.limit is not None:
        splits = {name: _sample(split, tuning.limit) for name, split in splits.items()}
    for name in ("dev", "test"):
        task.check(splits.get(name, ()))
    return task, splits


def _sample(examples: Sequence[Any], size: int) -> Sequence[Any]:
    """Return randomly chosen examples in their order; the choice does not depend on the run's seed."""
    if size >= len(examples):
        return examples
    chosen = permute(np.arange(size), len(examples), derive_key(SPLIT_SEED))
    return [examples[index] for index in np.sort(chosen)]


def read_examples(task: AnyTask, settings: TaskSettings, split: str) -> list[Any]:
    """Read the labeled examples of all files of a split, in order; raises ValueError for a file without examples."""
    examples: list[Any] = []
    check_unique(settings.files(split), f" with --{split}")
    for path in settings.files(split):
        before = len(examples)
        examples += task.read(path)
        if len(examples) == before:
            raise ValueError(f"{path}: contains no examples")
    return examples


def data_warnings(
    task: AnyTask, settings: TaskSettings, splits: Sequence[SplitData], tokenizer: Tokenizer, max_positions: int
) -> list[str]:
    """Return a sentence on each problem of files and examples that a user should know before training.

    `splits`: train first; `max_positions`: of the model.
    """
    warnings: list[str] = []
    if isinstance(task, Tagging) and tokenizer.lowercase:
        words = (word for example in splits[0].examples for word in example.words)
        if cased := next((word for word in words if word != word.lower()), None):
            warnings.append(
                f"{splits[0].name}: words have capital letters, such as {cased!r}, but the vocabulary is uncased: the "
                "model cannot see them; the paper tags with a cased model (section 5.3)"
            )
    for split in splits:
        truncated = truncation_warnings(task, len(split.examples), split.encoded.truncated, max_positions)
        warnings += [
            f"{split.name}: {note}" for note in truncated + task.warnings(split.examples, settings.files(split.name))
        ]
    files = {name: {file for pattern in settings.files(name) for file in resolve_files(pattern)} for name in SPLITS}
    if shared := files["train"] & (files["dev"] | files["test"]):
        path = min(shared)
        path = path if path.startswith(HF_SCHEME) else os.path.relpath(path)
        warnings.append(f"{path}: used for training and for scoring; its score says little about other examples")
    return warnings


def _initial_model(settings: FinetuneSettings, task: AnyTask, source: Path, console: Console) -> EncoderForTask:
    """Return the model before its first step: a pre-trained or random encoder with a random classifier."""
    dropout = settings.tuning.dropout
    if settings.tuning.from_scratch:
        model = random_task_model(source, task.head, settings.seed, dropout)
    else:
        started = start_task_model(source, task.head, settings.seed, dropout)
        model = started.model
        if "pooler" in started.newly_initialized:
            notice(console, f"{source} has no pooler: the pooler starts from random weights, as the classifier does")
        elif model.pooler is not None and not model.pooler.dense.bias.any():  # initially 0; only training changes it
            notice(
                console,
                f"{source}: its pooler was never trained, as in pre-training without next-sentence prediction "
                "(--objective mlm or ltr); fine-tuning trains it from its initial weights",
            )
    task.initialize_head(model.classifier)
    return model


def within_positions(task: AnyTask, overrides: TaskOptions, max_positions: int) -> AnyTask:
    """Return the task with default lengths reduced to a model's positions.

    Raises ValueError for lengths that the user has set and that exceed them.
    """
    if overrides.max_length is not None and overrides.max_length > max_positions:
        raise ValueError(f"max_length = {overrides.max_length}: the model has {max_positions} positions; lower it")
    shortened = task.limited_to(max_positions)
    query = overrides.max_query_length
    if query is not None and query != getattr(shortened, "max_query_length", None):
        raise ValueError(
            f"max_query_length = {query}: leaves no room for a context in the model's {max_positions} positions; "
            "lower it"
        )
    return shortened


def layerwise_lr_scales(model: EncoderForTask, freeze_layers: int | None, decay: float) -> dict[str, float]:
    """Return the factor of each parameter's learning rate: 0 if it is frozen, else `decay` for each layer above it."""
    layers = model.config.num_layers
    frozen = -1 if freeze_layers is None else freeze_layers
    if frozen > layers:
        raise ValueError(f"freeze_layers = {freeze_layers}: this model has {layers} layers")
    scales = {}
    for name, parameter in model.named_parameters():
        layer = re.match(r"encoder\.(?:encoders\.\d+\.)?(?:layers\.(\d+)|embeddings)\.", name)
        depth = layers + 1 if layer is None else 0 if layer[1] is None else int(layer[1]) + 1
        scales[name] = 0.0 if depth <= frozen or not parameter.requires_grad else decay ** (layers + 1 - depth)
    return scales


def make_training(state: FinetuneState, settings: FinetuneSettings, context: ExecutionContext) -> Training[TaskBatch]:
    """Return the batches, loss and schedule of fine-tuning, without evaluation."""
    tokens = default_micro_batch_tokens(context, state.model.config)
    steps = settings.num_steps(state.train.encoded.num_items)

    def batches(first_step: int) -> Iterator[list[TaskBatch]]:
        """Yield this rank's micro-batches of each step."""
        ranks = (context.rank, context.world_size)
        for step in range(first_step, steps):
            made = micro_batches(state.train.encoded, step, settings.batch_size, settings.seed, tokens, ranks)
            yield [batch.to(context.device) for batch in made]

    def loss(batch: TaskBatch) -> LossOutput:
        """Compute one micro-batch's share of the step's loss."""
        logits = state.model(batch.batch, batch.positions)
        value = state.task.loss(logits, batch, settings.tuning.label_smoothing) / max(batch.num_labels, 1)
        sums = {"tokens": batch.batch.num_tokens, "sequences": len(batch.batch)}
        sizes = {name: torch.full((), float(size), device=logits.device) for name, size in sums.items()}
        return LossOutput(value, {"loss": value.detach()} | sizes)

    return Training(state.model, state.optimizer, settings.optimizer.make_schedule(steps), batches, loss)


def record_start(settings: FinetuneSettings) -> None:
    """Write the settings and data digests of a run that has been opened.

    Raises ValueError for a resumed run whose files have changed.
    """
    data = digest_files(settings.task)
    if checkpoint.find_latest(settings.run / "checkpoints") is None:
        data |= digest_initial_weights(settings.model)
    else:  # the weights have a digest of the start: the run that they come from may have continued since
        data |= {name: digest for name, digest in read_digests(settings.run).items() if name == INITIAL_WEIGHTS}
    if settings.resume:
        check_data_unchanged(settings.run, data)
    record_run(settings, "finetune", data)


def check_data_unchanged(run: Path, data: Mapping[str, str]) -> None:
    """Raise ValueError if files, by their digests, have changed since a run started."""
    for path in changed_files(run, data):
        raise ValueError(f"{path}: changed since the run started; restore its content, or start again")


def digest_files(task: TaskSettings) -> dict[str, str]:
    """Return the digest of the content of each file, folder or glob of a task; for a hub data set, of its name."""
    return {path: _digest(path) for split in SPLITS for path in task.files(split)}


def digest_initial_weights(model: str | None) -> dict[str, str]:
    """Return the digest of the weights that a model name refers to now; a run or the hub may change them later."""
    assert model is not None  # checked by `open_run`
    folder = model_folder(model)
    files = [folder / CONFIG, *sorted(folder.glob("*.safetensors"))]
    return {INITIAL_WEIGHTS: digest_bytes(*(digest_file(file).encode() for file in files))}


def _digest(path: str) -> str:
    files = [] if path.startswith(HF_SCHEME) else expand_files(path)
    return digest_bytes(path.encode(), *(digest_file(Path(file)).encode() for file in files))
