"""A question on a context with its gold answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

SHOWN = 5  # questions that a warning names; report.json lists all


class GoldAnswer(NamedTuple):
    """A gold answer."""

    text: str
    start: int | None
    """Index of its first character in the context; None if it is not at the given start, nor exactly once elsewhere."""
    moved: bool = False
    """True if the file gives another start, at which the text is not."""


@dataclass(frozen=True)
class QaExample:
    """A question on a context. Questions on the same context share one `str`."""

    id: str
    question: str
    context: str
    answers: tuple[GoldAnswer, ...] = ()
    """All gold answers; empty if there are none, or if they are not known."""
    is_impossible: bool = False
    """Whether the file says that the context has no answer (SQuAD 2.0)."""
    location: str = "question"
    """File and question, for messages."""

    @property
    def target(self) -> GoldAnswer | None:
        """The answer to learn: the first that occurs in the context."""
        return next((answer for answer in self.answers if answer.start is not None), None)

    @property
    def learnable(self) -> bool:
        """True if the model can be trained on this question."""
        return self.is_impossible or self.target is not None


class AnswerAlignment(NamedTuple):
    """Locations of the questions whose answers do not occur at the start given in the file, or that have none."""

    moved: tuple[str, ...]
    """The answer occurs exactly once elsewhere in the context, and is learned there."""
    left_out: tuple[str, ...]
    """No answer occurs in the context: scored as usual, but not trained on."""
    unanswered: tuple[str, ...]
    """The file has no answer: any span counts as wrong, and the question is not trained on."""

    def warnings(self) -> list[str]:
        """Format a sentence for each of the lists that is not empty."""
        described = (
            (self.moved, "questions whose answer is not at the given start, but occurs once elsewhere: learned there"),
            (self.left_out, "questions whose answer is not at the given start, nor once elsewhere: not trained on"),
            (
                self.unanswered,
                "questions without an answer in the file: not trained on, and any answer to them is scored as wrong; "
                "to learn that they have none, use --allow-no-answer True",
            ),
        )
        return [
            f"{len(places):,} {what}{'; see report.json' if len(places) > SHOWN else ''} ({list_first(places)})"
            for places, what in described
            if places
        ]


def align_answers(examples: Iterable[QaExample]) -> AnswerAlignment:
    """List the questions whose answers do not occur at the start given in the file, or that have none."""
    moved, left_out, unanswered = [], [], []
    for example in examples:
        if not example.answers and not example.is_impossible:
            unanswered.append(example.location)
        elif not example.learnable:
            left_out.append(example.location)
        elif any(answer.moved for answer in example.answers):
            moved.append(example.location)
    return AnswerAlignment(tuple(moved), tuple(left_out), tuple(unanswered))


def list_first(locations: Sequence[str]) -> str:
    """Return the first locations for a message, and how many more there are."""
    more = len(locations) - SHOWN
    return "; ".join([*locations[:SHOWN], *([f"and {more:,} more"] if more > 0 else [])])
