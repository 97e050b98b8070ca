"""One model is safe under concurrent calls from threads: same bytes as alone, no module's mode changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from test_tasks import ANSWERER, CLASSIFIER, PRETRAINED, TAGGER

from bertwright.inference.bert import Bert

THREADS, ROUNDS = 8, 3
TEXTS = ["the cat sat.", "a b c d e f g h", "cat", "sat the cat the cat sat the cat a b c d e f"]
CALLS: dict[str, Callable[[], Any]] = {
    "fill_mask": lambda: PRETRAINED.fill_mask([f"{text} [MASK]" for text in TEXTS]),
    "embed": lambda: PRETRAINED.embed(TEXTS),
    "features": lambda: PRETRAINED.features(TEXTS, layers=(0, -1)),
    "attention": lambda: PRETRAINED.attention(TEXTS[0]),
    "classify": lambda: CLASSIFIER.classify([text[:8] for text in TEXTS]),
    "tag": lambda: TAGGER.tag(TEXTS),
    "answer": lambda: ANSWERER.answer(["the cat"] * len(TEXTS), TEXTS),
}


def to_bytes(result: Any) -> bytes:
    """Return the arrays of a result as their bytes, and other values as text with all digits."""
    if isinstance(result, np.ndarray):
        return result.tobytes()
    if isinstance(result, list | tuple):
        return b"|".join(map(to_bytes, result))
    return repr(result).encode()


@pytest.fixture(params=[torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.bfloat16)], autouse=True)
def compute_dtype(request: pytest.FixtureRequest) -> Iterator[None]:
    models = (PRETRAINED, CLASSIFIER, TAGGER, ANSWERER)
    for bert in models:
        bert.model.encoder.compute_dtype = request.param
    yield
    for bert in models:
        bert.model.encoder.compute_dtype = torch.float32


def test_eight_threads_get_the_same_bytes_as_one() -> None:
    alone = {name: to_bytes(call()) for name, call in CALLS.items()}
    threads = torch.get_num_threads()
    together = threading.Barrier(THREADS)

    def run(number: int) -> list[tuple[str, bytes]]:
        """Make all calls in an order of this thread's own, so that different methods run at the same time."""
        names = list(CALLS)[number % len(CALLS) :] + list(CALLS)[: number % len(CALLS)]
        together.wait()
        return [(name, to_bytes(CALLS[name]())) for _ in range(ROUNDS) for name in names]

    with ThreadPoolExecutor(THREADS) as pool:
        for results in pool.map(run, range(THREADS)):
            for name, result in results:
                assert result == alone[name], name
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("bert", [PRETRAINED, CLASSIFIER], ids=["pretrained", "classifier"])
def test_predicting_never_sets_a_mode(bert: Bert, monkeypatch: pytest.MonkeyPatch) -> None:
    """`train` and `eval` are calls that another thread would notice: dropout may be on while it predicts."""
    monkeypatch.setattr(torch.nn.Module, "train", lambda *_: pytest.fail("a mode was set"))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: pytest.fail("the number of threads was set"))
    for call in CALLS.values():
        call()
    assert not any(module.training for module in bert.model.modules())
