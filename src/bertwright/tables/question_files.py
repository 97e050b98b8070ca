"""Questions on contexts: read from SQuAD's JSON (1.1 and 2.0) and its relatives, JSON lines, and Parquet of the hub.

JSON is a tree of data, paragraphs and qas, from any of its levels on, or a list of them. A line of .jsonl is such a
tree, too, usually a question: {"question": …, "context": …, "answers": [{"text": …, "start": …}]}. Answers may also be
texts, or an object of lists; `start` counts characters, is optional, and may be called `answer_start`. The list of
answers may be empty or null. An id may have another name, such as guid; without one, questions are numbered (in .jsonl,
by line). A .parquet has the columns question, context, answers and an id; a .csv, .tsv or line may have answer_text and
answer_start. Questions whose answers contradict their is_impossible are left out. Other trees are in the table of
dialects.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import PurePath
from typing import Any, NamedTuple

from bertwright.base.messages import count_of
from bertwright.tables.dialects import Dialect, recognize
from bertwright.tables.json_documents import as_object, make_decoder, member, quote, text_member
from bertwright.tables.qa_example import GoldAnswer, QaExample, list_first
from bertwright.tables.row_formats import LIST_FORMATS
from bertwright.tables.schema import TableSchema
from bertwright.tables.tables import column_names, read_rows
from bertwright.text.decoding import ReadStats, TextCodec, decode_blocks, read_text
from bertwright.text.lines import split_lines
from bertwright.text.sources import STDIN, InputFile, expand_files, format_of, is_remote, split_member

# A member of SQuAD's tree that occurs twice is an error, as a column of other files is.
DECODER = make_decoder(
    ("data", "title", "paragraphs", "context", "qas", "id", "question", "answers", "text", "start", "answer_start",
     "is_impossible")
)  # fmt: skip
TREE = {"data": "article", "paragraphs": "paragraph", "qas": "question"}  # members of the tree, and their items
BELOW = {"article": "paragraphs", "paragraph": "qas", "question": "question"}  # members of the items
ANSWER_NAMES = ("answers", "answer", "answer_text")
START_NAMES = ("answer_start", "start")
QUESTION_FORMATS = (".csv", ".tsv", *LIST_FORMATS)
TRUTH = {"true": True, "1": True, "false": False, "0": False, "": False}
ID_NAME = re.compile(r"_?id|(gu|uu|u|q|qa|qas|query|question|example)_?id|idx|number", re.IGNORECASE)


@dataclass(frozen=True)
class QuestionFormat:
    """The form of a file with questions."""

    encoding: str = "utf-8"
    suffix: str | None = None
    """The format, such as json, whatever the file's suffix."""
    dialect: str | None = None
    """Name of the layout; None: recognized."""


def read_questions(path: str, labeled: bool = True, form: QuestionFormat = QuestionFormat()) -> Iterator[QaExample]:
    """Read the questions of a file, folder or glob, in order; without `labeled`, answers are ignored.

    Raises ValueError with file, line or article and question for invalid JSON or another structure, and, if `labeled`,
    for a question without a list of answers and for an empty question or context. To predict, both may be empty, but
    ids must differ.
    """
    seen: set[str] = set()
    repeated: list[str] = []
    contradictory: list[str] = []
    for record in _records_of_all(path, labeled, form):
        example = _example(record, labeled)
        if labeled and _contradicts(example, record.values):
            contradictory.append(example.location)
            continue
        if example.id in seen:
            repeated.append(example.location)
            if not labeled:
                raise ValueError(
                    f'{record.location}: the id "{example.id}" belongs to an earlier question, too; ids must differ'
                )
        seen.add(example.id)
        yield example
    if contradictory:
        questions = count_of(len(contradictory), "question", "questions")
        left_out = f"{questions} left out, whose answers contradict their 'is_impossible'"
        warnings.warn(f"{path}: {left_out} ({list_first(contradictory)})", stacklevel=1)
    if not seen:
        raise ValueError(
            f"{path}: no questions{' without contradictions' * bool(contradictory)}; is it the right file?"
        )
    if repeated:
        warnings.warn(
            f"{path}: {count_of(len(repeated), 'question has', 'questions have')} the id of another one "
            f"({repeated[0]}); used for training and scoring, but predictions need different ids",
            stacklevel=1,
        )


def has_paragraphs(file: InputFile, encoding: str = "utf-8") -> bool:
    """Return whether a file begins as SQuAD's JSON does."""
    if file.format != ".json":
        return False
    start = next(decode_blocks(file, TextCodec(encoding, "replace"), ReadStats()), "")
    return '"paragraphs"' in start and '"qas"' in start


def read_paragraphs(path: str, encoding: str = "utf-8") -> Iterator[str]:
    """Yield the distinct paragraphs of a file in SQuAD's JSON, whatever is asked of them."""
    seen = set[str]()
    for root in _whole(path, encoding):
        for place, article in enumerate(member(root.value, "data", list, root.location), 1):
            location = f"{root.location}, article {place}"
            for paragraph in member(as_object(article, location), "paragraphs", list, location):
                text = text_member(as_object(paragraph, location), "context", location)
                if text.strip() and text not in seen:
                    seen.add(text)
                    yield text


class _Record(NamedTuple):
    """A question as in the file, with its context."""

    values: dict[str, Any]
    context: str
    location: str
    number: str
    """Number in the file, which is the id of a question without one."""


def _example(record: _Record, labeled: bool) -> QaExample:
    values, context, location, number = record
    name = _id_name(values)
    identity = _id(values, name, location) if name else number
    example = QaExample(identity, text_member(values, "question", location), context, location=location)
    if not labeled:
        return example
    for what, text in (("question", example.question), ("context", context)):
        if not text.strip():
            raise ValueError(f"{location}: the {what} is empty; fix it, or remove the question")
    return _with_answers(example, values)


def _contradicts(example: QaExample, values: dict[str, Any]) -> bool:
    """Return whether the file states that a question with answers has none, or the reverse."""
    is_stated = values.get("is_impossible") not in (None, "")
    return is_stated and example.is_impossible == bool(example.answers)


def _with_answers(example: QaExample, values: dict[str, Any]) -> QaExample:
    location = example.location
    is_impossible = _truth(values.get("is_impossible"), location)
    key = next((name for name in ANSWER_NAMES if name in values), ANSWER_NAMES[0])
    given = list[Any]()
    if values.get(key, None if is_impossible else "") is not None:
        given = _answer_list(member(values, key, (list, dict, str), location), location)
    start = next((values[name] for name in START_NAMES if name in values), None)
    if isinstance(values.get(key), str) and key != ANSWER_NAMES[0]:  # as in a table, whose cell may be empty
        given = [{"text": values[key], "start": start}] if values[key] else []
    if is_impossible and all(isinstance(answer, dict) and answer.get("text") == "" for answer in given):
        given = []
    answers = tuple(_gold(answer, example.context, location) for answer in given)
    return replace(example, answers=answers, is_impossible=is_impossible)


def _truth(value: Any, location: str) -> bool:
    """Return whether a question is impossible; a table has words or numbers, and nothing means that it is possible."""
    truth = TRUTH.get("" if value is None else str(value).strip().lower())
    if truth is None:
        raise ValueError(f'{location}: "is_impossible": expected true or false, got {quote(value)}')
    return truth


def _answer_list(given: Any, location: str) -> list[Any]:
    """Return answers as a list of objects; they may also be texts, a single one, or, on the hub, an object of lists."""
    if isinstance(given, list | str):
        listed = given if isinstance(given, list) else [given]
        return [{"text": answer} if isinstance(answer, str) else answer for answer in listed]
    if isinstance(given.get("text"), str):
        return [given]
    texts = member(given, "text", list, location)
    starts = member(given, "answer_start", list, location)
    if len(texts) != len(starts):
        raise ValueError(
            f'{location}: {len(texts)} in "text" but {len(starts)} in "answer_start"; each answer needs both'
        )
    return [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]


def _gold(answer: Any, context: str, location: str) -> GoldAnswer:
    text = text_member(answer, "text", f"{location}, answers")
    if not text.strip():
        raise ValueError(f'{location}: an answer is empty; a question without answer has "answers": []')
    key = "answer_start" if "answer_start" in answer else "start"
    start = _as_index(answer.get(key), f'{location}, answers: "{key}"')
    # Case may differ: the authors of TriviaQA search their lower-cased answers in lower-cased contexts.
    if start is not None and start >= 0 and context[start : start + len(text)].lower() == text.lower():
        return GoldAnswer(text, start)
    found = context.find(text)
    if found < 0 or context.find(text, found + 1) >= 0:
        return GoldAnswer(text, None)
    return GoldAnswer(text, found, moved=start is not None)


def _as_index(value: Any, location: str) -> int | None:
    """Return a start that may be written as text or with a decimal point.

    >>> _as_index("26", ""), _as_index(26.0, ""), _as_index("", ""), _as_index(float("nan"), "")
    (26, 26, None, None)
    """
    if value in (None, "") or value != value:  # NaN, which pandas writes for a missing value
        return None
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not number.is_integer():
        raise ValueError(f"{location}: expected a whole number, got {quote(value)}")
    return int(value) if isinstance(value, int) else int(number)


# Files to records


class _Root(NamedTuple):
    """An object of a file with questions below it: the whole of a .json file, or a line."""

    value: Any
    location: str
    missing: str
    """The member that an error names if the object has no questions."""
    number: int | None = None
    """Number of the line, which numbers its question; None: questions are counted."""


def _records_of_all(path: str, labeled: bool, form: QuestionFormat) -> Iterator[_Record]:
    """Yield the questions of all files of a path; those without an id are numbered in each file."""
    files = [path] if path == STDIN or is_remote(path) else [*expand_files(path)]
    for file in files:
        before = f"{PurePath(file).name}:" if len(files) > 1 else ""
        for record in _records(file, labeled, form):
            yield record._replace(number=before + record.number) if before else record


def _records(path: str, labeled: bool, form: QuestionFormat) -> Iterator[_Record]:
    suffix = format_of(path, form.suffix)
    if suffix not in QUESTION_FORMATS:
        raise ValueError(f"{path}: expected {' or '.join(sorted(QUESTION_FORMATS))}; or name the --format")
    if suffix not in (".json", ".jsonl"):
        yield from _rows(path, labeled, form)
        return
    roots = _whole(path, form.encoding) if suffix == ".json" else _lines(path, form.encoding)
    first = list(islice(roots, 1))
    dialect = recognize("questions", [*_first_objects(first)], path, form.dialect)
    left_out, context, count = list[str](), "", 0
    for root in chain(first, roots):
        for record in _walk(root, dialect, left_out):
            count += 1
            context = context if context == record.context else record.context  # questions share one context
            yield record._replace(context=context, number=str(root.number or count))
    if left_out:
        questions = count_of(len(left_out), "question", "questions")
        text = f"{questions} left out, on which its annotators did not agree ({list_first(left_out)})"
        warnings.warn(f"{path}: {text}", stacklevel=1)


def _whole(path: str, encoding: str) -> Iterator[_Root]:
    """Yield the root of a .json file; one object per line is read as .jsonl."""
    text = "".join(read_text(path, encoding))
    try:
        root = _parse_json(text, path)
    except ValueError:
        first, _, rest = text.strip().partition("\n")
        if not rest or not first.endswith("}") or not rest.startswith("{"):
            raise
        yield from _lines(path, encoding)
        return
    if split := split_member(path)[1]:
        parts = root.get("data") if isinstance(root, dict) and split not in root else None
        of_split = [part for part in parts or [] if isinstance(part, dict) and part.get("type") == split]  # NewsQA
        root = of_split or member(root, split, (list, dict), path)
    yield _Root(root if isinstance(root, dict) else {"data": root}, path, "data")


def _lines(path: str, encoding: str) -> Iterator[_Root]:
    for number, line in split_lines(path, read_text(path, encoding)):
        if line and not line.isspace():
            location = f"{path}, line {number}"
            values = _parse_json(line, location)
            if not isinstance(values, dict) or values.keys() != {"header"}:  # the first line of MRQA's files
                yield _Root(values, location, "context", number)


def _first_objects(roots: Sequence[_Root]) -> Iterator[dict[str, Any]]:
    node = roots[0].value if roots else None
    while isinstance(node, dict):
        yield node
        below: list[Any] = next((node[key] for key in TREE if isinstance(node.get(key), list)), [])
        node = below[0] if below else None


def _walk(root: _Root, dialect: Dialect | None, left_out: list[str], context: str | None = None) -> Iterator[_Record]:
    """Yield the questions below an object of the tree, or the object itself if it is a question."""
    location = root.location
    members = as_object(root.value, location)
    if dialect:
        members = dialect.rows(members, location, left_out)
    _check_kind(members, location)
    if "context" in members:
        context = text_member(members, "context", location)
    key = next((key for key in TREE if key in members), None)
    if key is None and context is not None:
        yield _Record(members, context, location, "")
        return
    if key is None or (key == "qas" and context is None):
        key = "context" if key or "question" in members else root.missing
    for number, item in enumerate(member(members, key, list, location), 1):
        level, name = TREE[key], f"{number}"
        if isinstance(item, dict):
            level = next((above for above, below in BELOW.items() if below in item), level)
            if level == "question" and (id_name := _id_name(item)):
                name = _id(item, id_name, f"{location}, question {number}")
                location = location.partition(", paragraph ")[0]
            elif level == "article" and isinstance(title := item.get("title"), str):
                name += f" ({' '.join(title.split())})"
        yield from _walk(_Root(item, f"{location}, {level} {name}", BELOW[level]), dialect, left_out, context)


def _check_kind(members: dict[str, Any], location: str) -> None:
    """Raise ValueError for an object of a data set whose answers are no spans of one text."""
    reason = ""
    if isinstance(members.get("story"), str) and isinstance(members.get("questions"), list):
        reason = "CoQA's questions follow from the dialogue before, and its answers are free text"
    if isinstance(members.get("context"), list) and "supporting_facts" in members:
        reason = "HotpotQA's contexts are lists of paragraphs, and some answers are yes or no"
    if reason:
        raise ValueError(f"{location}: {reason}; expected answers that are spans of a context, as in SQuAD")


def _rows(path: str, labeled: bool, form: QuestionFormat) -> Iterator[_Record]:
    """Yield the questions of rows with columns, as in SQuAD's Parquet of the hub, or a table of answers."""
    columns = TableSchema(("question", "context"), encoding=form.encoding, suffix=form.suffix, allow_nulls=True)
    names = column_names(path, columns)
    fields = [*filter(ID_NAME.fullmatch, names)][:1]
    if labeled:
        answers = next((name for name in ANSWER_NAMES if name in names), ANSWER_NAMES[0])
        fields += [answers, *(name for name in (*START_NAMES, "is_impossible") if name in names)]
    columns, context = replace(columns, values=tuple(fields)), ""
    for number, (location, row) in enumerate(read_rows(path, columns), 1):
        values = dict(zip(columns.names, row, strict=True))
        text = text_member(values, "context", location)
        context = context if context == text else text
        yield _Record(values, context, location, str(number))


def _id_name(values: dict[str, Any]) -> str | None:
    """Return the name of the member that holds the id of a question: "id", or else the first one like it."""
    names = [name for name, value in values.items() if ID_NAME.fullmatch(name) and value is not None]
    return "id" if "id" in names else next(iter(names), None)


def _parse_json(text: str, location: str) -> Any:
    try:
        return DECODER.decode(text)
    except json.JSONDecodeError as error:
        line = f", line {error.lineno}" if error.lineno > 1 else ""
        raise ValueError(f"{location}{line}: not valid JSON ({error.msg} at character {error.colno})") from None
    except (ValueError, RecursionError) as error:  # a number of too many digits, brackets too deep
        raise ValueError(f"{location}: not readable as JSON ({error})") from None


def _id(values: Any, key: str, location: str) -> str:
    name = member(values, key, (str, int), location)
    return text_member(values, key, location) if isinstance(name, str) else str(name)
