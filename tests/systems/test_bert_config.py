from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from bertwright.models.packing import pack
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.bert.defaults import SIZES


@pytest.mark.parametrize(
    ("size", "published"), [("tiny", 4.4), ("mini", 11.3), ("small", 29.1), ("medium", 41.7), ("base", 110.1)]
)
def test_sizes_have_the_published_numbers_of_parameters(size, published):  # Turc et al. 2019, table 1
    config = BertConfig.from_size(size, vocab_size=30_522)
    assert (config.num_encoder_parameters + config.num_pooler_parameters) / 1e6 == pytest.approx(published, abs=0.7)


def test_head_size_is_64_in_every_size():
    assert {BertConfig.from_size(size, vocab_size=9).head_size for size in SIZES} == {64}


@given(
    layers=st.integers(1, 3), heads=st.integers(1, 3), size=st.integers(1, 9), intermediate=st.integers(1, 20),
    vocab=st.integers(1, 30), positions=st.integers(1, 9), types=st.integers(1, 3),
)  # fmt: skip
def test_parameter_counts_equal_those_of_the_model(layers, heads, size, intermediate, vocab, positions, types):
    config = BertConfig(
        vocab_size=vocab, hidden_size=heads * size, num_layers=layers, num_heads=heads, intermediate_size=intermediate,
        max_positions=positions, type_vocab_size=types,
    )  # fmt: skip
    with torch.device("meta"):
        model = BertForPretraining(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == config.num_parameters
    assert sum(parameter.numel() for parameter in model.encoder.parameters()) == config.num_encoder_parameters


def test_flops_equal_those_that_torch_counts():
    config = BertConfig(vocab_size=50, hidden_size=24, num_layers=2, num_heads=3, intermediate_size=40)
    lengths = [8, 8, 8, 8]  # equal, because the reference implementation of attention, which torch counts, pads
    model = BertForPretraining(config).eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(pack([np.ones(length, dtype=int) for length in lengths]), torch.tensor([1, 5, 8, 9]))
    counted = counter.get_total_flops()
    attention = config.num_layers * sum(4 * length**2 * config.hidden_size for length in lengths)
    expected = config.count_forward_flops(lengths, num_predictions=4, pooled=True)
    assert counted in (expected, expected - attention)  # torch does not count the native kernel


def test_causal_attention_counts_the_lower_triangle_only():
    full, causal = (BertConfig(9, 4, 1, 1, 4, is_causal=causal) for causal in (False, True))
    difference = full.count_forward_flops([5], 0, False) - causal.count_forward_flops([5], 0, False)
    assert difference == (25 - 15) * 2 * 2 * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 100, "num_heads": 3}, "hidden_size = 100.*num_heads = 3"),
        ({"num_layers": 0}, "num_layers: expected at least 1, got 0"),
        ({"vocab_size": -1}, "vocab_size: expected at least 1, got -1"),
        ({"hidden_dropout": 1.0}, "hidden_dropout: .*got 1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout: .*got -0.1"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps: .*got 0.0"),
        ({"initializer_range": float("nan")}, "initializer_range: .*got nan"),
        ({"activation": "silu"}, "activation: expected one of gelu, gelu_tanh, relu, got 'silu'"),
        ({"pad_token_id": 100}, "pad_token_id = 100.*vocab_size = 100"),
    ],
)
def test_invalid_value_raises_with_name_and_value(changes, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        BertConfig(**({"vocab_size": 100} | changes))


def test_unknown_size_raises_with_the_known_sizes():
    with pytest.raises(ValueError, match=r"'huge'.*tiny, mini, small, medium, base, large"):
        BertConfig.from_size("huge", vocab_size=10)
