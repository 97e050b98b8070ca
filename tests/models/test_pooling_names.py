"""One table of poolings, which text vectors, heads and folders of sentence-transformers read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from bertwright.interop.sentence_modules import make_sentence_modules, read_modes
from bertwright.models import pooling
from bertwright.models.packing import Packing
from bertwright.models.pooling import POOLINGS, Pooling, SequenceStates, merge_windows, pool_states

LENGTHS = np.array([1, 4, 3])
NAIVE = {
    "cls": lambda states: states[0],
    "lasttoken": lambda states: states[-1],
    "max": lambda states: states.amax(0),
    "mean": lambda states: states.mean(0),
    "mean_sqrt_len_tokens": lambda states: states.sum(0) / len(states) ** 0.5,
    "weightedmean": lambda states: (
        (states * torch.arange(1, len(states) + 1)[:, None]).sum(0) / sum(range(len(states) + 1))
    ),
}


@pytest.mark.parametrize("mode", POOLINGS)
@pytest.mark.parametrize("skip", [0, 1])
def test_a_pooling_equals_its_definition_on_each_sequence(mode: str, skip: int) -> None:
    lengths = LENGTHS + skip
    states = torch.randn(lengths.sum(), 5, generator=torch.Generator().manual_seed(0))
    expected = []
    for sequence in torch.split(states, lengths.tolist()):
        rest = sequence[skip:]
        if mode == "weightedmean":  # its weights are those of the whole sequence
            number = torch.arange(1 + skip, len(sequence) + 1)[:, None]
            expected.append((rest * number).sum(0) / number.sum())
        else:
            expected.append(NAIVE[mode](rest))
    torch.testing.assert_close(pool_states(states, Packing.of(lengths), [mode], skip), torch.stack(expected))


@pytest.mark.parametrize("mode", ["max", "mean", "mean_sqrt_len_tokens"])
def test_windows_of_a_text_give_the_vector_of_the_whole_text(mode: str) -> None:
    states = torch.randn(12, 5, generator=torch.Generator().manual_seed(1))
    whole = pool_states(states, Packing.of(np.array([12])), [mode]).numpy()
    sizes = np.array([5, 4, 3])
    windows = pool_states(states, Packing.of(sizes), [mode]).numpy()
    np.testing.assert_allclose(merge_windows(windows, sizes, np.array([0]), mode), whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["cls", "lasttoken"])
def test_windows_pooled_to_one_token_are_averaged(mode: str) -> None:
    pooled = np.array([[1.0], [3.0], [5.0]], np.float32)
    merged = merge_windows(pooled, np.array([9, 2, 4]), np.array([0, 2]), mode)
    assert merged.tolist() == [[2.0], [5.0]]


def test_a_new_pooling_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def minimum(states: SequenceStates) -> torch.Tensor:
        return -states.reduce(-states.hidden, "max")

    monkeypatch.setitem(POOLINGS, "min", Pooling(minimum, np.ones_like))
    for modes in (("min",), ("mean", "min"), ("mean",)):
        saved = make_sentence_modules(None, modes, 4, 512, {})
        assert "" not in (values := json.loads(saved.files["1_Pooling/config.json"]))
        assert read_modes(Path("config.json"), values) == modes
    states = torch.tensor([[3.0], [1.0], [2.0]])
    assert pool_states(states, Packing.of(np.array([2, 1])), ["min", "max"]).tolist() == [[1.0, 3.0], [2.0, 2.0]]
    with pytest.raises(ValueError, match=r"pooling: expected one of cls, max, .*, got 'median'"):
        pooling.check_pooling("median")
