"""`bertwright evaluate`: score a fine-tuned model on labeled files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertwright.base.files import new_file
from bertwright.base.messages import count_of
from bertwright.base.reporter import SILENT, Heading, Line, Reporter, Rows
from bertwright.base.settings import Positional, check_minimum, check_not_str
from bertwright.inference.decisions import DecisionSettings, Record, Scored, decide, make_tables
from bertwright.inference.predict_settings import TABLE_SUFFIXES
from bertwright.interop.model_files import check_model, is_finished_folder, model_folder
from bertwright.tables.neighbours import join_as_glob
from bertwright.tasks.task_types import TaskOptions
from bertwright.text.sources import check_exist, check_unique
from bertwright.training.device_settings import InferenceDeviceSettings

if TYPE_CHECKING:
    from bertwright.tasks.linear_floor import FloorScores
    from bertwright.tasks.task import AnyTask


@dataclass(frozen=True)
class EvaluateSettings:
    """Score a fine-tuned model on labeled files with the official metric of its task."""

    model: Positional[str]
    """Folder of a fine-tuned model, its run folder, or a hub name."""
    inputs: Positional[tuple[str, ...]]
    """Labeled files, in the format of the training files; for text vectors also a folder in BEIR's layout, or SQuAD's
    JSON as questions and their paragraphs."""
    output: Path | None = None
    """Also write the scores to this new JSON file; of a classification, also each label's precision, recall and F1, and
    the confusion matrix."""
    errors: Path | None = None
    """Also write the examples with a wrong prediction, with their gold answers, to this new .tsv, .csv or .jsonl
    file."""
    ensemble: tuple[str, ...] = ()
    """More models of the same task and vocabulary; the probabilities of all models are averaged."""
    show_examples: int = 0
    """Print how often each gold answer occurs in the files, and this many examples as they were read."""
    threshold: float | None = None
    """Question answering with questions that may have no answer: τ, the margin over "no answer" above which the best
    span is the answer. Multi-label: the probability above which a label is predicted. Unset: the model's; of an
    ensemble, the mean of its models'. The best on these examples is printed."""
    linear_floor: bool = True
    """Also print the scores of a linear model that is trained on the model's training files, in seconds; in tagging,
    and of a lookup of the names in training. Question answering has none."""
    floor_train: tuple[str, ...] = ()
    """Training files of the linear model; of text vectors, the files from which eight texts per class are drawn (unset:
    the scored files, whose other texts are scored). Unset: the files that the model's run has read, if unchanged."""
    kind: str | None = None
    """Text vectors: what the files are, of retrieval, similarity, pairs, triplets, classes, translations (also two
    files whose lines correspond) and reranking. Unset: by folder or columns."""
    split: str = "test"
    """Text vectors, BEIR's layout: the split whose judgements count."""
    compare: tuple[str, ...] = ()
    """Text vectors: other systems to score, with the interval of the difference: bm25, fusion (of bm25 and the vectors,
    by reciprocal ranks) and model folders, such as the one that training started from."""
    reranker: str | None = None
    """Text vectors, retrieval: re-ranker that orders the first documents again. Its scores are printed twice: answers
    that are not among them count as missed, and, as other programs do it, are added to them."""
    top: int = 100
    """Documents that the re-ranker reads for each query."""
    decisions: DecisionSettings = field(default_factory=DecisionSettings)
    overrides: TaskOptions = field(default_factory=TaskOptions)
    device: InferenceDeviceSettings = field(default_factory=InferenceDeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "inputs", "ensemble", "floor_train", "compare")
        check_minimum(self, 0, "show_examples")
        check_minimum(self, 1, "top")
        if not self.inputs:
            raise ValueError("no file given; for example: bertwright evaluate MODEL dev.tsv")
        if self.errors is not None and self.errors.suffix not in (".jsonl", *TABLE_SUFFIXES):
            raise ValueError(
                f"--errors {self.errors}: expected one of the suffixes .jsonl, {', '.join(TABLE_SUFFIXES)}"
            )
        if self.decisions.save_decisions and self.ensemble:
            raise ValueError("--save-decisions: expected one model, got an ensemble; omit it")
        if self.output is not None and self.output == self.errors:
            raise ValueError(f"--output and --errors: both are {self.output}; name two files")


class _Evaluation(NamedTuple):
    """Everything that is printed and written about a task's models on labeled examples."""

    task: AnyTask
    """The task, with the decisions that were made on these examples."""
    examples: Sequence[Any]
    predictions: Sequence[Any]
    scores: dict[str, float]
    found: dict[str, list[Record]]
    """Rows of `decide` by subject."""
    floors: list[FloorScores]
    warnings: list[str]

    def write_scores(self, path: Path) -> None:
        """Write the scores, the details and what was decided as JSON."""
        report = self.scores | self.task.score_details(self.examples, self.predictions) | self.found
        report |= {"linear_floor": {floor.name: floor.scores[""] for floor in self.floors}} if self.floors else {}
        path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def evaluate(settings: EvaluateSettings, reporter: Reporter = SILENT) -> dict[str, float]:
    """Print the scores over the examples of all files together; return them by name.

    Raises ValueError for a model without a task, and for invalid examples.
    """
    check_unique(settings.inputs)
    check_exist(settings.inputs)
    for name in (settings.model, *settings.ensemble):
        check_model(name)
    if settings.decisions.save_decisions and not is_finished_folder(settings.model):
        raise ValueError(f"--save-decisions: expected a model folder or a finished run, got {settings.model}; omit it")
    from bertwright.inference.evaluate_vectors import evaluate_vectors, scores_vectors

    if scores_vectors(settings):
        return evaluate_vectors(settings, reporter)
    if settings.compare or settings.reranker:
        raise ValueError(
            f"--{'compare' if settings.compare else 'reranker'}: {settings.model} has no text vectors; omit it"
        )
    with (
        new_file(settings.output) if settings.output else nullcontext() as scores_file,
        new_file(settings.errors) if settings.errors else nullcontext() as errors_file,
    ):
        done = _evaluate_task(settings, reporter)
        if scores_file is not None:
            done.write_scores(scores_file)
        if settings.errors is not None and errors_file is not None:
            wrong = _write_errors(errors_file, settings.errors.suffix, done.task, done.examples, done.predictions)
    name = f"{1 + len(settings.ensemble)} models" if settings.ensemble else settings.model
    reporter.record(Heading(f"{name} on {count_of(len(done.examples), 'example', 'examples')}"))
    _print_scores(reporter, done)
    if settings.decisions.save_decisions:
        from bertwright.tasks.task_folder import save_decisions

        path = save_decisions(model_folder(settings.model), done.task)
        reporter.record(Line(f"{path}: decisions written", "good"))
    if settings.output is not None:
        reporter.record(Line(f"{settings.output}: scores written"))
    if settings.errors is not None:
        reporter.record(Line(f"{settings.errors}: {wrong:,} wrong predictions written"))
    return done.scores


def _evaluate_task(settings: EvaluateSettings, reporter: Reporter) -> _Evaluation:
    """Read the examples, predict, decide what the settings ask for, and score."""
    from bertwright.inference.load_task_models import load_for_task
    from bertwright.tasks.ensemble import predict_ensemble
    from bertwright.tasks.shown_examples import show_examples
    from bertwright.tasks.unknown_rates import InputCounts
    from bertwright.training.context import execution_context

    inputs = join_as_glob(settings.inputs)
    with execution_context(settings.device) as context:
        names = (settings.model, *settings.ensemble)
        model, members, task, notices = load_for_task(names, settings.overrides, settings.threshold, context)
        examples = [example for path in inputs for example in task.read(path)]
        if not examples:
            raise ValueError(f"{settings.inputs[0]}: no examples in it")
        task.check(examples)
        if settings.show_examples:
            show_examples(reporter, task, "examples", settings.inputs, examples, settings.show_examples)
        encoded = task.encode(examples, model.tokenizer, labeled=False)
        with reporter.progress("evaluating", encoded.num_items) as advance:
            scored = Scored(examples, encoded, predict_ensemble(members, encoded, advance))
        decided, found = decide(settings.decisions, task, scored, inputs)
        floors = _score_floors(settings, task, examples, reporter) if settings.linear_floor else []
        predictions = scored.decode(decided)
        scores = decided.score(examples, predictions)
    warnings = notices + decided.warnings(examples, settings.inputs)
    warnings += decided.truncation_warnings(len(examples), encoded.truncated, model.config.max_positions)
    warnings += InputCounts.count(len(examples), encoded, model.tokenizer).vocabulary_warnings()
    warnings += decided.single_class_warnings(predictions)
    return _Evaluation(decided, examples, predictions, scores, found, floors, warnings)


def _score_floors(
    settings: EvaluateSettings, task: AnyTask, examples: Sequence[Any], reporter: Reporter
) -> list[FloorScores]:
    """Score the floors that the model's training files give; none if they are not at hand."""
    from bertwright.finetuning.training_examples import read_training_examples
    from bertwright.tasks.linear_floor import floor_names, score_floors

    if settings.floor_train:
        train = [example for path in join_as_glob(settings.floor_train) for example in task.read(path)]
        return score_floors(task, {"train": train}, {"": examples})
    with warnings.catch_warnings():  # training has printed what its files make it say
        warnings.simplefilter("ignore")
        found = read_training_examples(Path(settings.model))
    if found is None and floor_names(task):
        text = "no linear floor: the files that the model was trained on are not at hand; name them with --floor-train"
        reporter.record(Line(text, "minor"))
    return score_floors(task, found, {"": examples}) if found else []


def _write_errors(path: Path, suffix: str, task: AnyTask, examples: Sequence[Any], predictions: Sequence[Any]) -> int:
    """Write the examples whose predictions are wrong; return their number."""
    from bertwright.inference.predict_outputs import PredictedExample, write_predictions

    wrong = [
        PredictedExample(example, prediction, task.gold_columns(example))
        for example, prediction in zip(examples, predictions, strict=True)
        if not task.is_right(example, prediction)
    ]
    with path.open("w", encoding="utf-8", newline="") as file:
        write_predictions(file, suffix, task, wrong)
    return len(wrong)


def _print_scores(reporter: Reporter, done: _Evaluation) -> None:
    """Print warnings, scores, the tables and notes of the task, what was decided, and the floors."""
    from bertwright.tasks.score_formats import make_score_table

    for warning in done.warnings:
        reporter.note(warning)
    task, labeled = done.task, (done.examples, done.predictions)
    for table in (make_score_table({"score": done.scores}, task.metric), *task.score_tables(*labeled)):
        reporter.record(Rows(table.columns, table.rows, texts=(0,)))
    for note in task.score_notes(*labeled):
        reporter.record(Line(note))
    for table in make_tables(done.found):
        reporter.record(Rows(table.columns, table.rows, texts=(0,)))
    for floor in done.floors:
        reporter.record(Line(floor.describe(task.metric)))
