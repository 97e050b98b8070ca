"""What a fine-tuned model is worth on labelled examples, and what it says about others."""

from __future__ import annotations

import csv
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional

from bertwright.files import whole_file
from bertwright.inference.model import Bert, load
from bertwright.interop.folders import model_folder
from bertwright.models.heads import BertForTask
from bertwright.runs.finetune import score_table, shown
from bertwright.runs.folders import new_file, refuse_existing
from bertwright.runs.screen import Advance, columns, counting, heading, remark, say
from bertwright.runs.tuning import within_positions
from bertwright.tasks.classification import Classification, Regression
from bertwright.tasks.conll import column_text
from bertwright.tasks.kinds import AnyTask
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.prediction import predict as tasks_predict
from bertwright.tasks.prediction import scored
from bertwright.tasks.presets import Overrides
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.tagging import Tagging
from bertwright.training.device import DeviceSettings, placed

AT_ONCE = 2_048  # examples between two writes: enough to group them by length, little enough to hold
OUTPUTS = (".jsonl", ".tsv", ".csv", ".json", ".conll")
SHOWN_LABELS = 30  # rows of the table of labels


@dataclass(frozen=True)
class EvaluateSettings:
    """Score a fine-tuned model on labelled files with the official metric of its task."""

    model: Positional[str]
    """Folder of a fine-tuned model, its run folder, or a hub name."""
    inputs: Positional[tuple[str, ...]]
    """Labelled files, in the form of the training files."""
    output: Path | None = None
    """Write the scores to this new JSON file, too."""
    overrides: Overrides = field(default_factory=Overrides)
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        if not self.inputs:
            raise ValueError("no file given; for example: bertwright evaluate MODEL dev.tsv")


@dataclass(frozen=True)
class PredictSettings:
    """Let a fine-tuned model label a few texts on the screen, or files of any size, streamed to --output."""

    model: Positional[str]
    """Folder of a fine-tuned model, its run folder, or a hub name."""
    texts: Positional[tuple[str, ...]] = ()
    """Texts to label or tag, or one pair where the task is about pairs; for question answering a question and its
    context; for multiple choice a prompt and its endings."""
    inputs: tuple[str, ...] = ()
    """Files in the form of the training files; labels in them are not looked at."""
    output: Path | None = None
    """New file for the predictions, one record an example, in order: .jsonl, .tsv or .csv; .conll for tags; .json for
    the official form of SQuAD answers."""
    overrides: Overrides = field(default_factory=Overrides)
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        if bool(self.texts) == bool(self.inputs):
            raise ValueError("give either texts, or files with --inputs")
        if self.inputs and self.output is None:
            raise ValueError("predictions of files need a place: --output predictions.jsonl")
        if self.output is not None and self.texts:
            raise ValueError("--output is for files; predictions of texts are shown")
        if self.output is not None and self.output.suffix not in OUTPUTS:
            raise ValueError(f"{self.output}: predictions are written as {', '.join(OUTPUTS)}")


def evaluate(settings: EvaluateSettings, console: Console | None = None) -> dict[str, float]:
    """Print the scores of all files together; returns them by name.

    Raises ValueError for a model without a task, and for examples that are not as they should be.
    """
    console = console or Console()
    with new_file(settings.output) if settings.output else nullcontext() as part, placed(settings.device) as place:
        model, task, network = _opened(settings.model, settings.overrides, place)
        examples = [example for path in settings.inputs for example in task.read(path)]
        if not examples:
            raise ValueError(f"{settings.inputs[0]}: no examples in it")
        task.check(examples)
        encoded = task.encode(examples, model.tokenizer, labelled=False)
        with counting(console, "evaluating", encoded.items) as advance:
            found = scored(network, task, examples, encoded, advance=advance)
        if part is not None:
            part.write_text(json.dumps(found.scores, indent=2) + "\n", encoding="utf-8")
    heading(console, f"{settings.model} on {len(examples):,} examples")
    for path in settings.inputs:
        for note in task.left_out(path):
            remark(console, note)
    console.print(score_table({"score": found.scores}, task.metric))
    for table in _details(task, examples, found.predictions):
        console.print(table)
    if settings.output is not None:
        say(console, f"{settings.output}: scores written")
    return found.scores


def predict(settings: PredictSettings, console: Console | None = None) -> None:
    """Show predictions of texts, or write those of files, in constant memory, whole or not at all."""
    console = console or Console()
    if settings.output is not None:
        refuse_existing(settings.output)
    with placed(settings.device) as place:
        model, task, _ = _opened(settings.model, settings.overrides, place)
        if settings.output is None:
            _show(console, model, task, settings.texts)
            for text in filter(os.path.isfile, settings.texts):  # which, unlike Path, takes a text of any length
                remark(console, f"{text} is a file, but was read as a text; to label what it holds: --inputs {text}")
            return
        started = time.perf_counter()
        _check_form(settings.output, task)
        examples = (example for path in settings.inputs for example in task.read(path, labelled=False))
        with counting(console, "predicting", None) as advance, whole_file(settings.output) as part:
            with part.open("w", encoding="utf-8", newline="") as file:
                number = _write(file, settings.output.suffix, task, _predictions(model, task, examples, advance))
            if not number:
                raise ValueError(f"{settings.inputs[0]}: no examples in it")
        seconds = time.perf_counter() - started
        say(console, f"{settings.output}: {number:,} predictions, {number / seconds:,.0f} a second")


def _opened(name: str, overrides: Overrides, place: Any) -> tuple[Bert, AnyTask, BertForTask]:
    """A fine-tuned model, its task as the user wants it read, and its network. ValueError for one without a task."""
    folder = model_folder(name)
    model = load(folder, place.device, place.dtype)
    if model.task is None or not isinstance(model.model, BertForTask):
        raise ValueError(f"{folder}: not fine-tuned on a task yet; bertwright finetune --model {name} …")
    task = overrides.applied(model.task)
    model.task = within_positions(task, overrides.max_length, model.config.max_positions)
    return model, model.task, model.model


def _predictions(model: Bert, task: AnyTask, examples: Iterator[Any], advance: Advance) -> Iterator[tuple[Any, Any]]:
    """Examples with their predictions, in order, chunk by chunk."""
    assert isinstance(model.model, BertForTask)
    while chunk := list(islice(examples, AT_ONCE)):
        yield from zip(chunk, tasks_predict(model.model, task, model.tokenizer, chunk), strict=True)
        advance(len(chunk))


# --- files


def _check_form(output: Path, task: AnyTask) -> None:
    """Some forms are for one kind of task alone."""
    for suffix, cls in ((".json", QuestionAnswering), (".conll", Tagging)):
        if output.suffix == suffix and not isinstance(task, cls):
            raise ValueError(
                f"{output}: {suffix} is the form of {cls.kind}; for {task.kind} name a .jsonl or .tsv file"
            )


def _write(file: TextIO, suffix: str, task: AnyTask, pairs: Iterator[tuple[Any, Any]]) -> int:
    """Write one record an example; returns their number."""
    number = 0
    if suffix == ".json":
        answers: dict[str, str] = {}
        for example, prediction in pairs:
            if example.id in answers:
                raise ValueError(
                    f'{example.place}: the id "{example.id}" is that of a question before; answer each file by '
                    "itself, or name a .jsonl file"
                )
            answers[example.id] = prediction.text
        json.dump(answers, file, ensure_ascii=False)
        return len(answers)
    table = csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",", lineterminator="\n")
    for number, (example, prediction) in enumerate(pairs, 1):
        if suffix == ".conll":
            file.write(column_text(prediction.words, prediction.tags, example.place))
            continue
        record = task.record(example, prediction)
        if suffix == ".jsonl":
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            continue
        if number == 1:
            table.writerow(record)
        table.writerow(map(_cell, record.values()))
    return number


def _cell(value: Any) -> Any:
    """A value in one field of a table: numbers short, lists as JSON.

    >>> _cell(0.123456789), _cell(["B-PER", "O"])
    (0.123457, '["B-PER", "O"]')
    """
    if isinstance(value, float):
        return round(value, 6)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict | tuple) else value


# --- the screen


def _show(console: Console, model: Bert, task: AnyTask, texts: Sequence[str]) -> None:
    """Predictions of texts given on the command line, as its kind of task shows them."""
    if isinstance(task, QuestionAnswering):
        if len(texts) != 2:
            raise ValueError("question answering takes two texts: the question, then the context")
        answer = model.answer(*texts)
        table = columns("answer", "characters", "probability")
        for candidate in answer.candidates:
            place = f"{candidate.start}-{candidate.end}" if candidate.text else ""
            table.add_row(Text(candidate.text or "(no answer)"), place, f"{candidate.probability:.1%}")
        heading(console, answer.text or "(no answer)")
    elif isinstance(task, MultipleChoice):
        if len(texts) < 3:
            raise ValueError("multiple choice takes a prompt and two endings or more")
        chosen = model.choose(texts[0], texts[1:])
        table = columns("ending", "probability")
        for ending, probability in zip(texts[1:], chosen.probabilities, strict=True):
            table.add_row(Text(ending), f"{probability:.1%}")
        heading(console, texts[1 + chosen.choice])
    elif isinstance(task, Tagging):
        table = columns("text", "label", "characters", "probability")
        for tagged in model.tag(list(texts)):
            for entity in tagged.entities:
                place = f"{entity.start}-{entity.end}"
                table.add_row(Text(entity.text), Text(entity.label), place, f"{entity.probability:.1%}")
            if task.scheme == "none":
                for word, tag, probability in zip(tagged.words, tagged.tags, tagged.probabilities, strict=True):
                    table.add_row(Text(word), Text(tag), "", f"{probability:.1%}")
    elif isinstance(task, Regression | Classification):
        asked, numbers = _asked(task, texts), isinstance(task, Regression)
        table = columns("text", "score") if numbers else columns("text", "label", "probability")
        for text, one in zip(asked, model.classify(asked), strict=True):
            found = (f"{one:.3f}",) if numbers else (Text(one.label), f"{one.probabilities[one.label]:.1%}")
            table.add_row(Text(text if isinstance(text, str) else " / ".join(text)), *found)
    console.print(table)


def _asked(task: Classification | Regression, texts: Sequence[str]) -> list[Any]:
    """What the texts of a command line are to a task: texts, or one pair."""
    if task.pair is None:
        return list(texts)
    if len(texts) != 2:
        raise ValueError(f"this task is about pairs: give two texts, not {len(texts)}")
    return [(texts[0], texts[1])]


def _details(task: AnyTask, examples: Sequence[Any], predictions: Sequence[Any]) -> Iterator[Table]:
    """For a classification, what each label's examples were taken for; for spans, the scores of each type."""
    if isinstance(task, Classification) and len(task.labels) <= SHOWN_LABELS:
        counts = Counter((example.label, one.label) for example, one in zip(examples, predictions, strict=True))
        table = columns("label (rows) taken for", *task.labels, "recall")
        for right in task.labels:
            row = [counts[right, guess] for guess in task.labels]
            table.add_row(Text(right), *(f"{number:,}" for number in row), shown(row_share(row, right, task.labels)))
        yield table
    if isinstance(task, Tagging) and task.scheme != "none":
        table = columns("type", "spans", "precision", "recall", "f1")
        for name, found in task.spans_found(examples, predictions).types.items():
            table.add_row(
                Text(name), f"{found.support:,}", shown(found.precision), shown(found.recall), shown(found.f1)
            )
        yield table


def row_share(row: Sequence[int], right: str, labels: Sequence[str]) -> float:
    """The share of a label's examples that got this label.

    >>> row_share([3, 1], "a", ("a", "b"))
    0.75
    """
    return row[labels.index(right)] / max(sum(row), 1)
