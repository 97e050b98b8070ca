"""Next-sentence prediction: the probability that one text follows another (task 2 of section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertwright.inference.text_vectors import BATCH_TOKENS
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.tasks.prediction import prediction_batches
from bertwright.tasks.truncation import NO_LABELS, SegmentTokens, encode_segments
from bertwright.training.loop import check_finite_outputs
from bertwright.vocabulary.tokenizer import TextTokenizer


def predict_next_sentences(
    model: BertForPretraining, tokenizer: TextTokenizer, firsts: Sequence[str], seconds: Sequence[str]
) -> list[float]:
    """Return, for each pair of texts, the probability that the second follows the first.

    If a pair has more tokens than the model has positions, its longer text is truncated at the end. Raises ValueError
    for a model with one segment embedding.
    """
    segments = [SegmentTokens.of(texts, tokenizer) for texts in (firsts, seconds)]
    encoded = encode_segments(segments, NO_LABELS, tokenizer, model.config.max_positions)
    probabilities = np.empty(len(firsts))
    for pairs, batch in prediction_batches(model, model.config, encoded, BATCH_TOKENS):
        states = model.encoder(batch.input, batch.positions)
        logits = model.next_sentence(model.pooler(states)).float()  # column 0: the second text follows the first
        check_finite_outputs(bool(logits.isfinite().all()))
        probabilities[pairs] = logits.softmax(-1)[:, 0].cpu().numpy()
    return probabilities.tolist()
