"""Open a fine-tuning run, new or resumed: read and check examples, model and optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bertwright.base.reporter import Reporter
from bertwright.finetuning.head_start import MAX_ITEMS, fit_head, is_linear
from bertwright.finetuning.pooling_choice import PoolingChoice, choose_pooling
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.huggingface import (
    LoadResult,
    ModelSource,
    check_vocabulary,
    random_task_model,
    read_config,
    read_source,
    start_task_model,
)
from bertwright.interop.model_files import model_folder
from bertwright.models.encoder import EncoderConfig, TextEncoder
from bertwright.models.heads import TaskBatch, is_untrained
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.registry import word_models
from bertwright.tasks.class_weights import with_class_weights
from bertwright.tasks.collation import check_segments, collate, split_step
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_data import SplitData, read_splits, within_positions
from bertwright.tasks.task_folder import TaskModel, continue_task, load_task, load_to_continue, read_task
from bertwright.training import checkpoint
from bertwright.training.context import ExecutionContext
from bertwright.training.fit import TrainingSpec
from bertwright.training.layer_rates import layerwise_lr_scales, unfreeze_gradually
from bertwright.training.loop import LossOutput, check_finite_weights, evaluation_mode
from bertwright.training.optimizer import LRScale, Optimizer, make_optimizer
from bertwright.training.optimizer_settings import restart_schedule
from bertwright.training.run_folder import prepare_model
from bertwright.training.throughput import choose_micro_batch_tokens, default_micro_batch_tokens
from bertwright.training.whole_batch_loss import RowOutput, WholeBatchLoss
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer

SCALED_ITEMS = 32  # training items on which the size of pooled states is measured


@dataclass(frozen=True)
class FinetuneState:
    """Task, model, optimizer and data of a run."""

    task: AnyTask
    tokenizer: TextTokenizer
    model: EncoderForTask
    optimizer: Optimizer
    train: SplitData
    dev: SplitData | None
    test: SplitData | None
    source_config: EncoderConfig | None
    """Configuration of the model that a new run starts from, with its own dropout."""
    head: str
    """Where the head comes from, what it reads, and how it was fitted, in words."""


def open_run(
    settings: FinetuneSettings,
    context: ExecutionContext,
    reporter: Reporter,
    examples: Mapping[str, Sequence[Any]] | None = None,
) -> FinetuneState:
    """Read the examples; load model and optimizer, from the newest checkpoint if there is one.

    A finished run that keeps no checkpoints is opened with its model, and an optimizer without moments.
    `examples`: as in `finetune`. Nothing is written. Raises ValueError for missing, damaged or inconsistent input.
    """
    _check_ranks(settings, context)
    latest = checkpoint.verify_latest(settings.run / "checkpoints")
    finished = settings.run / "model"
    own = latest or (finished if finished.is_dir() else None)
    task, examples = read_splits(settings.task, settings.tuning.validation_fraction, settings.tuning.limit, examples)
    _check_patience(settings, "dev" in examples)
    task.step_warnings(examples["train"], settings.batch_size)  # the summary prints them; unusable sizes raise
    resumed = load_task(own) if own else None
    opened = _open_model(settings, task, examples["train"], own, resumed, reporter)
    task, model, tokenizer = opened.task, opened.model, opened.tokenizer
    task.prepare_training(model, settings.seed, own)
    if settings.tuning.class_weights is not None and own is None:
        task = with_class_weights(task, settings.tuning.class_weights, examples["train"])
    check_finite_weights(model, 0)
    task = within_positions(task, settings.task.overrides, model.config.max_positions)
    splits = _encode(task, examples, tokenizer, model)
    train, has_new_head = splits["train"].encoded, resumed is None and not settings.tuning.keep_head
    if has_new_head:
        with evaluation_mode(model):
            model.scale_pooled_head(collate(train, np.arange(min(train.num_items, SCALED_ITEMS))))
    prepare_model(model, context)
    start = _start_head(settings, task, model, train, reporter) if has_new_head else ""
    optimizer = make_optimizer(model, settings.optimizer, _lr_scales(settings, model, train.num_items))
    if latest is not None:
        optimizer.load_state(checkpoint.load_optimizer(latest))
    task = resumed.task if resumed else task  # a saved task has its choices on dev, such as a threshold
    source = f"from {settings.model}" if settings.tuning.keep_head else "new"
    pooling = f", {PoolingChoice(task.pooling, opened.pooling_reason).describe()}" if task.pooling else ""
    return FinetuneState(
        task=task,
        tokenizer=tokenizer,
        model=model,
        optimizer=optimizer,
        train=splits["train"],
        dev=splits.get("dev"),
        test=splits.get("test"),
        source_config=opened.source_config,
        head=f"{source}{pooling}{start}",
    )


def _check_ranks(settings: FinetuneSettings, context: ExecutionContext) -> None:
    """Raise ValueError for batches with fewer examples than there are ranks."""
    if settings.batch_size < context.world_size:
        raise ValueError(
            f"batch_size = {settings.batch_size} leaves some of {context.world_size} ranks without an example"
        )


def _check_patience(settings: FinetuneSettings, has_dev: bool) -> None:
    """Raise ValueError for a patience without dev examples."""
    if settings.tuning.patience is not None and not has_dev:
        raise ValueError(
            f"patience = {settings.tuning.patience}: expected dev examples, whose score decides when to stop, got "
            "none; give --dev files or --validation-fraction 0.1"
        )


def _start_head(
    settings: FinetuneSettings, task: AnyTask, model: EncoderForTask, train: Encoded, reporter: Reporter
) -> str:
    """Choose the start of a new head, and fit it to the encoder's states if that is the choice; describe the fit."""
    can_be_fitted = model.encoder.fits_new_heads and is_linear(model.head)
    head_init = settings.tuning.choose_head_init(train.num_items, len(task.label_names), can_be_fitted)
    if head_init != "fit":
        return ""
    if settings.dry_run:
        return ", a run fits it to the encoder's states first"
    with reporter.progress("fitting the head", min(train.num_items, MAX_ITEMS)) as advance:
        return f", {fit_head(model, task, train, settings.seed, settings.tuning.label_smoothing, advance)}"


def _lr_scales(settings: FinetuneSettings, model: EncoderForTask, num_items: int) -> dict[str, LRScale]:
    """Return the factor of each parameter's learning rate; 0 freezes it."""
    tuning = settings.tuning
    scales = layerwise_lr_scales(model, tuning.freeze_layers, tuning.layerwise_lr_decay)
    scales |= own_lr_scales(model.encoder, settings.optimizer.learning_rate)
    epoch_steps = math.ceil(num_items / settings.batch_size)
    return unfreeze_gradually(model, scales, epoch_steps if tuning.unfreeze == "gradual" else 0)


class _OpenedModel(NamedTuple):
    """A run's model with its tokenizer, and the task that its head is made for."""

    task: AnyTask
    model: EncoderForTask
    tokenizer: TextTokenizer
    source_config: EncoderConfig | None
    """As in `FinetuneState`."""
    pooling_reason: str = ""
    """What in the model folder decided the pooling of a new head; empty if nothing did."""


def _open_model(
    settings: FinetuneSettings,
    task: AnyTask,
    train: Sequence[Any],
    own: Path | None,
    resumed: TaskModel | None,
    reporter: Reporter,
) -> _OpenedModel:
    """Return a new model for the task or the run's own; `own`: its folder, `resumed`: what that folder has."""
    if own is None and settings.architecture is not None:
        return _OpenedModel(task, *word_models()[settings.architecture].build(settings, task, train), None)
    folder, tuning = own or model_folder(settings.model), settings.tuning
    tokenizer = open_tokenizer(folder)
    if tuning.keep_head:
        task = continue_task(folder, task)
    if resumed:
        check_vocabulary(tokenizer, resumed.model.config, folder)
        return _OpenedModel(task.with_model(folder), resumed.model, tokenizer, None)
    config = read_config(folder)
    source = None if tuning.from_scratch or tuning.keep_head else read_source(folder, config)
    choice = choose_pooling(tuning, task, folder, source)
    task = replace(task, pooling=choice.modes) if choice.modes else task  # type: ignore[type-var]
    task = task.with_model(folder)
    model = _initial_model(settings, task, folder, source, reporter)
    check_vocabulary(tokenizer, model.config, folder)
    return _OpenedModel(task, model, tokenizer, config.config, choice.reason)


def _encode(
    task: AnyTask, examples: Mapping[str, Sequence[Any]], tokenizer: TextTokenizer, model: EncoderForTask
) -> dict[str, SplitData]:
    """Encode the examples of each split. Raises ValueError if the model cannot read them, or if none has a target."""
    splits = {
        name: SplitData(name, split, task.encode(split, tokenizer, labeled=name == "train"))
        for name, split in examples.items()
    }
    for split in splits.values():
        check_segments(split.encoded.token_type_ids, model.config)
    if not len(splits["train"].encoded.labels):
        raise ValueError(f"{examples['train'][0].location}: no target, and no other training example has one either")
    return splits


def _initial_model(
    settings: FinetuneSettings, task: AnyTask, folder: Path, source: ModelSource | None, reporter: Reporter
) -> EncoderForTask:
    """Return the model for step 0: a pre-trained or random encoder with a trained or random head.

    `source`: the folder's weights; None: the head is continued, or all weights are random.
    """
    dropout = task.default_dropout if settings.tuning.dropout is None else settings.tuning.dropout
    head = task.head_for(folder) or task.head
    if settings.tuning.keep_head:
        return load_to_continue(folder, task, dropout)
    if source is None:
        model = random_task_model(folder, head, settings.seed, dropout)
    else:
        started = start_task_model(folder, head, settings.seed, dropout, source)
        model = started.model
        if _has_head_of(folder, task):
            reporter.note("the model's head is not used; a new one takes its place (see --keep-head)")
        if model.encoder.has_pooler and (note := _pooler_note(started, task)):
            reporter.note(note)
    task.initialize_head(model.head)
    return model


def _pooler_note(started: LoadResult[EncoderForTask], task: AnyTask) -> str:
    """Say in a note that a new head reads a pooler without trained weights; empty if it does not."""
    if "pooler" in started.missing_heads:
        return "the model has no pooler: a new one starts from random weights"
    pooler = getattr(started.model.head, "pooler", None)
    if pooler is None or not is_untrained(pooler.dense):
        return ""
    other = ", and --pooling mean reads the states of all tokens instead" if task.pooling is not None else ""
    return f"the model's pooler was never trained; fine-tuning trains it from its initial weights{other}"


def _has_head_of(folder: Path, task: AnyTask) -> bool:
    """Return whether a folder has a trained head with the outputs of a task, which could be continued."""
    try:
        trained = read_task(folder)
    except ValueError:  # a task of another program
        return False
    return trained is not None and trained.head == task.head


def own_lr_scales(encoder: TextEncoder, learning_rate: float) -> dict[str, float]:
    """Return the factors that give the encoder's `learning_rates` to the parameters of the modules named there."""
    return {
        f"encoder.{name}": rate / learning_rate
        for name, _ in encoder.named_parameters()
        for module, rate in encoder.learning_rates.items()
        if name.startswith(f"{module}.")
    }


def make_spec(state: FinetuneState, settings: FinetuneSettings, context: ExecutionContext) -> TrainingSpec[TaskBatch]:
    """Return the batches, loss and schedule of fine-tuning, without evaluation."""
    contrast, encoded = state.task.whole_batch_loss(state.train.examples), state.train.encoded
    tokens = default_micro_batch_tokens(context, state.model.config)
    steps = settings.num_steps(encoded.num_items)
    items_of = state.task.item_order(encoded, state.train.examples, settings.batch_size, settings.seed)

    def batches(first_step: int) -> Iterator[list[TaskBatch]]:
        """Yield this rank's micro-batches of each step."""
        ranks = (context.rank, context.world_size)
        for step in range(first_step, steps):
            items, size = items_of(step), tokens
            if contrast is not None:
                in_step = int(encoded.item_lengths[items].sum())
                size = choose_micro_batch_tokens(context, state.model.config, in_step)
            given, chosen = state.task.step_input(encoded, items, step, settings.seed)
            made = split_step(given, chosen, step, settings.seed, size, ranks)
            yield [batch.to(context.device) for batch in made]

    def loss(batch: TaskBatch) -> LossOutput:
        """Compute one micro-batch's share of the step's loss."""
        tuning, encoder = settings.tuning, state.model.encoder
        reads_states = tuning.auxiliary_lm or encoder.has_penalty
        output, states = state.model.forward_with_states(batch) if reads_states else (state.model(batch), None)
        value = state.task.loss(output, batch, tuning.label_smoothing) / max(batch.num_labels, 1)
        if states is not None and encoder.has_penalty:
            value = value + encoder.penalty(batch, states)
        if states is not None and tuning.auxiliary_lm:
            next_tokens = encoder.language_model_loss(batch.input, states)
            value = value + tuning.auxiliary_lm * next_tokens / max(batch.num_next_tokens, 1)
        return LossOutput(value, {"loss": value.detach()} | count_sizes(batch, value.device))

    def vectors(batch: TaskBatch) -> RowOutput:
        """Compute the vectors of a micro-batch, and what the loss must know about each."""
        return RowOutput(state.model(batch), batch.labels, count_sizes(batch, batch.labels.device))

    # ULMFiT's released code begins a new triangle at each unfreezing.
    starts = state.optimizer.unfreezing_steps if settings.optimizer.schedule == "slanted-triangular" else []
    schedule = restart_schedule(settings.optimizer.make_schedule, [0, *starts], steps)
    chosen = loss if contrast is None else WholeBatchLoss(vectors, contrast)
    return TrainingSpec(state.model, state.optimizer, schedule, batches, chosen)


def count_sizes(batch: TaskBatch, device: torch.device) -> dict[str, torch.Tensor]:
    """Return the numbers of tokens and of sequences in a micro-batch, for the report of a step."""
    sums = {"tokens": batch.packing.num_tokens, "sequences": len(batch.packing)}
    return {name: torch.full((), float(size), device=device) for name, size in sums.items()}
