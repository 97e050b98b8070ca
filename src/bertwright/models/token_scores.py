"""Log-probabilities of the tokens of texts by a left-to-right language model.

T tokens of B packed sequences, R states that predict, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bertwright.models.packing import Packing

STATES_AT_ONCE = 1024  # bounds the memory of logits, and changes no result


def score_next_tokens(packing: Packing, ids: Tensor, states: Tensor, logits: Callable[[Tensor], Tensor]) -> Tensor:
    """Compute log p of each token by the state before it, T float32 in nats; 0 for the first one of each sequence.

    `logits`: from states R × H to the logits of the next token, R × V.
    """
    scores = torch.zeros(len(ids), device=ids.device)
    predicted = (packing.position_ids > 0).nonzero()[:, 0]
    for chosen in torch.split(predicted, STATES_AT_ONCE):
        log_probabilities = logits(states[chosen - 1]).float().log_softmax(1)
        scores[chosen] = log_probabilities.gather(1, ids[chosen, None])[:, 0]
    return scores
