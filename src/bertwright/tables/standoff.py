"""Entities in lines apart from their text: brat's .ann beside a .txt, and PubTator."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING

from bertwright.tables.char_spans import CharSpan, count_in_characters
from bertwright.tables.tag_example import TagExample

if TYPE_CHECKING:
    from bertwright.tables.tagged_sentences import WordFile

BRAT_ENTITY = re.compile(r"T\S+\t(\S+) (\d+)(?: [\d; ]+)? (\d+)\t(.*)")  # of one in several parts, its whole extent
PUBTATOR_TEXT = re.compile(r"([^|\t]+)\|[ta]\|(.*)")
PUBTATOR_ENTITY = re.compile(r"[^|\t]+\t(\d+)\t(\d+)\t([^\t]*)\t([^\t]+)(\t.*)?")


def texts_of_annotations(files: Sequence[str]) -> list[str]:
    """Return files with the text in place of each .ann that has one beside it; brat's settings are left out."""
    texts = {file: str(Path(file).with_suffix(".txt")) for file in files if file.endswith(".ann")}
    replaced = [texts[file] if file in texts and Path(texts[file]).is_file() else file for file in files]
    return [*dict.fromkeys(file for file in replaced if not (texts and file.endswith(".conf")))]


def read_brat(file: WordFile) -> Iterator[TagExample]:
    """Yield an example per line of the text."""
    text = "\n".join(line for _, line in file.read_lines(file.path))
    spans = list[CharSpan]()
    beside = file.annotations
    if file.labeled and beside is None:
        raise ValueError(f"{file.path}: no .ann with its entities beside it; add it")
    for number, line in file.read_lines(beside) if file.labeled and beside else ():
        if line.startswith("T"):  # others are relations, events, attributes and notes
            if (entity := BRAT_ENTITY.fullmatch(line)) is None:
                raise ValueError(f"{beside}, line {number}: expected an entity such as T1<tab>PER 0 4<tab>Anna")
            label, start, end, mention = entity.groups()
            is_whole = ";" not in line.split("\t")[1]
            spans.append(CharSpan(int(start), int(end), label, mention if is_whole else None))
    yield from _examples(text, spans, file.path, beside or file.path, 0)


def read_pubtator(file: WordFile) -> Iterator[TagExample]:
    """Yield an example for the title and one for the abstract of each document."""
    path, texts, spans, first, document = file.path, list[str](), list[CharSpan](), 0, 0
    for number, line in chain(file.read_lines(path), [(0, "")]):  # a blank line ends the last document, too
        if found := PUBTATOR_TEXT.fullmatch(line):
            first = first if texts else number
            texts.append(found[2])
        elif entity := PUBTATOR_ENTITY.fullmatch(line):
            if file.labeled:
                spans.append(CharSpan(int(entity[1]), int(entity[2]), entity[4], entity[3]))
        elif not line.strip() and texts:
            yield from _examples("\n".join(texts), spans, path, f"{path}, line {first}", document)
            texts, spans, document = [], [], document + 1


def _examples(text: str, spans: list[CharSpan], path: str, location: str, document: int) -> Iterator[TagExample]:
    """Yield an example per line that is not blank; a span is in the line in which it begins."""
    whole = TagExample.from_text(text)
    spans = count_in_characters(text, spans, whole.offsets, location)[0] if spans else spans
    lines = text.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]
    inside: list[list[CharSpan]] = [[] for _ in lines]
    for span in spans:
        number = bisect_right(starts, span.start) - 1
        inside[number].append(span._replace(start=span.start - starts[number], end=span.end - starts[number]))
    for line, found in zip(lines, inside, strict=True):
        if line.strip():
            example = replace(TagExample.from_text(line, path), spans=tuple(found), document=document)
            yield example.split_into("word")
