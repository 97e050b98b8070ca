"""Texts that are given on the command line or piped in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bertwright.text.decoding import STDIN_NAME, TextCodec, read_stdin
from bertwright.text.lines import split_lines
from bertwright.text.sources import STDIN


def stdin_lines(codec: TextCodec) -> Iterator[tuple[int, str]]:
    """Yield number and content of each line of standard input. Raises ValueError if there is none."""
    number = 0
    for number, line in split_lines(STDIN_NAME, read_stdin(codec)):
        yield number, line
    if not number:
        raise _no_text()


def stdin_texts(codec: TextCodec) -> Iterator[str]:
    """Yield the lines of standard input without outer spaces, except blank ones. Raises ValueError if there is none."""
    has_text = False
    for _, line in stdin_lines(codec):
        if text := line.strip():
            has_text = True
            yield text
    if not has_text:
        raise _no_text()


def expand_stdin(texts: Sequence[str], codec: TextCodec) -> list[str]:
    """Return the texts, with standard input's lines in place of "-". Raises ValueError for a second "-"."""
    if texts.count(STDIN) > 1:
        raise ValueError(f"{STDIN}: standard input is given {texts.count(STDIN)} times; give it once")
    return [line for text in texts for line in (stdin_texts(codec) if text == STDIN else [text])]


def _no_text() -> ValueError:
    return ValueError(f"{STDIN_NAME}: expected at least one text, got none; pipe texts in, one per line")
