"""Word vectors scored on word similarity and on analogies; their nearest words. N pairs or questions, D columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from bertwright.base.console import heading, make_console, make_table
from bertwright.base.files import check_absent, write_json
from bertwright.base.settings import Positional, check_not_str, check_range
from bertwright.metrics.scores import spearman
from bertwright.text.decoding import read_text
from bertwright.text.lines import split_lines
from bertwright.vocabulary.vector_file import SimilarWord, VectorFile, load_vectors
from bertwright.vocabulary.vector_formats import is_number, unit_rows

QUESTIONS_PER_PRODUCT = 256


class VectorScore(NamedTuple):
    """Score of vectors on one file."""

    name: str
    metric: str
    """`spearman` of pairs with ratings, or `accuracy` of analogies."""
    score: float
    used: int
    """Pairs or questions, every word of which has a vector."""
    total: int


@dataclass(frozen=True)
class NearestSettings:
    """Print the words whose vectors are most similar to a word's, or to the answer of an analogy."""

    vectors: Positional[Path]
    """File of vectors (GloVe, word2vec or fastText, text or binary), or a folder of `bertwright word-vectors`."""
    words: Positional[tuple[str, ...]]
    """Words; with --analogy three of them: "a is to b as c is to …", as in man king woman."""
    analogy: bool = False
    """Answer the analogy of three words."""
    count: int = 10
    """Words to print."""

    def __post_init__(self) -> None:
        check_not_str(self, "words")
        check_range(self, 1, 1_000, "count")
        if self.analogy and len(self.words) != 3:
            raise ValueError(f"analogy: expected three words, as in man king woman, got {len(self.words)}")
        if not self.words:
            raise ValueError("words: expected at least one, got none; name a word")


@dataclass(frozen=True)
class ScoreVectorsSettings:
    """Score word vectors on files of word similarity (Spearman) and of analogies (accuracy).

    A line of a similarity file is `word word rating`, with tabs or spaces between; analogies are as in
    questions-words.txt: four words per line, and lines that begin with a colon and name a section. Pairs and questions
    with a word that has no vector are left out and counted.
    """

    vectors: Positional[Path]
    """File of vectors (GloVe, word2vec or fastText, text or binary), or a folder of `bertwright word-vectors`."""
    files: Positional[tuple[str, ...]]
    """Files of pairs or questions."""
    output: Path | None = None
    """New .json file for the scores."""

    def __post_init__(self) -> None:
        check_not_str(self, "files")
        if not self.files:
            raise ValueError("files: expected at least one, got none; name a file of word pairs or analogies")


def print_nearest(settings: NearestSettings, console: Console | None = None) -> list[list[SimilarWord]]:
    """Print and return the most similar words, for each word or for the analogy. Raises ValueError for no vector."""
    console = console or make_console()
    file = load_vectors(settings.vectors)
    if settings.analogy:
        a, b, c = settings.words
        queries = {f"{a} : {b} = {c} : …": file.analogy(a, b, c, settings.count)}
    else:
        queries = {word: file.nearest([word], settings.count) for word in settings.words}
    for name, similar_words in queries.items():
        heading(console, name)
        table = make_table("word", "cosine")
        for similar in similar_words:
            table.add_row(similar.word, f"{similar.similarity:.3f}")
        console.print(table)
    return list(queries.values())


def score_vectors(settings: ScoreVectorsSettings, console: Console | None = None) -> list[VectorScore]:
    """Print and return the scores on all files. Raises ValueError with the line for a file in another form."""
    console = console or make_console()
    if settings.output is not None:
        check_absent(settings.output)
    examples = {name: list(read_examples(name)) for name in settings.files}  # before the vectors, which may be large
    file = load_vectors(settings.vectors)
    scores = [score_examples(file, Path(name).name, rows) for name, rows in examples.items()]
    heading(console, f"{settings.vectors}: {len(file):,} words, {file.width} numbers each")
    table = make_table("file", "metric", "score", "used", "of")
    for score in scores:
        table.add_row(score.name, score.metric, f"{100 * score.score:.1f}", f"{score.used:,}", f"{score.total:,}")
    console.print(table)
    if settings.output is not None:
        write_json(settings.output, [score._asdict() for score in scores])
    return scores


def read_examples(path: str) -> Iterator[list[str]]:
    """Yield the fields of a file's pairs (two words and a rating) or analogies (four words).

    Raises ValueError with the line for one with other fields, or with a rating that is no number.
    """
    count = 0
    for number, line in split_lines(path, read_text(path)):
        fields = line.split("\t") if "\t" in line else line.split()
        fields = [field.strip() for field in fields]
        if not line.strip() or line.startswith((":", "#")):
            continue
        count = count or (4 if len(fields) == 4 and not is_number(fields[2]) else 3)
        if len(fields) < count or (count == 3 and not is_number(fields[2])):
            expected = "four words" if count == 4 else "two words and a rating"
            raise ValueError(f"{path}, line {number}: expected {expected}, got {line[:60]!r}; fix the line")
        yield fields[:count]
    if not count:
        raise ValueError(f"{path}: expected word pairs or analogies, got no lines")


def score_examples(file: VectorFile, name: str, rows: Sequence[list[str]]) -> VectorScore:
    """Return the Spearman correlation of cosines with ratings, or the accuracy of analogies."""
    if len(rows[0]) == 4:
        return _score_analogies(file, name, rows)
    first, second = (file.lookup([row[side] for row in rows]) for side in (0, 1))
    used = first.has_vector & second.has_vector
    cosines = (unit_rows(first.vectors) * unit_rows(second.vectors)).sum(axis=1)[used]
    ratings = [float(row[2]) for row, is_used in zip(rows, used, strict=True) if is_used]
    score = spearman(ratings, cosines.tolist()) if len(ratings) > 1 else 0.0
    return VectorScore(name, "spearman", score, len(ratings), len(rows))


def _score_analogies(file: VectorFile, name: str, rows: Sequence[list[str]]) -> VectorScore:
    """Score questions a : b = c : d. Right is d as the nearest word to b - a + c of all words but a, b and c."""
    columns = np.stack([file.rows(words) for words in zip(*rows, strict=True)], axis=1)  # N 4
    questions = columns[(columns >= 0).all(axis=1)]
    unit = unit_rows(np.asarray(file.vectors))
    correct = 0
    for block in _blocks(questions):
        a, b, c, d = block.T
        cosines = (unit[b] - unit[a] + unit[c]) @ unit.T
        for asked in (a, b, c):
            cosines[np.arange(len(block)), asked] = -np.inf
        correct += int((cosines.argmax(axis=1) == d).sum())
    return VectorScore(name, "accuracy", correct / max(len(questions), 1), len(questions), len(rows))


def _blocks(questions: np.ndarray) -> Iterable[np.ndarray]:
    return (
        questions[start : start + QUESTIONS_PER_PRODUCT] for start in range(0, len(questions), QUESTIONS_PER_PRODUCT)
    )
