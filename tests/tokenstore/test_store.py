"""Writing and reading of stores, checked against lists; errors for altered files."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertwright.base import files
from bertwright.tokenstore.store import (
    SAMPLE_BLOCKS,
    SAMPLE_BYTES,
    DocumentChunk,
    Provenance,
    TokenStore,
    sampled_digest,
)
from bertwright.tokenstore.store_writer import write_store

PROVENANCE = Provenance(vocabulary_digest="v", vocab_size=1000, lowercase=True, sentence_splitter="rules/1")

Text = list[list[list[int]]]  # documents, sentences, tokens


def write(
    folder: Path, text: Text, file_tokens: int = 1 << 28, chunk: int = 2, provenance: Provenance = PROVENANCE
) -> TokenStore:
    """Write documents into a store, `chunk` at a time."""
    folder.mkdir(exist_ok=True)
    chunks = [columns(text[first : first + chunk]) for first in range(0, len(text), chunk)]
    write_store(folder, chunks, provenance, corpus_digest="c", file_tokens=file_tokens)
    return TokenStore.open(folder)


def columns(text: Text) -> DocumentChunk:
    sentences = [sentence for document in text for sentence in document]
    lengths = [[len(sentence) for sentence in sentences], [len(document) for document in text]]
    return DocumentChunk(np.concatenate(sentences), *(np.array(column) for column in lengths))


TEXT = [[[1, 2], [3]], [[4, 5, 6, 7, 8]], [[9]], [[10, 11], [12], [13, 14]]]


def test_store_of_four_documents_has_their_boundaries(tmp_path: Path) -> None:
    store = write(tmp_path / "s", TEXT)
    assert store.read_tokens(0, 14).tolist() == list(range(1, 15))
    assert store.sentence_starts.tolist() == [0, 2, 3, 8, 9, 11, 12, 14]
    assert store.document_starts.tolist() == [0, 2, 3, 4, 7]
    assert (store.num_tokens, store.num_sentences, store.num_documents) == (14, 7, 4)
    assert store.header.provenance == PROVENANCE


def test_document_is_in_one_file(tmp_path: Path) -> None:
    store = write(tmp_path / "s", TEXT, file_tokens=4)
    sizes = [file.length for file in store.header.files if file.name.startswith("tokens")]
    assert sizes == [3, 5, 1, 5]  # the second and fourth are larger than a file should be, and have a file of their own


def test_numpy_opens_the_arrays(tmp_path: Path) -> None:
    write(tmp_path / "s", TEXT)
    assert np.load(tmp_path / "s" / "tokens-00000.npy", mmap_mode="r").tolist() == list(range(1, 15))


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_size_of_ids_follows_the_vocabulary(tmp_path: Path, vocab_size: int, dtype: type) -> None:
    store = write(tmp_path / "s", [[[vocab_size - 1]]], provenance=Provenance("v", vocab_size, True, "rules/1"))
    assert store.read_tokens(0, 1).dtype == dtype
    assert store.read_tokens(0, 1).tolist() == [vocab_size - 1]


texts = st.lists(
    st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=4), min_size=1, max_size=4), min_size=1, max_size=8
)


@given(texts, st.integers(1, 12), st.integers(1, 3), st.data())
def test_tokens_and_gather_equal_slices_of_a_list(
    tmp_path_factory: pytest.TempPathFactory, text: Text, file_tokens: int, chunk: int, data: st.DataObject
) -> None:
    store = write(tmp_path_factory.mktemp("store"), text, file_tokens, chunk)
    flat = [token for document in text for sentence in document for token in sentence]
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(flat))] * 2)))
    assert store.read_tokens(start, end).tolist() == flat[start:end]

    bounds = store.sentence_starts[store.document_starts]
    ranges = data.draw(st.lists(st.integers(0, len(text) - 1), max_size=6))
    starts, ends = bounds[ranges], bounds[np.array(ranges, dtype=int) + 1]
    expected = [token for s, e in zip(starts, ends, strict=True) for token in flat[s:e]]
    assert store.gather(starts, ends).tolist() == expected


def test_range_outside_the_store_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected tokens within 0 … 14, got 3 … 15"):
        write(tmp_path / "s", TEXT).read_tokens(3, 15)


def test_open_with_another_vocabulary_raises_an_error(tmp_path: Path) -> None:
    write(tmp_path / "s", TEXT)
    TokenStore.open(tmp_path / "s", vocabulary_digest="v")
    with pytest.raises(ValueError, match=r"another vocabulary \(1,000 tokens\); use .*tokenizer"):
        TokenStore.open(tmp_path / "s", vocabulary_digest="w")


def test_open_folder_without_header_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"header\.json is missing"):
        TokenStore.open(tmp_path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ('{"format_version": 99}', "expected store format 2, got 99"),
        ("[]", "expected store format 2, got None"),
        ('{"format_version": 2}', "altered .*; copy the store again"),
        ('{"format_version": 2, "more"', "line 1: not valid JSON"),
    ],
)
def test_open_with_invalid_header_raises_an_error(tmp_path: Path, header: str, message: str) -> None:
    (tmp_path / "header.json").write_text(header)
    with pytest.raises(ValueError, match=message):
        TokenStore.open(tmp_path)


@pytest.mark.parametrize(
    "change",
    [{"num_tokens": 13}, {"num_tokens": "many"}, {"files": []}, {"corpus_digest": "other"}],
    ids=lambda c: next(iter(c)),
)
def test_open_with_altered_header_raises_an_error(tmp_path: Path, change: dict[str, object]) -> None:
    write(tmp_path / "s", TEXT)
    path = tmp_path / "s" / "header.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"header.json: altered"):
        TokenStore.open(tmp_path / "s")


def test_open_with_truncated_file_raises_an_error(tmp_path: Path) -> None:
    write(tmp_path / "s", TEXT)
    path = tmp_path / "s" / "tokens-00000.npy"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(ValueError, match=r"tokens-00000.npy: expected 156 bytes, got 154"):
        TokenStore.open(tmp_path / "s")


def test_open_with_missing_file_raises_an_error(tmp_path: Path) -> None:
    write(tmp_path / "s", TEXT)
    (tmp_path / "s" / "sentence_starts.npy").unlink()
    with pytest.raises(ValueError, match=r"sentence_starts.npy: missing"):
        TokenStore.open(tmp_path / "s")


@pytest.mark.parametrize("name", ["tokens-00000.npy", "sentence_starts.npy", "document_starts.npy"])
@pytest.mark.parametrize("offset", [0, -1])
def test_open_with_an_altered_byte_raises_an_error(tmp_path: Path, name: str, offset: int) -> None:
    write(tmp_path / "s", TEXT)
    flip(tmp_path / "s" / name, offset)
    with pytest.raises(ValueError, match=f"{name}: altered since"):
        TokenStore.open(tmp_path / "s")


def test_verify_finds_an_altered_byte_between_the_sampled_blocks(tmp_path: Path) -> None:
    write(tmp_path / "s", [[[1] * (SAMPLE_BLOCKS * SAMPLE_BYTES)]])
    path = tmp_path / "s" / "tokens-00000.npy"
    flip(path, SAMPLE_BYTES + 10)  # the blocks are about two block sizes apart
    TokenStore.open(tmp_path / "s")
    with pytest.raises(ValueError, match="altered since"):
        TokenStore.open(tmp_path / "s", verify=True)
    flip(path, SAMPLE_BYTES + 10)
    TokenStore.open(tmp_path / "s", verify=True)


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_failed_write_leaves_no_header(tmp_path: Path) -> None:
    def broken() -> Iterator[DocumentChunk]:
        yield columns(TEXT)
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        write_store(tmp_path, broken(), PROVENANCE, corpus_digest="c")
    assert not (tmp_path / "header.json").exists()


def test_header_is_json(tmp_path: Path) -> None:
    store = write(tmp_path / "s", TEXT)
    header = json.loads((tmp_path / "s" / "header.json").read_text())
    assert header["num_tokens"] == 14
    assert header["files"][0] == store.header.files[0]._asdict()


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the header of a store, and renew every size and digest: any program can write such a store."""
    header = json.loads((folder / "header.json").read_text())
    del header["digest"]
    for file in header["files"]:
        path = folder / file["name"]
        file |= {
            "bytes": path.stat().st_size,
            "digest": files.digest_file(path),
            "sampled_digest": sampled_digest(path),
        }
    change(header)
    header["digest"] = files.digest_bytes(json.dumps(header, sort_keys=True).encode())
    (folder / "header.json").write_text(json.dumps(header))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.update(extra=1), "extra: expected no such key"),
        (lambda h: h.pop("corpus_digest"), "corpus_digest: expected str, got 'None'"),
        (lambda h: h.update(provenance=None), "expected an object for Provenance"),
        (lambda h: h["provenance"].update(vocab_size=None), "vocab_size: expected int"),
        (lambda h: h.update(files=None), "files: expected a list"),
        (lambda h: h.update(files=[]), "files: expected a list"),
        (lambda h: h["files"][0].update(name=None), "name: expected str"),
        (
            lambda h: h["files"][0].update(name="../s/tokens-00000.npy"),
            "expected the name of a file in the same folder",
        ),
        (lambda h: h.update(num_documents=None), "num_documents: expected int"),
        (lambda h: h.update(num_documents=True), "num_documents: expected int"),
        (lambda h: h.update(num_tokens=-1), "num_tokens: expected int, got '-1'"),
        (lambda h: h.update(num_tokens=10**30), "tokens, got 14"),
        (lambda h: h.update(num_sentences=3), "sentence_starts.npy: expected 4 positions"),
    ],
)
def test_wrong_header_with_right_digests_raises_an_error(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    write(tmp_path / "s", TEXT)
    rewrite(tmp_path / "s", change)
    with pytest.raises(ValueError, match=message):
        TokenStore.open(tmp_path / "s")


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("tokens-00000.npy", np.zeros(14), "expected whole numbers, got float64"),
        ("tokens-00000.npy", np.array(["a"] * 14), "expected whole numbers, got <U1"),
        ("tokens-00000.npy", np.array([None] * 14), "not an array"),
        ("tokens-00000.npy", b"PK\x03\x04", "not an array"),
        ("tokens-00000.npy", b"", "not an array"),
        ("tokens-00000.npy", np.zeros(13, np.uint16), r"expected shape \(14,\)"),
        ("sentence_starts.npy", np.array([0, 2, 3, 8, 9, 11, 12, 1 << 62]), "expected 8 positions from 0 to 14"),
        ("sentence_starts.npy", np.array([1, 2, 3, 8, 9, 11, 12, 14]), "expected 8 positions"),
        ("sentence_starts.npy", np.array([0, 2, -3, 8, 9, 11, 12, 14]), "ascending order"),
        ("sentence_starts.npy", np.array([0, 2, 3, 8, 9, 1 << 62, 12, 14]), "ascending order"),
        ("document_starts.npy", np.array([0, 3, 2, 4, 7]), "ascending order"),
        ("document_starts.npy", np.zeros(5, np.int64), "expected 5 positions from 0 to 7"),
    ],
)
def test_wrong_arrays_with_right_digests_raise_an_error(
    tmp_path: Path, name: str, values: np.ndarray | bytes, message: str
) -> None:
    write(tmp_path / "s", TEXT)
    if isinstance(values, bytes):
        (tmp_path / "s" / name).write_bytes(values)
    else:
        np.save(tmp_path / "s" / name, values)
    rewrite(tmp_path / "s", lambda header: None)
    with pytest.raises(ValueError, match=message):
        TokenStore.open(tmp_path / "s", verify=True)
