"""Pre-training: from a token store to a run folder.

RUN/settings.toml    all settings                   RUN/metrics.jsonl, tensorboard/, loss.png
RUN/checkpoints/     the newest checkpoints         RUN/model/      the result, a Hugging Face folder
RUN/report.json      first and last evaluation
"""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bertwright.base.object_storage import display
from bertwright.base.reporter import MUTE, SILENT, Fields, Heading, Line, Reporter, Rows
from bertwright.interop.model_card import write_card
from bertwright.interop.model_files import MODULES, model_folder
from bertwright.interop.sentence_modules import SentenceModules, read_sentence_modules
from bertwright.models.encoder import EncoderModel
from bertwright.objectives.objective import AnyObjective, Column, Examples, MicroBatch, OneSentenceError
from bertwright.pretraining.evaluation import PlateauDetector, evaluate
from bertwright.pretraining.initial_model import check_lengths, describe_untrained_positions, initial_model
from bertwright.pretraining.settings import RESUME_OVERRIDES, PretrainSettings
from bertwright.tokenstore.store import local_store
from bertwright.training import checkpoint
from bertwright.training.context import ExecutionContext, execution_context
from bertwright.training.cost import CostEstimate, describe_cost, peak_memory, time_steps
from bertwright.training.distributed import min_over_ranks
from bertwright.training.fit import FitResult, FitSettings, MetricWindow, TrainingSpec
from bertwright.training.layer_rates import layerwise_lr_scales
from bertwright.training.loop import check_finite_weights
from bertwright.training.metrics_log import PlotPanel, list_outputs, plot_metrics
from bertwright.training.optimizer import Optimizer, make_optimizer
from bertwright.training.run_folder import find_changed_data, format_resume_command, prepare_model, record_run
from bertwright.training.throughput import default_micro_batch_tokens, measure_peak_flops
from bertwright.training.train_run import train_run
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer

PLOT = "loss.png"
PLATEAU_STEPS = 400  # steps near the baseline loss before a notice
TIMED_SEQUENCES = 64  # held-out sequences timed per length


def pretrain(settings: PretrainSettings, reporter: Reporter = SILENT) -> Path:
    """Start or resume pre-training; return the model folder, or the run folder on other ranks and in a dry run.

    After Ctrl-C or SIGTERM, the current step is finished and saved; then KeyboardInterrupt is raised. Raises ValueError
    for settings, stores and checkpoints that are not usable, DivergedError for numbers that are not finite, OSError for
    a disk that fails; the newest checkpoint is intact in each case.
    """
    open_this_run = partial(open_run, settings, measures_peak=True)
    return train_run(settings, RESUME_OVERRIDES, open_this_run, reporter)


def measure_cost(settings: PretrainSettings) -> CostEstimate:
    """Estimate the cost of a run on this machine from a few measured steps and evaluations; nothing is written."""
    with execution_context(settings.device) as context, TemporaryDirectory() as folder:
        # Resumed, because that compares only samples of the store with its digests, which is faster.
        small = replace(settings, run=Path(folder) / "run", resume=True)
        cost = open_run(small, context, MUTE).estimate_cost()
        return cost._replace(memory=peak_memory(context))


def open_run(
    settings: PretrainSettings, context: ExecutionContext, reporter: Reporter, measures_peak: bool = False
) -> PretrainRun:
    """Open the store; load model and optimizer, from the newest checkpoint if there is one.

    A new run compares the whole store with its digests. A resumed run compares only samples, so that it starts at once.
    Nothing is written. `measures_peak`: measure the peak speed of matrix products, by which the run divides its own.
    Raises ValueError for missing, damaged or inconsistent input.
    """
    assert settings.store is not None  # checked by PretrainSettings
    latest = checkpoint.verify_latest(settings.run / "checkpoints")
    store = local_store(settings.store, reporter)
    tokenizer = open_tokenizer(store / "tokenizer")
    phases = [phase.data for phase in settings.phases]
    train = settings.objective.open_examples(store / "train", tokenizer, phases, not settings.resume)
    shards = context.world_size if settings.shard else 1
    for data in phases:
        data.check_world_size(context.world_size)
        data.check_shards(shards)
    held_out = _open_held_out(settings, store / "held_out", tokenizer, reporter)
    source = latest or (model_folder(settings.model.init) if settings.model.init is not None else None)
    model = initial_model(settings, tokenizer, source, reporter, is_checkpoint=latest is not None)
    modules = read_sentence_modules(source) if source else None
    if modules and latest is None:
        reporter.note(
            f"{settings.model.init} was trained for sentence embeddings ({MODULES}). Pre-training alone spoils its "
            "vectors for search and similarity: afterwards, train it on pairs of sentences again, for example with "
            f"sentence-transformers. The model of this run keeps its modules: {modules.description}."
        )
    check_finite_weights(model, 0)
    check_lengths(settings, model)
    if latest is None and settings.model.init is None and (text := describe_untrained_positions(settings, model)):
        reporter.note(text)
    # What the ranks divide waits on the CPU, so that no GPU ever has the moments of the whole model.
    prepare_model(model, replace(context, device=torch.device("cpu")) if shards > 1 else context)
    divided = deepcopy(model) if shards > 1 else None
    decay = settings.layerwise_lr_decay
    lr_scales = None if decay == 1 else layerwise_lr_scales(model, None, decay)
    optimizer = make_optimizer(divided or model, settings.optimizer, lr_scales)
    if latest is not None:
        optimizer.load_state(checkpoint.load_optimizer(latest))
    if context.is_main_process:
        model.to(context.device)
    peak = measure_peak_flops(context, model.config.hidden_size) * context.world_size if measures_peak else 1.0
    # Ranks that divide weights gather each layer together, so all need the same number of micro-batches: the one for
    # the GPU with the least memory.
    tokens = min_over_ranks(default_micro_batch_tokens(context, model.config, shards), context.device)
    return PretrainRun(
        settings, context, reporter, tokenizer, model, modules, optimizer, train, held_out, peak, tokens, divided
    )


def _open_held_out(
    settings: PretrainSettings, folder: Path, tokenizer: TextTokenizer, reporter: Reporter
) -> Sequence[Examples[Any]]:
    """Open the held-out examples in a folder of the store for each phase.

    If they are too few to evaluate on, the list is empty, and a notice says so. If they are too few to measure exactly,
    a notice states the standard errors.
    """
    if not folder.exists():
        return []
    phases = [phase.data for phase in settings.phases]
    try:
        held_out = settings.objective.open_examples(folder, tokenizer, phases, not settings.resume)
    except OneSentenceError:  # `prepare` holds out the shortest document of a small corpus
        reporter.note(f"{folder}: one sentence is too few to evaluate on; the run trains without evaluations")
        return []
    for examples in held_out:
        if text := examples.describe_small_validation(settings.eval_sequences):
            reporter.note(f"{folder}: {text}")
    return held_out


@dataclass
class PretrainRun:
    """A pre-training run after its finished steps, on one rank."""

    settings: PretrainSettings
    context: ExecutionContext
    reporter: Reporter
    tokenizer: TextTokenizer
    model: EncoderModel
    modules: SentenceModules | None
    """Modules of a folder of sentence-transformers from which the training started."""
    optimizer: Optimizer
    train: Sequence[Examples[Any]]
    """Examples of each phase."""
    held_out: Sequence[Examples[Any]]
    """Held-out examples of each phase; empty if the store has none."""
    peak_flops: float
    """Measured peak speed of matrix products in FLOP/s, of all ranks together."""
    micro_batch_tokens: int
    """Tokens per forward pass if the settings name no micro-batch size, the same on all ranks."""
    divided: EncoderModel | None = None
    """The copy of the model whose weights the ranks divide; see `TrainingSpec.divided`."""

    @property
    def objective(self) -> AnyObjective:
        return self.settings.objective

    def record_start(self) -> None:
        """Write the settings and data digests of a run that has been opened.

        Raises ValueError if the store of a resumed run has changed.
        """
        settings = self.settings
        digests = {examples.name: examples.digest() for examples in (*self.train[:1], *self.held_out[:1])}
        if settings.resume and find_changed_data(settings.run, digests):
            assert settings.store is not None  # checked by PretrainSettings
            raise ValueError(
                f"{display(settings.store)}: its text or sentences changed since the run started; restore it, or start "
                f"a new run from the newest checkpoint: --init {settings.run} --run FOLDER"
            )
        record_run(settings, "pretrain", digests)

    def print_summary(self) -> None:
        """Print the model, its initial weights, the objective, the device, and the data of each phase."""
        config, settings = self.model.config, self.settings
        device = f"{self.context}{' that divide the weights' if self.divided else ''}"
        self.reporter.record(
            Fields(
                {
                    "model": f"{config}, {config.num_parameters:,} parameters, vocabulary {config.vocab_size:,}",
                    "weights": self.describe_initial_weights(),
                    "objective": self.objective.name,
                    "device": f"{device}; matrix products reach {self.peak_flops / 1e9:,.0f} GFLOP/s",
                }
            )
        )
        for phase, examples in zip(settings.phases, self.train, strict=True):
            self.reporter.record(Heading(f"Steps {phase.first:,} to {phase.end:,}, length {phase.data.max_length}"))
            summary = examples.describe(phase.end - phase.first)
            for line in str(summary).split("\n"):
                self.reporter.record(Line(line, "minor"))
            for text in summary.notices():
                self.reporter.note(text)
        if settings.show_examples:
            self.print_examples()

    def print_examples(self) -> None:
        """Print examples of the first step with what is predicted in them."""
        self.reporter.record(
            Heading("Examples of step 1; a token in brackets is predicted where the token before it stands")
        )
        count = min(self.settings.show_examples, self.settings.data.batch_size)
        for batch in self.train[0].batches_for_step(0, micro_batch_size=1)[:count]:
            for example in self.objective.format_examples(batch, self.tokenizer):
                self.reporter.record(Line(example.text))
                self.reporter.record(Line(f"  {example.targets}", "minor"))

    def describe_initial_weights(self) -> str:
        model = self.settings.model
        if self.optimizer.steps:
            return f"of the checkpoint of step {self.optimizer.steps:,}"
        if model.init is not None:
            return f"from {model.init}"
        return self.objective.describe_initialization(model, self.model)

    def fit_settings(self) -> FitSettings:
        """Return the length of the run and the steps after which it evaluates and saves."""
        settings = self.settings
        return FitSettings(
            run=settings.run,
            steps=settings.steps,
            log_every=settings.log_every,
            eval_steps=frozenset(settings.eval_steps),
            save_steps=range(settings.save_every, settings.steps, settings.save_every),
            keep_last=settings.keep_last,
            keep_every=settings.keep_every,
            evaluation="held_out",
            track=settings.track,
            resume_command=format_resume_command(settings, "pretrain", self.context),
        )

    def spec(self) -> TrainingSpec[Any]:
        return TrainingSpec(
            self.model,
            self.optimizer,
            self.settings.optimizer.make_schedule(self.settings.steps),
            self.batches,
            partial(self.objective.loss, self.divided or self.model),
            evaluate=self.evaluate if self.held_out else None,
            write_model=lambda folder: self.objective.write_model(folder, self.model, self.tokenizer, self.modules),
            summarize=self.summarize,
            format_metrics=self.objective.format_progress,
            format_scores=self.objective.format_evaluation,
            diagnose=self.make_diagnosis() if self.context.is_main_process else None,
            find_unused_parameters=not self.objective.trains_all_parameters,
            carried=self.objective.carried_state(self.model),
            divided=self.divided,
        )

    def batches(self, first_step: int) -> Iterator[list[MicroBatch]]:
        """Yield this rank's micro-batches of each step, on the device."""
        for phase, examples in zip(self.settings.phases, self.train, strict=True):
            size = self.settings.micro_batch_size or max(1, self.micro_batch_tokens // phase.data.max_length)
            if self.settings.pad_batches:
                size = min(size, math.ceil(phase.data.batch_size / self.context.world_size))
            for step in range(max(phase.first, first_step), phase.end):
                micro_batches = examples.batches_for_step(step, self.context.rank, self.context.world_size, size)
                if self.settings.pad_batches:
                    micro_batches = [self.objective.pad_batch(batch, size, phase.data) for batch in micro_batches]
                yield [batch.to(self.context.device) for batch in micro_batches]

    def make_diagnosis(self) -> Callable[[int, Mapping[str, float]], str | None] | None:
        """Return a function from a step and its metrics to a notice, once, if the loss reaches a plateau."""
        settings, baseline = self.settings, self.train[0].measure_baseline()
        if baseline is None:
            return None
        warmup_steps = settings.optimizer.count_warmup_steps(settings.steps)
        plateau = PlateauDetector(baseline, max(1, PLATEAU_STEPS // settings.log_every))

        def diagnose(step: int, metrics: Mapping[str, float]) -> str | None:
            if step <= warmup_steps or not plateau.update(metrics[self.objective.loss_metric]):
                return None
            return (
                f"The loss has stopped falling near {baseline:.2f}, the entropy of the token frequencies: the "
                "model learns nothing from context. Usual causes: the learning rate is too high (try a third of "
                "--learning-rate) or too low, the warm-up is too short (--warmup-ratio; a short one needs "
                "--bias-correction), a step has too few sequences (--batch-size), or the text has no sentences "
                "(bertwright survey). A small model may only need more steps. This notice appears once."
            )

        return diagnose

    def evaluate(self) -> dict[str, float]:
        """Score the model on held-out sequences of the first phase's length; in the long phase, also on long ones."""
        first, *others = self.held_out
        scores = self.score(first, self.settings.eval_sequences)
        if others and self.optimizer.steps > self.settings.phases[1].first:
            long_scores = self.score(others[0], self.settings.eval_sequences)
            scores |= {f"long_{name}": value for name, value in long_scores.items()}
        return scores

    def score(self, examples: Examples[Any], sequences: int) -> dict[str, float]:
        batches = (batch.to(self.context.device) for batch in examples.validation_batches(sequences))
        return evaluate(self.objective, self.model, batches)

    def summarize(self, window: MetricWindow) -> dict[str, float]:
        return self.objective.compute_scores(window.sums) | {
            "tokens_per_second": window.sums["tokens"] / window.seconds,
            "utilization": window.sums["flops"] / window.seconds / self.peak_flops,
        }

    def describe_cost(self) -> dict[str, str]:
        cost, settings = self.estimate_cost(), self.settings
        phases = zip(settings.phases, self.train, strict=True)
        tokens = sum((phase.end - phase.first) * examples.describe(1).tokens_per_step for phase, examples in phases)
        fields = describe_cost(cost, self.context, self.model, self.optimizer, settings.max_checkpoints)
        return {"tokens": f"{tokens:,.0f}"} | fields

    def estimate_cost(self) -> CostEstimate:
        """Estimate steps and seconds of the whole run; the run cannot train afterwards: the moments have changed."""
        settings, seconds, evaluations = self.settings, 0.0, 0.0
        spec = replace(self.spec(), diagnose=None)
        for phase in settings.phases:
            seconds += (phase.end - phase.first) * time_steps(spec, self.context, phase.first)
        eval_steps = [*settings.eval_steps, settings.steps]
        for index, examples in enumerate(self.held_out):
            first = settings.phases[index].first if index else -1
            evaluations += sum(step > first for step in eval_steps) * self.time_evaluation(examples)
        return CostEstimate(settings.steps, seconds + evaluations, evaluations)

    def time_evaluation(self, examples: Examples[Any]) -> float:
        sample, whole = (
            min(sequences, examples.examples_per_epoch) for sequences in (TIMED_SEQUENCES, self.settings.eval_sequences)
        )
        started = time.perf_counter()
        self.score(examples, sample)
        return (time.perf_counter() - started) * whole / sample

    def make_report(self, result: FitResult) -> dict[str, Any]:
        """Plot the metrics; return a report with the evaluations before and after training."""
        run, evaluations = self.settings.run, [*result.evaluations.values()]
        panels = [PlotPanel(column.metric, column.label) for column in self.objective.columns if column.is_plotted]
        marks = {phase.first: f"length {phase.data.max_length}" for phase in self.settings.phases[1:]}
        plot_metrics(run, run / PLOT, panels, marks)
        return {
            "objective": self.objective.name,
            "initial_weights": self.describe_initial_weights(),
            "held_out_before": evaluations[0] if evaluations else None,
            "held_out_after": evaluations[-1] if evaluations else None,
        }

    def write_card(self, folder: Path, report: Mapping[str, Any]) -> None:
        write_card(folder, self.settings.run, report)

    def print_results(self, report: Mapping[str, Any]) -> None:
        if report["held_out_after"] is not None:
            self.print_scores(report["held_out_before"], report["held_out_after"])
        example = self.objective.suggest_command(shlex.quote(str(self.settings.run / "model")))
        self.reporter.record(list_outputs(self.settings.run, PLOT, example, "loss plot"))

    def print_scores(self, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        self.reporter.record(Heading("Held out"))
        lengths = [phase.data.max_length for phase in self.settings.phases]
        self.reporter.record(compare_evaluations(before, after, self.objective.columns, lengths))
        if after[self.objective.loss_metric] > before[self.objective.loss_metric]:
            self.reporter.note(
                "The held-out loss is higher than before training. If the run started from random weights, it has "
                "diverged: choose a lower --learning-rate (a tenth) or a higher --warmup-ratio. If it started from "
                "--init, choose a lower rate or more steps."
            )


def compare_evaluations(
    before: Mapping[str, Any], after: Mapping[str, Any], columns: Sequence[Column], lengths: Sequence[int]
) -> Rows:
    """Return a table of the first and the last evaluation's scores; `lengths`: the sequence length of each phase."""
    rows = []
    for prefix, length in zip(("", "long_"), lengths, strict=False):
        for column in columns:
            label = f"{column.label}, length {length}" if len(lengths) > 1 else column.label
            scores = (record.get(prefix + column.metric) for record in (before, after))
            rows.append((label, *("" if score is None else column.format_value(score) for score in scores)))
    return Rows(("", f"step {before['step']:,}", f"step {after['step']:,}"), rows)
