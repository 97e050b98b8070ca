"""Questions on contexts: read from SQuAD's JSON (1.1 and 2.0), from JSON lines, and from SQuAD's Parquet of the hub.

A line of .jsonl is {"question": …, "context": …, "answers": [{"text": …, "start": …}]}, optionally with "id" (default:
the line number). `start` counts characters; it is optional, and may be called `answer_start`, as in SQuAD. The list of
answers may be empty. Both formats may be compressed (.gz, .zst, .bz2). A .parquet has the columns id, question, context
and answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bertwright.io.decoding import read_text
from bertwright.io.json_rows import make_decoder
from bertwright.io.lines import split_lines
from bertwright.io.schema import TableSchema
from bertwright.io.sources import split_suffixes
from bertwright.io.tables import read_rows

# A member of SQuAD's tree that occurs twice is an error, as a column of other files is.
DECODER = make_decoder(
    ("data", "title", "paragraphs", "context", "qas", "id", "question", "answers", "text", "start", "answer_start",
     "is_impossible")
)  # fmt: skip
SHOWN = 5  # questions that a warning names; report.json lists all


class GoldAnswer(NamedTuple):
    """A gold answer."""

    text: str
    start: int | None
    """Index of its first character in the context; None if it is not at the given start, nor exactly once elsewhere."""
    moved: bool = False
    """True if the file gives another start, at which the text is not."""


@dataclass(frozen=True)
class QaExample:
    """A question on a context. Questions on the same context share one `str`."""

    id: str
    question: str
    context: str
    answers: tuple[GoldAnswer, ...] = ()
    """All gold answers; empty if there are none, or if they are not known."""
    is_impossible: bool = False
    """Whether the file says that the context has no answer (SQuAD 2.0)."""
    location: str = "question"
    """File and question, for messages."""

    @property
    def target(self) -> GoldAnswer | None:
        """The answer to learn: the first that occurs in the context."""
        return next((answer for answer in self.answers if answer.start is not None), None)

    @property
    def learnable(self) -> bool:
        """True if the model can be trained on this question."""
        return self.is_impossible or self.target is not None


class AnswerAlignment(NamedTuple):
    """Locations of the questions whose answers do not occur at the start given in the file, or that have none."""

    moved: tuple[str, ...]
    """The answer occurs exactly once elsewhere in the context, and is learned there."""
    left_out: tuple[str, ...]
    """No answer occurs in the context: scored as usual, but not trained on."""
    unanswered: tuple[str, ...]
    """The file has no answer: any span counts as wrong, and the question is not trained on."""

    def warnings(self) -> list[str]:
        """Format a sentence for each of the lists that is not empty."""
        described = (
            (self.moved, "questions whose answer is not at the given start, but occurs once elsewhere: learned there"),
            (self.left_out, "questions whose answer is not at the given start, nor once elsewhere: not trained on"),
            (
                self.unanswered,
                "questions without an answer in the file: not trained on, and any answer to them is scored as wrong; "
                "to learn that they have none, use --allow-no-answer True",
            ),
        )
        return [
            f"{len(locations):,} {what}{'; see report.json' if len(locations) > SHOWN else ''} ({_first(locations)})"
            for locations, what in described
            if locations
        ]


def align_answers(examples: Iterable[QaExample]) -> AnswerAlignment:
    """List the questions whose answers do not occur at the start given in the file, or that have none."""
    moved, left_out, unanswered = [], [], []
    for example in examples:
        if not example.answers and not example.is_impossible:
            unanswered.append(example.location)
        elif not example.learnable:
            left_out.append(example.location)
        elif any(answer.moved for answer in example.answers):
            moved.append(example.location)
    return AnswerAlignment(tuple(moved), tuple(left_out), tuple(unanswered))


def read_questions(path: str, labeled: bool = True, encoding: str = "utf-8") -> Iterator[QaExample]:
    """Read the questions of one file, in order; without `labeled`, answers are ignored.

    Raises ValueError with file, line or article and question for invalid JSON or another structure, for a repeated id
    and, if `labeled`, for a question without a list of answers and for an empty question or context. To predict, both
    may be empty.
    """
    seen: set[str] = set()
    for record in _records(path, labeled, encoding):
        example = _example(record, labeled)
        if example.id in seen:
            raise ValueError(
                f'{record.location}: the id "{example.id}" is that of an earlier question; ids must differ'
            )
        seen.add(example.id)
        yield example
    if not seen:
        raise ValueError(f"{path}: no questions; is it the right file?")


class _Record(NamedTuple):
    """A question as in the file, with its context."""

    values: dict[str, Any]
    context: str
    location: str


def _example(record: _Record, labeled: bool) -> QaExample:
    values, context, location = record
    example = QaExample(_id(values, location), _text(values, "question", location), context, location=location)
    if not labeled:
        return example
    for what, text in (("question", example.question), ("context", context)):
        if not text.strip():
            raise ValueError(f"{location}: the {what} is empty; fix it, or remove the question")
    return _with_answers(example, values)


def _with_answers(example: QaExample, values: dict[str, Any]) -> QaExample:
    location = example.location
    given = _member(values, "answers", (list, dict), location)
    answers = tuple(_gold(answer, example.context, location) for answer in _answer_list(given, location))
    is_impossible = _member({"is_impossible": False} | values, "is_impossible", bool, location)
    if "is_impossible" in values and is_impossible == bool(answers):
        raise ValueError(
            f'{location}: "is_impossible" is {str(is_impossible).lower()} and there are {len(answers)} answers'
        )
    return replace(example, answers=answers, is_impossible=is_impossible)


def _answer_list(given: Any, location: str) -> list[Any]:
    """Return answers as a list of objects; the hub's SQuAD has one object of lists."""
    if isinstance(given, list):
        return given
    texts = _member(given, "text", list, location)
    starts = _member(given, "answer_start", list, location)
    if len(texts) != len(starts):
        raise ValueError(
            f'{location}: {len(texts)} in "text" but {len(starts)} in "answer_start"; each answer needs both'
        )
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _gold(answer: Any, context: str, location: str) -> GoldAnswer:
    text = _text(answer, "text", f"{location}, answers")
    if not text.strip():
        raise ValueError(f'{location}: an answer is empty; a question without answer has "answers": []')
    key = "answer_start" if "answer_start" in answer else "start"
    start = _member({"start": None} | answer, key, (int, type(None)), f"{location}, answers")
    # Case may differ: the authors of TriviaQA search their lower-cased answers in lower-cased contexts.
    if start is not None and start >= 0 and context[start : start + len(text)].lower() == text.lower():
        return GoldAnswer(text, start)
    found = context.find(text)
    if found < 0 or context.find(text, found + 1) >= 0:
        return GoldAnswer(text, None)
    return GoldAnswer(text, found, moved=start is not None)


# Files to records


def _records(path: str, labeled: bool, encoding: str) -> Iterator[_Record]:
    suffix, _ = split_suffixes(path)
    if suffix == ".parquet":
        return _rows(path, labeled)
    if suffix not in (".json", ".jsonl"):
        raise ValueError(f"{path}: expected .json (SQuAD), .jsonl or .parquet")
    return _lines(path, encoding) if suffix == ".jsonl" else _articles(path, encoding)


def _articles(path: str, encoding: str) -> Iterator[_Record]:
    """Yield the questions of SQuAD's tree: data, paragraphs, context and qas."""
    root = _parse_json("".join(read_text(path, encoding)), path)
    for number, article in enumerate(_member(root, "data", list, path), 1):
        location = f"{path}, article {number}"
        if isinstance(article, dict) and isinstance(title := article.get("title"), str):
            location += f" ({' '.join(title.split())})"
        for index, paragraph in enumerate(_member(article, "paragraphs", list, location), 1):
            inside = f"{location}, paragraph {index}"
            context = _text(paragraph, "context", inside)
            for count, values in enumerate(_member(paragraph, "qas", list, inside), 1):
                yield _Record(values, context, f"{location}, question {_id(values, f'{inside}, question {count}')}")


def _lines(path: str, encoding: str) -> Iterator[_Record]:
    context = ""
    for number, line in split_lines(path, read_text(path, encoding)):
        if not line or line.isspace():
            continue
        location = f"{path}, line {number}"
        values = _parse_json(line, location)
        text = _text(values, "context", location)
        context = context if context == text else text  # consecutive questions share one object
        yield _Record({"id": str(number)} | values, context, location)


def _rows(path: str, labeled: bool) -> Iterator[_Record]:
    """Yield the questions of SQuAD's Parquet of the hub."""
    columns = TableSchema(("id", "question", "context"), ("answers",) if labeled else ())
    context = ""
    for location, row in read_rows(path, columns):
        values = dict(zip(columns.names, row, strict=True))
        context = context if context == values["context"] else values["context"]
        yield _Record(values, context, location)


def _parse_json(text: str, location: str) -> Any:
    try:
        return DECODER.decode(text)
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if error.lineno > 1 else ""
        raise ValueError(f"{location}{line}: not valid JSON ({error.msg} at character {error.colno})") from None
    except (ValueError, RecursionError) as error:  # a number of too many digits, brackets too deep
        raise ValueError(f"{location}: not readable as JSON ({error})") from None


# Values with their types


def _object(value: Any, location: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{location}: expected a JSON object, got {_quote(value)}")
    return value


def _member(value: Any, key: str, kind: type | tuple[type, ...], location: str) -> Any:
    """Return a member of an object. Raises ValueError if it is missing or of another type; a bool is no number."""
    members = _object(value, location)
    if key not in members:
        raise ValueError(f'{location}: "{key}" is missing; found are {", ".join(members) or "none"}')
    found = members[key]
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise ValueError(f'{location}: "{key}": expected {_EXPECTED[kind]}, got {_quote(found)}')
    return found


_EXPECTED = {
    str: "a text",
    bool: "true or false",
    list: "a list",
    (list, dict): "a list",
    (str, int): "a text or a whole number",
    (int, type(None)): "a whole number",
}


def _id(values: Any, location: str) -> str:
    name = _member(values, "id", (str, int), location)
    return _text(values, "id", location) if isinstance(name, str) else str(name)


def _text(value: Any, key: str, location: str) -> str:
    text: str = _member(value, key, str, location)
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a surrogate pair, which UTF-8 cannot encode
        half = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(f'{location}: {half} in "{key}" is half a surrogate pair; fix the file') from None
    return text


def _quote(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _first(locations: Sequence[str]) -> str:
    more = len(locations) - SHOWN
    return "; ".join([*locations[:SHOWN], *([f"and {more:,} more"] if more > 0 else [])])
