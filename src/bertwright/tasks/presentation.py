"""Presentation of tasks, examples and predictions: tables for people, records, and files in formats of their own.

Each function dispatches on the task type.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, singledispatch
from typing import Any, NamedTuple

from bertwright.io.schema import TableSchema
from bertwright.tasks.classification import Classification, LabelPrediction, TextExample, TextTask, known_labels
from bertwright.tasks.conll import TagExample, to_conll
from bertwright.tasks.multiple_choice import ChoiceExample, ChoicePrediction, MultipleChoice
from bertwright.tasks.question_answering import Answer, EncodedQuestions, QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.squad import QaExample, align_answers
from bertwright.tasks.tagging import Tagging, TagPrediction
from bertwright.tasks.task import AnyTask, Encoded

NATIVE_SUFFIXES: dict[str, type[AnyTask]] = {".conll": Tagging, ".json": QuestionAnswering}  # formats of one task type
MAX_TABLE_LABELS = 30  # of a confusion table
SHOWN_ANSWERS = 5  # per question on the screen; files have all
NO_ANSWER = "(no answer)"
MAX_CUT_ANSWERS = 0.05  # of the questions; more of them cause a notice


class DisplayTable(NamedTuple):
    """A table for people, with a heading."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    heading: str = ""
    if_empty: str = ""
    """Text in place of a table without rows."""


def format_percent(share: float) -> str:
    """Format a share in percent, as papers print it.

    >>> format_percent(0.92204)
    '92.20'
    """
    return f"{100 * share:.2f}"


def format_score(score: float | None, name: str = "") -> str:
    """Format a share or a correlation in percent with two decimals, as papers do, and a squared error unscaled.

    >>> format_score(0.92204), format_score(None), format_score(3.012, "mse")
    ('92.20', '', '3.012')
    """
    if score is None:
        return ""
    return f"{score:.4g}" if name == "mse" else format_percent(score)


def format_scores(scores: Mapping[str, float]) -> str:
    """Format the first four scores for a line of text.

    >>> format_scores({"f1": 0.9, "accuracy": 0.95})
    'f1 90.00, accuracy 95.00'
    """
    return ", ".join(
        f"{name.replace('_', ' ')} {format_score(value, name)}" for name, value in list(scores.items())[:4]
    )


# The task


@singledispatch
def describe_task(task: AnyTask) -> dict[str, str]:
    """Return properties of a task for the summary of a model, by name."""
    return {}


@describe_task.register
def _(task: QuestionAnswering) -> dict[str, str]:
    if not task.allow_no_answer:
        return {"no answer": "never"}
    return {"no answer": f"if the score of the best span exceeds that of no answer by at most {task.threshold:.3f}"}


def is_single_text(task: AnyTask) -> bool:
    """Return whether an example is one text, so that a line of standard input can be one."""
    return isinstance(task, Tagging) or (isinstance(task, TextTask) and task.text_pair is None)


def passthrough_schema(task: AnyTask, columns: Sequence[str], hint: str) -> TableSchema | None:
    """Return how other columns of the task's tables are read; None if its files are no tables."""
    if not isinstance(task, TextTask | MultipleChoice):
        return None
    return TableSchema((), tuple(columns), task.header, task.quotes, hint, allow_nulls=True, encoding=task.encoding)


def truncation_warnings(task: AnyTask, examples: int, truncated: int, max_positions: int) -> list[str]:
    """Format a sentence about truncated examples; none if there are none. `max_positions`: those of the model."""
    if not truncated:
        return []
    limit, length = "max_length", task.max_length
    if isinstance(task, QuestionAnswering):  # a longer context has more windows
        limit, length = "max_query_length", task.max_query_length
    hint = "the model has no more positions" if length == max_positions else f"raise {limit} to keep them whole"
    share = f"{truncated:,} of {examples:,} examples ({truncated / examples:.1%})"
    return [f"{share} lose tokens: {limit} is {length}; {hint}"]


def cut_answer_warnings(encoded: Encoded) -> list[str]:
    """Format a sentence about answers that begin or end inside a token; none unless they are frequent."""
    if not isinstance(encoded, EncodedQuestions):
        return []
    count, total = encoded.cut_answers, len(set(encoded.example_ids.tolist()))
    if count <= MAX_CUT_ANSWERS * total:
        return []
    return [
        f"{count:,} of {total:,} questions ({count / total:.1%}) have an answer that begins or ends inside a token, so "
        "that no prediction can equal it; a vocabulary of fewer tokens splits words more often"
    ]


def single_class_warnings(task: AnyTask, predictions: Sequence[Any]) -> list[str]:
    """Format a sentence if all predictions are of one class, although the task has several."""
    if isinstance(task, Classification):
        classes = {prediction.label for prediction in predictions}
    elif isinstance(task, Tagging):
        classes = {tag for prediction in predictions for tag in prediction.tags}
    else:
        return []
    if len(classes) == 1 < len(task.label_names) and len(predictions) > 1:
        return [f"all predictions are {classes.pop()!r}: the model does not distinguish the classes"]
    return []


def report_fields(task: AnyTask, examples: Sequence[Any]) -> dict[str, Any]:
    """Return plain values about the training examples for report.json."""
    return {"answers": align_answers(examples)._asdict()} if isinstance(task, QuestionAnswering) else {}


# Tables for people


@singledispatch
def to_tables(task: AnyTask, predicted: Sequence[tuple[Any, Any]]) -> list[DisplayTable]:
    """Format examples and predictions as tables."""
    raise TypeError(f"no tables for {task.kind}")


@to_tables.register
def _(task: Classification, predicted: Sequence[tuple[TextExample[str], LabelPrediction]]) -> list[DisplayTable]:
    rows = [(_one_line(example), one.label, f"{one.probabilities[one.label]:.1%}") for example, one in predicted]
    return [DisplayTable(("text", "label", "probability"), rows)]


@to_tables.register
def _(task: Regression, predicted: Sequence[tuple[TextExample[float], float]]) -> list[DisplayTable]:
    return [DisplayTable(("text", "score"), [(_one_line(example), f"{number:.3f}") for example, number in predicted])]


@to_tables.register
def _(task: MultipleChoice, predicted: Sequence[tuple[ChoiceExample, ChoicePrediction]]) -> list[DisplayTable]:
    tables = []
    for example, chosen in predicted:
        shares = [f"{share:.1%}" for share in chosen.probabilities]
        rows = list(zip(example.endings, shares, strict=True))
        tables.append(DisplayTable(("ending", "probability"), rows, heading=example.endings[chosen.choice]))
    return tables


@to_tables.register
def _(task: Tagging, predicted: Sequence[tuple[TagExample, TagPrediction]]) -> list[DisplayTable]:
    """Show the entities of each text or, if tags are plain classes, all of its words."""
    tables = []
    for example, tagged in predicted:
        spans = [(one.text, one.label, one.start, one.end, one.probability) for one in tagged.entities]
        if task.scheme == "none":
            words = zip(tagged.words, tagged.tags, example.offsets, tagged.probabilities, strict=True)
            spans = [(word, tag, *offsets, probability) for word, tag, offsets, probability in words]
        rows = [(text, label, f"{start}-{end}", f"{share:.1%}") for text, label, start, end, share in spans]
        heading = (example.text or "").strip() or "(no text)"
        if_empty = "no words" if task.scheme == "none" else "no entities"
        tables.append(DisplayTable(("text", "label", "characters", "probability"), rows, heading, if_empty))
    return tables


@to_tables.register
def _(task: QuestionAnswering, predicted: Sequence[tuple[QaExample, Answer]]) -> list[DisplayTable]:
    tables = []
    for _, answer in predicted:
        rows = [
            (one.text or NO_ANSWER, f"{one.start}-{one.end}" if one.text else "", f"{one.probability:.1%}")
            for one in answer.candidates[:SHOWN_ANSWERS]
        ]
        tables.append(DisplayTable(("answer", "characters", "probability"), rows, heading=answer.text or NO_ANSWER))
    return tables


def _one_line(example: TextExample[Any]) -> str:
    return example.text if example.text_pair is None else f"{example.text} / {example.text_pair}"


def make_score_table(results: Mapping[str, Mapping[str, float]], metric: str) -> DisplayTable:
    """Format scores by name, one column per split; the metric that selects the checkpoint comes first."""
    names = dict.fromkeys(name for scores in results.values() for name in scores)
    rows = []
    for name in sorted(names, key=lambda name: name != metric):
        cells = (format_score(scores.get(name), name) for scores in results.values())
        rows.append((name.replace("_", " "), *cells))
    return DisplayTable(("", *results), rows)


@singledispatch
def score_tables(task: AnyTask, examples: Sequence[Any], predictions: Sequence[Any]) -> list[DisplayTable]:
    """Format scores per label or type; most task types have none."""
    return []


@score_tables.register
def _(
    task: Classification, examples: Sequence[TextExample[str]], predictions: Sequence[LabelPrediction]
) -> list[DisplayTable]:
    """Format the confusion table."""
    if len(task.labels) > MAX_TABLE_LABELS:
        return []
    counts = Counter(zip(known_labels(examples), (one.label for one in predictions), strict=True))
    rows = []
    for true in task.labels:
        row = [counts[true, predicted] for predicted in task.labels]
        recall = counts[true, true] / max(sum(row), 1)
        rows.append((true, *(f"{number:,}" for number in row), format_percent(recall)))
    return [DisplayTable(("label (rows) predicted as", *task.labels, "recall"), rows)]


@score_tables.register
def _(task: Tagging, examples: Sequence[TagExample], predictions: Sequence[TagPrediction]) -> list[DisplayTable]:
    if task.scheme == "none":
        return []
    rows = [
        (name, f"{one.support:,}", format_percent(one.precision), format_percent(one.recall), format_percent(one.f1))
        for name, one in task.span_scores(examples, predictions).types.items()
    ]
    return [DisplayTable(("type", "spans", "precision", "recall", "f1"), rows)]


# Files


@singledispatch
def to_record(task: AnyTask, example: Any, prediction: Any) -> dict[str, Any]:
    """Convert a prediction to plain values by column name, the same columns for every example of a file."""
    raise TypeError(f"no records for {task.kind}")


@to_record.register
def _(task: Classification, example: TextExample[str], prediction: LabelPrediction) -> dict[str, Any]:
    shares = {f"p({label})": share for label, share in prediction.probabilities.items()}
    return {"label": prediction.label, "probability": prediction.probabilities[prediction.label]} | shares


@to_record.register
def _(task: Regression, example: TextExample[float], prediction: float) -> dict[str, Any]:
    return {"score": prediction}


@to_record.register
def _(task: MultipleChoice, example: ChoiceExample, prediction: ChoicePrediction) -> dict[str, Any]:
    """Convert a choice; endings are counted from `first_label`, also if the labels are letters."""
    shares = {f"p({number})": share for number, share in enumerate(prediction.probabilities, task.first_label)}
    best = prediction.probabilities[prediction.choice]
    return {"choice": prediction.choice + task.first_label, "probability": best} | shares


@to_record.register
def _(task: Tagging, example: TagExample, prediction: TagPrediction) -> dict[str, Any]:
    return {
        "words": list(prediction.words),
        "tags": list(prediction.tags),
        "probabilities": list(prediction.probabilities),
        "entities": [entity._asdict() for entity in prediction.entities],
    }


@to_record.register
def _(task: QuestionAnswering, example: QaExample, prediction: Answer) -> dict[str, Any]:
    values = prediction._asdict()
    return {
        "id": example.id,
        "answer": prediction.text,
        **{name: values[name] for name in ("start", "end", "probability", "score", "null_score")},
        "candidates": [candidate._asdict() for candidate in prediction.candidates],
    }


@singledispatch
def check_writable(task: AnyTask, examples: Iterable[Any], suffix: str) -> Iterator[Any]:
    """Yield the examples of all input files. Raises ValueError with the location of one that `suffix` cannot hold."""
    return iter(examples)


@check_writable.register
def _(task: MultipleChoice, examples: Iterable[ChoiceExample], suffix: str) -> Iterator[ChoiceExample]:
    count = 0
    for example in examples:
        found = len(example.endings)
        count = count or found
        if found != count:  # `read` has checked this within each file
            raise ValueError(f"{example.location}: expected {count} endings, as in the file before, got {found}")
        yield example


@check_writable.register
def _(task: Tagging, examples: Iterable[TagExample], suffix: str) -> Iterator[TagExample]:
    for example in examples:
        if suffix == ".conll":
            to_conll(example.words, example.words, example.location)
        yield example


@check_writable.register
def _(task: QuestionAnswering, examples: Iterable[QaExample], suffix: str) -> Iterator[QaExample]:
    ids: set[str] = set()
    for example in examples:
        if suffix == ".json":
            if example.id in ids:
                raise ValueError(
                    f'{example.location}: the id "{example.id}" is that of an earlier question; predict each file '
                    "separately, or write .jsonl"
                )
            ids.add(example.id)
        yield example


@singledispatch
def format_native(task: AnyTask, predicted: Iterable[tuple[Any, Any]]) -> Iterator[str]:
    """Format predictions in the task type's own file format (NATIVE_SUFFIXES), chunk by chunk."""
    raise TypeError(f"no file format of its own for {task.kind}")


@format_native.register
def _(task: Tagging, predicted: Iterable[tuple[TagExample, TagPrediction]]) -> Iterator[str]:
    return (to_conll(tagged.words, tagged.tags, example.location) for example, tagged in predicted)


@format_native.register
def _(task: QuestionAnswering, predicted: Iterable[tuple[QaExample, Answer]]) -> Iterator[str]:
    """Format one object with the answers by the ids of their questions, as SQuAD's scorer reads it."""
    as_json = partial(json.dumps, ensure_ascii=False)
    before = "{"
    for example, answer in predicted:
        yield f"{before}{as_json(example.id)}: {as_json(answer.text)}"
        before = ", "
    yield "}"
