"""Kernels of word vectors: against NumPy, against the gradient that autograd computes, and bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from bertwright.kernels import ffi
from bertwright.kernels.word_vectors import (
    GloveArgs,
    SkipGramArgs,
    glove,
    glove_reference,
    make_alias_table,
    padded_table,
    skip_gram,
    skip_gram_reference,
)

V = 30


def random_table(rng: np.random.Generator, rows: int, columns: int) -> torch.Tensor:
    table = padded_table(rows, columns)
    table[:, :columns] = torch.from_numpy(rng.normal(scale=0.3, size=(rows, columns)))
    return table


def make_skip_gram(size: int, subwords: bool) -> SkipGramArgs:
    rng = np.random.default_rng(0)
    words = torch.from_numpy(rng.integers(0, V, 300, dtype=np.int32))
    words[::17] = -1
    rows = V + 40 if subwords else V
    table, output = random_table(rng, rows, size), random_table(rng, V, size)
    offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(rng.integers(1, 6, V))]))
    row_ids = torch.from_numpy(rng.integers(0, rows, int(offsets[-1]), dtype=np.int32))
    keep = torch.from_numpy(rng.uniform(0.5, 1.2, V).astype(np.float32))
    noise = make_alias_table(rng.uniform(0.1, 1, V))
    uses = (row_ids, offsets) if subwords else (None, None)
    return SkipGramArgs(table, output, table.shape[1], words, len(words), keep, *noise, V, *uses, 5, 5, 0.05, 0.02, -7)


def make_glove(size: int) -> GloveArgs:
    rng = np.random.default_rng(0)
    tables = [random_table(rng, V, size + 1) for _ in range(2)]
    squares = [torch.ones_like(table) for table in tables]
    first, second = (torch.from_numpy(rng.integers(0, V, 200, dtype=np.int32)) for _ in range(2))
    counts = torch.from_numpy(rng.exponential(20, 200).astype(np.float32) + 0.1)
    return GloveArgs(*tables, *squares, tables[0].shape[1], size, first, second, counts, 200, 0.05, 30.0, 0.75)


@pytest.mark.parametrize("subwords", [False, True])
@pytest.mark.parametrize("size", [20, 50, 100, 128, 300])  # each has its own or the common number of vectors per row
def test_skip_gram_equals_the_reference(size: int, subwords: bool) -> None:
    native, reference, start = (make_skip_gram(size, subwords) for _ in range(3))
    skip_gram(native)
    skip_gram_reference(reference)
    torch.testing.assert_close(native.input, reference.input, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(native.output, reference.output, atol=1e-5, rtol=1e-4)
    assert (native.output - start.output).abs().max() > 0.1  # something was learned at all
    assert native.input[:, size:].abs().max() == 0 if native.stride > size else True


@pytest.mark.parametrize("step", [skip_gram, skip_gram_reference])
def test_one_pair_is_a_step_along_the_gradient(step) -> None:  # type: ignore[no-untyped-def]
    """Two words, and a third one as noise: both pairs in turn, with gradients by autograd."""
    rng = np.random.default_rng(1)
    table, output = random_table(rng, 2, 16), random_table(rng, 3, 16)
    noise = make_alias_table(np.array([1e-9, 1e-9, 1.0]))  # always word 2
    words = torch.tensor([0, 1], dtype=torch.int32)
    v, u = table.clone(), output.clone()
    args = SkipGramArgs(table, output, 16, words, 2, torch.ones(3), *noise, 3, None, None, 1, 1, 0.1, 0.1, 3)
    step(args)
    for centre, context in ((0, 1), (1, 0)):
        v.requires_grad_(), u.requires_grad_()
        objective = logsigmoid(u[context] @ v[centre]) + logsigmoid(-u[2] @ v[centre])
        dv, du = torch.autograd.grad(objective, (v, u))
        v, u = (v + 0.1 * dv).detach(), (u + 0.1 * du).detach()
    torch.testing.assert_close(table, v, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(output, u, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("size", [15, 16, 100])
def test_glove_equals_the_reference_and_lowers_the_loss(size: int) -> None:
    native, reference = make_glove(size), make_glove(size)
    losses = [glove(native), glove(native)]
    assert losses[0] == pytest.approx(glove_reference(reference), rel=1e-5)
    glove_reference(reference)
    for left, right in zip(native[:4], reference[:4], strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-4)
    assert losses[1] < losses[0]


def test_one_thread_gives_the_same_bits_each_time() -> None:
    torch.set_num_threads(1)
    runs = [make_skip_gram(100, True) for _ in range(2)]
    for run in runs:
        skip_gram(run)
    assert torch.equal(runs[0].input, runs[1].input)


def test_two_threads_train_all_words() -> None:
    if not ffi.use_native(torch.zeros(1)):
        pytest.skip("no C++ compiler")
    torch.set_num_threads(2)
    args, start = make_skip_gram(100, False), make_skip_gram(100, False)
    skip_gram(args)
    assert (args.input != start.input).any(dim=1).all()
    assert args.input.isfinite().all()


def test_the_alias_table_has_the_distribution() -> None:
    weights = np.array([0.5, 0.1, 3.0, 0.4, 1.0])
    share, alias = make_alias_table(weights)
    columns = np.zeros(5)
    for column in range(5):
        columns[column] += float(share[column])
        columns[alias[column]] += 1 - float(share[column])
    np.testing.assert_allclose(columns / 5, weights / weights.sum(), atol=1e-6)
