"""BLEU by sacrebleu (Post 2018), with the signature that states how it was computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from bertwright.base.optional import needs

BleuTokenizer = Literal["13a", "none", "intl", "char", "zh"]


class Bleu(NamedTuple):
    """A corpus BLEU."""

    score: float
    """From 0 to 100."""
    signature: str
    """Version and settings of sacrebleu, to be stated with the score."""


def corpus_bleu(hypotheses: Sequence[str], *references: Sequence[str], tokenize: BleuTokenizer = "13a") -> Bleu:
    """Score translations against their references, each of which has a line per translation; case matters.

    `tokenize`: sacrebleu's tokenizer: 13a for raw text; none for text that is tokenized already.
    """
    with needs("translate", "BLEU"):
        from sacrebleu.metrics.bleu import BLEU  # imported on use, since it takes a third of a second

    metric = BLEU(tokenize=tokenize, force=True)  # force: no warning about text that looks tokenized
    result = metric.corpus_score([*hypotheses], [[*lines] for lines in references])
    return Bleu(float(result.score), str(metric.get_signature()))
