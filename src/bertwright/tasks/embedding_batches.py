"""Rows of a step for training text vectors: which ones they are, and which pairs in them are no negatives.

A row is an anchor with the texts that belong to it. B rows of the step, C columns (all texts but the anchors), N texts,
P pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bertwright.base.example_order import permute, uniform
from bertwright.base.ragged import flat_ranges, offsets_from_lengths, positions_from_lengths
from bertwright.base.seeding import TaskStream, derive_key
from bertwright.tables.text_roles import TextRow
from bertwright.tasks.collation import step_items
from bertwright.tasks.embedding_data import Example, RetrievalExample
from bertwright.tasks.encoded import Ints

ANCHOR, POSITIVE, NEGATIVE = 0, 1, 2  # roles of texts
TEXTS_PER_CLASS = 4  # of a step that learns from classes
NUM_LABELS = 4  # numbers per text: role, id, score or class of its row, and whether it was truncated


def label_texts(examples: Sequence[Example]) -> npt.NDArray[np.float64]:
    """Return NUM_LABELS numbers for each text of all examples, by which a loss knows the texts of a step.

    These are role, number of the text, score of its row or number of its class, and 0. Distinct texts, without the
    blanks around them, are numbered in the order in which they occur.
    """
    classes, ids = dict[str, int](), dict[str, int]()
    labels = []
    for row in examples:
        value: float | None = None
        if isinstance(row, RetrievalExample):
            roles = [ANCHOR] * len(row.data.queries) + [POSITIVE] * len(row.data.documents)
        else:
            value = row.score if row.label is None else classes.setdefault(row.label, len(classes))
            roles = [ANCHOR, *[POSITIVE] * len(row.positives), *[NEGATIVE] * len(row.negatives)]
        numbers = [ids.setdefault(text.strip(), len(ids)) for text in row.texts]
        labels += [(role, number, value or 0, 0) for role, number in zip(roles, numbers, strict=True)]
    return np.array(labels, dtype=np.float64).reshape(-1, NUM_LABELS)


class KnownPairs(NamedTuple):
    """For each of the texts, the texts that are known to belong to it."""

    starts: Ints
    """Texts + 1: where each one's partners begin in `partners`."""
    partners: Ints

    @classmethod
    def of(cls, first: Ints, second: Ints, num_texts: int) -> KnownPairs:
        """Collect distinct pairs of text numbers."""
        pairs = np.unique(np.stack([first, second], axis=1), axis=0).reshape(-1, 2)
        return cls(offsets_from_lengths(np.bincount(pairs[:, 0], minlength=num_texts)), pairs[:, 1])

    def partners_of(self, texts: Ints) -> tuple[Ints, Ints]:
        """Return the partners of some texts, and for each of them the index of its text."""
        counts = np.diff(self.starts)[texts]
        return np.repeat(np.arange(len(texts)), counts), self.partners[flat_ranges(self.starts[texts], counts)]


def find_masked(texts: Ints, known: KnownPairs, columns: Ints, targets: Ints) -> tuple[Ints, Ints]:
    """Return rows and columns, P each and ordered, of the pairs that are no negatives.

    `texts`: B, the text of each row; `columns`: C, the text of each column; `targets`: B, the column that belongs to a
    row, which is never masked. Masked are columns with the row's own text, or a text that is known to belong to it: a
    second copy of the target, or another right answer.
    """
    rows, wanted = known.partners_of(texts)
    rows, wanted = np.concatenate([np.arange(len(texts)), rows]), np.concatenate([texts, wanted])
    order = np.argsort(columns, kind="stable")
    first, last = np.searchsorted(columns[order], wanted), np.searchsorted(columns[order], wanted, side="right")
    rows, found = np.repeat(rows, last - first), order[flat_ranges(first, last - first)]
    pairs = np.unique(np.stack([rows, found], axis=1), axis=0)
    masked = pairs[pairs[:, 1] != targets[pairs[:, 0]]]
    return masked[:, 0], masked[:, 1]


class FileOrder(NamedTuple):
    """The rows of several files: each step reads one of them."""

    sizes: Ints
    """Rows per file; the rows of a file are adjacent."""
    shares: np.ndarray
    """Share of the steps that reads each file."""

    @classmethod
    def of(cls, rows: Sequence[TextRow], weights: Sequence[float]) -> FileOrder:
        """Group rows by their file. Raises ValueError unless `weights` are none, or one per file."""
        # The id of a query may have a comma in it; a line's number has none.
        queries = [row.location.partition(", query ") for row in rows]
        names = [file if found else file.rpartition(", ")[0] for file, found, _ in queries]
        changes = [number for number in range(1, len(names)) if names[number] != names[number - 1]]
        sizes = np.diff([0, *changes, len(names)])
        if weights and len(weights) != len(sizes):
            raise ValueError(
                f"--weights: expected one number for each of {len(sizes)} training files, got {len(weights)}"
            )
        shares = np.array(weights, dtype=float) if weights else sizes.astype(float)
        return cls(sizes, shares / shares.sum())

    def step_rows(self, batch_size: int, step: int, seed: int) -> Ints:
        """Return the rows of a step (from 0): all of one file, whose epochs have each row once."""
        if len(self.sizes) == 1:
            return step_items(int(self.sizes[0]), batch_size, step, seed)
        draws = uniform(np.arange(step + 1), derive_key(seed, TaskStream.FILES, 0))
        files = np.searchsorted(self.shares.cumsum()[:-1], draws, side="right")
        file = files[-1]
        rows = step_items(int(self.sizes[file]), batch_size, int((files[:-1] == file).sum()), seed)
        return rows + int(self.sizes[:file].sum())


class ClassOrder(NamedTuple):
    """The rows of several classes: each step reads groups of rows of one class."""

    rows: Ints
    """All rows, ordered by class."""
    counts: Ints
    """Rows per class."""

    @classmethod
    def of(cls, classes: Ints) -> ClassOrder:
        """Group rows by their class, a number from 0 for each row."""
        return cls(np.argsort(classes, kind="stable"), np.bincount(classes))

    def step_rows(self, batch_size: int, step: int, seed: int) -> Ints:
        """Return the rows of a step (from 0): groups of texts of one class each; a small class repeats its texts.

        All groups together have each row once, and the repeated ones. An epoch has as many steps as its rows fill
        without repetition, so that it does not reach all groups if classes are small.
        """
        groups = -(-self.counts // TEXTS_PER_CLASS)  # per class
        class_of, number_in_class = np.repeat(np.arange(len(groups)), groups), positions_from_lengths(groups)
        size, num_groups = batch_size // TEXTS_PER_CLASS, len(class_of)
        first = offsets_from_lengths(self.counts)
        rows = []
        for place, group in enumerate(step_items(num_groups, size, step, seed), step * size):
            label = class_of[group]
            key = derive_key(seed, TaskStream.CLASSES, place // num_groups)  # an order of each epoch
            numbers = (number_in_class[group] * TEXTS_PER_CLASS + np.arange(TEXTS_PER_CLASS)) % self.counts[label]
            rows.append(self.rows[first[label] + permute(numbers, int(self.counts[label]), key)])
        return np.concatenate(rows)
