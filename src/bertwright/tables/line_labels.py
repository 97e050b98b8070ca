"""Labels within the lines of a text file: before the text, after it, or at the root of a tree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from bertwright.tables.schema import Row

FASTTEXT = "__label__"  # before each label in the files of fastText
LABEL_WORD = re.compile(rf"{FASTTEXT}\S+|[A-Z]{{2,}}[\w:.-]*|[+-]?\d+")
SHOWN_LINES = 1_000  # lines that show whether their first words are labels
LABEL_MARK = "@"  # before the label at the end of each line in the Financial PhraseBank
TREE = re.compile(r"\(([^()\s]+) (\(.*\)|\S+)\)")
LEAF = re.compile(r"\([^()\s]+ ([^()\s]+)\)")
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "\\/": "/", "\\*": "*"}


class LabeledLines(NamedTuple):
    """Texts and labels of lines."""

    rows: list[Row]
    how: str
    """Clause that says where the labels are."""


def read_labels_of_lines(lines: Sequence[tuple[int, str]]) -> LabeledLines | None:
    """Read text and label of lines; None if they have no labels."""
    if rows := read_trees(lines):
        return LabeledLines(rows, "each line is a tree; the label of its root and its words are read")
    if rows := split_labels(lines):
        return LabeledLines(rows, "the first word of each line is its label")
    if rows := split_label_ends(lines):
        return LabeledLines(rows, f"what follows the last {LABEL_MARK} of each line is its label")
    return None


def read_trees(lines: Sequence[tuple[int, str]]) -> list[Row] | None:
    """Read the label at the root and the words of trees, as in the Stanford Sentiment Treebank; None for other lines.

    >>> read_trees([(1, "(3 (2 The) (4 (4 -LRB-good-RRB-) (2 mill)))")])
    [(1, ('The (good) mill', '3'))]
    """
    rows: list[Row] = []
    for number, line in lines:
        tree = TREE.fullmatch(line)
        if tree is None or line.count("(") != line.count(")"):
            return None
        text = " ".join(LEAF.findall(line))
        for escape, character in ESCAPES.items():
            text = text.replace(escape, character)
        rows.append((number, (text, tree[1])))
    return rows


def split_label_ends(lines: Sequence[tuple[int, str]]) -> list[Row] | None:
    """Split lines at the last @, if few words follow it in all lines; None for other lines.

    >>> split_label_ends([(n, f"Sales rose .@{label}") for n, label in enumerate(["up", "up", "down", "down"])])[:1]
    [(0, ('Sales rose .', 'up'))]
    """
    parts = [(number, line.rpartition(LABEL_MARK)) for number, line in lines]
    labels = Counter(label for _, (_, _, label) in parts)
    is_word = all(text and label and not re.search(r"\s", label) for _, (text, _, label) in parts)
    if not is_word or not 1 < len(labels) <= len(parts) / 2:
        return None
    return [(number, (text.rstrip(), label)) for number, (text, _, label) in parts]


def split_labels(lines: Sequence[tuple[int, str]]) -> list[Row] | None:
    """Split lines into text and label, which is the first word or what is before a tab; None if these are no labels.

    They are if all look like it, or if they repeat (line 1, which may be a header, included), as few words of texts.

    >>> split_labels([(1, "__label__a x y"), (2, "__label__b z")])
    [(1, ('x y', 'a')), (2, ('z', 'b'))]
    >>> split_labels(list(enumerate("pos good;neg bad;pos fine;neg no".split(";"))))[0]
    (0, ('good', 'pos'))
    >>> split_labels(list(enumerate("A mill;The river;A bridge;It was old;He came".split(";"))))
    """
    parts = [(number, line.split("\t" if "\t" in line else None, 1)) for number, line in lines]
    words = Counter(cells[0] for _, cells in islice(parts, SHOWN_LINES))
    total, singles = words.total(), sum(count == 1 for count in words.values())
    repeats = 1 < len(words) <= total / 2 and singles <= total / 10 and words[parts[0][1][0]] > 1
    is_labeled = bool(words) and (repeats or all(map(LABEL_WORD.fullmatch, words)))
    if not is_labeled or any(len(cells) < 2 or "\t" in cells[1] for _, cells in parts):
        return None
    return [(number, (text, label.removeprefix(FASTTEXT))) for number, (label, text) in parts]
