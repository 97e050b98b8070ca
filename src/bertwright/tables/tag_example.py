"""A sentence of tagged words, and the words of raw text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from tokenizers import Regex, pre_tokenizers

from bertwright.tables.char_spans import CharSpan, tags_of_spans

# Words as in CoNLL data: U.N., 22-year-old, 2,000.50, Germany + 's, is + n't; other punctuation is a word of its own.
# Marks (\p{M}) and joiners belong to their letters, which Hindi needs.
_W = r"[\p{L}\p{M}\p{N}_\x{200C}\x{200D}]"
WORD = "|".join(
    [
        rf"(?<!{_W})(?:\p{{L}}\.){{2,}}",
        rf"\p{{L}}+?(?=n['’]t(?!{_W}))",
        rf"(?<={_W})n['’]t(?!{_W})",
        rf"{_W}+(?:(?:-|(?<=\p{{N}})[.,:/](?=\p{{N}})){_W}+)*",
        rf"(?<={_W})['’](?i:s|re|ve|ll|d|m)(?!{_W})",
        r"\.{2,}",
        r"-{2,}",
        r"\S(?:[\p{M}\x{FE0F}]|\x{200D}\S?)*",
    ]
)
Unit = Literal["word", "character", "character or blank"]
# What raw text is split into. A corpus of tagged characters has either no blanks or, as KLUE-NER, all of them.
_UNITS = {
    unit: pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    for unit, pattern in {"word": WORD, "character": r"\S", "character or blank": r"[\S ]"}.items()
}


@dataclass(frozen=True, slots=True)
class TagExample:
    """A sentence: words, tags if known, location and context."""

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    source: str = "words"
    """The file, or another name for messages."""
    lines: Sequence[int] = ()
    """Line number of each word, from 1."""
    document: int = 0
    """Number of the document; its sentences are consecutive."""
    before: tuple[tuple[str, ...], ...] = ()
    """Words of preceding sentences of the document, as far as they fit a window; the nearest sentence is last."""
    after: tuple[tuple[str, ...], ...] = ()
    """Words of following sentences; the nearest is first."""
    text: str | None = None
    """The raw text that was split into words; None if words were given."""
    offsets: tuple[tuple[int, int], ...] = ()
    """Start and end of each word in `text`, in characters."""
    spans: tuple[CharSpan, ...] | None = None
    """The entities as spans of `text`, if the file has these instead of tags."""
    changed_spans: tuple[str, ...] = ()
    """Texts of the spans that are not exactly words, or overlap a longer span."""

    def __post_init__(self) -> None:
        if self.tags is not None and len(self.tags) != len(self.words):
            raise ValueError(f"{self.location}: {len(self.words)} words, but {len(self.tags)} tags")

    @classmethod
    def from_text(cls, text: str, source: str = "text", unit: Unit = "word") -> Self:
        """Split raw text into words as in CoNLL data, or into characters; only white space is dropped.

        Raises ValueError for a lone surrogate, which is not valid Unicode.

        >>> TagExample.from_text("Merkel's visit, 2.5 hours").words
        ('Merkel', "'s", 'visit', ',', '2.5', 'hours')
        >>> TagExample.from_text("서울은 넓다", unit="character or blank").words
        ('서', '울', '은', ' ', '넓', '다')
        """
        try:
            found = _UNITS[unit].pre_tokenize_str(text)
        except UnicodeEncodeError as error:
            raise ValueError(f"{source}: lone surrogate U+{ord(text[error.start]):04X} at {error.start}") from None
        return cls(
            tuple([word for word, _ in found]), source=source, text=text, offsets=tuple([span for _, span in found])
        )

    def split_into(self, unit: Unit) -> Self:
        """Return the example with its raw text split into this unit; an example given as words is unchanged."""
        if self.text is None:
            return self
        split = self if unit == "word" else self.from_text(self.text, self.source, unit)
        tags, changed = self.tags, self.changed_spans
        if self.spans is not None:
            tags, changed = tags_of_spans(self.text, split.offsets, self.spans)
        return replace(self, words=split.words, offsets=split.offsets, tags=tags, changed_spans=changed)

    @property
    def location(self) -> str:
        """File and line, for messages."""
        return self.location_of(0)

    def location_of(self, word: int) -> str:
        """Return file and line of a word, for messages."""
        return f"{self.source}, line {self.lines[word]}" if self.lines else self.source
