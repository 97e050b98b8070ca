"""The description of a task's head, without torch."""

from __future__ import annotations

from typing import Literal, NamedTuple


class HeadSpec(NamedTuple):
    """The states that a task's head reads, and its number of outputs."""

    kind: Literal["sequence", "choice", "token", "span"]
    """sequence, choice: one state per sequence; token: each word's first token; span: every token."""
    outputs: int
    """C: number of labels; 1 for a regression or a choice's score; 2 for the start and the end of a span."""

    @property
    def pooled(self) -> bool:
        """True if the head reads one state per sequence."""
        return self.kind in ("sequence", "choice")
