"""Published forms of tagged words that differ from a word and its tag per line, recognized in the first sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bertwright.tables.tag_schemes import OUTSIDE

CONLL_2012 = (4, 11)  # columns of words and of named entities; the first ones are document, part and number
CONLL_2012_COLUMNS = 11  # at least; then arguments of verbs and coreference follow
BRACKETS = re.compile(r"((\([^()*\s]+)*\*\)*)|\([^()*\s]+\)")
OPENING = re.compile(r"\(([^()*\s]+)")
SPAN_TAG = re.compile(r"O|[BIESLU]-\S+")
TAG_FILES = {"in": "out", "words": "tags", "sentences": "labels"}  # the file beside one with a sentence per line


class ColumnForm(NamedTuple):
    """Columns of words and tags that the user did not name, and the form of the tags."""

    words: int
    """From 1."""
    tags: int
    """From 1, or -1 for the last."""
    note: str
    """Sentence that says what was recognized."""


def recognize_columns(sentences: Sequence[Sequence[Sequence[str]]], labeled: bool = True) -> ColumnForm | None:
    """Recognize columns by the cells of the first sentences; None for the usual form, a word first and its tag last.

    `labeled`: whether there must be a column of tags.

    >>> recognize_columns([[["1", "Ada", "B-PER", "O"], ["2", "came", "O", "O"]]])
    ColumnForm(words=2, tags=3, note='column 1 numbers the words: words are read from column 2, tags from column 3')
    """
    numbered = [sentence for sentence in sentences if len(sentence) > 1]
    if not numbered:
        return None
    width = min(len(cells) for sentence in sentences for cells in sentence)
    if width >= CONLL_2012_COLUMNS and all(_counts(sentence, 2, 0) for sentence in sentences):
        words, tags = CONLL_2012
        return ColumnForm(words, tags, f"CoNLL-2012: words are read from column {words}, entities from column {tags}")
    cells = [cells for sentence in sentences for cells in sentence]
    has_two = {*map(len, cells)} == {2}
    if has_two and _are_span_tags([first for first, _ in cells]) and not _are_span_tags([last for _, last in cells]):
        return ColumnForm(2, 1, "column 1 has the tags and column 2 the words")  # the MIT movie corpus
    if width < 2 + labeled or not any(all(_counts(sentence, 0, start) for sentence in sentences) for start in (0, 1)):
        return None
    tags = next((n + 1 for n in range(2, width) if _are_span_tags([row[n] for row in cells])), -1)
    column = f"column {tags}" if tags > 0 else "the last column"
    return ColumnForm(2, tags, f"column 1 numbers the words: words are read from column 2, tags from {column}")


def _are_span_tags(cells: Sequence[str]) -> bool:
    return all(map(SPAN_TAG.fullmatch, cells)) and any(cell != OUTSIDE for cell in cells)


def _counts(sentence: Sequence[Sequence[str]], column: int, start: int) -> bool:
    """Return whether a column numbers the words of a sentence from `start` on."""
    return all(cells[column] == str(number) for number, cells in enumerate(sentence, start))


def are_brackets(tags: Sequence[str]) -> bool:
    """Return whether tags spell spans by brackets, as in CoNLL-2005 and CoNLL-2012.

    >>> are_brackets(["(PER*", "*)", "*", "(LOC)"]), are_brackets(["(", ")"]), are_brackets(["NN", "*"])
    (True, False, False)
    """
    return bool(tags) and all(map(BRACKETS.fullmatch, tags))


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


def tag_file_of(path: str) -> str | None:
    """Return the file with the tags of a file of sentences, such as seq.out beside seq.in; None if there is none."""
    name = Path(path).name
    for words, tags in TAG_FILES.items():
        beside = Path(path).with_name(re.sub(rf"(?<![^._-]){words}(?![^._-])", tags, name))
        if beside.name != name and Path(path).is_file() and beside.is_file():
            return str(beside)
    return None


def read_parallel(
    path: str, tag_file: str, read_lines: Callable[[str], Iterator[tuple[int, str]]], labeled: bool
) -> Iterator[tuple[int, tuple[str, ...], tuple[str, ...] | None]]:
    """Yield line number, words and tags of each sentence of two files, whose lines hold them between spaces.

    Raises ValueError with the line for unequal numbers of words and tags, or of lines.
    """
    tags = read_lines(tag_file) if labeled else iter(())
    number = 0
    for number, line in read_lines(path):
        words = tuple(line.split())
        given = next(tags, None) if labeled else None
        if labeled and given is None and words:
            raise ValueError(f"{tag_file}: expected a line for each of {path}, got {number - 1:,}; copy both again")
        spelled = tuple(given[1].split()) if given else None
        if spelled is not None and len(spelled) != len(words):
            raise ValueError(
                f"{path}, line {number}: {len(words)} words, but {len(spelled)} tags in {tag_file}; separate both by "
                "single spaces"
            )
        if words:
            yield number, words, spelled
    if any(line.strip() for _, line in tags):
        raise ValueError(f"{tag_file}: has more lines than {path} ({number:,}); copy both again")
