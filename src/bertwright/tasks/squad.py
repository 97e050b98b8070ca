"""Questions with answers in a text: SQuAD's JSON, versions 1.1 and 2.0, JSON lines for the user's own, and Parquet.

A line of .jsonl is {"question": …, "context": …, "answers": [{"text": …, "start": …}]}, with "id" if wanted (else the
line's number is it). `start` counts characters; it may be left out, and may be called `answer_start`, as in SQuAD. No
answers mean that the question has none. Both suffixes may be followed by .gz, .zst or .bz2. A .parquet is SQuAD as the
hub has it, with the columns id, question, context and answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bertwright.io.decoding import read_text
from bertwright.io.sources import suffixes
from bertwright.io.tables import TableSchema, lines, read_rows

SHOWN = 5  # questions that a note names; the report of a run holds all of them


class GoldAnswer(NamedTuple):
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
    answers: tuple[GoldAnswer, ...] = ()
    """All right answers; none where there are none, or where they are not known."""
    is_impossible: bool = False
    """Is it known that the context has no answer (SQuAD 2.0)?"""
    location: str = "question"
    """Where it was read, for messages."""

    @property
    def target(self) -> GoldAnswer | None:
        """The answer to learn: the first that has a place in the context."""
        return next((answer for answer in self.answers if answer.start is not None), None)

    @property
    def learnable(self) -> bool:
        """Is it known what the model should point at?"""
        return self.is_impossible or self.target is not None


class Placement(NamedTuple):
    """What became of answers that do not stand where the file says, each by the place of its question."""

    moved: tuple[str, ...]
    """The answer stands in the context once, elsewhere: it was moved there."""
    left_out: tuple[str, ...]
    """No answer has a place in the context: scored as usual, but left out of training."""

    def notes(self) -> list[str]:
        """One line for each of the two that there is to tell."""
        told = (
            (self.moved, "questions whose answer does not stand where the file says, but once elsewhere: moved there"),
            (self.left_out, "questions whose answer is not where the file says, nor once elsewhere: not learned from"),
        )
        return [f"{len(places):,} {what}{_all_named(places)} ({_listed(places)})" for places, what in told if places]


def placement(examples: Iterable[QaExample]) -> Placement:
    """What became of the answers of these examples that do not stand where the file says."""
    moved, left_out = [], []
    for example in examples:
        if example.answers and example.target is None:
            left_out.append(example.location)
        elif any(answer.moved for answer in example.answers):
            moved.append(example.location)
    return Placement(tuple(moved), tuple(left_out))


def read_questions(path: str, labelled: bool = True) -> Iterator[QaExample]:
    """The questions of one file, in order. Without `labelled`, answers are not looked at.

    Raises ValueError with file, line or article and question, what is wrong and what is expected there: for what is
    not JSON or not of this form, for an id that two questions have, and, if `labelled`, for a question that does not
    say what its answers are, for an empty question or context (to predict from, both may be empty), and where there is
    no such file.
    """
    seen: set[str] = set()
    for record in _records(path, labelled):
        example = _example(record, labelled)
        if example.id in seen:
            raise ValueError(f'{record.place}: the id "{example.id}" is that of an earlier question; ids must differ')
        seen.add(example.id)
        yield example
    if not seen:
        raise ValueError(f"{path}: no questions")


class _Record(NamedTuple):
    """A question as it stands in the file, with the text that it is about."""

    values: dict[str, Any]
    context: str
    place: str


def _example(record: _Record, labelled: bool) -> QaExample:
    values, context, place = record
    example = QaExample(_id(values, place), _text(values, "question", place), context, location=place)
    if not labelled:
        return example
    for what, text in (("question", example.question), ("context", context)):
        if not text.strip():
            raise ValueError(f"{place}: the {what} is empty; mend it, or take the question out")
    return _with_answers(example, values)


def _with_answers(example: QaExample, values: dict[str, Any]) -> QaExample:
    place = example.location
    given = _member(values, "answers", (list, dict), place)
    answers = tuple(_gold(answer, example.context, place) for answer in _answer_list(given, place))
    is_impossible = _member({"is_impossible": not answers} | values, "is_impossible", bool, place)
    if is_impossible == bool(answers):
        raise ValueError(
            f'{place}: "is_impossible" is {str(is_impossible).lower()} and there are {len(answers)} answers'
        )
    return replace(example, answers=answers, is_impossible=is_impossible)


def _answer_list(given: Any, place: str) -> list[Any]:
    """Answers as a list; the hub's form of SQuAD has one object of lists instead of a list of objects."""
    if isinstance(given, list):
        return given
    texts = _member(given, "text", list, place)
    starts = _member(given, "answer_start", list, place)
    if len(texts) != len(starts):
        raise ValueError(f'{place}: {len(texts)} in "text" but {len(starts)} in "answer_start"; each answer needs both')
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _gold(answer: Any, context: str, place: str) -> GoldAnswer:
    text = _text(answer, "text", f"{place}, answers")
    if not text.strip():
        raise ValueError(f'{place}: an answer is empty; a question without answer has "answers": []')
    key = "answer_start" if "answer_start" in answer else "start"
    start = _member({"start": None} | answer, key, (int, type(None)), f"{place}, answers")
    if start is not None and start >= 0 and context.startswith(text, start):
        return GoldAnswer(text, start)
    found = context.find(text)
    if found < 0 or context.find(text, found + 1) >= 0:
        return GoldAnswer(text, None)
    return GoldAnswer(text, found, moved=start is not None)


# --- files → records


def _records(path: str, labelled: bool) -> Iterator[_Record]:
    suffix, _ = suffixes(path)
    if suffix == ".parquet":
        return _rows(path, labelled)
    if suffix not in (".json", ".jsonl"):
        raise ValueError(f"{path}: questions are read from .json (SQuAD), .jsonl or .parquet; this is none of them")
    return _lines(path) if suffix == ".jsonl" else _articles(path)


def _articles(path: str) -> Iterator[_Record]:
    """SQuAD's tree: data → paragraphs → context, qas."""
    root = _parsed("".join(read_text(path)), path)
    for number, article in enumerate(_member(root, "data", list, path), 1):
        place = f"{path}, article {number}"
        if isinstance(article, dict) and isinstance(title := article.get("title"), str):
            place += f" ({' '.join(title.split())})"
        for part, paragraph in enumerate(_member(article, "paragraphs", list, place), 1):
            inside = f"{place}, paragraph {part}"
            context = _text(paragraph, "context", inside)
            for count, values in enumerate(_member(paragraph, "qas", list, inside), 1):
                yield _Record(values, context, f"{place}, question {_id(values, f'{inside}, question {count}')}")


def _lines(path: str) -> Iterator[_Record]:
    context = ""
    for number, line in lines(path, read_text(path)):
        if not line or line.isspace():
            continue
        place = f"{path}, line {number}"
        values = _parsed(line, place)
        text = _text(values, "context", place)
        context = context if context == text else text  # one object for questions that follow one another
        yield _Record({"id": str(number)} | values, context, place)


def _rows(path: str, labelled: bool) -> Iterator[_Record]:
    """SQuAD as the hub has it."""
    columns = TableSchema(("id", "question", "context"), ("answers",) if labelled else ())
    context = ""
    for place, row in read_rows(path, columns):
        values = dict(zip(columns.names, row, strict=True))
        context = context if context == values["context"] else values["context"]
        yield _Record(values, context, place)


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if error.lineno > 1 else ""
        raise ValueError(f"{place}{line}: not valid JSON ({error.msg} at character {error.colno})") from None
    except (ValueError, RecursionError) as error:  # a number of too many digits, brackets too deep
        raise ValueError(f"{place}: not readable as JSON ({error})") from None


# --- values with their types


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{place}: a JSON object expected, {_shown(value)} found")
    return value


def _member(value: Any, key: str, kind: type | tuple[type, ...], place: str) -> Any:
    """What an object holds under a name, checked to be of this kind; true and false are no numbers."""
    members = _object(value, place)
    if key not in members:
        raise ValueError(f'{place}: "{key}" is missing; found are {", ".join(members) or "none"}')
    found = members[key]
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise ValueError(f'{place}: "{key}" should be {_EXPECTED[kind]}, and is {_shown(found)}')
    return found


_EXPECTED = {
    str: "a text",
    bool: "true or false",
    list: "a list",
    (list, dict): "a list",
    (str, int): "a text or a whole number",
    (int, type(None)): "a whole number",
}


def _id(values: Any, place: str) -> str:
    name = _member(values, "id", (str, int), place)
    return _text(values, "id", place) if isinstance(name, str) else str(name)


def _text(value: Any, key: str, place: str) -> str:
    text: str = _member(value, key, str, place)
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair, which no encoding of Unicode can hold
        half = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(f'{place}: {half} in "{key}" is half a surrogate pair; mend the file') from None
    return text


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _all_named(places: Sequence[str]) -> str:
    return "; report.json names all" if len(places) > SHOWN else ""


def _listed(places: Sequence[str]) -> str:
    more = len(places) - SHOWN
    return "; ".join([*places[:SHOWN], *([f"and {more:,} more"] if more > 0 else [])])
