"""Specification of a task head. This module does not import torch."""

from __future__ import annotations

from typing import Literal, NamedTuple


class HeadSpec(NamedTuple):
    """Specification of a task head: which states it reads, and its number of outputs."""

    kind: Literal["sequence", "choice", "token", "span", "vector"]
    """sequence, choice: one state per sequence; token: each word's first token; span: every token;
    vector: all tokens, from which a text's vector is made."""
    outputs: int
    """C: number of labels; 1 for a regression or a choice's score; 2 for the start and the end of a span."""

    @property
    def reads_sequence_state(self) -> bool:
        """True if the head reads one state per sequence."""
        return self.kind in ("sequence", "choice")
