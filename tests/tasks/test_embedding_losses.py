"""Losses of text vectors: value and gradient as in sentence-transformers, or as the formula says; masks by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer import losses
from torch import Tensor

from bertwright.models import embedding_losses
from bertwright.tables.text_roles import TextRow
from bertwright.tasks.embedding import Embedding
from bertwright.tasks.embedding_batches import label_texts
from bertwright.tasks.embedding_objective import VectorObjective

SIZE = 12
OurLoss = Callable[[Tensor], Tensor]
Reference = Callable[[list[Tensor]], Tensor]


def make_pairs(number: int = 9, negatives: int = 0, **more: Any) -> list[TextRow]:
    """Make rows of different texts."""
    return [
        TextRow(f"a{n}", f"line {n}", (f"p{n}",), tuple(f"n{n} {k}" for k in range(negatives)), **more)
        for n in range(number)
    ]


def make_rated(number: int = 9, values: Sequence[float] = (0.1, 0.9, 0.5, 0.5, 0.2)) -> list[TextRow]:
    return [row._replace(score=values[n % len(values)]) for n, row in enumerate(make_pairs(number))]


def make_vectors(count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return vectors of which neighbours are similar, as texts of a row are."""
    rng = np.random.default_rng(0)
    shared = np.repeat(rng.normal(size=(count, SIZE)), 3, axis=0)[:count]
    return torch.tensor(shared + 0.7 * rng.normal(size=(count, SIZE)), dtype=dtype, requires_grad=True)


def our_loss(rows: Sequence[TextRow], known: Sequence[TextRow] | None = None, **options: Any) -> OurLoss:
    """Return our loss as a function of the vectors of all texts; `known`: all training rows."""
    objective = VectorObjective.of(Embedding(**options), [*rows, *(known or ())])
    labels = torch.from_numpy(label_texts([*rows, *(known or ())]))[: sum(len(row.texts) for row in rows)]
    return lambda vectors: objective(vectors, labels).loss


def columns_of(vectors: Tensor, texts_per_row: int) -> list[Tensor]:
    return [vectors[column::texts_per_row] for column in range(texts_per_row)]


def check_equal(ours: OurLoss, reference: Reference, texts: int, texts_per_row: int) -> None:
    """Compare values and gradients."""
    one, two = make_vectors(texts), make_vectors(texts)
    value, expected = ours(one), reference(columns_of(two, texts_per_row))
    assert float(value.detach()) == pytest.approx(float(expected.detach()), abs=1e-6, rel=1e-6)
    value.backward()
    expected.backward()
    assert one.grad is not None
    assert two.grad is not None
    assert one.grad.abs().max() > 1e-3
    assert (one.grad - two.grad).abs().max() <= 1e-6


def reference(cls: Any, labels: Tensor | None = None, **options: Any) -> Reference:
    loss = cls(None, **options)
    return lambda vectors: loss.compute_loss_from_embeddings(vectors, labels)


@pytest.mark.parametrize("negatives", [0, 1, 3])
@pytest.mark.parametrize("scale", [20.0, 1.0])
def test_ranking_equals_sentence_transformers(negatives: int, scale: float) -> None:
    rows = make_pairs(negatives=negatives)
    ours = our_loss(rows, vector_loss="ranking", similarity_scale=scale)
    check_equal(ours, reference(losses.MultipleNegativesRankingLoss, scale=scale), 9 * (2 + negatives), 2 + negatives)


@pytest.mark.parametrize(
    ("options", "theirs", "negatives"),
    [
        ({"symmetric": True}, {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}, 0),
        ({"symmetric": True}, {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}, 2),
        (
            {"all_pairs": True},
            {"directions": ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc"), "partition_mode": "joint"},
            0,
        ),
        ({"hardness": 9.0}, {"hardness_mode": "in_batch_negatives", "hardness_strength": 9.0}, 0),
        ({"hardness": 5.0}, {"hardness_mode": "hard_negatives", "hardness_strength": 5.0}, 2),
    ],
)
def test_variants_of_ranking_equal_sentence_transformers(
    options: dict[str, Any], theirs: dict[str, Any], negatives: int
) -> None:
    ours = our_loss(make_pairs(negatives=negatives), vector_loss="ranking", **options)
    expected = reference(losses.MultipleNegativesRankingLoss, **theirs)
    check_equal(ours, expected, 9 * (2 + negatives), 2 + negatives)


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({}, {"symmetric": True}, {"all_pairs": True}):
        rows = [*make_pairs(9), *make_pairs(4)]
        gradients = []
        for size in (1, 4, 256):
            monkeypatch.setattr(embedding_losses, "BLOCK_ROWS", size)
            vectors = make_vectors(26)
            our_loss(rows, vector_loss="ranking", **options)(vectors).backward()  # type: ignore[no-untyped-call, arg-type]
            gradients.append(vectors.grad)
        for gradient in gradients[1:]:
            torch.testing.assert_close(gradient, gradients[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "theirs", "values"),
    [
        ("cosent", losses.CoSENTLoss, (0.1, 0.9, 0.5, 0.5, 0.2)),
        ("cosent", losses.CoSENTLoss, (0.0, 1.0)),
        ("cosent", losses.CoSENTLoss, (4.75, -1, 3)),
        ("angle", losses.AnglELoss, (0.1, 0.9, 0.5, 0.5, 0.2)),
        ("cosine", losses.CosineSimilarityLoss, (0.1, 0.9, 0.5, 0.5, 0.2)),
        ("contrastive", losses.OnlineContrastiveLoss, (0.0, 1.0)),
        ("contrastive", losses.OnlineContrastiveLoss, (1.0,)),
    ],
)
def test_losses_of_scores_equal_sentence_transformers(name: str, theirs: Any, values: tuple[float, ...]) -> None:
    rows = make_rated(9, values)
    labels = torch.tensor([row.score for row in rows], dtype=torch.float64)
    check_equal(our_loss(rows, vector_loss=name), reference(theirs, labels), 18, 2)


def test_triplets_equal_sentence_transformers() -> None:
    check_equal(our_loss(make_pairs(negatives=1), vector_loss="triplet"), reference(losses.TripletLoss), 27, 3)


def test_classes_equal_the_formula_in_float64() -> None:
    classes = [0, 0, 1, 2, 1, 0, 1, 3, 2]
    rows = [TextRow(f"text {n}", "", label=str(label)) for n, label in enumerate(classes)]

    def formula(columns: list[Tensor]) -> Tensor:
        unit = torch.nn.functional.normalize(columns[0])
        logits = 20 * unit @ unit.T
        total, count = torch.zeros((), dtype=torch.float64), 0
        for i, label in enumerate(classes):
            others = [j for j in range(len(classes)) if j != i]
            same = [j for j in others if classes[j] == label]
            if same:
                total = total - (logits[i, same] - logits[i, others].logsumexp(0)).mean()
                count += 1
        return total / count

    check_equal(our_loss(rows, vector_loss="labels"), formula, 9, 1)


def test_dims_equal_sentence_transformers() -> None:
    base = losses.MultipleNegativesRankingLoss(None)

    def summed(columns: list[Tensor]) -> Tensor:  # as MatryoshkaLoss does
        return torch.stack(
            [base.compute_loss_from_embeddings([c[:, :d] for c in columns], None) for d in (12, 6, 3)]
        ).sum()

    check_equal(our_loss(make_pairs(), vector_loss="ranking", dims=(12, 6, 3)), summed, 18, 2)


def direct_ranking(vectors: Tensor, wrong: Sequence[Sequence[int]], rows: int) -> Tensor:
    """Compute ranking with the columns that each row may see besides its own."""
    unit = torch.nn.functional.normalize(vectors)
    first, second = unit[0::2], unit[1::2]
    terms = []
    for row in range(rows):
        logits = 20 * first[row] @ second[[row, *wrong[row]]].T
        terms.append(logits.logsumexp(0) - logits[0])
    return torch.stack(terms).mean()


@pytest.mark.parametrize(
    ("texts", "elsewhere", "wrong"),
    [
        ([("a", "p"), ("b", "q"), ("c", "r")], [], [[1, 2], [0, 2], [0, 1]]),
        # A second copy of the target, whatever the blanks around it.
        ([("a", "p"), ("b", "p "), ("c", "r")], [], [[2], [2], [0, 1]]),
        # Another right answer of the same anchor.
        ([("a", "p"), ("a", "q"), ("c", "r")], [], [[2], [2], [0, 1]]),
        # A right answer by a row that is not in this step.
        ([("a", "p"), ("b", "q"), ("c", "r")], [("a", "q"), ("c", "x")], [[2], [0, 2], [0, 1]]),
        # The anchor's own text as the answer of another row.
        ([("a", "p"), ("b", "a"), ("c", "r")], [], [[2], [0, 2], [0, 1]]),
        # The same row twice.
        ([("a", "p"), ("a", "p"), ("c", "r")], [], [[2], [2], [0, 1]]),
        # An anchor that is its own answer keeps its target.
        ([("a", "a"), ("b", "q"), ("c", "r")], [], [[1, 2], [0, 2], [0, 1]]),
        # No wrong answer is left: no loss.
        ([("a", "p"), ("b", "p")], [], [[], []]),
    ],
)
def test_masks_by_hand(texts: list[tuple[str, str]], elsewhere: list[tuple[str, str]], wrong: list[list[int]]) -> None:
    rows, others = ([TextRow(a, "", (p,)) for a, p in given] for given in (texts, elsewhere))
    one, two = make_vectors(2 * len(rows)), make_vectors(2 * len(rows))
    value = our_loss(rows, others, vector_loss="ranking")(one)
    expected = direct_ranking(two, wrong, len(rows))
    assert float(value.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)
    value.backward()  # type: ignore[no-untyped-call]
    expected.backward()  # type: ignore[no-untyped-call]
    assert one.grad is not None
    assert two.grad is not None
    torch.testing.assert_close(one.grad, two.grad, rtol=0, atol=1e-6)


def test_masked_pairs_are_counted() -> None:
    rows = [TextRow("a", "", ("p",)), TextRow("a", "", ("q",)), TextRow("c", "", ("r",))]
    objective = VectorObjective.of(Embedding(vector_loss="ranking"), rows)
    sums = objective(make_vectors(6), torch.from_numpy(label_texts(rows))).sums
    assert float(sums["masked_pairs"]) == 2


@pytest.mark.parametrize("margin", [0.0, 0.1])
def test_guide_masks_what_it_finds_nearer(margin: float) -> None:
    """Of GISTEmbed's four matrices, only the one of anchors and texts is used: the formula in full."""
    rows = make_pairs(6)
    guide = embedding_losses.unit(torch.tensor(np.random.default_rng(3).normal(size=(12, 5))))
    task = Embedding(vector_loss="ranking", guide="given below", guide_margin=margin)
    unguided = VectorObjective.of(Embedding(vector_loss="ranking"), rows)
    objective = VectorObjective(task, unguided.known, unguided.reverse, guide)
    one, two = make_vectors(12), make_vectors(12)
    near = guide[0::2] @ guide[1::2].T
    wrong = [[j for j in range(6) if j != i and near[i, j] <= near[i, i] - margin] for i in range(6)]
    assert 0 < sum(map(len, wrong)) < 25
    value, expected = objective(one, torch.from_numpy(label_texts(rows))).loss, direct_ranking(two, wrong, 6)
    assert float(value.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)


def test_a_guide_masks_in_both_directions_of_a_symmetric_loss() -> None:
    rows, guide = make_pairs(6), embedding_losses.unit(torch.tensor(np.random.default_rng(3).normal(size=(12, 5))))
    pairs = VectorObjective.of(Embedding(vector_loss="ranking"), rows)
    task = Embedding(vector_loss="ranking", guide="given below", symmetric=True)
    value = VectorObjective(task, pairs.known, pairs.reverse, guide)(
        make_vectors(12), torch.from_numpy(label_texts(rows))
    )
    near, vectors, expected = guide[0::2] @ guide[1::2].T, make_vectors(12), []
    turned = vectors.view(6, 2, SIZE).flip(1).reshape(12, SIZE)  # each text before its anchor
    for cosines, given in ((near, vectors), (near.T, turned)):
        wrong = [[j for j in range(6) if j != i and cosines[i, j] <= cosines[i, i]] for i in range(6)]
        expected.append(float(direct_ranking(given, wrong, 6).detach()))
    assert float(value.loss.detach()) == pytest.approx(sum(expected) / 2, abs=1e-6)


def test_known_answers_are_no_wrong_answers_on_one_side() -> None:
    """B is the answer to A, and C to B: neither questions nor answers of these rows are told apart."""
    rows = [TextRow(a, "", (p,)) for a, p in (("A", "B"), ("B", "C"), ("x", "y"), ("v", "w"))]
    vectors = make_vectors(8)
    unit = torch.nn.functional.normalize(vectors)
    first, second = unit[0::2], unit[1::2]
    to_answers = [[0, 1, 2, 3], [1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]  # B is an anchor and no answer to itself
    one_side = [[2, 3], [2, 3], [0, 1, 3], [0, 1, 2]]
    to_anchors = [[0, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]]
    losses_of_rows = []
    for row in range(4):
        parts = (
            (first, second, to_answers),
            (first, first, one_side),
            (second, first, to_anchors),
            (second, second, one_side),
        )
        logits = torch.cat([20 * one[row] @ two[seen[row]].T for one, two, seen in parts])
        losses_of_rows.append(logits.logsumexp(0) - 20 * first[row] @ second[row])
    value = our_loss(rows, vector_loss="ranking", all_pairs=True)(vectors)
    assert float(value.detach()) == pytest.approx(float(torch.stack(losses_of_rows).mean().detach()), abs=1e-6)


def test_hardness_weighs_all_wrong_answers_of_rows_without_own_ones() -> None:
    rows = [TextRow("a", "", ("p",), ("n",)), TextRow("b", "", ("q",)), TextRow("c", "", ("r",))]
    vectors = make_vectors(7)
    unit = torch.nn.functional.normalize(vectors)
    columns, weighed = unit[[1, 2, 4, 6]], torch.tensor([[0, 1, 0, 0], [1, 1, 0, 1], [1, 1, 1, 0]])
    cosines = unit[[0, 3, 5]] @ columns.T
    logits = 20 * cosines + 5 * weighed * cosines.detach()
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 2, 3]))
    value = our_loss(rows, vector_loss="ranking", hardness=5.0)(vectors)
    assert float(value.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)
