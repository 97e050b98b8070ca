"""Tables of texts that belong together, for training and scoring text vectors: roles of columns, and rows by role.

A role is found by the name of a column. The order of the columns decides only if no name says anything: a wrong order
would train the reverse task. `columns` names every column that is read, and nothing is guessed then.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from bertwright.base.messages import count_of, shorten
from bertwright.base.settings import did_you_mean
from bertwright.tables.json_rows import describe_type
from bertwright.tables.question_files import QuestionFormat, has_paragraphs, read_questions
from bertwright.tables.row_formats import ROW_FORMATS, TABLE_FORMATS
from bertwright.tables.schema import TableSchema, list_names
from bertwright.tables.tables import column_names, format_label, parse_number, read_rows
from bertwright.text.decoding import read_texts
from bertwright.text.sources import InputFile, list_inputs

# Names by role, in lower case and without the characters between words. The first name of a role that a table has wins.
NAMES = {
    "anchor": (
        "anchor", "query", "question", "sentence1", "premise", "text1", "english", "question1", "sentencea", "texta",
        "source", "src", "string1", "#1string", "q", "queries", "querytext",
    ),
    "positive": (
        "positive", "pos", "answer", "document", "passage", "context", "sentence2", "hypothesis", "text2", "nonenglish",
        "question2", "sentenceb", "textb", "target", "tgt", "string2", "#2string", "a", "response", "positivepassages",
        "documenttext", "sentence", "text", "content",
    ),
    "score": ("score", "scores", "similarity", "similarityscore", "relatednessscore", "goldscore", "relatedness"),
    "label": ("label", "labels", "labels.label", "isduplicate", "quality", "goldlabel", "class", "category", "intent"),
    "positive_scores": ("posscores",),
    "negative_scores": ("negscores",),
}  # fmt: skip
NEGATIVE = re.compile(r"negatives?\d*|neg\d*")
ALONE = ("text", "sentence", "content", "document", "utterance", "review", "sentences", "texts")
"""Names of the only text of a row."""
ROLES = ("anchor", "positive", "negative", "score", "label", "positive_scores", "negative_scores")
NUMBERED_NEGATIVES = tuple(f"negative_{number}" for number in range(1, 33))  # of objects, which need not have all
PEEKED_ROWS = 100
WAY_OUT = "name the columns, as in --columns anchor=title positive=body"


@dataclass(frozen=True)
class TableOptions:
    """Columns and format of a table, as a user states them."""

    columns: tuple[str, ...] = ()
    """Roles and columns, as in anchor=title positive=body; empty: by their names."""
    header: bool = True
    quotes: bool | None = None
    encoding: str = "utf-8"
    format: str | None = None

    def schema(self, values: Sequence[str], optional: Sequence[str] = ()) -> TableSchema:
        return TableSchema(
            (), tuple(values), self.header, self.quotes, WAY_OUT, allow_nulls=True, encoding=self.encoding,
            suffix=self.format, optional=tuple(optional), dialect="plain",
        )  # fmt: skip


@dataclass(frozen=True)
class TextRoles:
    """The columns of a table by their role; a role may be missing, except the first."""

    anchor: str
    """The text, query or first sentence, or a list of texts that make a row each."""
    positive: str | None = None
    """The text, or list of texts, that belongs to it."""
    negatives: tuple[str, ...] = ()
    """Texts, or lists of texts, that do not belong to it."""
    score: str | None = None
    """How similar anchor and positive are."""
    label: str | None = None
    """The anchor's class or, of a pair, 1 if the two belong together and 0 if not."""
    positive_scores: str | None = None
    """A teacher's score of each positive, in a list."""
    negative_scores: str | None = None
    ignored: tuple[str, ...] = ()
    """Columns that are not read."""

    @property
    def named(self) -> dict[str, str]:
        """The columns that are read, by role; several negatives are numbered."""
        negatives = {f"negative_{number}": name for number, name in enumerate(self.negatives, 1)}
        if len(negatives) == 1:
            negatives = {"negative": self.negatives[0]}
        pairs = {"anchor": self.anchor, "positive": self.positive, **negatives, "score": self.score}
        pairs |= {"label": self.label, "positive_scores": self.positive_scores, "negative_scores": self.negative_scores}
        return {role: name for role, name in pairs.items() if name is not None}

    def describe(self) -> str:
        """Describe the roles for people: "anchor = question, positive = answer; not read: id"."""
        shown = [f"{role} = {name}" for role, name in self.named.items() if name not in NUMBERED_NEGATIVES[3:]]
        return ", ".join(shown) + (f"; not read: {list_names(self.ignored)}" if self.ignored else "")


class TextRow(NamedTuple):
    """Texts that belong together, and texts that do not."""

    anchor: str
    location: str
    """File and line, for messages."""
    positives: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    score: float | None = None
    """How similar anchor and positive are, on any scale."""
    label: str | None = None
    """The anchor's class."""
    positive_scores: tuple[float, ...] = ()
    """A teacher's score of each positive."""
    negative_scores: tuple[float, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.anchor, *self.positives, *self.negatives)

    def __str__(self) -> str:
        return " / ".join(shorten(text) for text in self.texts)


class TextTable(NamedTuple):
    """All rows of a path's files."""

    roles: TextRoles
    rows: list[TextRow]


def read_text_table(path: str, options: TableOptions = TableOptions()) -> TextTable:
    """Read all rows of a path: tables of any format, a .txt file with a text per line, or SQuAD's JSON.

    Of the latter, the questions that have an answer are anchors, and their paragraphs positives.
    A label of a pair must be 0 or 1 and becomes the row's score; so do other numbers, if one of them is no integer.
    Raises ValueError with file, line and the way out for roles that the names do not tell, for missing and empty texts
    and for scores that are no numbers.
    """
    files = list_inputs([path], formats=TABLE_FORMATS, suffix=options.format)
    if len(files) == 1 and not options.columns and _is_plain_text(files[0], options):
        lines = read_texts(files[0], options.encoding)
        return TextTable(
            TextRoles("text"), [TextRow(text, f"{files[0].path}, line {number}") for number, text in lines]
        )
    if not options.columns and all(has_paragraphs(file, options.encoding) for file in files):
        return TextTable(TextRoles("question", "paragraph"), _read_paragraphs(path, options))
    roles = find_roles(path, options)
    if not options.columns and (unread := _find_sentences(path, roles.ignored, options)):
        example = f"name the columns, as in --columns anchor={roles.anchor} positive={unread[0]}"
        warnings.warn(f"{path}: not read: the texts of {list_names(unread)}; to read them, {example}", stacklevel=1)
    optional: tuple[str, ...] = ()
    if not any(ROW_FORMATS[file.format].has_same_columns for file in files):
        if roles.positive is not None and roles.score is None and roles.label is None and not options.columns:
            roles = replace(roles, negatives=tuple(dict.fromkeys((*roles.negatives, *NUMBERED_NEGATIVES))))
        optional = (*roles.negatives, *filter(None, (roles.positive_scores, roles.negative_scores)))
    columns = list(dict.fromkeys(roles.named.values()))
    rows = [
        row
        for location, values in read_rows(path, options.schema(columns, optional))
        for row in _make_rows(roles, dict(zip(columns, values, strict=True)), location)
    ]
    if not any(row.negatives for row in rows):  # objects were asked for all of them
        roles = replace(roles, negatives=tuple([name for name in roles.negatives if name not in NUMBERED_NEGATIVES]))
    if roles.positive is not None and roles.label is not None:
        return TextTable(replace(roles, score=roles.label, label=None), _labels_to_scores(rows, roles))
    return TextTable(roles, rows)


def _read_paragraphs(path: str, options: TableOptions) -> list[TextRow]:
    """Return SQuAD's questions with their paragraphs; one without an answer has no paragraph that belongs to it."""
    form = QuestionFormat(options.encoding, options.format)
    examples = [*read_questions(path, form=form)]
    rows = [TextRow(one.question, one.location, (one.context,)) for one in examples if one.answers]
    if not rows:
        raise ValueError(
            f"{path}: no question has an answer, so that none belongs to its paragraph; is it the right file?"
        )
    if unanswered := len(examples) - len(rows):
        questions = count_of(unanswered, "question", "questions")
        warnings.warn(f"{path}: {questions} without an answer left out", stacklevel=1)
    return rows


def find_roles(path: str, options: TableOptions) -> TextRoles:
    """Find the role of each column of a path's files, from the names in the first row. Raises as `read_text_table`."""
    names = [name for name in column_names(path, options.schema(())) if name.strip()]
    if options.columns:
        return _chosen_roles(options.columns, names, path)
    if not names:
        raise ValueError(f"{path}: expected named columns, got rows that are lists; write objects instead")
    if not options.header:
        return _roles_in_order(path, names, options)
    roles = _roles_by_name(names)
    if roles is None:
        if {"query-id", "corpus-id"} <= {*names}:
            raise ValueError(f"{path}: judgements without texts; name their folder, or to train its qrels/SPLIT.tsv")
        _check_header(path, names)
        return _roles_in_order(path, names, options)
    if roles.positive is None and roles.negatives:
        raise ValueError(
            f"{path}: no positive for {roles.negatives[0]!r}; the columns are {list_names(names)}; {WAY_OUT}"
        )
    if roles.positive is None and roles.label is None:
        others = _text_columns(path, roles.ignored, options)
        if roles.score is not None or others:
            raise ValueError(
                f"{path}: {roles.anchor!r} is the anchor, but which of {list_names(others or names)} belongs to it? "
                f"{WAY_OUT}"
            )
    return roles


def _normalize(name: str) -> str:
    return re.sub(r"[\s_\-]", "", name).lower()


def _roles_by_name(names: Sequence[str]) -> TextRoles | None:
    """Return the roles that the names tell; None if they tell no text."""
    plain: dict[str, str] = {}
    for name in names:
        plain.setdefault(_normalize(name), name)
    found = {role: next((plain[name] for name in known if name in plain), None) for role, known in NAMES.items()}
    negatives = [name for name in names if NEGATIVE.fullmatch(_normalize(name))]
    if found["anchor"] is None:
        alone = next((plain[name] for name in ALONE if name in plain), None)
        if alone is None or found["positive"] not in (None, alone):
            return None
        found |= {"anchor": alone, "positive": None}
    read = {name for name in found.values() if name is not None} | set(negatives)
    ignored = tuple(name for name in names if name not in read)
    return TextRoles(**found, negatives=tuple(negatives), ignored=ignored)  # type: ignore[arg-type]


def _chosen_roles(columns: Sequence[str], names: Sequence[str], path: str) -> TextRoles:
    """Return the roles that a user states. Raises ValueError for unknown roles and columns, and for no anchor."""
    chosen: dict[str, list[str]] = {}
    for text in columns:
        role, sign, name = text.partition("=")
        kind = "negative" if NEGATIVE.fullmatch(_normalize(role)) else role
        if not sign or not name or kind not in ROLES:
            hint = did_you_mean(role, ROLES)
            raise ValueError(f"--columns {text}: expected ROLE=COLUMN, with a role of {', '.join(ROLES)}; {hint}")
        if names and name not in names:
            raise ValueError(f"{path}: --columns {text}: no column {name!r}; {did_you_mean(name, names)}")
        chosen.setdefault(kind, []).append(name)
    if twice := [role for role, given in chosen.items() if len(given) > 1 and role != "negative"]:
        raise ValueError(f"--columns {twice[0]}=…: given twice; name one column")
    if "anchor" not in chosen:
        raise ValueError(f"--columns {' '.join(columns)}: no anchor; {WAY_OUT}")
    named = [name for given in chosen.values() for name in given]
    if odd := [name for name, count in Counter(named).items() if count > 1]:
        raise ValueError(f"--columns: {odd[0]!r} has two roles; name a different column for each")
    single: dict[str, Any] = {role: given[0] for role, given in chosen.items() if role != "negative"}
    ignored = tuple(name for name in names if name not in named)
    return TextRoles(**single, negatives=tuple(chosen.get("negative", ())), ignored=ignored)


def _roles_in_order(path: str, names: Sequence[str], options: TableOptions) -> TextRoles:
    """Return roles by the order of the columns: anchor, positive, negatives, and a score if the last is a number."""
    texts = _text_columns(path, names, options)
    numbers = [name for name in names if name not in texts]
    if not texts:
        raise ValueError(f"{path}: no column of texts; the columns are {list_names(names)}; {WAY_OUT}")
    if len(numbers) > 1 or (numbers and numbers != [names[-1]]):
        raise ValueError(
            f"{path}: the names of the columns ({list_names(names)}) do not tell which are texts and which a score or "
            f"label; {WAY_OUT}"
        )
    anchor, positive, *negatives = (*texts, None, None)[: max(len(texts), 2)]
    score, label = (numbers[0], None) if numbers and positive else (None, numbers[0] if numbers else None)
    return TextRoles(str(anchor), positive, tuple(map(str, negatives)), score, label)


def _check_header(path: str, names: Sequence[str]) -> None:
    """Raise ValueError if the first line, whose names say nothing, looks like a row."""
    if odd := [name for name in names if parse_number(name) is not None or len(name.split()) > 4]:
        raise ValueError(
            f"{path}, line 1: {shorten(odd[0])!r} is no name of a column; if line 1 is a row, use --header False, else "
            f"{WAY_OUT}"
        )


def _text_columns(path: str, names: Sequence[str], options: TableOptions) -> list[str]:
    """Return the columns in which the first rows have texts that are not all numbers."""
    found = set[str]()
    for row in _peek(path, names, options):
        pairs = zip(names, row, strict=True)
        found |= {
            name for name, value in pairs if isinstance(value, str) and value.strip() and parse_number(value) is None
        }
    return [name for name in names if name in found]


def _find_sentences(path: str, names: Sequence[str], options: TableOptions) -> list[str]:
    """Return the columns that have texts of several words, or lists of them, in the first rows."""
    found = set[str]()
    for row in _peek(path, names, options):
        for name, value in zip(names, row, strict=True):
            texts = value if isinstance(value, list) else [value]
            if any(isinstance(text, str) and " " in text.strip() for text in texts):
                found.add(name)
    return [name for name in names if name in found]


def _peek(path: str, names: Sequence[str], options: TableOptions) -> Iterator[Sequence[Any]]:
    """Yield the values of some columns in the first rows, if there are any; an object may lack them."""
    rows = read_rows(path, options.schema(names, names)) if names else ()
    return (row for _, row in islice(rows, PEEKED_ROWS))


def _make_rows(roles: TextRoles, values: Mapping[str, Any], location: str) -> list[TextRow]:
    """Build a row for each anchor from the values of the columns. Raises ValueError for an unusable value."""
    anchors = _texts_in(values[roles.anchor], roles.anchor, location, required=True)
    positives: tuple[str, ...] = ()
    if roles.positive is not None:
        positives = _texts_in(values[roles.positive], roles.positive, location, required=True)
    negatives = [text for name in roles.negatives for text in _texts_in(values[name], name, location, required=False)]
    score = label = None
    if roles.score is not None:
        score = _number(values[roles.score], roles.score, location)
    if roles.label is not None:
        label = format_label(values[roles.label], roles.label, location)
    of_positives = _scores_in(values, roles.positive_scores, len(positives), location)
    of_negatives = _scores_in(values, roles.negative_scores, len(negatives), location)
    rest = (location, positives, tuple(negatives), score, label, of_positives, of_negatives)
    return [TextRow(anchor, *rest) for anchor in anchors]


def _texts_in(value: Any, name: str, location: str, required: bool) -> tuple[str, ...]:
    """Return the texts of a value: a text, or a list of texts; null and, unless `required`, blank ones are none."""
    items = value if isinstance(value, list | tuple) else [value]
    given = [item for item in items if item is not None]
    for text in given:
        if not isinstance(text, str):
            raise ValueError(f"{location}: expected a text in {name!r}, got {describe_type(text, name)}")
        if required and not text.strip():
            raise ValueError(f"{location}: the text in {name!r} is empty; fill it in, or delete the row")
    if required and not given:
        raise ValueError(f"{location}: no text in {name!r}; fill it in, or delete the row")
    return tuple([text for text in given if text.strip()])


def _number(value: Any, name: str, location: str) -> float:
    text = format_label(value, name, location)
    number = parse_number(text)
    if number is None:
        raise ValueError(f"{location}: expected a finite number in {name!r}, got {text!r}")
    return number


def _scores_in(values: Mapping[str, Any], name: str | None, count: int, location: str) -> tuple[float, ...]:
    """Return the teacher's scores of `count` texts; none if the column or its value is missing."""
    if name is None or values[name] is None:
        return ()
    given = values[name] if isinstance(values[name], list | tuple) else [values[name]]
    if len(given) != count:
        raise ValueError(f"{location}: expected {count} numbers in {name!r}, one per text, got {len(given)}")
    return tuple([_number(value, name, location) for value in given])


def _labels_to_scores(rows: Sequence[TextRow], roles: TextRoles) -> list[TextRow]:
    """Return the rows of pairs with their labels as scores. Raises ValueError for labels that are classes."""
    numbers = [parse_number(row.label or "") for row in rows]
    known = [number for number in numbers if number is not None]
    is_score = len(known) == len(rows) and (set(known) <= {0, 1} or not all(map(float.is_integer, known)))
    if not is_score or roles.score is not None:
        odd = next((row for row, number in zip(rows, numbers, strict=True) if number not in (0, 1)), rows[0])
        read = ", ".join(f"{role}={name}" for role, name in roles.named.items() if role != "label").replace(",", "")
        raise ValueError(
            f"{odd.location}: expected 0 or 1 in {roles.label!r} of a pair, got {odd.label!r}; if it is a score, use "
            f"--columns {read} score={roles.label}; to leave it out, --columns {read}"
        )
    return [row._replace(score=number, label=None) for row, number in zip(rows, numbers, strict=True)]


def _is_plain_text(file: InputFile, options: TableOptions) -> bool:
    """Return whether a .txt file has a text per line, not a table: its first line has no tab and is no known name."""
    if file.format != ".txt":
        return False
    first = next((text for _, text in read_texts(file, options.encoding)), "")
    return "\t" not in first and _normalize(first) not in ALONE
