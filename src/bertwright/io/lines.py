"""Units of text, such as lines, from a stream of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

MAX_CHARACTERS = 1 << 28  # in one line, field or document; a larger one means that the format is not the expected one


def split_at(blocks: Iterable[str], last_end: Callable[[str], int], limit: int, too_long: str) -> Iterator[str]:
    """Yield the text in stretches of whole units; a unit that is longer than a block is collected from several.

    `last_end` returns where the last unit that ends in a block ends (0: none does). Raises ValueError with the message
    `too_long` for a unit of more than `limit` characters.
    """
    unfinished: list[str] = []
    size = 0
    for block in blocks:
        end = last_end(block)
        if end:
            yield "".join([*unfinished, block[:end]])
            unfinished, size = [], 0
        unfinished.append(block[end:])
        size += len(block) - end
        if size > limit:
            raise ValueError(too_long)
    if size:
        yield "".join(unfinished)


def lines(path: str, blocks: Iterable[str], number: int = 1) -> Iterator[tuple[int, str]]:
    r"""Yield number and text of each line, without its \n; `number` is that of the first."""
    too_long = f"{path}: a line of more than {MAX_CHARACTERS:,} characters; is this the right format? Split the line"
    for stretch in split_at(blocks, lambda block: block.rfind("\n") + 1, MAX_CHARACTERS, too_long):
        found = stretch.split("\n")  # not splitlines, which also splits at \x0b, \x1c, U+2028 and others
        if not found[-1]:
            found.pop()
        yield from enumerate(found, number)
        number += len(found)
