"""Pre-training: from a token store to a run folder.

RUN/settings.toml    the settings in force          RUN/metrics.jsonl, tensorboard/, loss.png
RUN/checkpoints/     the newest checkpoints         RUN/model/      the result, a Hugging Face folder
RUN/report.json      first and last evaluation
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bertwright.console import (
    heading,
    key_value_table,
    make_console,
    make_table,
    notice,
    print_outputs,
    say,
    silent_console,
)
from bertwright.interop import huggingface
from bertwright.models.config import BertConfig
from bertwright.models.heads import BertForPretraining
from bertwright.pretraining.data import PretrainingBatch, PretrainingData
from bertwright.pretraining.evaluation import PlateauDetector, compute_metrics, evaluate, unigram_entropy
from bertwright.pretraining.objective import pretraining_losses
from bertwright.pretraining.padding import pad_batch
from bertwright.pretraining.pretrain_cost import estimate_cost
from bertwright.pretraining.pretrain_state import PretrainState, open_run, record_start
from bertwright.pretraining.settings import RESUME_OVERRIDES, ModelSettings, PretrainSettings
from bertwright.training.context import ExecutionContext, execution_context
from bertwright.training.cost import CostEstimate, describe_cost, peak_memory
from bertwright.training.fit import FitResult, FitSettings, MetricWindow, TrainingSpec
from bertwright.training.loop import LossOutput
from bertwright.training.metrics_log import METRICS_FILE, plot_metrics
from bertwright.training.run_folder import format_resume_command
from bertwright.training.throughput import default_micro_batch_tokens, measure_peak_flops
from bertwright.training.train_run import train_run

PLOT = "loss.png"
PLATEAU_STEPS = 400  # that the loss must stay near the unigram entropy before a notice


def pretrain(settings: PretrainSettings, console: Console | None = None) -> Path:
    """Start or resume pre-training; return the model folder, or the run folder on other ranks and in a dry run.

    After Ctrl-C or SIGTERM, the current step is finished and saved; then KeyboardInterrupt is raised. Raises ValueError
    for settings, stores and checkpoints that are not usable, DivergedError for numbers that are not finite, OSError for
    a disk that fails; the newest checkpoint is intact in each case.
    """

    def open_pretraining(context: ExecutionContext, console: Console) -> PretrainRun:
        state = open_run(settings, context, console)
        return PretrainRun(state, settings, context, console, measure_peak(state, context))

    return train_run(settings, RESUME_OVERRIDES, open_pretraining, console or make_console())


def measure_cost(settings: PretrainSettings) -> CostEstimate:
    """Estimate the cost of a run on this machine from a few measured steps and evaluations; nothing is written."""
    with execution_context(settings.device) as context, TemporaryDirectory() as folder:
        # Resumed, because that compares only samples of the store with its digests, which is faster.
        small = replace(settings, run=Path(folder) / "run", resume=True)
        state = open_run(small, context, silent_console())
        cost = estimate_cost(PretrainRun(state, small, context, silent_console(), peak_flops=1.0))
        return cost._replace(memory=peak_memory(context))


def measure_peak(state: PretrainState, context: ExecutionContext) -> float:
    """Measure the peak speed of matrix products of all ranks together, in FLOP/s."""
    return measure_peak_flops(context, state.model.config.hidden_size) * context.world_size


@dataclass
class PretrainRun:
    """A pre-training run, as one rank sees it."""

    state: PretrainState
    settings: PretrainSettings
    context: ExecutionContext
    console: Console
    peak_flops: float
    """Measured peak speed of matrix products in FLOP/s, of all ranks together."""

    def fit_settings(self) -> FitSettings:
        """Return the length of the run and the steps after which it evaluates and saves."""
        settings = self.settings
        return FitSettings(
            run=settings.run,
            steps=settings.steps,
            log_every=settings.log_every,
            eval_steps=range(0, settings.steps, settings.eval_every),
            save_steps=range(settings.save_every, settings.steps, settings.save_every),
            keep_last=settings.keep_last,
            keep_every=settings.keep_every,
            evaluation="held_out",
            resume_command=format_resume_command(settings, "pretrain", self.context),
        )

    def spec(self) -> TrainingSpec[PretrainingBatch]:
        """Return everything that `fit` needs to know about pre-training."""
        state, settings = self.state, self.settings
        return TrainingSpec(
            state.model,
            state.optimizer,
            settings.optimizer.make_schedule(settings.steps),
            self.batches,
            lambda batch: compute_loss(state.model, batch),
            evaluate=self.evaluate if state.held_out else None,
            write_model=self.write_model,
            summarize=self.summarize,
            format_metrics=format_metrics,
            format_scores=partial(format_scores, objective_label=settings.objective_label),
            diagnose=self.make_diagnosis() if self.context.is_main_process else None,
            find_unused_parameters=settings.data.objective != "mlm+nsp",
        )

    def make_diagnosis(self) -> Callable[[int, Mapping[str, float]], str | None]:
        """Return a function that reads each step's metrics and returns one notice if the loss reaches a plateau."""
        settings = self.settings
        warmup_steps = settings.optimizer.warmup_steps(settings.steps)
        plateau = PlateauDetector(unigram_entropy(self.state.train), max(1, PLATEAU_STEPS // settings.log_every))

        def diagnose(step: int, metrics: Mapping[str, float]) -> str | None:
            if step <= warmup_steps or not plateau.update(metrics["mlm_loss"]):
                return None
            return (
                f"The loss has stopped falling near {plateau.entropy:.2f}, the entropy of the token frequencies: the "
                "model learns nothing from context. Usual causes: the learning rate is too high (try a third of "
                "--learning-rate) or too low, the warm-up is too short (--warmup-ratio; a short one needs "
                "--bias-correction), a step has too few sequences (--batch-size), or the text has no sentences "
                "(bertwright survey). A small model may only need more steps. This notice appears once."
            )

        return diagnose

    def batches(self, first_step: int) -> Iterator[list[PretrainingBatch]]:
        """Yield this rank's micro-batches of each step, on the device."""
        tokens = default_micro_batch_tokens(self.context, self.state.model.config)
        for phase, data in zip(self.settings.phases, self.state.data, strict=True):
            size = self.settings.micro_batch_size or max(1, tokens // phase.data.max_length)
            if self.settings.pad_batches:
                size = min(size, math.ceil(phase.data.batch_size / self.context.world_size))
            for step in range(max(phase.first, first_step), phase.end):
                micro_batches = data.batches_for_step(step, self.context.rank, self.context.world_size, size)
                if self.settings.pad_batches:
                    micro_batches = [pad_batch(batch, size, phase.data) for batch in micro_batches]
                yield [batch.to(self.context.device) for batch in micro_batches]

    def evaluate(self) -> dict[str, float]:
        """Score the model on held-out sequences of the first phase's length; in the long phase, also on long ones."""
        first, *others = self.state.held_out
        scores = self.score(first, self.settings.eval_sequences)
        if others and self.state.optimizer.steps > self.settings.phases[1].first:
            long_scores = self.score(others[0], self.settings.eval_sequences)
            scores |= {f"long_{name}": value for name, value in long_scores.items()}
        return scores

    def score(self, data: PretrainingData, sequences: int) -> dict[str, float]:
        """Score the model on a number of held-out sequences of one length."""
        batches = data.validation_batches(sequences)
        return evaluate(self.state.model, (batch.to(self.context.device) for batch in batches))._asdict()

    def summarize(self, window: MetricWindow) -> dict[str, float]:
        """Return the mean losses and accuracies, the speed and the utilization of some steps."""
        return compute_metrics(window.sums)._asdict() | {
            "tokens_per_second": window.sums["tokens"] / window.seconds,
            "utilization": window.sums["flops"] / window.seconds / self.peak_flops,
        }

    def print_summary(self) -> None:
        """Print the model, its initial weights, the objective, the device, and the data of each phase."""
        config, settings = self.state.model.config, self.settings
        self.console.print(
            key_value_table(
                {
                    "model": f"{config}, {config.num_parameters:,} parameters, vocabulary {config.vocab_size:,}",
                    "weights": describe_initial_weights(settings.model, config),
                    "objective": settings.data.objective,
                    "device": f"{self.context}; matrix products reach {self.peak_flops / 1e9:,.0f} GFLOP/s",
                }
            )
        )
        for phase, data in zip(self.settings.phases, self.state.data, strict=True):
            heading(self.console, f"Steps {phase.first:,} to {phase.end:,}, length {phase.data.max_length}")
            summary = data.describe(phase.end - phase.first)
            for line in str(summary).split("\n"):
                say(self.console, line, style="dim")
            for text in summary.notices():
                notice(self.console, text)

    def write_model(self, folder: Path) -> None:
        """Write the model with its tokenizer."""
        huggingface.write_model(folder, self.state.model, self.state.tokenizer)

    def describe_cost(self) -> dict[str, str]:
        """Measure a few steps; return the cost of the whole run as names and values."""
        cost, settings = estimate_cost(self), self.settings
        phases = zip(settings.phases, self.state.data, strict=True)
        tokens = sum((phase.end - phase.first) * data.describe(1).tokens_per_step for phase, data in phases)
        state, checkpoints = self.state, settings.max_checkpoints
        fields = describe_cost(cost, self.context, state.model, state.optimizer, checkpoints)
        return {"tokens": f"{tokens:,.0f}"} | fields

    def record_start(self) -> None:
        """Write settings and digests of the data. Raises ValueError if the store of a resumed run has changed."""
        record_start(self.settings, self.state)

    def make_report(self, result: FitResult) -> dict[str, Any]:
        """Plot the metrics; return a report with the evaluations before and after training."""
        settings, evaluations = self.settings, [*result.evaluations.values()]
        name, has_nsp = settings.objective_label, settings.data.objective == "mlm+nsp"
        accuracy = ("nsp_accuracy", "next-sentence accuracy") if has_nsp else ("mlm_accuracy", f"{name} accuracy")
        panels = [("mlm_loss", f"{name} loss (nats)"), accuracy]
        plot_metrics(settings.run, settings.run / PLOT, panels)
        return {
            "objective": settings.data.objective,
            "initial_weights": describe_initial_weights(settings.model, self.state.model.config),
            "held_out_before": evaluations[0] if evaluations else None,
            "held_out_after": evaluations[-1] if evaluations else None,
        }

    def print_results(self, report: Mapping[str, Any]) -> None:
        """Print the scores before and after training, and the files of the run."""
        if report["held_out_after"] is not None:
            self.print_scores(report["held_out_before"], report["held_out_after"])
        run, model = self.settings.run, shlex.quote(str(self.settings.run / "model"))
        filled = f'bertwright fill-mask {model} "Some text with a [MASK] in it."'
        outputs = {"model": run / "model", "loss plot": run / PLOT, "all metrics": run / METRICS_FILE}
        example = f"bertwright info {model}" if self.settings.data.is_causal else filled
        print_outputs(self.console, outputs | {"try it": example})

    def print_scores(self, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """Print the scores before and after training."""
        heading(self.console, "Held out")
        lengths = [phase.data.max_length for phase in self.settings.phases]
        self.console.print(compare_evaluations(before, after, self.settings.objective_label, lengths))
        if after["mlm_loss"] > before["mlm_loss"]:
            notice(
                self.console,
                "The held-out loss is higher than before training. If the run started from random weights, it has "
                "diverged: choose a lower --learning-rate (a tenth) or a higher --warmup-ratio. If it started from "
                "--init, choose a lower rate or more steps.",
            )


def compute_loss(model: BertForPretraining, batch: PretrainingBatch) -> LossOutput:
    """Compute one micro-batch's share of the step's loss, and the sums that are logged."""
    losses = pretraining_losses(model, batch)
    lengths, predictions = batch.packing.lengths[: batch.num_sequences], batch.num_predictions
    counts = {
        "mlm_count": predictions,
        "nsp_count": batch.num_sequences if batch.nsp_count else 0,
        "tokens": int(lengths.sum()),
        "flops": model.config.count_training_flops(lengths, predictions, pooled=batch.nsp_count > 0),
    }
    sums = {name: getattr(losses, name) for name in ("mlm_sum", "mlm_correct", "nsp_sum", "nsp_correct")}
    device = losses.loss.device
    return LossOutput(
        losses.loss, sums | {name: torch.full((), float(value), device=device) for name, value in counts.items()}
    )


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Format the metrics of some steps for the live line, as short as possible."""
    nsp = f" nsp {metrics['nsp_accuracy']:.0%}" if metrics["nsp_loss"] else ""
    return f"loss {metrics['mlm_loss']:.3f}{nsp} {metrics['tokens_per_second']:,.0f} tok/s"


def format_scores(scores: Mapping[str, float], objective_label: str = "masked-LM") -> str:
    """Format the scores of an evaluation.

    >>> format_scores({"mlm_loss": 6.5, "mlm_accuracy": 0.1, "nsp_accuracy": 0.5, "nsp_loss": 0.7})
    'masked-LM loss 6.500, accuracy 10.0%, next sentence 50.0%'
    """
    text = f"{objective_label} loss {scores['mlm_loss']:.3f}, accuracy {scores['mlm_accuracy']:.1%}"
    text += f", next sentence {scores['nsp_accuracy']:.1%}" if scores["nsp_loss"] else ""
    return text + (f"; on long sequences loss {scores['long_mlm_loss']:.3f}" if "long_mlm_loss" in scores else "")


def compare_evaluations(
    before: Mapping[str, Any], after: Mapping[str, Any], objective_label: str, lengths: Sequence[int]
) -> Table:
    """Return a table of the first and the last evaluation's scores; `lengths`: the sequence length of each phase."""
    table = make_table("", f"step {before['step']:,}", f"step {after['step']:,}")
    rows = [
        (f"{objective_label} loss (nats)", "mlm_loss", "{:.3f}"),
        (f"{objective_label} perplexity", "perplexity", "{:,.1f}" if after["perplexity"] < 1e9 else "{:.1e}"),
        (f"{objective_label} accuracy", "mlm_accuracy", "{:.1%}"),
        ("next-sentence accuracy", "nsp_accuracy", "{:.1%}"),
    ]
    for prefix, length in zip(("", "long_"), lengths, strict=False):
        for label, name, template in rows if after["nsp_loss"] else rows[:-1]:
            of_length = f"{label}, length {length}" if len(lengths) > 1 else label
            scores = [template.format(one[key]) if (key := prefix + name) in one else "" for one in (before, after)]
            table.add_row(of_length, *scores)
    return table


def describe_initial_weights(settings: ModelSettings, config: BertConfig) -> str:
    """Describe the weights that a run starts from."""
    if settings.init is not None:
        return f"from {settings.init}"
    return f"random, initialization {settings.scheme_for(config)}, deviation {config.initializer_range:.3g}"
