"""Tables with a word per row, whose first line names the columns: a column or blank rows tell the sentences apart."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from bertwright.tables.conll_lines import DOCUMENT_LINE
from bertwright.tables.tag_example import TagExample

WORD_NAMES = ("word", "words", "token", "tokens", "form")
TAG_NAMES = ("tag", "tags", "label", "labels", "ner", "ner_tag", "ner_tags", "iob", "bio", "entity", "pos", "upos")
SENTENCE_NAME = re.compile(r"sent(ence)?s?[ _.-]?(#|id|idx|ids|index|no|nr|num|number)?", re.IGNORECASE)


class WordColumns(NamedTuple):
    """The columns of a table with a word per row."""

    word: str
    tag: str | None
    """None if the table has none."""
    sentence: str | None
    """The column whose values tell the sentences apart; None: blank rows do."""

    def names(self, labeled: bool) -> tuple[str, ...]:
        """Return the columns to read: of the words, of the tags if asked for, and of the sentences."""
        return tuple(filter(None, (self.word, self.tag if labeled else None, self.sentence)))


def find_word_columns(header: Sequence[str], words: str | None, tags: str | None) -> WordColumns | None:
    """Return the columns of a header; None if the line is none. `words`, `tags`: names or numbers of the user.

    >>> find_word_columns(["Sentence #", "Word", "POS", "Tag"], None, None)
    WordColumns(word='Word', tag='Tag', sentence='Sentence #')
    """
    names = {name.strip().lower(): name for name in reversed(header)}

    def find(given: str | None, known: Sequence[str]) -> str | None:
        if given and re.fullmatch(r"-?[1-9]\d*", given):
            place = int(given) - (int(given) > 0)
            return header[place] if -len(header) <= place < len(header) else None
        return next((names[name] for name in ((given.lower(),) if given else known) if name in names), None)

    is_header = any(name in names for name in WORD_NAMES) or (words or "").lower() in names
    word, tag = find(words, WORD_NAMES), find(tags, TAG_NAMES)
    sentence = next(
        (name for name in header if SENTENCE_NAME.fullmatch(name.strip()) and name not in (word, tag)), None
    )
    has_others = any(name in names for name in TAG_NAMES) or (tags or "").lower() in names or sentence
    return WordColumns(word, tag, sentence) if is_header and has_others and word and word != tag else None


def join_words(
    path: str, labeled: bool, by_column: bool, rows: Iterable[tuple[int, Sequence[Any]]]
) -> Iterator[TagExample]:
    """Yield the sentences of rows of a word, its tag if `labeled` and, if `by_column`, the sentence.

    Raises ValueError for a row without a word or a tag.
    """
    words, current, before = list[tuple[int, Sequence[str]]](), None, 0
    document = 0
    for number, values in rows:
        cells = ["" if value is None else str(value).strip(" ") for value in values]
        name = cells.pop() if by_column else ""
        is_blank, is_document = not any(cells), cells[0].startswith(DOCUMENT_LINE)
        ends = (name and name != current) if by_column else is_blank or is_document or number > before + 1
        if ends and words:
            yield _join(path, words, document)
            words = []
        current, before, document = name or current, number, document + is_document
        if is_blank or is_document:
            continue
        if not all(cells[: 1 + labeled]):
            raise ValueError(f"{path}, line {number}: no {'tag' if cells[0] else 'word'} in {cells}; fix the row")
        words.append((number, cells))
    if not words and before == 0:
        raise ValueError(f"{path}: no sentence in it; a broken download or export?")
    if words:
        yield _join(path, words, document)


def _join(path: str, rows: Sequence[tuple[int, Sequence[str]]], document: int) -> TagExample:
    words, *tags = zip(*[cells for _, cells in rows], strict=True)
    return TagExample(words, tags[0] if tags else None, path, [number for number, _ in rows], document)
