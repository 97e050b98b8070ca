"""Limits of small corpora: how often a model can read one, and how exactly its held-out documents measure."""

from __future__ import annotations

import math

SMALL = 1_000_000  # words
TOKENS_PER_WORD = 1.3  # rough number for a vocabulary of 30,000 tokens in English

MAX_EPOCHS = 40  # BERT's own number (section A.2: "approximately 40 epochs over the 3.3 billion word corpus")
# Limit for a small corpus. After 20, 30 and 54 epochs on 52,000 tokens, the model of `make demo` has a loss of 5.36,
# 5.11, 5.05 on held-out text and 4.87, 4.34, 3.10 on the training text: later gains are mostly memorized.
MAX_EPOCHS_OF_SMALL = 20

LOSS_DEVIATION = 3.6  # standard deviation of one prediction's loss, nats; measured with the model of `make demo`
MIN_PREDICTIONS = 2_000  # standard error of the loss: 0.08 nats
MIN_ANSWERS = 400  # standard error of the next-sentence accuracy: 2.5 points
PREDICTED_SHARE = 0.15  # share of tokens that masked LM predicts (section 3.1)


def max_epochs(num_tokens: int) -> int:
    """Return the number of passes over a corpus beyond which a model mostly memorizes it."""
    return MAX_EPOCHS_OF_SMALL if num_tokens < SMALL * TOKENS_PER_WORD else MAX_EPOCHS


def loss_error(predictions: float) -> float:
    """Return the standard error in nats of a mean loss over some predictions, as an estimate for all text of this kind.

    >>> round(loss_error(2_000), 2)
    0.08
    """
    return LOSS_DEVIATION / math.sqrt(predictions)


def accuracy_error(answers: float) -> float:
    """Return the standard error of an accuracy near one half.

    >>> accuracy_error(400)
    0.025
    """
    return 0.5 / math.sqrt(answers)


def min_held_out_share(num_tokens: float) -> float:
    """Return the share of a corpus to hold out, so that its tokens make MIN_PREDICTIONS predictions; at least 0.01.

    >>> round(min_held_out_share(525_000), 3), min_held_out_share(1e9)
    (0.025, 0.01)
    """
    return max(0.01, MIN_PREDICTIONS / PREDICTED_SHARE / num_tokens)
