from __future__ import annotations

import numpy as np
import torch

from bertwright.batching.batch import pack
from bertwright.models.config import BertConfig
from bertwright.models.heads import BertForPretraining

CONFIG = BertConfig(vocab_size=30, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=16, max_positions=16)
BATCH = pack([np.arange(1, 6), np.arange(3, 12)])


def test_shapes_and_number_types():
    model = BertForPretraining(CONFIG).eval()
    predicted = model(BATCH, torch.tensor([0, 2, 9]))
    assert predicted.tokens.shape == (3, 30)
    assert predicted.next_sentence.shape == (2, 2)
    model.encoder.compute_dtype = torch.bfloat16
    assert all(logits.dtype == torch.float32 for logits in model(BATCH, torch.tensor([0])))


def test_no_question_is_no_answer():
    predicted = BertForPretraining(CONFIG).eval()(BATCH, torch.zeros(0, dtype=torch.int64))
    assert predicted.tokens.shape == (0, 30)


def test_pooled_states_are_those_of_the_first_tokens():
    model = BertForPretraining(CONFIG).eval()
    hidden = torch.arange(14.0)[:, None].expand(14, 8) / 14
    with torch.no_grad():
        model.pooler.dense.weight.copy_(torch.eye(8))
    pooled = model.pooler(hidden[BATCH.cu_seqlens[:-1]])
    torch.testing.assert_close(pooled, torch.tensor([0.0, 5 / 14]).tanh()[:, None].expand(2, 8))


def test_the_decoder_is_the_word_embedding():
    model = BertForPretraining(CONFIG).eval()
    hidden = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    before = model.masked_token.logits(hidden, model.word_embeddings)
    with torch.no_grad():
        model.encoder.embeddings.word.weight[7, 0] += 1.0
        model.masked_token.bias[3] += 2.0
        changed = (model.masked_token.logits(hidden, model.word_embeddings) - before).abs().sum(0) > 1e-3
    assert changed.nonzero().flatten().tolist() == [3, 7]


def test_the_same_seed_gives_the_same_model():
    models = [BertForPretraining(CONFIG, seed) for seed in (4, 4, 5)]
    states = [torch.cat([p.flatten() for p in model.parameters()]) for model in models]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])
