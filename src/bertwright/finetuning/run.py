"""Fine-tuning: from a pre-trained model and a task's files to a run folder.

RUN/settings.toml    all settings                   RUN/metrics.jsonl, tensorboard/, scores.png
RUN/checkpoints/     the newest checkpoint          RUN/best/     the checkpoint with the best dev score; both are
                     deleted when the run has finished, unless --keep-checkpoints
RUN/model/           the result, a Hugging Face folder with task.json    RUN/report.json   the scores
RUN/before.json      the scores before the first step, of tasks that have some
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertwright.base.files import digest_file
from bertwright.base.messages import count_of
from bertwright.base.reporter import SILENT, Fields, Heading, Line, Reporter, Rows
from bertwright.finetuning.finetune_cost import CostEstimator
from bertwright.finetuning.finetune_state import (
    FinetuneState,
    make_spec,
    open_run,
)
from bertwright.finetuning.settings import RESUME_OVERRIDES, FinetuneSettings
from bertwright.finetuning.start_scores import Start, read_starts, write_starts
from bertwright.interop.model_card import write_card
from bertwright.interop.model_files import digest_model
from bertwright.metrics.statistics import compare
from bertwright.models.encoder import EncoderConfig
from bertwright.models.heads import TaskBatch
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.tasks.linear_floor import FloorScores, score_floors
from bertwright.tasks.prediction import EvaluationResult, evaluate_examples
from bertwright.tasks.presets import SPLITS
from bertwright.tasks.score_formats import format_scores, make_score_table
from bertwright.tasks.shown_examples import show_examples
from bertwright.tasks.task_data import SplitData, data_warnings, digest_files
from bertwright.tasks.task_folder import TaskModel, load_task, write_task_folder
from bertwright.training.context import ExecutionContext
from bertwright.training.cost import describe_cost
from bertwright.training.fit import FitResult, FitSettings, MetricWindow, TrainingSpec, scores_of
from bertwright.training.metrics_log import PlotPanel, list_outputs, plot_metrics
from bertwright.training.run_folder import (
    INITIAL_WEIGHTS,
    check_data_unchanged,
    format_resume_command,
    read_run_settings,
    record_run,
    recorded_names,
)
from bertwright.training.train_run import train_run

PLOT = "scores.png"
MAX_SHOWN_WEIGHTS = 8


def finetune(
    settings: FinetuneSettings,
    reporter: Reporter = SILENT,
    examples: Mapping[str, Sequence[Any]] | None = None,
    temporary: bool = False,
) -> Path:
    """Start or resume fine-tuning; return the model folder, or the run folder on other ranks and in a dry run.

    `examples`: the examples of "train" and optionally of "dev" and "test", instead of the files in the settings.
    `temporary`: the caller deletes the run folder, so it gets no plot and no checkpoints to resume from, and other
    ranks do not take part.
    After Ctrl-C or SIGTERM, the current step is finished and saved; then KeyboardInterrupt is raised. Raises ValueError
    for settings, files and checkpoints that are not usable, DivergedError for numbers that are not finite, OSError for
    a disk that fails; the newest checkpoint is intact in each case.
    """

    def open_finetuning(context: ExecutionContext, reporter: Reporter) -> FinetuneRun:
        return FinetuneRun(open_run(settings, context, reporter, examples), settings, context, reporter, temporary)

    return train_run(
        settings, RESUME_OVERRIDES, open_finetuning, reporter, distributed=not temporary,
        keep_checkpoints=settings.keep_checkpoints or temporary,
    )  # fmt: skip


@dataclass
class FinetuneRun:
    """A fine-tuning run, as one rank sees it."""

    state: FinetuneState
    """Its task has its choices on dev for the current weights, such as a threshold."""
    settings: FinetuneSettings
    context: ExecutionContext
    reporter: Reporter
    temporary: bool = False
    before: dict[str, Start] = field(default_factory=dict, init=False)
    """By split, the scores before the first step, which a resumed run reads from its folder."""
    best: dict[str, EvaluationResult] = field(default_factory=dict, init=False)
    """By split, the evaluation with the highest score so far."""
    resumed_step: int = field(init=False)
    """Step of the weights with which this process begins."""

    def __post_init__(self) -> None:
        self.resumed_step = self.state.optimizer.steps
        if self.settings.resume:
            self.before = read_starts(self.settings.run)

    def fit_settings(self) -> FitSettings:
        """Return the length of the run and the steps after which it evaluates and saves."""
        settings, items = self.settings, self.state.train.encoded.num_items
        steps, eval_steps = settings.num_steps(items), settings.eval_steps(items)
        first = {0} if self.state.task.scores_before_training else set()
        save_every = settings.save_every
        return FitSettings(
            run=settings.run,
            steps=steps,
            log_every=settings.log_every,
            eval_steps=first.union(eval_steps),
            save_steps=range(save_every, steps, save_every) if save_every else eval_steps,
            metric=self.state.task.metric if self.state.dev else None,
            patience=settings.tuning.patience,
            track=settings.track,
            resumable=not self.temporary,
            resume_command=format_resume_command(settings, "finetune", self.context),
        )

    def spec(self) -> TrainingSpec[TaskBatch]:
        """Return everything that `fit` needs to know about fine-tuning."""
        return replace(
            make_spec(self.state, self.settings, self.context),
            evaluate=self.evaluate if self.state.dev else None,
            write_model=self.write_model,
            read_model=self.read_model,
            summarize=summarize,
            format_metrics=lambda metrics: f"loss {metrics['loss']:.3f} {metrics['tokens_per_second']:,.0f} tok/s",
            format_scores=format_scores,
        )

    def evaluate(self) -> dict[str, float]:
        """Score the model on dev; a task with a threshold chooses it there."""
        assert self.state.dev is not None
        scored = self.score(self.state.dev, tune=True)
        self.state = replace(self.state, task=scored.task)
        if not self.state.optimizer.steps and self.state.test:
            self.score(self.state.test)
        return scored.scores

    def score(self, split: SplitData, tune: bool = False) -> EvaluationResult:
        state = self.state
        with self.reporter.progress(f"scoring {split.name}", split.encoded.num_items) as advance:
            scored = evaluate_examples(state.model, state.task, split.examples, split.encoded, tune, advance)
        if not state.optimizer.steps:
            self.record_before(split, scored)
        metric, best = state.task.metric, self.best.get(split.name)
        if best is None or scored.scores[metric] >= best.scores[metric]:
            self.best[split.name] = scored
        return scored

    def record_before(self, split: SplitData, scored: EvaluationResult) -> None:
        """Keep the scores before the first step, also in the folder of a run that may be resumed."""
        examples = scored.task.example_scores(split.examples, scored.predictions)
        self.before[split.name] = Start(scored.scores, examples)
        if not self.temporary and not self.context.rank:
            write_starts(self.settings.run, self.before)

    def write_model(self, folder: Path) -> None:
        write_task_folder(folder, TaskModel(self.state.model, self.state.task), self.state.tokenizer)

    def read_model(self, folder: Path) -> None:
        """Load the weights of a checkpoint, and the task with its choices on dev at that step."""
        saved = load_task(folder)
        assert saved is not None
        saved.task.prepare_training(saved.model, self.settings.seed, folder)
        self.state.model.load_state_dict(saved.model.state_dict())
        self.state = replace(self.state, task=saved.task)

    def print_summary(self) -> None:
        """Print the task, the model, the data and the settings, then warnings about the data."""
        state, settings, context = self.state, self.settings, self.context
        config, tuning = state.model.config, settings.tuning
        splits = [split for split in (state.train, state.dev, state.test) if split]
        names, name, kind = state.task.label_names, settings.task.task, state.task.kind
        labels = {"labels": f"{len(names)}: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}"} if names else {}
        source = f"from {settings.model}" if settings.architecture is None else "random weights"
        if tuning.from_scratch:
            source = f"random weights, configuration of {settings.model}"
        if state.optimizer.steps:
            source = f"weights of step {state.optimizer.steps:,}"
        steps = settings.num_steps(state.train.encoded.num_items)
        patient = tuning.patience is not None
        best = f", best by {state.task.metric}" if state.dev else ""
        self.reporter.record(
            Fields(
                {"task": f"{name if name == kind else f'{name} ({kind})'}{best}"}
                | labels
                | {"model": f"{config}, {state.model.num_parameters:,} parameters, {source}"}
                | {"head": state.head}
                | state.task.describe_training(state.train.examples)
                | self.describe_weights()
                | ({"auxiliary LM": f"weight {tuning.auxiliary_lm:g}"} if tuning.auxiliary_lm else {})
                | {"dropout": self.describe_dropout()}
                | {split.name: _describe(split) for split in splits}
                | {"steps": f"{steps:,}; {settings.describe_hyperparams(config.hidden_size)}"}
                | ({"stops early": f"after {tuning.patience} evaluations without a better score"} if patient else {})
                | {"device": str(context)}
            )
        )
        if count := settings.show_examples or int(settings.dry_run):
            for data in splits:
                files = settings.task.files(data.name)
                show_examples(self.reporter, state.task, data.name, files, data.examples, count)
        notes = state.task.step_warnings(state.train.examples, settings.batch_size)
        for warning in notes + data_warnings(state.task, settings.task, splits, state.tokenizer, config.max_positions):
            self.reporter.note(warning)
        if state.dev and tuning.validation_fraction and tuning.limit is None and not settings.task.files("dev"):
            dev, both = len(state.dev.examples), len(state.dev.examples) + len(state.train.examples)
            if not 0.5 < dev / both / tuning.validation_fraction < 2:
                split = f"dev split: {dev:,} of {both:,} examples ({dev / both:.1%})"
                self.reporter.note(f"{split}; examples of one group (such as equal texts) stay together")
        if state.dev is None and not self.temporary:
            self.reporter.note(
                "no dev examples: the weights of the last step are the result; to select the best ones by a dev score, "
                "give --dev files or --validation-fraction 0.1"
            )

    def describe_weights(self) -> dict[str, str]:
        """Describe the class weights, if there are any; of many, the smallest and the largest ones."""
        task = self.state.task
        pairs = list(zip(task.label_names, task.class_weights, strict=False))
        if len(pairs) > MAX_SHOWN_WEIGHTS:
            ordered = sorted(pairs, key=lambda pair: pair[1])
            pairs = [*ordered[: MAX_SHOWN_WEIGHTS // 2], ("…", 0.0), *ordered[-MAX_SHOWN_WEIGHTS // 2 :]]
        shown = ", ".join(f"{label} {weight:.3g}" if weight else label for label, weight in pairs)
        return {"class weights": shown} if pairs else {}

    def describe_dropout(self) -> str:
        """Describe the dropout that applies, and the model's own if a new run overrides it."""
        rates = format_dropout(self.state.model.config)
        if self.settings.tuning.dropout is None:
            return f"{rates} (the model's own; --dropout overrides it)"
        own = self.state.source_config
        return f"{rates} (the model's own: {format_dropout(own)})" if own else rates

    def describe_cost(self) -> dict[str, str]:
        """Measure a few steps; return the cost of the whole run as names and values."""
        cost = CostEstimator(self.state, self.context).estimate(self.settings)
        # At most two checkpoints, while the next one is written, and two best ones, after a resume.
        best = 2 if self.state.dev else 0
        return describe_cost(cost, self.context, self.state.model, self.state.optimizer, checkpoints=2, best=best)

    def record_start(self) -> None:
        """Write settings and digests of the data. Raises ValueError if the files of a resumed run have changed."""
        settings = self.settings
        files = [path for split in SPLITS for path in settings.task.files(split)]
        with_vectors = [str(path) for path in [settings.words.vectors] if path is not None and path.is_file()]
        names = recorded_names(settings, files + with_vectors)
        data = digest_files(settings.task, names) | {names[path]: digest_file(Path(path)) for path in with_vectors}
        if self._reads_initial_weights():
            data |= {INITIAL_WEIGHTS: digest_model(settings.model)}
        if settings.resume:
            check_data_unchanged(settings.run, data, names | {str(settings.model): INITIAL_WEIGHTS})
        record_run(settings, "finetune", data)

    def _reads_initial_weights(self) -> bool:
        """Return whether the model folder counts: at the start, before the first checkpoint, and if it has moved."""
        settings = self.settings
        if settings.architecture is not None or not settings.resume or not self.state.optimizer.steps:
            return settings.architecture is None
        return read_run_settings(type(settings), settings.run).model != settings.model

    def make_report(self, result: FitResult) -> dict[str, Any]:
        """Plot the metrics, score the best weights on test, and return the scores of each split."""
        state, metric = self.state, self.state.task.metric
        scores: dict[str, Mapping[str, float]] = {"dev": result.scores} if state.dev else {}
        if 0 in result.evaluations:
            scores = {"dev before": scores_of(result.evaluations[0]), **scores}
        if "test" in self.before:
            scores["test before"] = self.before["test"].scores
        if state.test:
            scores["test"] = self.score(state.test).scores
        if state.dev and "dev" in self.before and result.step <= self.resumed_step and self.resumed_step:
            self.score(state.dev)  # an earlier process found the best weights
        if not self.temporary:
            name = metric.replace("_", " ")
            panel = PlotPanel(metric, name) if metric == "mse" else PlotPanel(metric, f"{name} (%)", 100)
            epoch = result.step * self.settings.batch_size / state.train.encoded.num_items
            marks = {result.step: f"best weights, epoch {min(epoch, self.settings.epochs):.3g}"} if state.dev else {}
            panels = [PlotPanel("loss", "training loss"), panel][: 2 if state.dev else 1]
            plot_metrics(self.settings.run, self.settings.run / PLOT, panels, marks)
        return {
            "task": self.settings.task.task,
            "metric": metric,
            "best_step": result.step,
            "dev_evaluations": len(result.evaluations),
            "stopped_early": state.optimizer.steps < self.fit_settings().steps,
            "scores": scores,
            "linear_floor": self.score_floors(),
            **({"gain": gains} if (gains := self.compare_with_start()) else {}),
        } | state.task.report_fields(state.train.examples)

    def compare_with_start(self) -> dict[str, dict[str, Any]]:
        """Return, by split, the difference of the metric to the model before training, with its interval."""
        task, gains = self.state.task, {}
        for split in (self.state.dev, self.state.test):
            if split is None or split.name not in self.before or split.name not in self.best:
                continue
            before, after = self.before[split.name].examples, self.best[split.name]
            found = task.example_scores(split.examples, after.predictions)
            if found is not None and before is not None:
                gains[split.name] = compare(split.name, found, before).to_record()
        return gains

    def score_floors(self) -> dict[str, Mapping[str, Mapping[str, float]]]:
        """Return the scores of the floors by name and split; none if they are not wanted."""
        state = self.state
        if self.temporary or not self.settings.linear_floor:
            return {}
        splits = {split.name: split.examples for split in (state.train, state.dev, state.test) if split}
        scored = {name: examples for name, examples in splits.items() if name != "train"}
        with self.reporter.progress("linear floor", None):
            return dict(score_floors(state.task, splits, scored))

    def write_card(self, folder: Path, report: Mapping[str, Any]) -> None:
        write_card(folder, self.settings.run, report)

    def print_results(self, report: Mapping[str, Any]) -> None:
        """Print the scores by split and, unless it is temporary, the files of the run."""
        if report["scores"]:
            self.print_scores(report)
        if not self.temporary:
            run = self.settings.run
            example = f"bertwright {self.state.task.example_command.format(shlex.quote(str(run / 'model')))}"
            self.reporter.record(list_outputs(run, PLOT, example))

    def print_scores(self, report: Mapping[str, Any]) -> None:
        count = report["dev_evaluations"]
        best_of = f", the best of {count} evaluations on dev" if count > 1 else ""
        early = "; training stopped early" if report["stopped_early"] else ""
        self.reporter.record(Heading(f"Scores after step {report['best_step']:,}{best_of}{early}"))
        table = make_score_table(report["scores"], report["metric"])
        self.reporter.record(Rows(table.columns, table.rows, texts=(0,)))
        for name, result in self.best.items():
            for warning in result.task.single_class_warnings(result.predictions):
                self.reporter.note(f"{name}: {warning}; try more --epochs, or another --learning-rate")
        if report["best_step"] == 0 and count > 1:
            self.reporter.note("no step had a better dev score than the weights before training, which are the result")
        for split, gain in report.get("gain", {}).items():
            interval = f", 95 % interval {100 * gain['low']:+.2f} to {100 * gain['high']:+.2f}" if "low" in gain else ""
            change = f"{split}: {report['metric']} {100 * gain['mean']:+.2f} by training"
            self.reporter.record(Line(f"{change}{interval} (bootstrap over the examples)"))
        for floor in report["linear_floor"].items():
            self.reporter.record(Line(FloorScores(*floor).describe(report["metric"])))


def format_dropout(config: EncoderConfig) -> str:
    """Format the dropout rate of states and, if it differs, the rate of attention weights.

    >>> format_dropout(BertConfig(100)), format_dropout(BertConfig(100, hidden_dropout=0.0))
    ('0.1', '0, of attention weights 0.1')
    """
    if isinstance(config, BertConfig) and config.attention_dropout != config.hidden_dropout:
        return f"{config.hidden_dropout:g}, of attention weights {config.attention_dropout:g}"
    return f"{config.hidden_dropout:g}"


def summarize(window: MetricWindow) -> dict[str, float]:
    masked = {"masked_pairs": window.sums["masked_pairs"] / window.steps} if "masked_pairs" in window.sums else {}
    return masked | {
        "loss": window.sums["loss"] / window.steps,
        "tokens_per_second": window.sums["tokens"] / window.seconds,
        "sequences_per_second": window.sums["sequences"] / window.seconds,
    }


def _describe(split: SplitData) -> str:
    encoded = split.encoded
    mean = len(encoded.input_ids) / max(len(encoded.lengths), 1)
    examples = count_of(len(split.examples), "example", "examples")
    return f"{examples}, {count_of(len(encoded.lengths), 'sequence', 'sequences')} of {mean:.0f} tokens on average"
