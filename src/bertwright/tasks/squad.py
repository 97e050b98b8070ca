"""Questions with answers in a text: SQuAD's JSON, versions 1.1 and 2.0, and JSON lines for the user's own.

A line of .jsonl is {"question": …, "context": …, "answers": [{"text": …, "start": …}]}, with "id" if wanted. `start`
counts characters; it may be left out, and may be called `answer_start`, as in SQuAD. No answers mean that the question
has none. Both suffixes may be followed by .gz, .zst or .bz2.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, NamedTuple

from bertwright.corpus.decoding import Findings, decoded
from bertwright.corpus.inputs import COMPRESSIONS, InputFile

SHOWN = 5  # questions that a note names; the report of a run holds all of them


class Gold(NamedTuple):
    """A right answer, as annotators gave it."""

    text: str
    start: int | None
    """Its first character in the context; None where the file does not tell and the text is not there exactly once."""
    moved: bool = False
    """Was another start given, where the text is not?"""


@dataclass(frozen=True)
class QaExample:
    """A question about a text. Questions about the same text share one `str`."""

    id: str
    question: str
    context: str
    answers: tuple[Gold, ...] = ()
    """All right answers; none where there are none, or where they are not known."""
    impossible: bool = False
    """Is it known that the context has no answer (SQuAD 2.0)?"""
    place: str = "question"
    """Where it was read, for messages."""

    @property
    def target(self) -> Gold | None:
        """The answer to learn: the first that has a place in the context."""
        return next((answer for answer in self.answers if answer.start is not None), None)

    @property
    def learnable(self) -> bool:
        """Is it known what the model should point at?"""
        return self.impossible or self.target is not None


class Placement(NamedTuple):
    """What became of answers that do not stand where the file says, each by the place of its question."""

    moved: tuple[str, ...]
    """The answer stands in the context once, elsewhere: it was moved there."""
    left_out: tuple[str, ...]
    """No answer has a place in the context: scored as usual, but left out of training."""

    def notes(self) -> list[str]:
        """One line for each of the two that there is to tell."""
        told = (
            (self.moved, "answers did not stand where the file says and were moved to the only place where they do"),
            (self.left_out, "questions are left out of training: their answer is not in the context, or more than once "
             "and not where the file says"),
        )  # fmt: skip
        return [f"{len(places):,} {what}: {_listed(places)}" for places, what in told if places]


def placement(examples: Iterable[QaExample]) -> Placement:
    """What became of the answers of these examples that do not stand where the file says."""
    moved, left_out = [], []
    for example in examples:
        if example.answers and example.target is None:
            left_out.append(example.place)
        elif any(answer.moved for answer in example.answers):
            moved.append(example.place)
    return Placement(tuple(moved), tuple(left_out))


def read_questions(path: str, labelled: bool = True) -> Iterator[QaExample]:
    """The questions of one file, in order. Without `labelled`, answers are not looked at.

    Raises ValueError with file, line or article and question, what is wrong and what is expected there: for what is
    not JSON or not of this form, for an id that two questions have, and, if `labelled`, for a question without answers
    or `is_impossible`, and for an empty question or context (to predict from, both may be empty); OSError where there
    is no such file.
    """
    file = _opened(path)
    records = _lines(file) if file.format == ".jsonl" else _articles(file)
    seen: set[str] = set()
    for record in records:
        example = _example(record, labelled)
        if example.id in seen:
            raise ValueError(f"{record.place}: the id {example.id!r} is that of an earlier question; ids must differ")
        seen.add(example.id)
        yield example


class _Record(NamedTuple):
    """A question as it stands in the file, with the text that it is about."""

    values: dict[str, Any]
    context: str
    place: str
    default_id: str | None


def _example(record: _Record, labelled: bool) -> QaExample:
    values, place = record.values, record.place
    name = _id(record)
    if record.default_id is None:
        place = f"{place}, question {name}"
    question = _text(values, "question", place)
    if labelled:
        for what, text in (("question", question), ("context", record.context)):
            if not text.strip():
                raise ValueError(f"{place}: the {what} is empty; mend it, or take the question out")
    example = QaExample(name, question, record.context, place=place)
    return _with_answers(example, values) if labelled else example


def _id(record: _Record) -> str:
    value = record.values.get("id", record.default_id)
    if value is None:
        raise ValueError(f'{record.place}: "id" is missing; found are {_listed(list(record.values))}')
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise ValueError(f'{record.place}: "id" should be a text or a whole number, and is {_shown(value)}')
    return str(value)


def _with_answers(example: QaExample, values: dict[str, Any]) -> QaExample:
    place = example.place
    given = _member(values, "answers", (list, dict), place)
    answers = tuple(_gold(answer, example.context, place) for answer in _answer_list(given, place))
    impossible = values.get("is_impossible", not answers)
    if not isinstance(impossible, bool):
        raise ValueError(f'{place}: "is_impossible" should be true or false, and is {_shown(impossible)}')
    if impossible == bool(answers):
        raise ValueError(f'{place}: "is_impossible" is {str(impossible).lower()} and there are {len(answers)} answers')
    return replace(example, answers=answers, impossible=impossible)


def _answer_list(given: Any, place: str) -> list[Any]:
    """Answers as a list; the hub's form of SQuAD has one object of lists instead of a list of objects."""
    if isinstance(given, list):
        return given
    texts = _member(given, "text", list, place)
    starts = _member(given, "answer_start", list, place)
    if len(texts) != len(starts):
        raise ValueError(f'{place}: {len(texts)} in "text" but {len(starts)} in "answer_start"; each answer needs both')
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _gold(answer: Any, context: str, place: str) -> Gold:
    text = _text(answer, "text", f"{place}, answers")
    if not text.strip():
        raise ValueError(f'{place}: an answer is empty; a question without answer has "answers": []')
    start = answer.get("answer_start", answer.get("start"))
    if start is not None and (not isinstance(start, int) or isinstance(start, bool)):
        raise ValueError(f"{place}: an answer's start should be a whole number, and is {_shown(start)}")
    if start is not None and start >= 0 and context.startswith(text, start):
        return Gold(text, start)
    found = context.find(text)
    if found < 0 or context.find(text, found + 1) >= 0:
        return Gold(text, None)
    return Gold(text, found, moved=start is not None)


# --- files → records


def _opened(path: str) -> InputFile:
    """A file that may be compressed or on the hub, as the corpus room reads such files."""
    suffixes = [suffix.lower() for suffix in PurePath(path).suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSIONS else ""
    if not suffixes or suffixes[-1] not in (".json", ".jsonl"):
        raise ValueError(f"{path}: questions are read from SQuAD .json or from .jsonl (also {', '.join(COMPRESSIONS)})")
    file = InputFile(path, 0, suffixes[-1], compression, "file")
    return replace(file, size=file.local().stat().st_size)


def _articles(file: InputFile) -> Iterator[_Record]:
    """SQuAD's tree: data → paragraphs → context, qas."""
    try:
        root = json.loads("".join(decoded(file, "error", Findings())))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file.path}, line {error.lineno}: not valid JSON ({error.msg})") from None
    except RecursionError:
        raise ValueError(f"{file.path}: not readable as JSON (brackets too deep)") from None
    for number, article in enumerate(_member(root, "data", list, file.path), 1):
        place = f"{file.path}, article {number}"
        if isinstance(article, dict) and isinstance(title := article.get("title"), str):
            place += f" ({title})"
        for paragraph in _member(article, "paragraphs", list, place):
            context = _text(paragraph, "context", place)
            for values in _member(paragraph, "qas", list, place):
                yield _Record(_object(values, place), context, place, None)


def _lines(file: InputFile) -> Iterator[_Record]:
    context = ""
    for number, line in enumerate(_split(decoded(file, "error", Findings())), 1):
        if not line or line.isspace():
            continue
        place = f"{file.path}, line {number}"
        try:
            values = _object(json.loads(line), place)
        except json.JSONDecodeError as error:
            raise ValueError(f"{place}: not valid JSON ({error.msg})") from None
        except RecursionError:
            raise ValueError(f"{place}: not readable as JSON (brackets too deep)") from None
        text = _text(values, "context", place)
        context = context if context == text else text  # one object for questions that follow one another
        yield _Record(values, context, place, str(number))


def _split(blocks: Iterable[str]) -> Iterator[str]:
    """Lines of a stream of blocks; not `splitlines`, which also breaks at U+2028 and more."""
    held: list[str] = []
    for block in blocks:
        first, *others = block.split("\n")
        held.append(first)
        for line in others:
            yield "".join(held)
            held = [line]
    yield "".join(held)


# --- values with their types


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{place}: a JSON object expected, {_shown(value)} found")
    return value


def _member(value: Any, key: str, kind: type | tuple[type, ...], place: str) -> Any:
    members = _object(value, place)
    if key not in members:
        raise ValueError(f'{place}: "{key}" is missing; found are {_listed(list(members))}')
    if not isinstance(members[key], kind):
        expected = "text" if kind is str else "a list"
        raise ValueError(f'{place}: "{key}" should be {expected}, and is {_shown(members[key])}')
    return members[key]


def _text(value: Any, key: str, place: str) -> str:
    text: str = _member(value, key, str, place)
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair, which no encoding of Unicode can hold
        half = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(f'{place}: {half} in "{key}" is half a surrogate pair; mend the file') from None
    return text


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _listed(names: Sequence[str]) -> str:
    shown = "; ".join(names[:SHOWN]) or "none"
    return shown if len(names) <= SHOWN else f"{shown}; and {len(names) - SHOWN:,} more"
