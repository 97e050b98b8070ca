"""Texts of users' files, as they are shown to people."""

from __future__ import annotations

MAX_CHARACTERS = 300  # of a text that is shown


def shorten(text: str) -> str:
    r"""Return a text on one line; of a long one the beginning, with the length of the whole.

    >>> shorten("two\nlines"), shorten("long " * 100)[-18:]
    ('two⏎lines', '… (500 characters)')
    """
    text = text.replace("\r\n", "⏎").replace("\n", "⏎")
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}… ({len(text):,} characters)"
