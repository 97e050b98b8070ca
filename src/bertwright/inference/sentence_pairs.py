"""Next-sentence prediction: the probability that one text follows another (task 2 of section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertwright.models.heads import BertForPretraining
from bertwright.permutation import token_budget_batches
from bertwright.tasks.collation import check_segments, collate
from bertwright.tasks.truncation import SegmentTokens, encode_segments
from bertwright.training.loop import check_finite_outputs
from bertwright.vocabulary.tokenizer import Tokenizer

BATCH_TOKENS = 8_192  # bounds memory and changes no result


def predict_next_sentences(
    model: BertForPretraining, tokenizer: Tokenizer, firsts: Sequence[str], seconds: Sequence[str]
) -> list[float]:
    """Return, for each pair of texts, the probability that the second follows the first.

    If a pair has more tokens than the model has positions, its longer text is truncated at the end. Raises ValueError
    for a model with one segment embedding.
    """
    segments = [SegmentTokens.of(texts, tokenizer) for texts in (firsts, seconds)]
    encoded = encode_segments(segments, np.empty(0, dtype=np.int64), tokenizer, model.config.max_positions)
    check_segments(encoded.token_type_ids, model.config)
    device = next(model.parameters()).device
    probabilities = np.empty(len(firsts))
    for indices in token_budget_batches(encoded.lengths, BATCH_TOKENS):
        pairs = collate(encoded, indices).to(device)
        states = model.encoder(pairs.input, pairs.positions)
        logits = model.next_sentence(model.pooler(states)).float()  # column 0: the second text follows the first
        check_finite_outputs(bool(logits.isfinite().all()))
        probabilities[indices] = logits.softmax(-1)[:, 0].cpu().numpy()
    return [float(probability) for probability in probabilities]
