"""What a fine-tuned model is worth on labelled examples, and what it says about others."""

from __future__ import annotations

import csv
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
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
from bertwright.tasks.classification import Classification, Regression, TextExample
from bertwright.tasks.conll import TagExample, column_text
from bertwright.tasks.kinds import AnyTask
from bertwright.tasks.multiple_choice import ChoiceExample, MultipleChoice
from bertwright.tasks.prediction import losses, predicted, scored
from bertwright.tasks.presets import Overrides, refuse_twice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.squad import QaExample
from bertwright.tasks.tagging import Tagged, Tagging
from bertwright.training.device import DeviceSettings, placed

OUTPUTS = (".jsonl", ".tsv", ".csv", ".json", ".conll")
BREAK = re.compile("\r\n|[\t\r\n]")  # what a field without quotes cannot hold
SHOWN_LABELS = 30  # rows of the table of labels
SHOWN_ANSWERS = 5  # of a question on the screen; files have them all


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
        refuse_twice(self.inputs)


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
    """New file for the predictions, one record an example, in order: .jsonl, .tsv (without quotes) or .csv; .conll for
    tags; .json for the official form of SQuAD answers."""
    overrides: Overrides = field(default_factory=Overrides)
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        if bool(self.texts) == bool(self.inputs):
            raise ValueError("give either texts, or files with --inputs; standard input is not read")
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
    left_out = [note for path in settings.inputs for note in task.left_out(path)]
    for note in left_out + losses(task, len(examples), encoded.truncated, model.config.max_positions):
        remark(console, note)
    console.print(score_table({"score": found.scores}, task.metric))
    for table in _details(task, examples, found.predictions):
        console.print(table)
    if settings.output is not None:
        say(console, f"{settings.output}: scores written")
    return found.scores


def predict(settings: PredictSettings, console: Console | None = None) -> None:
    """Show predictions of texts, or write those of files, in constant memory, whole or not at all.

    Raises ValueError for a model without a task and, before anything is predicted, for what is wrong with the input.
    """
    console = console or Console()
    if settings.output is not None:
        refuse_existing(settings.output)
    tally = _Tally()
    with placed(settings.device) as place:
        model, task, _ = _opened(settings.model, settings.overrides, place)
        if settings.output is None:
            typed = _typed(task, settings.texts)
            with counting(console, "predicting", len(typed)) as advance:
                found = list(_predictions(model, task, typed, tally, advance))
            _show(console, task, found)
        else:
            _check_form(settings.output, task)
            number = _read_through(settings.inputs, settings.output.suffix, task)
            started = time.perf_counter()
            with (
                counting(console, "predicting", number) as advance,
                whole_file(settings.output) as part,
                part.open("w", encoding="utf-8", newline="") as file,
            ):
                pairs = _predictions(model, task, _examples(settings.inputs, task), tally, advance)
                _write(file, settings.output.suffix, task, pairs, tally)
            rate = tally.examples / (time.perf_counter() - started)
            say(console, f"{settings.output}: {tally.examples:,} predictions, {rate:,.0f} a second")
    for note in losses(task, tally.examples, tally.truncated, model.config.max_positions):
        remark(console, note)
    if tally.spaced:
        remark(console, f"{tally.spaced:,} fields held tabs or line breaks, now spaces; .jsonl and .csv keep them")
    for text in filter(os.path.isfile, settings.texts):  # which, unlike Path, takes a text of any length
        remark(console, f"{text} is a file, but was read as a text; to label what it holds: --inputs {text}")


@dataclass
class _Tally:
    """What is counted on the way from examples to predictions, and told at the end."""

    examples: int = 0
    truncated: int = 0
    """Examples that lost tokens."""
    spaced: int = 0
    """Fields of a table that held what it cannot hold."""


def _opened(name: str, overrides: Overrides, place: Any) -> tuple[Bert, AnyTask, BertForTask]:
    """A fine-tuned model, its task as the user wants it read, and its network. ValueError for one without a task."""
    folder = model_folder(name)
    model = load(folder, place.device, place.dtype)
    if model.task is None or not isinstance(model.model, BertForTask):
        raise ValueError(f"{folder}: not fine-tuned on a task yet; bertwright finetune --model {name} …")
    task = overrides.applied(model.task)
    model.task = within_positions(task, overrides.max_length, model.config.max_positions)
    return model, model.task, model.model


def _predictions(
    model: Bert, task: AnyTask, examples: Iterable[Any], tally: _Tally, advance: Advance
) -> Iterator[tuple[Any, Any]]:
    """Examples with their predictions, in order; `tally` and `advance` are told of each chunk of them."""
    assert isinstance(model.model, BertForTask)
    for chunk in predicted(model.model, task, model.tokenizer, examples):
        yield from zip(chunk.examples, chunk.predictions, strict=True)
        tally.examples += len(chunk.examples)
        tally.truncated += chunk.truncated
        advance(len(chunk.examples))


# --- files


def _check_form(output: Path, task: AnyTask) -> None:
    """Some forms are for one kind of task alone."""
    for suffix, cls in ((".json", QuestionAnswering), (".conll", Tagging)):
        if output.suffix == suffix and not isinstance(task, cls):
            raise ValueError(
                f"{output}: {suffix} is the form of {cls.kind}; for {task.kind} name a .jsonl or .tsv file"
            )


def _examples(inputs: Sequence[str], task: AnyTask) -> Iterator[Any]:
    """Those of all files, in order; labels are not looked at."""
    return chain.from_iterable(task.read(path, labelled=False) for path in inputs)


def _read_through(inputs: Sequence[str], suffix: str, task: AnyTask) -> int:
    """How many examples all files hold: read once beforehand, so that what is wrong shows before the work, not after.

    Raises ValueError as `task.read` does, and for an example that does not go with the output or with those before it.
    """
    number, width = 0, 0
    ids: set[str] = set()
    for example in _examples(inputs, task):
        number += 1
        if suffix == ".conll":
            column_text(example.words, example.words, example.place)
        elif suffix == ".json":
            if example.id in ids:
                raise ValueError(
                    f'{example.place}: the id "{example.id}" is that of a question before; answer each file by '
                    "itself, or name a .jsonl file"
                )
            ids.add(example.id)
        elif isinstance(task, MultipleChoice):
            found = len(example.endings)
            width = width or found
            if found != width:
                raise ValueError(f"{example.place}: {width} endings expected, as in the file before, {found} found")
    if not number:
        raise ValueError(f"{inputs[0]}: no examples in it")
    return number


def _write(file: TextIO, suffix: str, task: AnyTask, pairs: Iterator[tuple[Any, Any]], tally: _Tally) -> None:
    """Write one record an example; `tally` is told of fields that were changed."""
    if suffix == ".json":
        json.dump({example.id: prediction.text for example, prediction in pairs}, file, ensure_ascii=False)
        return
    for number, (example, prediction) in enumerate(pairs):
        if suffix == ".conll":
            file.write(column_text(prediction.words, prediction.tags, example.place))
            continue
        record = task.record(example, prediction)
        if suffix == ".jsonl":
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            continue
        if number == 0:
            _write_row(file, suffix, record, tally)
        _write_row(file, suffix, record.values(), tally)


def _write_row(file: TextIO, suffix: str, values: Iterable[Any], tally: _Tally) -> None:
    """One line of a table. Quotes enclose what needs them in .csv; in .tsv they are plain characters, as when read."""
    cells = [_cell(value) for value in values]
    if suffix == ".csv":
        csv.writer(file, lineterminator="\n").writerow(cells)
        return
    found = [BREAK.subn(" ", str(cell)) for cell in cells]
    tally.spaced += sum(breaks > 0 for _, breaks in found)
    file.write("\t".join(text for text, _ in found) + "\n")


def _cell(value: Any) -> Any:
    """A value in one field of a table: numbers short, lists as JSON.

    >>> _cell(0.123456789), _cell(["B-PER", "O"])
    (0.123457, '["B-PER", "O"]')
    """
    if isinstance(value, float):
        return round(value, 6)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict | tuple) else value


# --- the screen


def _typed(task: AnyTask, texts: Sequence[str]) -> list[Any]:
    """What the texts of a command line are to a task: its examples."""
    if isinstance(task, QuestionAnswering):
        if len(texts) != 2:
            raise ValueError("question answering takes two texts: the question, then the context")
        return [QaExample("1", texts[0], texts[1])]
    if isinstance(task, MultipleChoice):
        if len(texts) < 3:
            raise ValueError("multiple choice takes a prompt and two endings or more")
        return [ChoiceExample(texts[0], tuple(texts[1:]), None, "choice")]
    if isinstance(task, Tagging):
        return [TagExample.from_text(text) for text in texts]
    assert isinstance(task, Classification | Regression)
    if task.pair is None:
        return [TextExample(text, None, None, "text") for text in texts]
    if len(texts) != 2:
        raise ValueError(f"this task is about pairs: give two texts, not {len(texts)}")
    return [TextExample(texts[0], texts[1], None, "pair")]


def _show(console: Console, task: AnyTask, found: Sequence[tuple[Any, Any]]) -> None:
    """Texts given on the command line with their predictions, as its kind of task shows them."""
    if isinstance(task, QuestionAnswering):
        _, answer = found[0]
        table = columns("answer", "characters", "probability")
        for candidate in answer.candidates[:SHOWN_ANSWERS]:
            place = f"{candidate.start}-{candidate.end}" if candidate.text else ""
            table.add_row(Text(candidate.text or "(no answer)"), place, f"{candidate.probability:.1%}")
        heading(console, answer.text or "(no answer)")
        console.print(table)
    elif isinstance(task, MultipleChoice):
        example, chosen = found[0]
        table = columns("ending", "probability")
        for ending, probability in zip(example.endings, chosen.probabilities, strict=True):
            table.add_row(Text(ending), f"{probability:.1%}")
        heading(console, example.endings[chosen.choice])
        console.print(table)
    elif isinstance(task, Tagging):
        for example, tagged in found:
            _show_tagged(console, task, example, tagged)
    else:
        numbers = isinstance(task, Regression)
        table = columns("text", "score") if numbers else columns("text", "label", "probability")
        for (text, pair, *_), one in found:
            told = (f"{one:.3f}",) if numbers else (Text(one.label), f"{one.probabilities[one.label]:.1%}")
            table.add_row(Text(text if pair is None else f"{text} / {pair}"), *told)
        console.print(table)


def _show_tagged(console: Console, task: Tagging, example: TagExample, tagged: Tagged) -> None:
    """One text: its entities or, where tags are plain classes, all of its words."""
    heading(console, (example.text or "").strip() or "(no text)")
    rows: list[tuple[str, str, int, int, float]]
    if task.scheme == "none":
        each = zip(tagged.words, tagged.tags, example.offsets, tagged.probabilities, strict=True)
        rows = [(word, tag, *place, probability) for word, tag, place, probability in each]
    else:
        rows = [(one.text, one.label, one.start, one.end, one.probability) for one in tagged.entities]
    if not rows:
        say(console, "no words" if task.scheme == "none" else "no entities")
        return
    table = columns("text", "label", "characters", "probability")
    for text, label, start, end, probability in rows:
        table.add_row(Text(text), Text(label), f"{start}-{end}", f"{probability:.1%}")
    console.print(table)


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
