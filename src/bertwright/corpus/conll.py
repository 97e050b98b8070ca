"""Documents of CoNLL and CoNLL-U files, for a corpus."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from bertwright.tables.conll_lines import check_sentence_size, is_comment, split_cells, starts_document
from bertwright.text.lines import MAX_CHARACTERS, too_long
from bertwright.text.sources import InputFile

NUMBERED_COLUMNS = 6  # with fewer columns, "1" is a word; files that number their words have ten or more
SENTENCE_TEXT = re.compile(r"# *text *= *(.*)")
SENTENCE_COST = 16  # bytes of memory of a sentence besides its text


def conll_documents(file: InputFile, numbered: Iterable[tuple[int, str]]) -> Iterator[str]:
    """Yield the text of each document of a CoNLL or CoNLL-U file, one sentence per line.

    A document starts at `# newdoc`, `#begin document` or `-DOCSTART-`; without such marks the file is one document. A
    sentence is its `# text` comment or, if there is none, its word forms joined by spaces. In .conll they are the first
    column; of at least six columns the second one if the first numbers the words from 1 (CoNLL-X), or the fourth one if
    the third does from 0 (CoNLL-2012).
    """
    sentences: list[str] = []
    words: list[str] = []  # lines of one sentence
    text, size, sentence_size = "", 0, 0
    join = _join_conllu if file.format == ".conllu" else _join_columns

    def finish_sentence() -> None:
        nonlocal text, size, sentence_size
        if sentence := text or join(words):
            sentences.append(sentence)
            size += len(sentence) + SENTENCE_COST
        text, sentence_size = "", 0
        words.clear()

    for number, line in numbered:
        if starts_document(line) or (file.format == ".conllu" and line.startswith("#newdoc")):
            finish_sentence()
            if sentences:
                yield "\n".join(sentences)
            sentences, size = [], 0
        elif not line or line.isspace():
            finish_sentence()
        elif found := SENTENCE_TEXT.match(line):
            text = found[1].strip()
        else:
            words.append(line.rstrip("\r"))
            sentence_size += len(line)
            check_sentence_size(file.path, number, len(words), sentence_size)
        if size > MAX_CHARACTERS:
            raise ValueError(too_long(file.path, "document", "mark where documents start with # newdoc"))
    finish_sentence()
    if sentences:
        yield "\n".join(sentences)


def _join_columns(lines: Sequence[str]) -> str:
    num_columns = len(split_cells(lines[-1])) if lines else 0
    rows = [split_cells(line) for line in lines if not is_comment(line, num_columns)]
    column = 0
    if min(map(len, rows), default=0) >= NUMBERED_COLUMNS:
        for numbers, start, words in ((0, 1, 1), (2, 0, 3)):
            if all(cells[numbers] == str(number) for number, cells in enumerate(rows, start)):
                column = words
                break
    return " ".join([cells[column] for cells in rows])


def _join_conllu(lines: Sequence[str]) -> str:
    """Join the forms of a sentence's words; CoNLL-U says where no space follows and which words share one form."""
    text, end = "", 0
    for word in [line.split("\t") for line in lines if not line.startswith("#")]:
        number, _, last = word[0].partition("-")
        if len(word) < 2 or not number.isdecimal() or (not last and int(number) <= end):
            continue  # an empty node, or a word inside the range before
        if last.isdecimal():
            end = int(last)
        text += word[1] + ("" if "SpaceAfter=No" in word[-1] else " ")
    return text.rstrip()
