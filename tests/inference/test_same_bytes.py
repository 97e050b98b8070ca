"""A text's answer has the same bytes alone, in a batch, and in another order, in float32 on a CPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertwright.inference.bert import Bert
from bertwright.kernels.fused_ops import fill_blocks, linear
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.tasks.classification import Classification
from bertwright.tasks.task_folder import TaskModel
from bertwright.vocabulary.wordpiece_tokenizer import SPECIAL_TOKENS, Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)], lowercase=True)
CONFIG = BertConfig(TOKENIZER.vocab_size, hidden_size=384, num_layers=1, num_heads=12, intermediate_size=1536)
TEXTS = ["", *(" ".join(LETTERS[n : n + n % 13]) for n in range(20)), " ".join(LETTERS * 4)]


@pytest.fixture(params=(1, 2))
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Compute with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_vectors_have_the_same_bytes_in_any_batch(threads: int) -> None:
    bert = Bert(BertForPretraining(CONFIG, 1), TOKENIZER)
    together = bert.embed(TEXTS)
    assert np.array_equal(together, np.stack([bert.embed(text) for text in TEXTS]))
    assert np.array_equal(together, bert.embed(TEXTS[::-1], batch_tokens=50)[::-1])
    masks = [f"{text} [MASK]" for text in TEXTS]
    assert bert.fill_mask(masks) == [bert.fill_mask(text) for text in masks]


def test_labels_have_the_same_probabilities_in_any_batch(threads: int) -> None:
    task = Classification(labels=("a", "b", "c"))
    bert = Bert(TaskModel(EncoderForTask(BertEncoder(CONFIG, seed=1), task.head, seed=1), task), TOKENIZER)
    assert bert.classify(TEXTS) == [bert.classify(text) for text in TEXTS]


@torch.inference_mode()
def test_rows_of_a_product_do_not_depend_on_their_number(threads: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight, bias = (torch.randn(*size, generator=generator) for size in ((80, 384), (1152, 384), (1152,)))
    whole = linear(x, weight, bias)
    assert torch.allclose(whole, F.linear(x, weight, bias))
    for rows in range(1, 24):
        for start in (0, 7):
            assert torch.equal(linear(x[start : start + rows], weight, bias), whole[start : start + rows])


def test_rows_are_filled_in_inference_alone() -> None:
    x = torch.ones(5, 2)
    assert fill_blocks(x) is x
    with torch.no_grad():
        assert fill_blocks(x).tolist() == [[1, 1]] * 5 + [[0, 0]] * 3
        assert len(fill_blocks(x[:0])) == 0
