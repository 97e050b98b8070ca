"""Sentences of tagged words: from CoNLL columns, CoNLL-U and rows of lists, or cut from raw text; and columns again."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import mode
from typing import Any, NamedTuple, Self

from tokenizers import Regex, pre_tokenizers

from bertwright.io.decoding import read_text
from bertwright.io.sources import suffixes
from bertwright.io.tables import TableSchema, lines, read_rows

CONLLU_COLUMNS = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
UNSPECIFIED = "_"  # CoNLL-U for "nothing is said here"
SHOWN = 60  # characters of a line in a message

DOCUMENT_LINE = "-DOCSTART-"
DOCUMENT_COMMENT = re.compile(r"#\s+newdoc\b|#\s*begin document\b")
COMMENT = re.compile(DOCUMENT_COMMENT.pattern + r"|#\s+newpar\b|#\s*end document\b|#\s+\S+\s+=(\s|$)")

# Words as CoNLL data cuts them: U.N., 22-year-old, 2,000.50, Germany + 's, is + n't; else punctuation stands alone.
# Marks (\p{M}) and joiners belong to their letters, or Hindi would fall to pieces.
_W = r"[\p{L}\p{M}\p{N}_\x{200C}\x{200D}]"
WORD = "|".join(
    [
        rf"(?<!{_W})(?:\p{{L}}\.){{2,}}",
        rf"\p{{L}}+?(?=n['’]t(?!{_W}))",
        rf"(?<={_W})n['’]t(?!{_W})",
        rf"{_W}+(?:(?:-|(?<=\p{{N}})[.,:/](?=\p{{N}})){_W}+)*",
        rf"(?<={_W})['’](?i:s|re|ve|ll|d|m)(?!{_W})",
        r"\.{2,}",
        r"-{2,}",
        r"\S(?:[\p{M}\x{FE0F}]|\x{200D}\S?)*",
    ]
)
_words = pre_tokenizers.Split(Regex(WORD), "removed", invert=True)


@dataclass(frozen=True, slots=True)
class TagExample:
    """A sentence: its words, their tags where known, where it stands and what stands around it."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    source: str = "words"
    """The file; or what messages should call words that come from no file."""
    lines: Sequence[int] = ()
    """Line of each word in the file, from 1."""
    document: int = 0
    """Sentences of the same document follow one another and have the same number."""
    before: tuple[tuple[str, ...], ...] = ()
    """Words of the sentences before it in its document, as many as may be of use; the nearest comes last."""
    after: tuple[tuple[str, ...], ...] = ()
    """Words of the sentences after it; the nearest comes first."""
    text: str | None = None
    """The raw text that the words were cut from; None where words were given."""
    offsets: tuple[tuple[int, int], ...] = ()
    """Where each word starts in `text` and where it ends, in characters."""

    def __post_init__(self) -> None:
        if self.tags is not None and len(self.tags) != len(self.words):
            raise ValueError(
                f"{self.location}: {len(self.words)} words, but {len(self.tags)} tags; each word needs one"
            )

    @classmethod
    def from_text(cls, text: str, source: str = "text") -> Self:
        """Cut raw text into words as CoNLL data has them; nothing but white space is left out.

        Raises ValueError for a lone surrogate, which is no Unicode text.

        >>> TagExample.from_text("Merkel's visit, 2.5 hours").words
        ('Merkel', "'s", 'visit', ',', '2.5', 'hours')
        """
        try:
            found = _words.pre_tokenize_str(text)
        except UnicodeEncodeError as error:
            raise ValueError(f"{source}: lone surrogate U+{ord(text[error.start]):04X} at {error.start}") from None
        return cls(
            tuple([word for word, _ in found]), source=source, text=text, offsets=tuple([place for _, place in found])
        )

    @property
    def location(self) -> str:
        """Where the sentence stands, for messages: "file, line 3"."""
        return self.location_of(0)

    def location_of(self, word: int) -> str:
        """Where a word stands, for messages."""
        return f"{self.source}, line {self.lines[word]}" if self.lines else self.source


def read_sentences(path: str, words: str | None, tags: str | None, labelled: bool) -> Iterator[TagExample]:
    """All sentences that a path names, in order, in constant memory; tags are read, and needed, where `labelled`.

    - `.conllu`: columns by name or number (form, upos). Multiword ranges (1-2) and empty nodes (1.1) are left out;
      `# newdoc` starts a document.
    - `.jsonl` and `.parquet`: lists of strings by field (words, tags); without `labelled` the words may also be one
      string, a text that is cut into them. Each row is a document of its own. A glob may name several such files.
      Numbers in a .parquet of the hub become the tags that its metadata names.
    - any other suffix: columns between tabs, or else between spaces, by number from 1 or, negative, from the last (1,
      -1); a blank line ends a sentence and `-DOCSTART-` starts a document. Comments are `# key = value`, `# newdoc`,
      `#begin document`, `#end document`, and a line that starts with # and a gap and has another number of columns
      than its sentence's last line; else # is a word, as in CoNLL-2000.

    Each but .parquet also compressed (.gz, .zst, .bz2), or hf://datasets/….
    Raises ValueError with file and line for what does not fit: columns or values missing, lists of unequal length,
    bytes that are not UTF-8, no sentence at all.
    """
    suffix, _ = suffixes(path)
    if suffix in (".jsonl", ".parquet"):
        return _from_rows(path, (words or "words", tags or "tags") if labelled else (words or "words",))
    conllu = suffix == ".conllu"
    names = CONLLU_COLUMNS if conllu else ()
    columns = [Column.of(words or ("form" if conllu else "1"), names, path)]
    if labelled:
        columns.append(Column.of(tags or ("upos" if conllu else "-1"), names, path, UNSPECIFIED if conllu else ""))
    return _from_columns(path, _conllu_rows if conllu else _column_rows, columns)


def with_document_context(sentences: Iterable[TagExample], words: int) -> Iterator[TagExample]:
    """The same sentences, each with its neighbours in its document: about `words` words on either side, if there are.

    Whole sentences are given, by reference; the encoder takes what fits. Holds no more of a document than it needs.
    """
    for _, document in groupby(sentences, key=lambda sentence: sentence.document):
        yield from _with_neighbours(document, words)


def _with_neighbours(document: Iterator[TagExample], words: int) -> Iterator[TagExample]:
    passed: deque[tuple[str, ...]] = deque()
    coming: deque[TagExample] = deque()
    words_passed = words_coming = 0
    while True:
        while not coming or words_coming - len(coming[0].words) < words:
            if (following := next(document, None)) is None:
                break
            coming.append(following)
            words_coming += len(following.words)
        if not coming:
            return
        sentence = coming.popleft()
        words_coming -= len(sentence.words)
        yield replace(sentence, before=tuple(passed), after=tuple([other.words for other in coming]))
        passed.append(sentence.words)
        words_passed += len(sentence.words)
        while words_passed - len(passed[0]) >= words:
            words_passed -= len(passed.popleft())


def column_text(words: Sequence[str], tags: Sequence[str], place: str = "words") -> str:
    """One sentence as CoNLL columns: a word, a tab and its tag on each line, and the blank line that ends it.

    Raises ValueError, naming the place, for what such a file cannot hold: no word at all, or an odd one.

    >>> column_text(["Paris", "."], ["B-LOC", "O"])
    'Paris\\tB-LOC\\n.\\tO\\n\\n'
    """
    if not words:
        raise ValueError(f"{place}: a sentence without words cannot stand in a column file; write .jsonl")
    for word in words:
        mark = word.startswith(("\ufeff", DOCUMENT_LINE)) or COMMENT.match(word)  # what a reader leaves out
        if mark or not word.strip(" \r") or "\t" in word or "\n" in word:
            raise ValueError(f"{place}: the word {word!r} cannot stand in a column file; write .jsonl")
    return "".join([f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)]) + "\n"


# --- files → lines → blocks between blank lines


class Line(NamedTuple):
    number: int
    text: str


def _numbered(path: str) -> Iterator[Line]:
    for number, text in lines(path, read_text(path)):
        yield Line(number, text.rstrip("\r"))


def _blocks(path: str) -> Iterator[list[Line]]:
    block: list[Line] = []
    for line in _numbered(path):
        ends = not line.text.strip(" \t")
        alone = line.text.startswith(DOCUMENT_LINE)  # no sentence goes on behind it, be there a blank line or not
        if (ends or alone) and block:
            yield block
            block = []
        if alone:
            yield [line]
        elif not ends:
            block.append(line)
    if block:
        yield block


# --- blocks → sentences

Row = tuple[int, str, list[str]]  # a line's number, its text and its cells


class Column(NamedTuple):
    """A column that is asked for."""

    at: int
    """From 0; negative: from the last, -1."""
    name: str
    """What messages call it."""
    blank: str
    """What stands there for no value."""

    @classmethod
    def of(cls, asked: str, names: Sequence[str], path: str, blank: str = "") -> Self:
        """A column by its name, where columns have names, or by its number from 1 (negative: from the last)."""
        if asked.lower() in names:
            return cls(names.index(asked.lower()), f"column {asked}", blank)
        try:
            number = int(asked)
        except ValueError:
            number = 0
        if number == 0:
            known = f"one of {', '.join(names)}, or " if names else ""
            raise ValueError(f"{path}: no column {asked!r}; name {known}a number from 1, or from the last, -1")
        return cls(number - 1 if number > 0 else number, f"column {asked}", blank)


def _from_columns(path: str, split: Callable[[list[Line]], list[Row]], columns: list[Column]) -> Iterator[TagExample]:
    document = found = 0
    widths: set[int] = set()  # numbers of columns, for as long as all sentences are one line without a tab
    lines_alone, last_line = True, 0
    for block in _blocks(path):
        marked = block[0].text.startswith(DOCUMENT_LINE)
        if marked or any(DOCUMENT_COMMENT.match(line.text) for line in block):
            document += 1
        rows = [] if marked else split(block)
        if not rows:
            continue
        values = list(zip(*[_values(row, columns, path) for row in rows], strict=True))
        _check_widths(rows, path)
        lines_alone = lines_alone and len(rows) == 1 and "\t" not in rows[0][1]
        if lines_alone:
            widths.add(len(rows[0][2]))
            if len(widths) > 1:
                raise _running_text(path, rows[0][0])
        last_line = rows[0][0]
        yield TagExample(
            words=values[0],
            tags=values[1] if len(columns) > 1 else None,
            source=path,
            lines=_compact([number for number, _, _ in rows]),
            document=document,
        )
        found += 1
    if not found:
        raise ValueError(f"{path}: no sentence in it; a broken download or export?")
    if lines_alone and widths != {1} and len(columns) == 1:  # no tags asked for, and nothing else that is like columns
        raise _running_text(path, last_line)


def _running_text(path: str, line: int) -> ValueError:
    """Of each of its paragraphs only the first word would be read."""
    return ValueError(
        f"{path}, line {line}: running text? Words and tags stand in columns, a word a line; where sentences "
        "are of one word, put tabs between the columns"
    )


def _conllu_rows(block: list[Line]) -> list[Row]:
    rows = [(number, text, text.split("\t")) for number, text in block if not text.startswith("#")]
    return [row for row in rows if "-" not in row[2][0] and "." not in row[2][0]]


def _column_rows(block: list[Line]) -> list[Row]:
    # Spaces part cells only where there is no tab, and other white space never: a word may hold U+00A0.
    rows = [
        (number, text, text.split("\t") if "\t" in text else [cell for cell in text.split(" ") if cell])
        for number, text in block
    ]
    width = len(rows[-1][2])
    return [row for row in rows if not row[1].startswith("#") or not _is_comment(row, width)]


def _is_comment(row: Row, width: int) -> bool:
    _, text, cells = row
    return bool(COMMENT.match(text)) or (text[1:2] in (" ", "\t") and len(cells) != width)


def _values(row: Row, columns: list[Column], path: str) -> tuple[str, ...]:
    """The cells of one line that are asked for."""
    number, text, cells = row
    try:
        found = tuple([cells[column.at].strip(" ") for column in columns])
    except IndexError:
        found = ()
    if len({column.at % len(cells) for column in columns[: len(found)]}) < len(columns):  # too few, or one for both
        raise ValueError(
            f"{path}, line {number}: {' and '.join(column.name for column in columns)} expected, "
            f"{len(cells)} column{'s' * (len(cells) != 1)} found: {text[:SHOWN]!r}; choose them with --words and --tags"
        )
    for column, value in zip(columns, found, strict=True):
        if value == column.blank:
            raise ValueError(f"{path}, line {number}: nothing ({value!r}) in {column.name}; fill it in")
    return found


def _check_widths(rows: list[Row], path: str) -> None:
    """Raise ValueError for a line with other columns than most of its sentence: which of them are missing?"""
    width = mode(len(cells) for _, _, cells in rows)
    for number, text, cells in rows:
        if len(cells) != width:
            raise ValueError(
                f"{path}, line {number}: {width} columns expected, as in the lines around, {len(cells)} found: "
                f"{text[:SHOWN]!r}; mend the line, or put tabs between the columns of all"
            )


def _compact(numbers: list[int]) -> Sequence[int]:
    """The same numbers, as a range where they follow one another, as lines of a sentence nearly always do."""
    whole = range(numbers[0], numbers[-1] + 1)
    return whole if len(whole) == len(numbers) else tuple(numbers)


# --- rows of lists


def _from_rows(path: str, fields: tuple[str, ...]) -> Iterator[TagExample]:
    columns = TableSchema((), fields, hint="choose them with --words and --tags")
    for document, (place, lists) in enumerate(read_rows(path, columns)):
        if isinstance(lists[0], str) and len(fields) == 1:
            yield replace(TagExample.from_text(lists[0], source=place), document=document)
            continue
        for name, values in zip(fields, lists, strict=True):
            _check_strings(values, name, place)
        tags = tuple(lists[1]) if len(fields) > 1 else None
        if blank := [number for number, tag in enumerate(tags or (), 1) if tag.strip() != tag or not tag]:
            tag = (tags or ())[blank[0] - 1]
            raise ValueError(f"{place}: number {blank[0]} in {fields[1]!r} is {tag!r}: a tag expected, without spaces")
        yield TagExample(tuple(lists[0]), tags, source=place, document=document)


def _check_strings(values: Any, name: str, place: str) -> None:
    """Raise ValueError for anything but a list of strings.

    Numbers are refused, too, where a file has no names for them: they would pass for classes without spans, and an
    entity tagger would be scored word by word, nearly all of them O, and look good.
    """
    hint = ""
    if isinstance(values, list):
        if all(isinstance(value, str) for value in values):
            return
        if None in values:
            hint = f"; number {values.index(None) + 1} of them is missing (null): fill it in"
        elif all(isinstance(value, int) for value in values):
            hint = "; the file has no names for these numbers: write tags as text (B-PER, O)"
    raise ValueError(f"{place}: a list of strings expected in {name!r}, found {str(values)[:SHOWN]!r}{hint}")
