"""Texts for people: durations, short texts, and lines without control characters; messages of the process itself."""

from __future__ import annotations

import os
import re
import sys
from typing import TextIO

# C0, DEL and C1 controls, line and paragraph separators, bidirectional controls, surrogates.
CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
MAX_CHARACTERS = 300  # of a text that is shown


def escape_control(text: str) -> str:
    r"""Return the text with control characters as Python would write them.

    >>> print(escape_control("\x1b[2J\x9b31m\u202e\n"))
    \x1b[2J\x9b31m\u202e\n
    """
    return CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def print_escaped(text: str, stream: TextIO | None) -> None:
    """Print lines without control characters, in one write, so that torchrun's processes do not mix theirs.

    Nothing is printed if the caller of the program has closed the stream (None).
    """
    if stream is not None:
        print("\n".join(map(escape_control, text.split("\n"))) + "\n", end="", file=stream)


def print_message(message: str) -> None:
    """Print a message as one line on stderr, after the name of the program."""
    rank = os.environ.get("RANK", "0")  # torchrun's processes except the first print their number
    speaker = "bertwright" if rank == "0" else f"bertwright, rank {rank}"
    print_escaped(f"{speaker}: {' '.join(map(str.strip, message.splitlines()))}", sys.stderr)


def first_line(error: Exception) -> str:
    r"""Return the first line of an error's message, or the name of its class if it has none.

    >>> first_line(OSError("no network\nand a long trace")), first_line(OSError())
    ('no network', 'OSError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def format_duration(seconds: float) -> str:
    """Format a duration for people.

    >>> format_duration(42.3), format_duration(5_000), format_duration(200_000)
    ('42 s', '1 h 23 min', '55 h 33 min')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def count_of(number: int, one: str, many: str) -> str:
    """Return a number before the words for one thing or for several.

    >>> count_of(1, "row has", "rows have"), count_of(1200, "row has", "rows have")
    ('1 row has', '1,200 rows have')
    """
    return f"{number:,} {one if number == 1 else many}"


def shorten(text: str) -> str:
    r"""Return a text on one line; of a long one the beginning, with the length of the whole.

    >>> shorten("two\nlines"), shorten("long " * 100)[-18:]
    ('two⏎lines', '… (500 characters)')
    """
    text = text.replace("\r\n", "⏎").replace("\n", "⏎")
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}… ({len(text):,} characters)"
