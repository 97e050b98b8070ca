"""Units of text, such as lines, from a stream of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

MAX_CHARACTERS = 1 << 28  # limit of a line, field or document; a longer one means that the format is another


def group_units(
    blocks: Iterable[str], find_last_end: Callable[[str], int], max_characters: int, too_long_message: str
) -> Iterator[str]:
    """Yield the text in stretches of whole units; a unit that is longer than a block is collected from several.

    `find_last_end` returns where the last unit that ends in a block ends (0 if none does). Raises ValueError with the
    message `too_long_message` for a unit of more than `max_characters`.
    """
    unfinished: list[str] = []
    size = 0
    for block in blocks:
        end = find_last_end(block)
        if end:
            yield "".join([*unfinished, block[:end]])
            unfinished, size = [], 0
        unfinished.append(block[end:])
        size += len(block) - end
        if size > max_characters:
            raise ValueError(too_long_message)
    if size:
        yield "".join(unfinished)


def split_lines(path: str, blocks: Iterable[str], first_number: int = 1) -> Iterator[tuple[int, str]]:
    r"""Yield number and text of each line, without its \n; the first line has the number `first_number`."""
    number = first_number
    message = too_long(path, "line", "is this the right format? Split the line")
    for stretch in group_units(blocks, lambda block: block.rfind("\n") + 1, MAX_CHARACTERS, message):
        lines = stretch.split("\n")  # not splitlines, which also splits at \x0b, \x1c, U+2028 and others
        if not lines[-1]:
            lines.pop()
        yield from enumerate(lines, number)
        number += len(lines)


def too_long(path: str, unit: str, hint: str) -> str:
    """Return the message for a unit of text that is longer than MAX_CHARACTERS."""
    return f"{path}: a {unit} of more than {MAX_CHARACTERS:,} characters; {hint}"
