"""Pre-training, assembled: a token store in, a run folder out.

RUN/settings.toml    the settings in force          RUN/metrics.jsonl, tensorboard/, loss.png
RUN/checkpoints/     whole or absent, newest kept   RUN/model/      the result, a Hugging Face folder
RUN/report.json      what came out, in numbers
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bertwright.commands.pretrain.settings import RESUME_OVERRIDES, PretrainSettings
from bertwright.commands.pretrain.setup import PretrainState, begin, open_run
from bertwright.console import heading, key_value_table, make_table, notice, say
from bertwright.files import write_json
from bertwright.interop import huggingface
from bertwright.models.heads import BertForPretraining
from bertwright.pretraining.data import PretrainingBatch
from bertwright.pretraining.evaluation import PlateauDetector, compute_metrics, evaluate, unigram_entropy
from bertwright.pretraining.objective import pretraining_losses
from bertwright.training import checkpoint, schedules
from bertwright.training.context import ExecutionContext, default_micro_batch_tokens, measure_peak_flops
from bertwright.training.interrupt import graceful_shutdown, train_until_stopped
from bertwright.training.loop import LossModule, LossOutput, StepReport, check_finite_weights
from bertwright.training.metrics_log import METRICS_FILE, MetricLogger, plot_metrics, progress
from bertwright.training.run_directory import finished_model, locked_run, resume_command

PANELS = (("mlm_loss", "masked-LM loss (nats)"), ("nsp_accuracy", "next-sentence accuracy"))
STANDSTILL_STEPS = 400  # a loss this long without progress near the unigram entropy is worth a word


def pretrain(settings: PretrainSettings, console: Console | None = None) -> Path:
    """Run or resume pre-training; returns the finished model's folder (on ranks but the first, the run's).

    Ctrl-C and SIGTERM finish the step in hand and save it before they raise KeyboardInterrupt. Raises ValueError
    for settings, stores and checkpoints that do not fit, DivergedError for numbers that are not finite, OSError for
    a disk that fails; the newest checkpoint is whole in every case.
    """
    console = console or Console()
    with locked_run(settings, RESUME_OVERRIDES) as place:
        if finished := finished_model(settings, place, console):
            return finished
        run = _Run(**vars(open_run(settings, place, console)), settings=settings, place=place, console=console)
        if place.is_main_process:
            begin(settings, run)
        return run.carry_out()


@dataclass
class _Run(PretrainState):
    """An opened run being carried out at a place."""

    settings: PretrainSettings
    place: ExecutionContext
    console: Console

    def carry_out(self) -> Path:
        """The remaining steps, with everything around them."""
        settings, place = self.settings, self.place
        started = time.perf_counter()
        ceiling = measure_peak_flops(place, self.model.config.hidden_size) * place.world_size
        if not place.is_main_process:
            with graceful_shutdown() as received:  # Ctrl-C reaches every rank; all must come to the same last step
                for _ in self.reports(received):
                    pass
            return settings.run
        self.announce(ceiling)
        journal = MetricLogger(settings.run, self.optimizer.steps)
        with closing(journal), progress(self.console) as live, graceful_shutdown() as received:
            if self.optimizer.steps == 0:
                self.evaluate(journal)
            self.follow(journal, live, ceiling, received)
            self.save(journal)
            if received:
                done = f"step {self.optimizer.steps:,} is saved"
                raise KeyboardInterrupt(f"{done}; go on with: {resume_command(settings, 'pretrain', place)}")
        return self.finish(journal, time.perf_counter() - started)

    def follow(self, journal: MetricLogger, live: Progress, ceiling: float, received: list[int]) -> None:
        """Step by step: log, warn, evaluate, save."""
        settings = self.settings
        watch = PlateauDetector(unigram_entropy(self.train), max(1, STANDSTILL_STEPS // settings.log_every))
        line = live.add_task("", total=settings.steps, completed=self.optimizer.steps, figures="")
        window: list[StepReport] = []
        spoken = time.perf_counter()
        for report in self.reports(received):
            step, last = report.step, report.step == settings.steps
            saving = step % settings.save_every == 0
            window.append(report)
            if last or saving or step % settings.log_every == 0:
                figures = _figures(window, ceiling)
                window = []
                journal.write("train", step, figures)
                live.update(line, figures=_shortest(figures))
                if step > settings.warmup_steps and watch.update(figures["mlm_loss"]):
                    self.warn_standstill(watch.entropy)
                if not self.console.is_terminal and time.perf_counter() - spoken > 30:
                    say(self.console, f"step {step:,} of {settings.steps:,}: {_brief(figures)}")
                    spoken = time.perf_counter()
            live.update(line, completed=step)
            if last or step % settings.eval_every == 0:
                self.evaluate(journal)
            if saving:
                self.save(journal)
        if window:  # interrupted: what is saved now ends a line of the journal, as every checkpoint does
            journal.write("train", window[-1].step, _figures(window, ceiling))

    def reports(self, received: list[int]) -> Iterator[StepReport]:
        """The steps still to be done, on every rank; ends early, on all ranks alike, once a signal was received."""
        objective: LossModule[PretrainingBatch] = LossModule(self.model, partial(compute, self.model))
        rate = partial(
            schedules.linear_warmup_decay,
            peak=self.settings.optimizer.learning_rate,
            warmup=self.settings.warmup_steps,
            total=self.settings.steps,
        )
        batches = self.batches(self.optimizer.steps)
        all_used = self.settings.data.objective == "mlm+nsp"
        return train_until_stopped(received, objective, batches, self.optimizer, rate, self.place, all_used)

    def batches(self, first: int) -> Iterator[list[PretrainingBatch]]:
        """This rank's micro-batches of step `first` and all after it, on the device."""
        tokens = default_micro_batch_tokens(self.place, self.model.config)
        for phase, data in zip(self.settings.phases, self.data, strict=True):
            size = self.settings.micro_batch_size or max(1, tokens // phase.data.max_length)
            for step in range(max(phase.first, first), phase.end):
                parts = data.batches_for_step(step, self.place.rank, self.place.world_size, size)
                yield [part.to(self.place.device) for part in parts]

    def announce(self, ceiling: float) -> None:
        """What is about to happen, before it takes its time."""
        config = self.model.config
        self.console.print(
            key_value_table(
                {
                    "model": f"{config}, {config.num_parameters:,} parameters, vocabulary {config.vocab_size:,}",
                    "place": f"{self.place}; matrix products reach {ceiling / 1e9:,.0f} GFLOP/s",
                }
            )
        )
        for phase, data in zip(self.settings.phases, self.data, strict=True):
            heading(self.console, f"Steps {phase.first:,} to {phase.end:,}, length {phase.data.max_length}")
            say(self.console, str(data.describe(phase.end - phase.first)), style="dim")
        if self.optimizer.steps:
            say(self.console, f"Resuming after step {self.optimizer.steps:,}")

    def evaluate(self, journal: MetricLogger) -> None:
        """Score the model as it is on the held-out part, unless the journal has the scores of this step already."""
        if self.held_out is None or self.optimizer.steps in journal.evaluations:
            return
        sequences = self.held_out.validation_batches(self.settings.eval_sequences)
        found = evaluate(self.model, (batch.to(self.place.device) for batch in sequences))._asdict()
        journal.write("held_out", self.optimizer.steps, found)
        say(self.console, f"held out after step {self.optimizer.steps:,}: {_brief(found)}")

    def save(self, journal: MetricLogger) -> None:
        """A whole checkpoint of this step; the journal reaches the disk first."""
        check_finite_weights(self.model, self.optimizer.steps)
        journal.flush()
        write_model = partial(huggingface.write_model, model=self.model, tokenizer=self.tokenizer)
        folder = self.settings.run / "checkpoints"
        checkpoint.save(folder, self.optimizer.steps, write_model, self.optimizer.state(), self.settings.keep_last)

    def finish(self, journal: MetricLogger, seconds: float) -> Path:
        """Write plot, report and model of a run that has done all its steps, and show what came out."""
        run, folder = self.settings.run, self.settings.run / "model"
        plot_metrics(run, run / "loss.png", PANELS)
        evaluations = [journal.evaluations[step] for step in sorted(journal.evaluations)]
        outcome = {
            "steps": self.optimizer.steps,
            "seconds_of_this_process": seconds,
            "held_out_before": evaluations[0] if evaluations else None,
            "held_out_after": evaluations[-1] if evaluations else None,
        }
        write_json(run / "report.json", outcome)
        huggingface.save_model(folder, self.model, self.tokenizer)  # last of all: its presence says that it is finished
        if evaluations:
            heading(self.console, "Held out")
            self.console.print(_before_and_after(evaluations[0], evaluations[-1]))
            if evaluations[-1]["mlm_loss"] > evaluations[0]["mlm_loss"]:
                notice(
                    self.console,
                    "The loss is higher than before training: the run has diverged, and its model is worth nothing. "
                    "Take a lower --learning-rate (a tenth) or a longer --warmup-ratio.",
                )
        left = {"model": f"{folder}", "loss plot": f"{run / 'loss.png'}", "all figures": f"{run / METRICS_FILE}"}
        for name, path in left.items():
            say(self.console, f"{name:<12} {path}")
        say(
            self.console,
            f'try it       bertwright fill-mask {shlex.quote(str(folder))} "Some text with a [MASK] in it."',
        )
        return folder

    def warn_standstill(self, entropy: float) -> None:
        notice(
            self.console,
            f"The loss stands still near {entropy:.2f}, what token frequencies alone give: nothing is learned from "
            "context. Usual causes: a rate too high (try a third of --learning-rate) or too low, a warm-up too short "
            "(--warmup-ratio; a short one needs --bias-correction), too few sequences a step (--batch-size), or text "
            "without sentences (bertwright survey). A small model may also just need more steps; this is said once.",
        )


def compute(model: BertForPretraining, batch: PretrainingBatch) -> LossOutput:
    """One micro-batch's share of the loss, and what the journal sums up."""
    found = pretraining_losses(model, batch)
    flops = model.config.training_flops(batch.batch.lengths, len(batch.mlm_labels), pooled=len(batch.nsp_labels) > 0)
    counts = {
        "mlm_count": len(batch.mlm_labels),
        "nsp_count": len(batch.nsp_labels),
        "tokens": batch.batch.num_tokens,
        "flops": flops,
    }
    sums = {name: getattr(found, name) for name in ("mlm_sum", "mlm_correct", "nsp_sum", "nsp_correct")}
    device = found.loss.device
    return LossOutput(
        found.loss, sums | {name: torch.full((), float(value), device=device) for name, value in counts.items()}
    )


def _figures(window: list[StepReport], ceiling: float) -> dict[str, float]:
    """Some steps in numbers."""
    total = {name: sum(report.sums[name] for report in window) for name in window[0].sums}
    seconds = sum(report.seconds for report in window)
    return compute_metrics(total)._asdict() | {
        "learning_rate": window[-1].learning_rate,
        "gradient_norm": window[-1].gradient_norm,
        "tokens_per_second": total["tokens"] / seconds,
        "utilisation": total["flops"] / seconds / ceiling,
    }


def _before_and_after(before: dict[str, Any], after: dict[str, Any]) -> Table:
    """Held-out scores of the first and the last evaluation, side by side."""
    table = make_table("", f"step {before['step']:,}", f"step {after['step']:,}")
    rows = [
        ("masked-LM loss (nats)", "mlm_loss", "{:.3f}"),
        ("masked-LM perplexity", "perplexity", "{:,.1f}" if after["perplexity"] < 1e9 else "{:.1e}"),
        ("masked-LM accuracy", "mlm_accuracy", "{:.1%}"),
        ("next-sentence accuracy", "nsp_accuracy", "{:.1%}"),
    ]
    for label, name, form in rows if after["nsp_loss"] else rows[:-1]:
        table.add_row(label, form.format(before[name]), form.format(after[name]))
    return table


def _brief(figures: dict[str, float]) -> str:
    """The figures that a line of text has room for.

    >>> _brief({"mlm_loss": 6.5, "mlm_accuracy": 0.1, "nsp_accuracy": 0.5, "nsp_loss": 0.7})
    'masked-LM loss 6.500, accuracy 10.0%, next sentence 50.0%'
    """
    text = f"masked-LM loss {figures['mlm_loss']:.3f}, accuracy {figures['mlm_accuracy']:.1%}"
    if figures["nsp_loss"]:
        text += f", next sentence {figures['nsp_accuracy']:.1%}"
    return text + (f", {figures['tokens_per_second']:,.0f} tokens/s" if "tokens_per_second" in figures else "")


def _shortest(figures: dict[str, float]) -> str:
    """The figures that the live line has room for."""
    next_sentence = f" nsp {figures['nsp_accuracy']:.0%}" if figures["nsp_loss"] else ""
    return f"mlm {figures['mlm_loss']:.3f}{next_sentence} {figures['tokens_per_second']:,.0f} tok/s"
