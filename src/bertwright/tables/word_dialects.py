"""Layouts of tagged words that differ from a word and its tag per line, and of rows with texts or lists of words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from bertwright.tables.tag_example import TagExample
from bertwright.tables.tag_schemes import OUTSIDE

if TYPE_CHECKING:
    from bertwright.tables.tagged_sentences import WordFile

CONLL_2012 = (3, 10)  # columns of words and of named entities, from 0; the first ones are document, part and number
CONLL_2012_COLUMNS = 11  # at least; then arguments of verbs and coreference follow
BRACKETS = re.compile(r"((\([^()*\s]+)*\*\)*)|\([^()*\s]+\)")
OPENING = re.compile(r"\(([^()*\s]+)")
SPAN_TAG = re.compile(r"O|[BIESLU]-\S+")
LANGUAGE = re.compile(r"[a-z]{2,}(?:-[a-z]+)*:(?!//)")  # before each word in WikiANN's files, as in en:Paris


# Columns


def is_conll_2012(file: WordFile) -> bool:
    return file.is_unnamed and file.width >= CONLL_2012_COLUMNS and file.counts_words(2, 0)


def has_numbered_words(file: WordFile) -> bool:
    is_wide = file.is_unnamed and file.width >= 2 + file.labeled and not is_conll_2012(file)
    return is_wide and (file.counts_words(0, 0) or file.counts_words(0, 1))


def read_numbered_words(file: WordFile) -> Iterator[TagExample]:
    """Read the second column as words, and the first one after it that has tags of spans, or else the last, as tags."""
    return file.read_from(1, next((n for n in range(2, file.width) if are_span_tags(file.cells(n))), -1))


def has_tags_first(file: WordFile) -> bool:
    if not file.is_unnamed or {*map(len, file.rows)} != {2}:
        return False
    return are_span_tags(file.cells(0)) and not are_span_tags(file.cells(1))


def are_span_tags(cells: Sequence[str]) -> bool:
    return all(map(SPAN_TAG.fullmatch, cells)) and any(cell != OUTSIDE for cell in cells)


# The spelling of tags and words


def has_brackets(file: WordFile) -> bool:
    cells = file.cells(file.columns[1].number)
    return file.labeled and are_brackets(cells) and not is_conll_2012(file) and not has_numbered_words(file)


def read_brackets(file: WordFile) -> Iterator[TagExample]:
    return map(without_brackets, file.read())


def are_brackets(tags: Sequence[str]) -> bool:
    """Return whether tags spell spans by brackets, as in CoNLL-2005 and CoNLL-2012.

    >>> are_brackets(["(PER*", "*)", "*", "(LOC)"]), are_brackets(["(", ")"]), are_brackets(["NN", "*"])
    (True, False, False)
    """
    return bool(tags) and all(map(BRACKETS.fullmatch, tags))


def without_brackets(example: TagExample) -> TagExample:
    """Return a sentence with tags in IOB2 in place of brackets. Raises ValueError for another tag."""
    tags = example.tags or ()
    odd = next((number for number, tag in enumerate(tags) if not are_brackets([tag])), None)
    if odd is not None:
        raise ValueError(
            f"{example.location_of(odd)}: expected a tag in brackets, such as (PER*, * or *), as before, got "
            f"{tags[odd]!r}; choose the column with --tags"
        )
    return replace(example, tags=iob2_of_brackets(tags)) if tags else example


def iob2_of_brackets(tags: Sequence[str]) -> tuple[str, ...]:
    """Convert brackets to IOB2; of nested spans the outer one is kept.

    >>> iob2_of_brackets(["(PER*", "*", "*)", "*", "(LOC)", "(A1(V*)*", "*)"])
    ('B-PER', 'I-PER', 'I-PER', 'O', 'B-LOC', 'B-A1', 'I-A1')
    """
    converted, depth, label = list[str](), 0, ""
    for tag in tags:
        opened = OPENING.findall(tag)
        label = label if depth or not opened else opened[0]
        converted.append(f"I-{label}" if depth else f"B-{label}" if opened else OUTSIDE)
        depth = max(depth + len(opened) - tag.count(")"), 0)
    return tuple(converted)


def has_language_prefix(file: WordFile) -> bool:
    """Return whether most of the first sentences of several words have a language code before all words."""
    several = [words for words in _head_words(file) if len(words) > 1]
    return bool(several) and sum(bool(_prefix_of(words)) for words in several) * 2 >= len(several)


def read_without_prefix(file: WordFile) -> Iterator[TagExample]:
    """Remove the language code of the file from the sentences in which all words have it."""
    prefix = next(filter(None, map(_prefix_of, _head_words(file))), "")
    for example in file.read_from():
        is_whole = prefix and all(word.startswith(prefix) and word != prefix for word in example.words)
        yield replace(example, words=tuple([word[len(prefix) :] for word in example.words])) if is_whole else example


def _head_words(file: WordFile) -> list[list[str]]:
    return [cells_of(rows, file.columns[0].number) for rows in file.head]


def cells_of(rows: Sequence[Sequence[str]], column: int) -> list[str]:
    return [row[column] for row in rows if -len(row) <= column < len(row)]


def _prefix_of(words: Sequence[str]) -> str:
    """Return the language code before all words of a sentence of several; empty if there is none.

    >>> _prefix_of(["en:Paris", "en:."]), _prefix_of(["en:Paris", "."]), _prefix_of(["http://a.b", "http://c.d"])
    ('en:', '', '')
    """
    found = LANGUAGE.match(words[0]) if len(words) > 1 else None
    return found[0] if found and all(word.startswith(found[0]) and word != found[0] for word in words) else ""


# Two files


def read_parallel(file: WordFile) -> Iterator[TagExample]:
    """Yield the sentences of two files, whose lines hold words and tags between spaces.

    Raises ValueError with the line for unequal numbers of words and tags, or of lines.
    """
    if file.labeled and not file.tag_file:
        raise ValueError(f"{file.path}: no file with tags beside it, such as seq.out beside seq.in; add it")
    tag_lines = file.read_lines(file.tag_file) if file.labeled and file.tag_file else iter(())
    number, empty = 0, True
    for number, line in file.read_lines(file.path):
        words, given = tuple(line.split()), next(tag_lines, None)
        if file.labeled and given is None and words:
            raise ValueError(
                f"{file.tag_file}: expected a line for each of {file.path}, got {number - 1:,}; copy both again"
            )
        tags = tuple(given[1].split()) if given else None
        if tags is not None and len(tags) != len(words):
            raise ValueError(
                f"{file.path}, line {number}: {len(words)} words, but {len(tags)} tags in {file.tag_file}; separate "
                "both by single spaces"
            )
        if words:
            empty = False
            yield TagExample(words, tags, file.path, (number,) * len(words))
    if empty:
        raise ValueError(f"{file.path}: no sentence in it; a broken download or export?")
    if any(line.strip() for _, line in tag_lines):
        raise ValueError(f"{file.tag_file}: has more lines than {file.path} ({number:,}); copy both again")


# Rows of texts or lists: columns with the words and with the tags, in the order in which they are looked for

Pair = tuple[str, str]
PLAIN_LISTS = (("words", "tags"),)
TOKEN_LISTS = (("tokens", "ner_tags"), ("tokens", "tags"), ("tokens", "labels"))
TEXTS_WITH_SPANS = (
    *(("text", spans) for spans in ("spans", "entities", "ents", "labels", "label", "annotations")),
    ("data.text", "annotations"),
)


class RowColumns(NamedTuple):
    """The columns of a file of rows, and those that the user named."""

    names: frozenset[str]
    words: str | None
    tags: str | None

    def first(self, pairs: Sequence[Pair]) -> Pair | None:
        """Return the first pair that the file has as the user names it; its words are enough if no pair is whole."""
        needs_both = any({*pair} <= self.names for pair in (*PLAIN_LISTS, *TOKEN_LISTS, *TEXTS_WITH_SPANS))
        for words, tags in pairs:
            is_named = self.words in (None, words) and self.tags in (None, tags)
            if is_named and words in self.names and (tags in self.names or not needs_both):
                return words, tags
        return None

    def name(self, pairs: Sequence[Pair]) -> str | None:
        """Return the first pair for people; None if the file has none."""
        return (pair := self.first(pairs)) and " and ".join(map(repr, pair))
