"""Word vectors scored on word similarity and on analogies; their nearest words. N pairs or questions, D columns."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertwright.base.files import check_absent, write_json
from bertwright.base.reporter import SILENT, Heading, Reporter, Rows
from bertwright.base.settings import Positional, check_not_str, check_range
from bertwright.metrics.scores import spearman
from bertwright.text.decoding import check_encoding, read_text
from bertwright.text.lines import split_lines
from bertwright.vocabulary.vector_file import SimilarWord, VectorFile, load_vectors
from bertwright.vocabulary.vector_formats import unit_rows

QUESTIONS_PER_PRODUCT = 256
SEPARATORS = ("\t", ";", ",")
RATING = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)(e[+-]?\d+)?", re.IGNORECASE)


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
    top_k: int = 10
    """Words to print."""

    def __post_init__(self) -> None:
        check_not_str(self, "words")
        check_range(self, 1, 1_000, "top_k")
        if self.analogy and len(self.words) != 3:
            raise ValueError(f"analogy: expected three words, as in man king woman, got {len(self.words)}")
        if not self.words:
            raise ValueError("words: expected at least one, got none; name a word")


@dataclass(frozen=True)
class ScoreVectorsSettings:
    """Score word vectors on files of word similarity (Spearman) and of analogies (accuracy).

    A line of a similarity file has two words and a rating, as in SimLex-999, SimVerb-3500, WordSim-353, MEN or RG-65:
    with tabs, semicolons, commas or spaces between; a first line of names and other columns are not read. Analogies are
    as in questions-words.txt: four words per line, and lines that begin with a colon and name a section. Pairs and
    questions with a word that has no vector are left out and counted.
    """

    vectors: Positional[Path]
    """File of vectors (GloVe, word2vec or fastText, text or binary), or a folder of `bertwright word-vectors`."""
    files: Positional[tuple[str, ...]]
    """Files of pairs or questions."""
    output: Path | None = None
    """New .json file for the scores."""
    encoding: str = "utf-8"
    """Encoding of the files by its name in Python, such as latin-1 or cp949."""

    def __post_init__(self) -> None:
        check_not_str(self, "files")
        check_encoding(self.encoding)
        if not self.files:
            raise ValueError("files: expected at least one, got none; name a file of word pairs or analogies")


def nearest_words(settings: NearestSettings, reporter: Reporter = SILENT) -> list[list[SimilarWord]]:
    """Print and return the most similar words, for each word or for the analogy. Raises ValueError for no vector."""
    file = load_vectors(settings.vectors)
    if settings.analogy:
        a, b, c = settings.words
        queries = {f"{a} : {b} = {c} : …": file.analogy(a, b, c, settings.top_k)}
    else:
        queries = {word: file.nearest([word], settings.top_k) for word in settings.words}
    for name, similar_words in queries.items():
        reporter.record(Heading(name))
        rows = [(similar.word, f"{similar.similarity:.3f}") for similar in similar_words]
        reporter.record(Rows(("word", "cosine"), rows))
    return list(queries.values())


def score_vectors(settings: ScoreVectorsSettings, reporter: Reporter = SILENT) -> list[VectorScore]:
    """Print and return the scores on all files. Raises ValueError with the line for a file in another form."""
    if settings.output is not None:
        check_absent(settings.output)
    # Before the vectors, which may be large.
    examples = {name: list(read_examples(name, settings.encoding)) for name in settings.files}
    file = load_vectors(settings.vectors)
    scores = [score_examples(file, Path(name).name, rows) for name, rows in examples.items()]
    reporter.record(Heading(f"{settings.vectors}: {len(file):,} words, {file.width} numbers each"))
    rows = [
        (score.name, score.metric, f"{100 * score.score:.1f}", f"{score.used:,}", f"{score.total:,}")
        for score in scores
    ]
    reporter.record(Rows(("file", "metric", "score", "used", "of"), rows))
    if settings.output is not None:
        write_json(settings.output, [score._asdict() for score in scores])
    return scores


def read_examples(path: str, encoding: str = "utf-8") -> Iterator[list[str]]:
    """Yield the fields of a file's pairs (two words and a rating) or analogies (four words).

    Ratings are the first column of numbers after the words. Raises ValueError with the line for other fields.
    """
    texts = ((number, line.strip("\r\n")) for number, line in split_lines(path, read_text(path, encoding)))
    lines = [(number, text) for number, text in texts if text.strip() and not text.startswith((":", "#"))]
    if not lines:
        raise ValueError(f"{path}: expected word pairs or analogies, got no lines")
    separator = next((mark for mark in SEPARATORS if _is_common([text.count(mark) >= 2 for _, text in lines])), None)
    rows = [(number, _split_fields(text, separator, f"{path}, line {number}")) for number, text in lines]
    width = sorted(len(fields) for _, fields in rows)[len(rows) // 2]  # columns that half of the lines have
    columns = (c for c in range(2, width) if _is_common([is_rating(fields, c, separator) for _, fields in rows]))
    column = next(columns, None)
    if column is not None:
        yield from _read_pairs(path, rows, column, separator)
        return
    for number, fields in rows:
        if len(fields) != 4:
            expected = "four words" if len(rows[0][1]) == 4 else "two words and a rating"
            raise ValueError(f"{path}, line {number}: expected {expected}, got {' '.join(fields)[:60]!r}; fix the line")
        yield fields


def _read_pairs(
    path: str, rows: Sequence[tuple[int, list[str]]], column: int, separator: str | None
) -> Iterator[list[str]]:
    """Yield two words and the rating of each row; warn of a first line of names and of columns that are not read."""
    number, first = rows[0]
    has_names = not is_rating(first, column, separator) and len(first) > column
    name = f" ({first[column]!r} in line {number}, which names the columns)" if has_names else ""
    data = rows[1:] if has_names else rows
    marks = "" if separator in (None, "\t") else f", separated by {separator!r}"
    if column > 2 or len(first) > 3 or has_names or marks:
        warnings.warn(f"{path}: the ratings are column {column + 1}{name}{marks}", stacklevel=1)
    if any(_is_common([is_rating(fields, side, separator) for _, fields in data]) for side in (0, 1)):
        raise ValueError(
            f"{path}, line {number}: expected two words and a rating, got numbers for words; fix the columns"
        )
    for number, fields in data:
        got = " ".join(fields)[:60]
        if not is_rating(fields, column, separator):
            where = "" if column == 2 else f" in column {column + 1}"
            raise ValueError(
                f"{path}, line {number}: expected two words and a rating{where}, got {got!r}; fix the line"
            )
        is_longer = len(fields) > len(first) if has_names else len(fields) == 4 and all(map(str.isdigit, fields[2:]))
        if separator == "," and is_longer:
            raise ValueError(
                f"{path}, line {number}: expected two words and a rating, got {got!r}, with a decimal comma or a "
                "second number; separate the columns by tabs, or name all of them in line 1"
            )
        yield [*fields[:2], fields[column].replace(",", ".")]


def is_rating(fields: Sequence[str], column: int, separator: str | None) -> bool:
    """Return whether a column is a number; it may have a decimal comma, unless commas separate the columns."""
    field = fields[column] if column < len(fields) else ""
    return RATING.fullmatch(field) is not None and not (separator == "," and "," in field)


def _split_fields(text: str, separator: str | None, place: str) -> list[str]:
    """Split a line at a separator, outside of quotes for all but tabs, or at spaces if there is none."""
    if separator is None or separator == "\t":
        return [field.strip() for field in text.split(separator)]
    try:
        return [field.strip() for field in next(csv.reader([text], delimiter=separator, skipinitialspace=True))]
    except csv.Error as error:
        raise ValueError(f"{place}: expected word pairs or analogies, got {text[:60]!r}… ({error})") from None


def _is_common(flags: Sequence[bool]) -> bool:
    """Return whether at least half of the lines have a property: a line of names and a damaged line may lack it."""
    return 2 * sum(flags) >= len(flags)


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
    for start in range(0, len(questions), QUESTIONS_PER_PRODUCT):
        block = questions[start : start + QUESTIONS_PER_PRODUCT]
        a, b, c, d = block.T
        cosines = (unit[b] - unit[a] + unit[c]) @ unit.T
        for asked in (a, b, c):
            cosines[np.arange(len(block)), asked] = -np.inf
        correct += int((cosines.argmax(axis=1) == d).sum())
    return VectorScore(name, "accuracy", correct / max(len(questions), 1), len(questions), len(rows))
