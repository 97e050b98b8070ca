"""Training of a translation model: from parallel text to a run folder.

RUN/settings.toml    all settings                   RUN/metrics.jsonl, tensorboard/, loss.png
RUN/checkpoints/     the newest checkpoints, deleted when the run has finished, unless --keep-checkpoints
RUN/model/           the result, the mean of the newest checkpoints; a Transformer's is a folder of MarianMTModel
RUN/report.json      loss and BLEU on the held-out sentences
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch

from bertwright.base.messages import shorten
from bertwright.base.reporter import SILENT, Fields, Heading, Line, Reporter, Rows
from bertwright.interop.model_card import write_card
from bertwright.interop.model_files import vocabulary_folder
from bertwright.metrics.bleu import Bleu, corpus_bleu
from bertwright.systems.translation_models import (
    TranslationModel,
    TranslationSystem,
    load_translation_system,
    smoothed_loss,
    write_translation_system,
)
from bertwright.text.sources import digest_input
from bertwright.training import checkpoint
from bertwright.training.context import ExecutionContext
from bertwright.training.cost import CostEstimate, describe_cost, time_steps
from bertwright.training.distributed import check_single_process
from bertwright.training.fit import FitResult, FitSettings, MetricWindow, TrainingSpec
from bertwright.training.loop import LossOutput, evaluation_mode
from bertwright.training.metrics_log import PlotPanel, list_outputs, plot_metrics
from bertwright.training.optimizer import Optimizer, make_optimizer
from bertwright.training.run_folder import check_data_unchanged, format_resume_command, record_run, recorded_names
from bertwright.training.train_run import train_run
from bertwright.translation.parallel_text import (
    EncodedPairs,
    LabeledPairs,
    ParallelText,
    encode_pairs,
    overlap_notices,
    read_parallel,
)
from bertwright.translation.settings import RESUME_OVERRIDES, TrainTranslationSettings
from bertwright.translation.translator import Translator
from bertwright.vocabulary.learn.joint_vocabulary import learn_joint_vocabulary
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.word_tokenizer import WordTokenizer

PLOT = "loss.png"
HIGH_RATE = 5e-3  # above it a Transformer hardly ever learns; the paper's highest is 7e-4
MAX_LOSS = 100.0  # of a perplexity that is reported; exp of more could overflow
MICRO_TOKENS = {"cpu": 8_192, "cuda": 32_768}  # source and target tokens per forward pass


def train_translation(settings: TrainTranslationSettings, reporter: Reporter = SILENT) -> Path:
    """Start or resume the training of a translation model; return the model folder, or the run folder in a dry run.

    After Ctrl-C or SIGTERM, the current step is finished and saved; then KeyboardInterrupt is raised. Raises ValueError
    for settings, files and checkpoints that are not usable, DivergedError for numbers that are not finite, OSError for
    a disk that fails; the newest checkpoint is intact in each case.
    """
    check_single_process("the training of a translation model")

    open_this_run = partial(open_run, settings)
    keep = settings.keep_checkpoints
    return train_run(settings, RESUME_OVERRIDES, open_this_run, reporter, distributed=False, keep_checkpoints=keep)


def open_run(settings: TrainTranslationSettings, context: ExecutionContext, reporter: Reporter) -> TranslationRun:
    """Read and encode the text; load model and optimizer, from the newest checkpoint if there is one.

    Nothing is written. Raises ValueError for missing, damaged or inconsistent input.
    """
    text = read_parallel(settings.train_source, settings.train_target, settings.encoding)
    dev = None
    if settings.dev_source or settings.dev_target:
        dev = read_parallel(settings.dev_source, settings.dev_target, settings.encoding)
    latest = checkpoint.verify_latest(settings.run / "checkpoints")
    system = make_system(settings, text) if latest is None else load_translation_system(latest)
    model = system.model
    model.compute_dtype = context.dtype
    model.to(context.device).train()
    optimizer = make_optimizer(model, settings.optimizer)
    if latest is not None:
        optimizer.load_state(checkpoint.load_optimizer(latest))
    pairs = _within_length(encode_pairs(text, system, settings.seed), settings, reporter)
    return TranslationRun(settings, context, reporter, system, optimizer, text, pairs, dev)


def make_system(settings: TrainTranslationSettings, text: ParallelText) -> TranslationSystem:
    """Return a new model and its vocabularies, which are learned from the training text if none is given."""
    record = settings.record
    if settings.vocabulary is not None:
        target = open_tokenizer(vocabulary_folder(settings.vocabulary))
        if isinstance(target, WordTokenizer):
            raise ValueError(
                f"--vocabulary {settings.vocabulary}: expected word pieces or byte pairs, got whole words; learn one "
                "with `bertwright vocabulary --algorithm byte-pair`, or omit the option"
            )
    else:
        sides = [*text.target] if record.reads_words else [*text.source, *text.target]
        target = learn_joint_vocabulary(sides, settings.vocab_size)
    system: TranslationSystem = resolve_name(record.new)(settings, text.source, target)
    return system


def _within_length(pairs: EncodedPairs, settings: TrainTranslationSettings, reporter: Reporter) -> EncodedPairs:
    """Leave out pairs that are longer than `max_length`, with a notice."""
    longest = np.maximum(np.diff(pairs.source.offsets), np.diff(pairs.target.offsets) - 1)
    short = np.flatnonzero(longest <= settings.max_length)
    if not len(short):
        raise ValueError(f"max_length = {settings.max_length}: expected some pairs of this length, got none; raise it")
    if len(short) < len(pairs):
        left_out = len(pairs) - len(short)
        reporter.note(f"{left_out:,} of {len(pairs):,} pairs have more than {settings.max_length} tokens: left out")
        pairs = pairs.select(short)
    if (most := int(pairs.lengths.max())) > settings.batch_tokens:
        raise ValueError(
            f"batch_tokens = {settings.batch_tokens}: expected at least {most}, the tokens of the longest pair; raise "
            "it, or lower max_length"
        )
    return pairs


@dataclass
class TranslationRun:
    """The training of a translation model after its finished steps."""

    settings: TrainTranslationSettings
    context: ExecutionContext
    reporter: Reporter
    system: TranslationSystem
    optimizer: Optimizer
    text: ParallelText
    pairs: EncodedPairs
    dev: ParallelText | None

    @property
    def model(self) -> TranslationModel:
        return self.system.model

    def record_start(self) -> None:
        """Write settings and digests of the text. Raises ValueError if the files of a resumed run have changed."""
        settings = self.settings
        files = (*settings.train_source, *settings.train_target, *settings.dev_source, *settings.dev_target)
        if settings.vectors is not None and settings.vectors.is_file():
            files = (*files, str(settings.vectors))
        names = recorded_names(settings, files)
        data = {name: digest_input(path) for path, name in names.items()}
        if settings.resume:
            check_data_unchanged(settings.run, data, names)
        record_run(settings, "train-translation", data)

    def print_summary(self) -> None:
        settings, config = self.settings, self.model.config
        epoch = int(self.pairs.lengths.sum())
        optimizer, warmup = settings.optimizer, settings.optimizer.count_warmup_steps(settings.steps)
        regularization = f"dropout {config.dropout:g}, label smoothing {settings.label_smoothing:g}"
        fields = {
            "model": f"{config}, {self.model.num_parameters:,} parameters, vocabulary {config.vocab_size:,}",
            "train": f"{len(self.pairs):,} pairs, {epoch:,} tokens of both sides",
            "held out": f"{len(self.dev.source):,} pairs" if self.dev else "none",
            "steps": f"{settings.steps:,} of {settings.batch_tokens:,} tokens, "
            f"{settings.steps * settings.batch_tokens / epoch:.1f} epochs",
            "learning rate": f"{optimizer.learning_rate:.3g} after {warmup:,} steps of warm-up, {optimizer.schedule}",
            "regularization": regularization,
            "device": str(self.context),
        }
        self.reporter.record(Fields(fields))
        count = settings.show_examples or int(settings.dry_run)
        for source, target in islice(zip(*self.text, strict=True), count):
            self.reporter.record(Fields({"source": shorten(source), "target": shorten(target)}))
        for notice in overlap_notices(self.text, self.dev):
            self.reporter.note(notice)
        if optimizer.learning_rate > HIGH_RATE:
            self.reporter.note(
                f"the learning rate rises to {optimizer.learning_rate:.3g} in {warmup:,} steps of warm-up, too high "
                "for most models; give --learning-rate 1e-3, or more --steps"
            )
        if warmup > settings.steps:
            self.reporter.note(
                f"the run ends within the {warmup:,} steps of its warm-up, before the rate reaches its peak; give "
                "fewer --warmup-steps, such as a quarter of --steps, which also sets the rate, or more --steps"
            )

    def describe_cost(self) -> dict[str, str]:
        """Measure a few steps; return the cost of the whole run as names and values."""
        seconds = self.settings.steps * time_steps(self.spec(), self.context)
        cost = CostEstimate(self.settings.steps, seconds)
        return describe_cost(cost, self.context, self.model, self.optimizer, checkpoints=self.settings.average + 1)

    def fit_settings(self) -> FitSettings:
        """Return the length of the run and the steps after which it evaluates and saves."""
        settings = self.settings
        return FitSettings(
            run=settings.run,
            steps=settings.steps,
            log_every=settings.log_every,
            eval_steps=range(settings.eval_every, settings.steps, settings.eval_every),
            save_steps=range(settings.save_every, settings.steps, settings.save_every),
            keep_last=settings.average,
            resume_command=format_resume_command(settings, "train-translation", self.context),
        )

    def spec(self) -> TrainingSpec[LabeledPairs]:
        return TrainingSpec(
            self.model,
            self.optimizer,
            self.settings.optimizer.make_schedule(self.settings.steps),
            self.batches,
            self.loss,
            evaluate=self.evaluate if self.dev else None,
            write_model=lambda folder: write_translation_system(folder, self.system),
            summarize=summarize,
            format_metrics=lambda metrics: f"loss {metrics['loss']:.3f} {metrics['tokens_per_second']:,.0f} tok/s",
        )

    def batches(self, first_step: int) -> Iterator[list[LabeledPairs]]:
        """Yield the micro-batches of each step, on the device."""
        micro_tokens = MICRO_TOKENS[self.context.device.type]
        for step in range(first_step, self.settings.steps):
            made = self.pairs.micro_batches(step, self.settings.batch_tokens, micro_tokens)
            yield [batch.to(self.context.device) for batch in made]

    def loss(self, batch: LabeledPairs) -> LossOutput:
        loss = smoothed_loss(
            self.model, batch.pairs, batch.labels, self.settings.label_smoothing, 1 / batch.step_labels
        )
        tokens = batch.pairs.source.packing.num_tokens + len(batch.labels)
        sums = {"loss": loss.smoothed.detach(), "cross_entropy": loss.cross_entropy}
        return LossOutput(loss.smoothed, sums | {"tokens": torch.tensor(float(tokens), device=loss.smoothed.device)})

    def evaluate(self) -> dict[str, float]:
        """Return loss and perplexity on the held-out pairs, and BLEU of greedy decoding."""
        assert self.dev is not None
        loss = self.held_out_loss(self.dev)
        bleu = self.bleu(self.dev, beam_size=1).score
        return {"loss": loss, "bleu": bleu, "perplexity": math.exp(min(loss, MAX_LOSS))}

    @torch.no_grad()
    def held_out_loss(self, text: ParallelText) -> float:
        """Return the cross entropy per target token in nats, without smoothing and without dropout."""
        pairs = encode_pairs(text, self.system)
        labels = int(np.diff(pairs.target.offsets).sum()) - len(pairs)
        total = 0.0
        with evaluation_mode(self.model):
            for first in range(0, len(pairs), 128):
                chosen = np.arange(first, min(first + 128, len(pairs)))
                batch, words = pairs.collate(chosen)
                device = self.context.device
                loss = smoothed_loss(self.model, batch.to(device), words.to(device), 0.0, 1.0)
                total += loss.cross_entropy.item()
        return total / labels

    def bleu(self, text: ParallelText, beam_size: int) -> Bleu:
        """Translate the sources with the current weights, and score the translations."""
        with self.reporter.progress("translating", len(text.source)) as advance:
            translations = Translator(self.system, beam_size).translate(text.source, advance)
        return corpus_bleu(translations, text.target, tokenize=self.settings.bleu_tokenize)

    def make_report(self, result: FitResult) -> dict[str, Any]:
        """Average the newest checkpoints into the model; plot the metrics, and score both on the held-out pairs."""
        settings, dev = self.settings, self.dev
        checkpoints = checkpoint.list_checkpoints(settings.run / "checkpoints")[-settings.average :]
        scores: dict[str, dict[str, float]] = {}
        signature, beam = "", settings.beam_size
        if dev is not None:
            last = {"loss": self.held_out_loss(dev)}
            for size in (1, beam):
                scores[f"last checkpoint, beam {size}"] = last | {"bleu": self.bleu(dev, size).score}
        average_checkpoints(self.model, checkpoints)
        if dev is not None:
            bleu = self.bleu(dev, beam)
            mean = {"loss": self.held_out_loss(dev), "bleu": bleu.score}
            scores[f"mean of {len(checkpoints)} checkpoints, beam {beam}"] = mean
            signature = bleu.signature
        panels = [PlotPanel("loss", "loss (nats per token)"), PlotPanel("bleu", "BLEU, greedy")]
        plot_metrics(settings.run, settings.run / PLOT, panels)
        return {"scores": scores, "sacrebleu": signature, "checkpoints": [checkpoint.step_of(p) for p in checkpoints]}

    def write_card(self, folder: Path, report: Mapping[str, Any]) -> None:
        write_card(folder, self.settings.run, report)

    def print_results(self, report: Mapping[str, Any]) -> None:
        """Print the scores and the files of the run."""
        if report["scores"]:
            self.reporter.record(Heading(f"Held out: {len(self.dev.source) if self.dev else 0:,} pairs"))
            rows = [
                (name, f"{row['loss']:.3f}", f"{math.exp(row['loss']):.2f}", f"{row['bleu']:.2f}")
                for name, row in report["scores"].items()
            ]
            self.reporter.record(Rows(("", "loss", "perplexity", "BLEU"), rows, texts=(0,)))
            self.reporter.record(Line(f"sacrebleu {report['sacrebleu']}", "minor"))
        run = self.settings.run
        example = f"bertwright translate {shlex.quote(str(run / 'model'))} --inputs FILE --output FILE"
        self.reporter.record(list_outputs(run, PLOT, example))


@torch.no_grad()
def average_checkpoints(model: TranslationModel, folders: Sequence[Path]) -> None:
    """Give a model the mean of the weights in several checkpoints (section 6.1), summed in double precision."""
    states = [load_translation_system(folder).model.state_dict() for folder in folders]
    for name, parameter in model.named_parameters():
        total = torch.stack([state[name].double() for state in states]).mean(0)
        parameter.copy_(total)


def summarize(window: MetricWindow) -> dict[str, float]:
    """Return the mean losses and the speed of some steps."""
    return {
        "loss": window.sums["loss"] / window.steps,
        "cross_entropy": window.sums["cross_entropy"] / window.steps,
        "tokens_per_second": window.sums["tokens"] / window.seconds,
    }
