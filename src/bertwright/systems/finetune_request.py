"""What a system is told when it is asked for its default settings of fine-tuning. The module does not import torch."""

from __future__ import annotations

from typing import NamedTuple

BASE_HIDDEN_SIZE = 768
MAX_DEFAULT_RATE = 3e-4  # the highest of the rates for small BERTs of Turc et al. 2019 (google-research/bert)


class FinetuneRequest(NamedTuple):
    """The task and the model of a fine-tuning run, as far as default settings depend on them."""

    task: str
    """Value of --task; empty if none is given."""
    is_tagging: bool = False
    has_context: bool = False
    """Whether the preset of the task reads sentences with the surrounding ones."""
    given_words: tuple[str, ...] = ()
    """Settings of a new model of words that are given."""
    hidden_size: int = BASE_HIDDEN_SIZE


def default_learning_rate(base: float, hidden_size: int) -> float:
    """Return the default peak rate for an encoder, given that for BASE; larger encoders have BASE's.

    Adam changes each weight by about the rate, whatever its size; in a narrow layer fewer changes add up, so that the
    rate must rise as the width falls (Yang et al. 2021, µP: inversely). On small data sets, narrow models learned more
    with a still higher rate, so that it rises with the square.

    >>> [default_learning_rate(3e-5, size) for size in (1024, 768, 384, 32)]
    [3e-05, 3e-05, 0.00012, 0.0003]
    """
    return max(base, min(base * (BASE_HIDDEN_SIZE / hidden_size) ** 2, MAX_DEFAULT_RATE))
