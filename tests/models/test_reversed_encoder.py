"""Encoders that read from right to left: what each state sees, parity with a causal encoder, model folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from bertwright.interop.huggingface import load_model, save_model
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import PooledHead
from bertwright.models.packing import TokenBatch, pack
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

LTR = BertConfig(
    vocab_size=30, hidden_size=8, num_layers=2, num_heads=2, intermediate_size=16, max_positions=16, is_causal=True
)
RTL = replace(LTR, is_reversed=True)
BATCH = pack([np.arange(1, 6), np.arange(3, 12)])


def mirror(batch: TokenBatch) -> TokenBatch:
    """Reverse each sequence of a batch, by a loop."""
    return pack([ids.numpy()[::-1] for ids in batch.input_ids.split(batch.packing.lengths.tolist())])


def test_a_reversed_encoder_equals_a_causal_one_on_mirrored_sequences() -> None:
    ltr, rtl = BertEncoder(LTR, seed=1).eval(), BertEncoder(RTL, seed=1).eval()
    expected = ltr(mirror(BATCH)).split(BATCH.packing.lengths.tolist())
    # A row's product may be rounded by its place and the number of rows.
    assert_close(rtl(BATCH), torch.cat([states.flip(0) for states in expected]), atol=1e-5, rtol=1e-5)
    positions = torch.tensor([12, 0, 6])
    assert_close(rtl(BATCH, positions), rtl(BATCH)[positions], atol=1e-5, rtol=1e-5)
    for one, all_states in zip(rtl.hidden_states(BATCH, positions=positions), rtl.hidden_states(BATCH), strict=True):
        assert_close(one, all_states[positions], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("token", "expected"), [(2, [0, 1, 2]), (7, [5, 6, 7])])
def test_reversed_states_depend_on_themselves_and_later_tokens(token: int, expected: list[int]) -> None:
    encoder, ids = BertEncoder(RTL, seed=1).eval(), BATCH.input_ids.clone()
    ids[token] += 1
    with torch.no_grad():
        difference = encoder(replace(BATCH, input_ids=ids)) - encoder(BATCH)
    assert (difference.abs().sum(1) > 1e-4).nonzero().flatten().tolist() == expected


def test_the_summary_of_a_reversed_encoder_is_its_first_token() -> None:
    assert BertEncoder(RTL).pooled_positions(BATCH.packing).tolist() == [0, 5]
    assert BertEncoder(LTR).pooled_positions(BATCH.packing).tolist() == [4, 13]
    spec = HeadSpec("sequence", 2)
    assert [PooledHead(spec, ["cls"], BertEncoder(config)).modes for config in (RTL, LTR)] == [["cls"], ["lasttoken"]]


def test_a_reversed_encoder_that_is_not_causal_is_rejected() -> None:
    with pytest.raises(ValueError, match="is_reversed = True: expected is_causal = True"):
        replace(RTL, is_causal=False)


def test_a_reversed_model_is_read_back_and_transformers_rejects_it(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_tokens([*SPECIAL_TOKENS, *(f"word{n}" for n in range(25))], lowercase=True)
    save_model(tmp_path / "rtl", BertForPretraining(RTL, seed=5), tokenizer)
    loaded = load_model(tmp_path / "rtl").model
    assert loaded.config == RTL
    assert torch.equal(loaded.encoder(BATCH), BertEncoder(RTL, seed=5).eval()(BATCH))
    transformers = pytest.importorskip("transformers")
    with pytest.raises(ValueError, match="bert-rtl"):
        transformers.AutoConfig.from_pretrained(tmp_path / "rtl")
