"""Exact search, BM25, fusion, and index folders: against naive code, by hand, and after kills."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertwright.base.files import read_json
from bertwright.search import exact_search, vector_index
from bertwright.search.bm25 import Bm25
from bertwright.search.exact_search import Vectors, find_nearest
from bertwright.search.fusion import fuse_rankings
from bertwright.search.vector_index import Document, IndexDescription, VectorIndex, build_index

DIMS = 6


def unit(*shape: int, seed: int = 0) -> Vectors:
    vectors = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def expected(queries: Vectors, vectors: Vectors, k: int) -> np.ndarray:
    scores = (queries.astype(float) @ vectors.astype(float).T).astype(np.float32)
    places = np.broadcast_to(np.arange(len(vectors)), scores.shape)
    return np.lexsort((places, -scores), axis=1)[:, :k]


@pytest.mark.parametrize("k", [1, 7, 40])
def test_search_equals_a_float64_product_with_ties_over_blocks(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_search, "BLOCK", 16)
    monkeypatch.setattr(exact_search, "QUERIES", 5)
    vectors = unit(100, DIMS)
    vectors[[3, 50, 99]] = vectors[20]
    queries = np.concatenate([unit(12, DIMS, seed=1), vectors[20:21]])
    found = find_nearest(queries, vectors, k)
    np.testing.assert_array_equal(found.positions, expected(queries, vectors, k))
    assert found.positions[-1, 0] == 3  # the first of four equal vectors


def test_fewer_vectors_than_asked_for_leave_places_empty() -> None:
    found = find_nearest(unit(2, DIMS), unit(3, DIMS, seed=1), 5)
    assert (found.positions[:, 3:] == -1).all()
    assert {*found.positions[0, :3].tolist()} == {0, 1, 2}
    assert find_nearest(unit(2, DIMS)[:0], unit(3, DIMS), 2).positions.shape == (0, 2)


def test_bm25_is_lucenes_formula() -> None:
    index = Bm25.build(["The cat and the dog", "a cat", "fish"])
    rarity, mean = math.log1p((3 - 2 + 0.5) / (2 + 0.5)), (5 + 2 + 1) / 3
    weights = [rarity / (1 + 1.2 * (0.25 + 0.75 * length / mean)) for length in (5, 2)]
    np.testing.assert_allclose(index.score("CAT? cat!"), [2 * weights[0], 2 * weights[1], 0], rtol=1e-6)
    found = index.find(["cat", "unknown"], 2)
    assert found.positions.tolist() == [[1, 0], [-1, -1]]


def test_bm25_after_saving_finds_the_same(tmp_path: Path) -> None:
    index = Bm25.build(["b a", "", "c a a"])
    index.save(tmp_path)
    np.testing.assert_array_equal(Bm25.load(tmp_path).score("a c"), index.score("a c"))


def test_fusion_adds_reciprocal_ranks() -> None:
    assert fuse_rankings([["a", "b"], ["b"]]) == {"b": 1 / 62 + 1 / 61, "a": 1 / 61}


def make_description(precision: vector_index.Precision = "both", **model: str) -> IndexDescription:
    return IndexDescription({"weights": "1"} | model, DIMS, precision, has_bm25=True)


def make_documents(number: int) -> list[Document]:
    return [Document(f"d{place}", f"text {place}\n한국어") for place in range(number)]


def embed(texts: Sequence[str]) -> Vectors:
    return np.concatenate([3 * unit(1, DIMS, seed=int(text.split()[1])) for text in texts])


def build(folder: Path, documents: list[Document], description: IndexDescription, append: bool = False) -> None:
    for _ in build_index(folder, documents, description, embed, append):
        pass


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix != ".npz"}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_index, "CHUNK", 4)


def test_index_finds_what_was_written(tmp_path: Path) -> None:
    build(tmp_path / "index", make_documents(10), make_description())
    index = VectorIndex(tmp_path / "index")
    queries = embed(["text 7", "text 0"]) / 3
    hits = index.hits(index.find_by_vectors(queries, 3))
    assert [found[0] for found in hits] == [
        ("d7", pytest.approx(1), "text 7\n한국어"),
        ("d0", pytest.approx(1), "text 0\n한국어"),
    ]
    assert index.hits(index.find_by_words(["7"], 2))[0][0].id == "d7"
    assert [hit.id for hit in index.hits(index.find_by_both(["7"], queries[1:], 2))[0]] == ["d7", "d0"]
    loaded = np.load(tmp_path / "index" / "vectors.npy")  # the files are ordinary arrays
    np.testing.assert_allclose(np.linalg.norm(loaded, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("torn", [False, True])
def test_a_killed_build_goes_on_with_equal_bytes(tmp_path: Path, torn: bool) -> None:
    documents = make_documents(10)
    build(tmp_path / "whole", documents, make_description())
    list(islice(build_index(tmp_path / "part", documents, make_description(), embed), 2))
    with pytest.raises(ValueError, match="interrupted"):
        VectorIndex(tmp_path / "part")
    if torn:  # killed while the next chunk was written
        for name in ("vectors.npy", "documents.jsonl"):
            with (tmp_path / "part" / name).open("ab") as file:
                file.write(b"half a chunk")
    build(tmp_path / "part", documents, make_description())
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


def test_a_build_killed_in_its_first_chunk_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(tmp_path / "whole", make_documents(10), make_description())
    real = vector_index._open_at

    def fail_at_the_vectors(path: Path, start: int | None) -> Any:
        if path.name == vector_index.FLOATS:
            raise KeyboardInterrupt
        return real(path, start)

    monkeypatch.setattr(vector_index, "_open_at", fail_at_the_vectors)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "part", make_documents(10), make_description())
    monkeypatch.setattr(vector_index, "_open_at", real)
    build(tmp_path / "part", make_documents(10), make_description())
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")


def test_a_build_killed_at_its_end_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    description, documents = replace(make_description(), source="runs/vectors"), make_documents(10)
    build(tmp_path / "whole", documents, description)
    real = vector_index.write_json

    def fail_at_the_end(path: Path, value: Any) -> None:
        if path.name == vector_index.MODEL:
            raise KeyboardInterrupt
        real(path, value)

    monkeypatch.setattr(vector_index, "write_json", fail_at_the_end)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "part", documents, description)
    monkeypatch.setattr(vector_index, "write_json", real)
    build(tmp_path / "part", documents, description)
    assert contents(tmp_path / "part") == contents(tmp_path / "whole")
    assert read_json(tmp_path / "part" / vector_index.MODEL) == "runs/vectors"


def test_other_documents_do_not_resume(tmp_path: Path) -> None:
    list(islice(build_index(tmp_path / "part", make_documents(10), make_description(), embed), 2))
    with pytest.raises(ValueError, match="other documents"):
        build(tmp_path / "part", make_documents(11)[1:], make_description())
    with pytest.raises(ValueError, match="at least 8 documents"):
        build(tmp_path / "part", make_documents(3), make_description())


def test_a_file_that_grew_inside_a_written_chunk_does_not_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    for number, has_grown in ((6, 12), (8, 12)):
        folder = tmp_path / str(number)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Bm25, "build", kill)
            build(folder, make_documents(number), make_description())
        if number == 6:  # the last chunk has two of its four documents
            with pytest.raises(ValueError, match="other documents"):
                build(folder, make_documents(has_grown), make_description())
            build(folder, make_documents(number), make_description())
        else:
            build(folder, make_documents(has_grown), make_description())
            assert VectorIndex(folder).hits(VectorIndex(folder).find_by_words(["11"], 1))[0][0].id == "d11"


def test_appended_documents_are_found_and_a_second_build_is_refused(tmp_path: Path) -> None:
    build(tmp_path / "index", make_documents(6), make_description())
    with pytest.raises(ValueError, match="already an index of 6 documents"):
        build(tmp_path / "index", make_documents(6), make_description())
    build(tmp_path / "index", make_documents(9)[6:], make_description(), append=True)
    index = VectorIndex(tmp_path / "index")
    assert index.size == 9
    assert index.hits(index.find_by_vectors(embed(["text 8"]) / 3, 1))[0][0].id == "d8"
    assert index.hits(index.find_by_words(["8"], 1))[0][0].id == "d8"


def test_another_model_is_refused_and_named(tmp_path: Path) -> None:
    build(tmp_path / "index", make_documents(3), make_description())
    with pytest.raises(ValueError, match="weights: '1' there, '2' here"):
        build(tmp_path / "index", make_documents(3), make_description(weights="2"), append=True)


def test_whole_numbers_find_candidates_that_floats_order(tmp_path: Path) -> None:
    documents = make_documents(60)
    for precision in ("float32", "int8", "both"):
        build(tmp_path / precision, documents, make_description(precision))
    queries = unit(20, DIMS, seed=999)
    exact = VectorIndex(tmp_path / "float32").find_by_vectors(queries, 5)
    both = VectorIndex(tmp_path / "both").find_by_vectors(queries, 5)
    np.testing.assert_array_equal(both.positions, exact.positions)
    np.testing.assert_allclose(
        VectorIndex(tmp_path / "int8").find_by_vectors(queries, 5).scores, exact.scores, atol=0.02
    )


def test_damaged_and_foreign_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no index \(index\.json is missing\)"):
        VectorIndex(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(ValueError, match=r"thesis\.txt; choose another folder"):
        build(tmp_path / "other", make_documents(1), make_description())
    build(tmp_path / "index", make_documents(3), make_description())
    state = json.loads((tmp_path / "index" / "index.json").read_text())
    for name, value in (("documents", -1), ("documents", True), ("dims", None), ("precision", "int4"), ("model", [])):
        (tmp_path / "index" / "index.json").write_text(json.dumps(state | {name: value}))
        with pytest.raises(ValueError, match=rf"index\.json: {name}: expected .*, got {re.escape(repr(value))}"):
            VectorIndex(tmp_path / "index")
    (tmp_path / "index" / "index.json").write_text("[]")
    with pytest.raises(ValueError, match=r"index\.json: documents: expected int, got None"):
        VectorIndex(tmp_path / "index")
    (tmp_path / "index" / "index.json").write_text(json.dumps(state))
    (tmp_path / "index" / "vectors.npy").write_bytes(b"")
    with pytest.raises(ValueError, match=r"vectors\.npy: not whole"):
        VectorIndex(tmp_path / "index")


def test_links_out_of_an_index_are_neither_read_nor_written(tmp_path: Path) -> None:
    build(tmp_path / "index", make_documents(3), make_description())
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "index" / "documents.jsonl").unlink()
    (tmp_path / "index" / "documents.jsonl").symlink_to(tmp_path / "mine.txt")
    for attempt in (
        lambda: VectorIndex(tmp_path / "index"),
        lambda: build(tmp_path / "index", make_documents(1), make_description(), append=True),
    ):
        with pytest.raises(ValueError, match=r"documents\.jsonl: .*link"):
            attempt()
    assert (tmp_path / "mine.txt").read_text() == "mine"
