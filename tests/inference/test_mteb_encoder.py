"""`MtebEncoder`: a model under mteb's interface, and the score of a local task by mteb and by `evaluate`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertwright
from bertwright.inference.bert import Bert
from bertwright.interop.sentence_modules import SentenceModules
from bertwright.metrics.scores import spearman

TEXTS = ["The bear sees the wolf .", "wolf", "The fish", "A bear", "the fish sees", "A wolf sees the bear ."]


class PromptType(Enum):
    """As mteb's."""

    query = "query"
    document = "document"


def make_model(folder: Path) -> Bert:
    plain = bertwright.load(folder, "cpu")
    return Bert(plain.model, plain.tokenizer, modules=SentenceModules(("mean",), prompts={"query": "The bear : "}))


def test_batches_become_vectors_with_the_prompt_of_their_role(one_layer_folder: Path) -> None:
    model = make_model(one_layer_folder)
    encoder = bertwright.MtebEncoder(model)
    batches: list[dict[str, Any]] = [{"text": TEXTS[:4], "id": "ignored"}, {"text": TEXTS[4:]}]
    options = {"task_metadata": None, "hf_split": "test", "hf_subset": "default", "batch_size": 4}
    vectors = encoder.encode(batches, **options)
    np.testing.assert_array_equal(vectors, model.embed(TEXTS))
    np.testing.assert_array_equal(encoder.encode(batches, prompt_type=PromptType.document, **options), vectors)
    queries = encoder.encode(batches, prompt_type=PromptType.query, **options)
    np.testing.assert_array_equal(queries, model.embed_query(TEXTS))
    cosines = encoder.similarity(queries, vectors)
    assert cosines.shape == (6, 6)
    np.testing.assert_allclose(encoder.similarity_pairwise(queries, vectors), np.diag(cosines), atol=1e-6)
    assert np.abs(np.diag(cosines) - 1).max() > 1e-3  # the prompt makes a difference


@pytest.mark.slow
def test_mteb_computes_the_same_score(one_layer_folder: Path) -> None:
    mteb, datasets = pytest.importorskip("mteb"), pytest.importorskip("datasets")
    sts = pytest.importorskip("mteb.abstasks.sts")
    scores = [4.0, 1.0, 0.5, 3.0, 2.0, 5.0]
    second = [*TEXTS[3:], *TEXTS[:3]]

    class LocalPairs(sts.AbsTaskSTS):  # type: ignore[misc, name-defined]  # mteb has no types here
        metadata = mteb.get_task("STSBenchmark").metadata.model_copy(update={"name": "LocalPairs"})

    task = LocalPairs()
    rows = {"sentence1": TEXTS, "sentence2": second, "score": scores}
    table = datasets.table.InMemoryTable.from_pydict(rows)
    # With a fingerprint, because some versions of `datasets` cannot compute one.
    task.dataset = datasets.DatasetDict({"test": datasets.Dataset(table, fingerprint="local")})
    task.data_loaded = True
    model = make_model(one_layer_folder)
    result = mteb.evaluate(bertwright.MtebEncoder(model), task, cache=None, show_progress_bar=False)
    (found,) = result.task_results[0].scores["test"]
    cosines = np.diag(model.similarity(TEXTS, second)).tolist()
    assert found["cosine_spearman"] == pytest.approx(spearman(scores, cosines), abs=1e-4)
    assert found["spearman"] == pytest.approx(spearman(scores, cosines), abs=1e-4)
