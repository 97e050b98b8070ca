"""`bertwright predict`: print predictions for a few texts, or write those for files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from bertwright.base.files import check_absent
from bertwright.base.reporter import SILENT, Heading, Line, ProgressCallback, Reporter, Rows
from bertwright.inference.decisions import check_abstains
from bertwright.inference.load_task_models import LoadedModels, load_for_task
from bertwright.inference.predict_inputs import (
    count_checked_examples,
    examples_from_arguments,
    read_examples,
    read_passthrough,
)
from bertwright.inference.predict_outputs import PredictedExample, open_output, write_predictions
from bertwright.inference.predict_settings import STANDARD_OUTPUT, PredictSettings
from bertwright.tasks.classification import ABSTAINED
from bertwright.tasks.ensemble import predict_ensemble
from bertwright.tasks.prediction import PredictedChunk, predict_chunks
from bertwright.tasks.score_formats import DisplayTable
from bertwright.tasks.shown_examples import show_example
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_types import NATIVE_SUFFIXES
from bertwright.tasks.text_task import TextTask
from bertwright.tasks.unknown_rates import InputCounts
from bertwright.text.sources import STDIN
from bertwright.training.context import execution_context

# Labels of models for pairs: inference, paraphrases, relevance.
PAIR_LABELS = {"entailment", "neutral", "contradiction", "not_entailment", "equivalent", "not_equivalent", "duplicate"}
PAIR_LABELS |= {"not_duplicate", "paraphrase", "not_paraphrase", "relevant", "not_relevant", "irrelevant"}


def predict(settings: PredictSettings, reporter: Reporter = SILENT) -> None:
    """Print predictions of texts, or write predictions of files, atomically and in constant memory.

    Raises ValueError for a model without a task and, before the first prediction, for invalid input. Standard input is
    read only once, so an invalid line raises after predictions of earlier lines have been written.
    """
    to_stdout = settings.output == STANDARD_OUTPUT
    if settings.output is not None and not to_stdout:
        check_absent(settings.output)
    with execution_context(settings.device) as context:
        names = (settings.model, *settings.ensemble)
        models = load_for_task(names, settings.overrides, settings.threshold, context)
        if settings.abstain_below is not None:
            check_abstains(models.task)
        if settings.output is None:
            counts = _predict_texts(settings, models, reporter)
        else:
            counts = _predict_files(settings, models, reporter)
    if settings.abstain_below is not None:
        share = f"{counts.abstained:,} of {counts.examples:,} predictions"
        reporter.record(Line(f"{share} have no label: its probability is below {settings.abstain_below:g}"))
    warnings = models.task.truncation_warnings(counts.examples, counts.truncated, models.first.config.max_positions)
    for warning in models.notices + warnings + counts.vocabulary_warnings() + _pair_notes(settings, models):
        reporter.note(warning)
    for text in filter(os.path.isfile, settings.texts):  # unlike Path, it accepts a text of any length
        reporter.note(
            f"{text} is a file, but was read as a text; to label its lines: --inputs {text} --output predictions.jsonl"
        )


def _pair_notes(settings: PredictSettings, models: LoadedModels) -> list[str]:
    """Warn that two texts were scored singly by a model that may be for pairs, which its folder does not say."""
    task, model = models.task, models.members[0]
    if not (model.inferred and isinstance(task, TextTask) and task.text_pair is None and len(settings.texts) == 2):
        return []
    if not (task.is_regression or PAIR_LABELS.issuperset(name.lower() for name in task.label_names)):
        return []
    return ["the two texts were scored singly; if this model is for pairs, score them together: --text-pair b"]


def _predict_texts(settings: PredictSettings, models: LoadedModels, reporter: Reporter) -> InputCounts:
    """Print the predictions of the texts of the command line."""
    counts, examples = InputCounts(), examples_from_arguments(settings, models.task)
    with reporter.progress("predicting", len(examples)) as advance:
        predicted = list(_predict_all(models, examples, counts, advance, settings.abstain_below))
    _print_tables(reporter, models.task.display(predicted))
    return counts


def _predict_files(settings: PredictSettings, models: LoadedModels, reporter: Reporter) -> InputCounts:
    """Write the predictions of the examples in files or on standard input."""
    assert settings.output is not None
    task = models.task
    _check_output_format(settings, task)
    total = None if settings.inputs == (STDIN,) else count_checked_examples(settings, task)
    if settings.keep_columns:
        record = _predict_first_record(settings, models)
        if clash := [name for name in settings.keep_columns if name in record]:
            raise ValueError(f"--keep-columns {clash[0]}: predictions have a field of that name; rename the column")
    for example in islice(read_examples(settings, task), settings.show_examples if total else 0):
        show_example(reporter, task, example)
    counts, started = InputCounts(), time.perf_counter()
    with reporter.progress("predicting", total) as advance, open_output(settings.output) as file:
        examples = read_examples(settings, task)
        pairs = _predict_all(models, examples, counts, advance, settings.abstain_below)
        rows = zip(pairs, read_passthrough(settings, task), strict=bool(settings.keep_columns))
        predicted = (PredictedExample(example, prediction, passthrough) for (example, prediction), passthrough in rows)
        changed = write_predictions(file, settings.suffix, task, predicted, settings.safe_csv)
    rate = counts.examples / (time.perf_counter() - started)
    name = "standard output" if settings.output == STANDARD_OUTPUT else settings.output
    reporter.record(Line(f"{name}: {counts.examples:,} predictions, {rate:,.0f} per second"))
    if changed:
        reporter.note(f"{changed:,} fields had tabs or line breaks, which are now spaces; .jsonl and .csv keep them")
    return counts


def _predict_all(
    models: LoadedModels,
    examples: Iterable[Any],
    counts: InputCounts,
    advance: ProgressCallback,
    abstain_below: float | None,
) -> Iterator[tuple[Any, Any]]:
    """Yield each example with its prediction, in order; add each chunk to `counts`, and report it to `advance`."""
    for chunk in _predict_chunks(models, examples):
        predictions = chunk.predictions
        if abstain_below is not None:
            predictions = [prediction.abstain_below(abstain_below) for prediction in predictions]
            counts.abstained += sum(prediction.label == ABSTAINED for prediction in predictions)
        yield from zip(chunk.examples, predictions, strict=True)
        counts.add(chunk.counts)
        advance(len(chunk.examples))


def _check_output_format(settings: PredictSettings, task: AnyTask) -> None:
    """Raise ValueError if the output format is for another task type, or if columns cannot be copied."""
    owner = NATIVE_SUFFIXES.get(settings.suffix)
    if owner is not None and task.native_suffix != settings.suffix:
        raise ValueError(
            f"{settings.output}: {settings.suffix} is a format for {owner.kind} only, got a model for {task.kind}; "
            "use a .jsonl or .tsv file"
        )
    if settings.keep_columns and task.passthrough_schema(settings.keep_columns, "") is None:
        raise ValueError(
            f"--keep-columns: expected a task that reads tables, got {task.kind}; omit it (each record already has the "
            "words or the id of its example)"
        )


def _predict_chunks(models: LoadedModels, examples: Iterable[Any]) -> Iterator[PredictedChunk[Any, Any]]:
    """Predict any number of examples in constant memory, in order, chunk by chunk."""
    return predict_chunks(partial(predict_ensemble, models.members), models.task, models.first.tokenizer, examples)


def _predict_first_record(settings: PredictSettings, models: LoadedModels) -> dict[str, Any]:
    """Predict the first example; return its record; all examples have its fields."""
    first = islice(read_examples(settings, models.task), 1)
    chunk = next(_predict_chunks(models, first))
    return models.task.to_record(chunk.examples[0], chunk.predictions[0])


def _print_tables(reporter: Reporter, tables: Sequence[DisplayTable]) -> None:
    for table in tables:
        if table.heading:
            reporter.record(Heading(table.heading))
        if table.rows:
            reporter.record(Rows(table.columns, table.rows, texts=(0,)))
        else:
            reporter.record(Line(table.if_empty))
