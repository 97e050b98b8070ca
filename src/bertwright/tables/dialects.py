"""The layouts of published files that differ from what a task reads, in one table.

A file that has all columns of its task is plain, and nothing is guessed about it. Otherwise its reader asks `recognize`
once, with the first lines and the names beside the file. To add a layout, write its two functions and add its row.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from bertwright.base.settings import did_you_mean
from bertwright.tables import label_dialects as labels
from bertwright.tables import question_dialects as questions
from bertwright.tables import word_dialects as words
from bertwright.tables.json_documents import JsonDocument, JsonRow
from bertwright.tables.standoff import read_brat, read_pubtator

PLAIN = "plain"  # says that nothing may be recognized
PARTS = {
    "labels": "Labels that are no column",
    "words": "Words and tags in lines",
    "fields": "Columns of words and tags in .jsonl, .json and .parquet",
    "questions": "Questions",
    "json": "Files of .json",
    "rows": "Rows of .jsonl and .json",
}
"""What is recognized, each by itself, with a heading for people. The part of a layout decides what describes the head
of a file, and what the layout's `rows` returns."""


@dataclass(frozen=True)
class Dialect:
    """A layout of files."""

    name: str
    says: str
    """Clause for people."""
    example: str
    """A data set or a program that writes it, and a line of it."""
    recognize: Callable[[Any], str | bool | None]
    """A function that returns what in the head of a file shows this layout, such as the file with the labels, or True;
    nothing for a file in another layout."""
    rows: Callable[..., Any]
    """A function that reads the file."""


DIALECTS: dict[str, tuple[Dialect, ...]] = {
    "labels": (
        Dialect(
            "label-file",
            "the labels are the lines of the file beside it",
            "TweetEval, `train_labels.txt` beside `train_text.txt`",
            lambda file: file.label_file,
            labels.join_labels,
        ),
        Dialect(
            "class-files",
            "a file per class, with a text per line",
            "rt-polarity and SUBJ, `rt-polarity.neg`",
            partial(labels.find_classes, in_folders=False),
            labels.add_class,
        ),
        Dialect(
            "class-folders",
            "a folder per class, with a text per file",
            "IMDB and 20 Newsgroups, `neg/0_3.txt`",
            partial(labels.find_classes, in_folders=True),
            labels.add_class,
        ),
        Dialect(
            "annotations",
            "labels as an annotation tool writes them",
            'Label Studio, Prodigy and spaCy, `{"text": "a mill", "cats": {"good": 1, "bad": 0}}`',
            labels.name_annotations,
            labels.read_annotations,
        ),
        Dialect(
            "label-first",
            "the first word of each line is its label",
            "TREC and fastText, `DESC:manner How did serfdom develop ?`",
            labels.have_labels_first,
            lambda file: file.split_lines(labels.split_first, "a label and a text"),
        ),
        Dialect(
            "label-last",
            "what follows the last @ of each line is its label",
            "Financial PhraseBank, `Sales rose .@positive`",
            labels.have_labels_last,
            lambda file: file.split_lines(labels.split_last, "a text, @ and its label"),
        ),
        Dialect(
            "trees",
            "each line is a tree; the label of its root and its words are read",
            "Stanford Sentiment Treebank, `(3 (2 Good) (4 film))`",
            labels.are_trees,
            lambda file: file.split_lines(labels.split_tree, "a tree such as (3 (2 Good) (4 film))"),
        ),
    ),
    "words": (
        Dialect(
            "conll-2012",
            "words are read from column 4, entities in brackets from column 11",
            "OntoNotes, `bc/a 0 0 Bonn NNP (S* - - - Ann (GPE) -`",
            words.is_conll_2012,
            lambda file: file.read_from(*words.CONLL_2012),
        ),
        Dialect(
            "numbered-words",
            "column 1 numbers the words: words are read from column 2, tags from the first column of spans after it",
            "GermEval 2014 and Universal NER, `1 Ada B-PER O`",
            words.has_numbered_words,
            words.read_numbered_words,
        ),
        Dialect(
            "tags-first",
            "column 1 has the tags and column 2 the words",
            "the MIT movie corpus, `B-ACTOR Ada`",
            words.has_tags_first,
            lambda file: file.read_from(1, 0),
        ),
        Dialect(
            "brackets",
            "brackets of spans become IOB2",
            "CoNLL-2005, `Ada (A0*` and `King *)`",
            words.has_brackets,
            words.read_brackets,
        ),
        Dialect(
            "language-prefix",
            "the language code before each word is removed",
            "WikiANN, `en:Paris B-LOC`",
            words.has_language_prefix,
            words.read_without_prefix,
        ),
        Dialect(
            "word-table",
            "a table with a word per row, whose first line names its columns",
            "Kaggle's NER corpus, `Sentence #,Word,POS,Tag`",
            lambda file: ", ".join(map(repr, filter(None, file.table or ()))),
            lambda file: file.read_table(),
        ),
        Dialect(
            "brat",
            "a text, and its entities in the .ann beside it",
            "brat, `T1<tab>PER 0 4<tab>Anna`",
            lambda file: file.annotations is not None,
            read_brat,
        ),
        Dialect(
            "pubtator",
            "titles and abstracts, and lines with their entities",
            "PubTator, `227508|t|Naloxone reverses`",
            lambda file: file.is_pubtator,
            read_pubtator,
        ),
        Dialect(
            "parallel-lines",
            "a sentence per line; its tags are the lines of the file beside it",
            "SNIPS and ATIS, `seq.out` beside `seq.in`",
            lambda file: file.tag_file,
            words.read_parallel,
        ),
    ),
    "fields": (
        Dialect(
            "token-lists",
            "lists of words and tags under other names",
            'the hub\'s CoNLL-2003, `{"tokens": ["Ada"], "ner_tags": ["B-PER"]}`',
            lambda columns: columns.name(words.TOKEN_LISTS),
            lambda columns: columns.first(words.TOKEN_LISTS) or words.TOKEN_LISTS[0],
        ),
        Dialect(
            "char-spans",
            "texts, and their entities as spans of characters",
            'doccano, Label Studio, Prodigy, spaCy and CLUENER, `{"text": "Ada", "label": [[0, 3, "PER"]]}`',
            lambda columns: columns.name(words.TEXTS_WITH_SPANS),
            lambda columns: columns.first(words.TEXTS_WITH_SPANS) or words.TEXTS_WITH_SPANS[0],
        ),
    ),
    "questions": (
        Dialect(
            "mrqa",
            "answers that its authors found have their places, others stand in `answers`",
            'MRQA, `"detected_answers": [{"text": "1921", "char_spans": [[23, 26]]}]`',
            questions.is_mrqa,
            questions.convert_mrqa,
        ),
        Dialect(
            "newsqa",
            "the answer is what most annotators chose",
            'NewsQA, `"questions": [{"q": "Who?", "consensus": {"s": 32, "e": 37}}]`',
            questions.is_newsqa,
            questions.convert_newsqa,
        ),
    ),
    "json": (
        Dialect(
            "json-lines",
            "a .json file with an object per line",
            'CLUE and many programs, `{"text": "a mill", "label": "x"}`',
            lambda document: document.has_lines,
            JsonDocument.read_lines,
        ),
        Dialect(
            "json-columns",
            "an object of columns, each with a value per row",
            'pandas, `{"text": {"0": "a mill"}, "label": {"0": "x"}}`',
            lambda document: bool(document.columns),
            JsonDocument.read_columns,
        ),
        Dialect(
            "json-member",
            "the rows are a member of the object",
            'the hub\'s API, `{"version": 1, "data": [{"text": "a mill", "label": "x"}]}`',
            lambda document: document.has_array and repr(document.name_array(document.root)),
            JsonDocument.read_array,
        ),
    ),
    "rows": (
        Dialect(
            "json-lists",
            "each row is a list: the values of the task's columns in order, texts first",
            'CLINC150 and spaCy, `["a mill", "x"]`',
            lambda row: row.is_list,
            JsonRow.in_order,
        ),
        Dialect(
            "parallel-lists",
            "each row has several questions, in lists of equal length",
            'RACE, `{"questions": ["Who?", "When?"], "answers": ["B", "A"]}`',
            lambda row: row.is_parallel,
            JsonRow.in_parallel,
        ),
    ),
}
"""The layouts by part, in the order of `PARTS`."""


def dialects_of(parts: Collection[str]) -> list[str]:
    return [dialect.name for part in parts for dialect in DIALECTS[part]]


def check_dialect(name: str | None, parts: Collection[str]) -> None:
    """Raise ValueError unless the name is None, plain, or of a layout of these parts."""
    if name not in (None, PLAIN, *(known := dialects_of(parts))):
        raise ValueError(f"dialect is {name!r}: {did_you_mean(str(name), [PLAIN, *known])}")


def recognize(part: str, head: Any, place: str, given: str | None) -> Dialect | None:
    """Return the layout of a file as the user names it, or else as its head shows it, with a warning; None if plain.

    `place`: the file, or the set of files, for messages. Raises ValueError if the head fits several layouts.
    """
    if given == PLAIN:
        return None
    if named := [dialect for dialect in DIALECTS[part] if dialect.name == given]:
        return named[0]
    fitting = [(dialect, found) for dialect in DIALECTS[part] if (found := dialect.recognize(head))]
    if len(fitting) > 1:
        flags = " or ".join(f"--dialect {dialect.name} ({dialect.says})" for dialect, _ in fitting)
        raise ValueError(f"{place}: expected one layout, got a file that fits {len(fitting)}; name one: {flags}")
    for dialect, found in fitting:
        clause = f"{dialect.says}: {found}" if isinstance(found, str) else dialect.says
        warnings.warn(
            f"{place}: read as {dialect.name} ({clause}; as in {dialect.example}); --dialect {dialect.name} says so, "
            f"--dialect {PLAIN} reads it as it stands",
            stacklevel=1,
        )
        return dialect
    return None
