"""Documents: formats, compressions, encodings; shards that add up to the corpus; errors of one line."""

import bz2
import csv
import errno
import gzip
import io
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertwright.corpus import conll, documents
from bertwright.corpus.documents import (
    CorpusSettings,
    Document,
    list_corpus_files,
    read,
    read_shard,
    shard_corpus,
)
from bertwright.tables import conll_lines
from bertwright.text import decoding, lines
from bertwright.text.decoding import ReadStats
from bertwright.text.sources import InputFile, check_unique

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
TEXTS = ['One "quoted", line.\nTwo.', "안녕하세요. 세계!", "Last — one"]


def texts(*given: str | Path, **options: str) -> list[str]:
    return [document.text for document in read(CorpusSettings(tuple(map(str, given)), **options))]  # type: ignore[arg-type]


def encode_as(suffix: str) -> bytes:
    if suffix == ".jsonl":
        return "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS).encode()
    if suffix == ".csv":
        stream = io.StringIO()
        csv.writer(stream).writerows([["id", "text"], *([str(number), text] for number, text in enumerate(TEXTS))])
        return stream.getvalue().encode()
    return "\n\n".join(TEXTS).encode()


# --- formats


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".csv"])
def test_all_formats_in_all_compressions_give_the_same_documents(tmp_path: Path, suffix: str, compression: str) -> None:
    path = tmp_path / f"corpus{suffix}{compression}"
    path.write_bytes(COMPRESS[compression](encode_as(suffix)))
    assert texts(path) == TEXTS


def test_quotes_in_tsv_are_plain_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('id\ttext\n1\t"Open quote\n2\tB "q" b\n')
    assert texts(path) == ['"Open quote', 'B "q" b']


def test_parquet_rows_are_in_order_and_nulls_are_counted(tmp_path: Path) -> None:
    values = [f"Text {number}." for number in range(5000)]
    values[7] = None  # type: ignore[call-overload]
    polars.DataFrame({"text": values, "n": range(5000)}).write_parquet(tmp_path / "a.parquet", row_group_size=700)
    stats = ReadStats()
    documents = list(read(CorpusSettings((str(tmp_path),)), stats=stats))
    assert [document.text for document in documents] == [value for value in values if value]
    assert stats.null_values == 1


def test_name_of_a_parquet_file_is_no_glob(tmp_path: Path) -> None:
    for name in ("part1.parquet", "part[1].parquet"):
        polars.DataFrame({"text": [name]}).write_parquet(tmp_path / name)
    assert texts(tmp_path / "part[1].parquet") == ["part[1].parquet"]
    assert texts(tmp_path) == ["part1.parquet", "part[1].parquet"]


def test_consecutive_compressed_frames_are_one_file(tmp_path: Path) -> None:
    for suffix, compress in COMPRESS.items():
        (tmp_path / f"a.txt{suffix}").write_bytes(compress(b"A a.\n\nB") + compress(b" b.\n"))
    assert texts(tmp_path) == ["A a.", "B b."] * 4


def test_document_unit_decides_the_extent_of_documents(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf\r\nA\r\na\r\n \t\r\nB\r\n\r\n\r\nC\r\n")
    assert texts(path) == ["A\na", "B", "C"]
    assert texts(path, document_unit="line") == ["A", "a", "B", "C"]
    assert texts(path, document_unit="file") == ["A\na\n \t\nB\n\n\nC"]
    assert texts(f"line={path}") == ["A", "a", "B", "C"]
    assert texts(f"blank-line={path}", document_unit="file") == ["A\na", "B", "C"]


def test_only_line_feeds_end_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A\x0b\x1c\u2028\x85a\nB")
    assert texts(tmp_path, document_unit="line") == ["A\x0b\x1c\u2028\x85a", "B"]


def test_empty_values_are_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "A"}\n\n{"text": " "}\n{"text": null}\n{"text": "B"}\n')
    stats = ReadStats()
    assert [document.text for document in read(CorpusSettings((str(path),)), stats=stats)] == ["A", "B"]
    assert (stats.empty_documents, stats.null_values) == (1, 1)


# --- which files


def test_files_of_folders_and_globs_are_in_order(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a.txt", "c.jsonl", ".hidden/x.txt", ".DS_Store"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f'{{"text": "{name}"}}')
    names = [
        Path(file.path).relative_to(tmp_path).as_posix() for file in list_corpus_files(CorpusSettings((str(tmp_path),)))
    ]
    assert names == ["a.txt", "b/1.txt", "b/2.txt", "c.jsonl"]
    found = list_corpus_files(CorpusSettings((str(tmp_path / "**/2.txt"), f"file={tmp_path}/a.txt")))
    assert [(Path(file.path).name, file.document_unit) for file in found] == [
        ("2.txt", "blank-line"),
        ("a.txt", "file"),
    ]


def test_links_are_followed_and_each_folder_is_read_once(tmp_path: Path) -> None:
    for name in ("corpus/a.txt", "elsewhere/b.txt"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    (tmp_path / "corpus" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus" / "again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "corpus")
    assert texts(tmp_path / "corpus") == ["corpus/a.txt", "elsewhere/b.txt"]


def test_folder_that_cannot_be_searched_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("A")
    (tmp_path / "locked").mkdir()
    scandir = os.scandir

    def refusing(path: str) -> object:
        if path.endswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)  # tests may run as root, who may search any folder
    with pytest.raises(PermissionError, match="locked"):
        list_corpus_files(CorpusSettings((str(tmp_path),)))


class FakeHub:
    """HfFileSystem of a folder on this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def isfile(self, path: str) -> bool:
        return (self.root / path).is_file()

    def find(self, path: str) -> list[str]:
        return [str(file.relative_to(self.root)) for file in (self.root / path).rglob("*") if file.is_file()]

    def glob(self, pattern: str, detail: bool) -> dict[str, dict[str, str]]:
        assert detail
        return {str(file.relative_to(self.root)): {"type": "file"} for file in self.root.glob(pattern)}

    def info(self, path: str) -> dict[str, int]:
        return {"size": (self.root / path).stat().st_size}

    def resolve_path(self, path: str) -> SimpleNamespace:
        _, owner, name, *rest = path.split("/")
        return SimpleNamespace(
            repo_id=f"{owner}/{name}", path_in_repo="/".join(rest), repo_type="dataset", revision="main"
        )


def test_hub_files_are_downloaded_once_and_read_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "datasets/owner/name"
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text("card")
    (folder / "data/b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "B"}\n'))
    polars.DataFrame({"text": ["A"]}).write_parquet(folder / "data/a.parquet")
    monkeypatch.setattr("huggingface_hub.HfFileSystem", lambda: FakeHub(tmp_path))
    fetched: list[tuple[str, str, str]] = []

    def download(repo_id: str, path: str, *, repo_type: str, revision: str) -> str:
        fetched.append((repo_id, repo_type, revision))
        return str(tmp_path / "datasets" / repo_id / path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert texts("hf://datasets/owner/name") == ["A", "B"]
    assert texts("hf://datasets/owner/name/data/*.gz") == ["B"]
    assert texts("hf://datasets/owner/name/data/a.parquet") == ["A"]
    assert set(fetched) == {("owner/name", "dataset", "main")}
    with pytest.raises(ValueError, match=r"owner/nothing: .*\(no such data set, folder or file"):
        texts("hf://datasets/owner/nothing")


# --- shards

LINE = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
FILE = st.lists(LINE, max_size=25).map("\n".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(FILE, min_size=1, max_size=3),
    target=st.integers(1, 60),
    rule=st.sampled_from(["blank-line", "line", "file"]),
)
def test_shards_add_up_to_the_corpus(tmp_path: Path, files: list[str], target: int, rule: str) -> None:
    for number, text in enumerate(files):
        (tmp_path / f"{number}.txt").write_bytes((text + "\n").encode())
    for number in range(len(files), 4):
        (tmp_path / f"{number}.txt").write_bytes(b"end\r\n\r\nend")
    corpus = CorpusSettings((str(tmp_path),), document_unit=rule)  # type: ignore[arg-type]
    shares = shard_corpus(corpus, target)
    assert [document for share in shares for document in read_shard(corpus, share)] == list(read(corpus))
    assert sum(share.size for share in shares) == sum(file.size for file in list_corpus_files(corpus))


def test_shards_of_json_lines_end_between_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"{n} é\n\n한"}, ensure_ascii=False) + "\n" for n in range(200)))
    corpus = CorpusSettings((str(path),))
    whole = list(read(corpus))
    assert len(whole) == 200
    for block in (1, 2, 3, 7):
        monkeypatch.setattr("bertwright.text.decoding.BLOCK", block)
        monkeypatch.setattr("bertwright.corpus.documents.BLOCK", block)
        shares = shard_corpus(corpus, 500)
        assert len(shares) > 5
        assert [document for share in shares for document in read_shard(corpus, share)] == whole


def test_small_files_share_a_shard_and_compressed_ones_are_not_split(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.txt").write_text("x" * 10)
    (tmp_path / "z.txt.gz").write_bytes(gzip.compress(bytes(range(1, 120)) * 3))
    assert [len(share.files) for share in shard_corpus(CorpusSettings((str(tmp_path),)), 40)] == [4, 2, 1]


def test_many_small_files_are_sharded_in_one_pass() -> None:
    looked_at = 0

    class Counted(InputFile):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looked_at
            looked_at += name == "size"
            return super().__getattribute__(name)

    corpus = [Counted(f"{number}.txt", 24, ".txt", "", "file") for number in range(40_000)]
    shares = shard_corpus(CorpusSettings(("made up",)), 4 << 20, corpus)
    assert looked_at < 10 * len(corpus)
    assert [file.path for share in shares for file in share.files] == [file.path for file in corpus]
    assert len(shares) == 40  # although 4 MB would hold them all
    assert sum(share.size for share in shares) == 40_000 * 24


@pytest.mark.slow
def test_line_and_document_of_100_mb_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("w") as file:
        for _ in range(100):
            file.write("word " * 200_000)
    for rule in ("blank-line", "line", "file"):
        (document,) = read(CorpusSettings((str(path),), document_unit=rule))  # type: ignore[arg-type]
        assert len(document.text) == 100_000_000 - 1


# --- bad input


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", r"a\.txt: empty file \(0 bytes\)"),
        ("a.txt", b" \n\n ", r"no documents in .*: 4 bytes"),
        ("a.txt", b"ab\0cd", r"a\.txt, byte 2: a NUL byte; the file is binary"),
        ("a.txt", b"caf\xe9 au lait", r"a\.txt, byte 3: e9 is not UTF-8 .*--encoding, .*--encoding-errors replace"),
        ("a.txt", b"caf\xc3", r"a\.txt, byte 3: c3 is not UTF-8 text"),
        ("a.txt", "Text".encode("utf-16"), r"not text but UTF-16 .*--encoding utf-16"),
        ("a.txt", "Text".encode("utf-32"), r"not text but UTF-32 .*--encoding utf-32"),
        ("a.txt", gzip.compress(b"a", mtime=0), r"not text but gzip data \(rename it to \.gz\)"),
        ("a.pdf", b"x", r"a\.pdf: \.pdf is not read"),
        ("a.doc", b"x", r"unknown suffix \.doc; known are \.txt, \.jsonl, \.csv, \.tsv, \.parquet"),
        ("a", b"x", r"unknown suffix \(none\)"),
        ("a.parquet.gz", b"x", r"parquet is compressed inside"),
        ("a.parquet", b"not one", r"a\.parquet: not a readable Parquet file"),
        ("a.txt.gz", b"plain text", r"a\.txt\.gz: not valid \.gz data"),
        ("a.txt.bz2", b"plain text", r"a\.txt\.bz2: not valid \.bz2 data"),
        ("a.txt.zst", b"plain text", r"a\.txt\.zst: not valid \.zst data"),
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', r"a\.jsonl, line 2: not valid JSON"),
        ("a.jsonl", b'{"text": "a"}\n\n["text"]\n', r"a\.jsonl, line 3: expected a JSON object, got list"),
        (
            "a.jsonl",
            b'{"body": "a", "id": 1}',
            r"line 1: no column 'text'; the columns are body, id \(choose one with --column",
        ),
        ("a.jsonl", b'{"text": 3}', r"line 1: expected a string in 'text', got int"),
        ("a.jsonl", b'{"text": "a \\ud800 b"}', r"line 1: \\ud800 is half a surrogate pair"),
        ("a.jsonl", b'{"text": "a", "id": ' + b"1" * 5000 + b"}", r"a\.jsonl, line 1: not valid JSON .*digits"),
        ("a.csv", b"text,text\na,b\n", r"a\.csv, line 1: 'text' names several columns"),
        ("a.csv", b"text,id\ra,1\n", r"a\.csv, line 1: .*carriage return"),
        ("a.csv", b"id,body\n1,a\n", r"a\.csv, line 1: no column 'text'; the columns are id, body"),
        ("a.csv", b'id,text\n1,"a\nb"\n2\n', r"a\.csv, line 4: expected 2 columns \(id, text\), got 1"),
        ("a.csv", b'id,text\n1,"a\n2,b\n', r"a\.csv, line 2: .*is a quote left open"),
        ("a.tsv", b"id\ttext\n1\ta\tb\n", r"a\.tsv, line 2: expected 2 columns \(id, text\), got 3"),
    ],
)
def test_invalid_file_raises_an_error_of_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        texts(tmp_path / name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
def test_truncated_file_raises_an_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESS[suffix](bytes(str(list(range(5000))), "ascii"))[:-20])
    with pytest.raises(ValueError, match=rf"a\.txt\{suffix}: truncated"):
        texts(path)


def test_zst_file_with_a_long_window_is_read(tmp_path: Path) -> None:
    """A file as `zstd --long=31` writes it from a pipe: a window above the decoder's default limit, no size."""
    chosen = zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=True, write_content_size=False)
    compressor = zstandard.ZstdCompressor(compression_params=chosen).compressobj()
    path = tmp_path / "a.txt.zst"
    path.write_bytes(compressor.compress(b"One.\n\nTwo.\n") + compressor.flush())
    assert texts(path) == ["One.", "Two."]


def test_invalid_byte_deep_in_a_file_is_located(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("é".encode() * 1_000_001 + b"\xff\n\nB")
    with pytest.raises(ValueError, match="byte 2000002: ff is not UTF-8"):
        texts(path)


def test_invalid_bytes_are_replaced_and_counted_on_request(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\xff \xe9\xef\xbf\xbd\n\n" + b"b" * 10_000 + b"\0\xe3")
    stats = ReadStats()
    found = [d.text for d in read(CorpusSettings((str(path),), encoding_errors="replace"), stats=stats)]
    assert found == ["a\ufffd \ufffd\ufffd", "b" * 10_000 + "\ufffd"]
    assert (stats.invalid_sequences, stats.dropped_nuls) == (3, 1)
    assert stats.first_invalid == f"{path}, byte 1: ff is not UTF-8 text"
    path.write_bytes(b"\0")
    with pytest.raises(ValueError, match="is binary"):
        texts(path, encoding_errors="replace")


def test_half_surrogates_are_replaced_on_request(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a \\ud800 \\ud83d\\ude00"}')
    assert texts(path, encoding_errors="replace") == ["a \ufffd 😀"]


def test_columns_of_parquet_are_checked(tmp_path: Path) -> None:
    polars.DataFrame({"body": ["a"], "number": [1]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="no column 'text'; the columns are body, number"):
        texts(tmp_path)
    with pytest.raises(ValueError, match="expected strings in 'number', got Int64"):
        texts(tmp_path, column="number")


def test_missing_and_duplicate_inputs_raise_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no input given"):
        CorpusSettings(())
    with pytest.raises(ValueError, match=r"nowhere\.txt: no such file or folder"):
        texts(tmp_path / "nowhere.txt")
    with pytest.raises(ValueError, match="an input is empty"):
        texts("file=")
    with pytest.raises(ValueError, match=r"~nobody_here/a\.txt: no such file"):
        texts("~nobody_here/a.txt")
    with pytest.raises(ValueError, match="no files there"):
        texts(tmp_path)
    with pytest.raises(ValueError, match="no file matches"):
        texts(tmp_path / "*.txt")
    (tmp_path / "a.txt").write_text("A")
    with pytest.raises(ValueError, match=r"a\.txt: named twice"):
        texts(tmp_path, tmp_path / "a.txt")


def test_folder_with_a_link_to_one_of_its_files_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A")
    (tmp_path / "b.txt").symlink_to("a.txt")
    assert texts(tmp_path) == texts(tmp_path / "*.txt") == ["A"]
    check_unique([str(tmp_path)])


def test_endless_document_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (documents, lines):
        monkeypatch.setattr(module, "MAX_CHARACTERS", 1 << 21)
    (tmp_path / "a.txt").write_text("x" * (1 << 22))
    for rule, unit in (("line", "a line"), ("blank-line", "a paragraph"), ("file", "a file")):
        with pytest.raises(ValueError, match=f"{unit} of more than 2,097,152 characters"):
            texts(tmp_path, document_unit=rule)


def test_documents_have_unix_line_ends_and_no_outer_spaces(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("  A  \n\n B ")
    assert list(read(CorpusSettings((str(tmp_path),)))) == [Document("A"), Document("B")]


# --- encodings

KOREAN = "한국어 문장이다. 또 하나.\n\n둘째 문서."


@pytest.mark.parametrize("block", [1, 5, 1 << 20])
@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("latin-1", "El señor comió.\n\nÑandú."),
        ("euc-kr", KOREAN),
        ("cp949", KOREAN),
        ("utf-16", KOREAN),
        ("utf-16-le", KOREAN),
        ("utf-32", KOREAN),
        ("gb18030", "中文。\n\n第二。"),
        ("utf-8-sig", KOREAN),
    ],
)
def test_text_is_read_in_its_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, text: str, block: int
) -> None:
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    monkeypatch.setattr(decoding, "BLOCK", max(block, 4))
    assert texts(tmp_path, encoding=encoding) == text.split("\n\n")
    corpus = CorpusSettings((str(tmp_path),), encoding=encoding)
    shards = shard_corpus(corpus, 1)
    assert [document for shard in shards for document in read_shard(corpus, shard)] == list(read(corpus))
    assert len(shards) == (1 if encoding.startswith(("utf-16", "utf-32")) else 2)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
def test_byte_order_mark_is_no_character(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes("\ufefftext\nA.\n".encode(encoding))
    assert texts(tmp_path, encoding=encoding) == ["A."]


def test_tables_and_json_lines_are_read_in_their_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("id;text\n1;señor\n".encode("cp1252"))
    (tmp_path / "b.jsonl").write_bytes('{"text": "Ñandú"}\n'.encode("cp1252"))
    assert texts(tmp_path, encoding="cp1252") == ["señor", "Ñandú"]


def test_invalid_bytes_of_an_encoding_are_located_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("한국".encode("cp949") + b"\xff\xff A.")
    with pytest.raises(ValueError, match=r"a\.txt, byte 4: ff is not cp949 text; .*--encoding"):
        texts(path, encoding="cp949")
    stats = ReadStats()
    corpus = CorpusSettings((str(path),), encoding="cp949", encoding_errors="replace")
    assert [document.text for document in read(corpus, stats=stats)] == ["한국\ufffd\ufffd A."]
    assert (stats.invalid_sequences, stats.first_invalid) == (2, f"{path}, byte 4: ff is not cp949 text")


@pytest.mark.parametrize("name", ["utf8x", "base64", "a b\0"])
def test_unknown_encoding_raises_an_error(name: str) -> None:
    with pytest.raises(ValueError, match=r"^encoding is "):
        CorpusSettings(("a.txt",), encoding=name)


# --- CoNLL

CONLLU = """\
# newdoc id = one
# text = Er geht ins Haus.
1\tEr\t_\t_
2\tgeht\t_\t_
3-4\tins\t_\t_
3\tin\t_\t_
4\tdas\t_\t_
5\tHaus\t_\tSpaceAfter=No
6\t.\t_\t_

1\tEr\t_\t_
2-3\tins\t_\t_
2\tin\t_\t_
3\tdas\t_\t_
3.1\tempty\t_\t_
4\tHaus\t_\tSpaceAfter=No
5\t.\t_\t_

# newdoc
# sent_id = 3
1\t#\t_\t_
2\tEnde\t_\t_
"""


def test_conllu_documents_have_one_sentence_per_line(tmp_path: Path) -> None:
    path = tmp_path / "a.conllu"
    path.write_text(CONLLU)
    path.write_text(CONLLU.replace("# newdoc\n", "#newdoc\n"))
    assert list(read(CorpusSettings((str(path),)))) == [
        Document("Er geht ins Haus.\nEr ins Haus.", has_sentence_lines=True),
        Document("# Ende", has_sentence_lines=True),
    ]


def test_words_of_conll_are_joined_by_spaces(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_bytes(
        "-DOCSTART- -X- O O\n\nEU NNP B-ORG\nñ NN O\n\nB NN O\n\n-DOCSTART- -X- O O\n\nC NN O\n".encode("latin-1")
    )
    assert texts(path, encoding="latin-1") == ["EU ñ\nB", "C"]


def test_words_of_conll_may_start_with_a_number_sign(tmp_path: Path) -> None:
    path = tmp_path / "a.conll"
    path.write_text(
        "#begin document (d1)\n# id = 1\n#deal NN O\n# NN O\n1 CD O\n\n# a line of five words\n#end\tO\n"
        "#end document\n\n#begin document (d2)\nNew\u00a0York NNP B-LOC\n"
    )
    assert texts(path) == ["#deal # 1\n#end", "New\u00a0York"]


@pytest.mark.parametrize(
    "rows",
    [
        "1\t1\t_\tCD\tCD\t_\t0\n\n1\t{0}\t_\tNN\tN\t_\t2\n2\t{1}\t_\tNN\tN\t_\t0\n",  # CoNLL-X
        "bc/a 0 0 1 CD *\n\nbc/a 0 0 {0} NN *\nbc/a 0 1 {1} NN *\n",  # CoNLL-2012
        "1 CD I-NP O\n\n{0} NN I-NP O\n{1} NN I-NP O\n",  # CoNLL-2003
        "# of\n# some\n# words\n\n1 CD O\n\n{0} NN O\n{1} NN O\n",
        "1 CD O\n\n{0}\n{1}\n",
    ],
)
def test_words_of_conll_are_found_beside_numbers(tmp_path: Path, rows: str) -> None:
    (tmp_path / "a.conll").write_text(rows.format("The", "2"))
    (found,) = texts(tmp_path)
    assert found.splitlines()[-2:] == ["1", "The 2"]


def test_conll_without_marks_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("A\tO\r\nB\tO\r\n\r\nC\tO\r\n")
    assert texts(tmp_path) == ["A B\nC"]


# --- bombs


@pytest.mark.parametrize(
    "content", [b"hello.\n" + b"\n" * (64 << 20), b"a" * (64 << 20) + b"\n"], ids=["lines", "one line"]
)
def test_zst_bomb_is_read_in_bounded_blocks(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.txt.zst"
    path.write_bytes(zstandard.compress(content, 19))
    file = InputFile(str(path), path.stat().st_size, ".txt", ".zst", "line")
    blocks = list(map(len, decoding.decode_blocks(file, decoding.TextCodec(), ReadStats())))
    assert sum(blocks) == len(content)
    assert max(blocks) <= decoding.BLOCK


def test_zst_of_several_and_skippable_frames_is_read_and_checked_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    skippable = (0x184D2A50).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"abc"
    with_checksum = zstandard.ZstdCompressor(write_checksum=True).compress(b"Two.\n" * 50_000)
    whole = zstandard.compress(b"One.\n\n") + skippable + with_checksum
    path.write_bytes(whole)
    assert texts(path) == ["One.", ("Two.\n" * 50_000).strip()]
    for missing in (1, 4, 5, len(with_checksum) - 3, len(with_checksum) + 1):
        path.write_bytes(whole[:-missing])
        with pytest.raises(ValueError, match=r"a\.txt\.zst: truncated"):
            texts(path)


@pytest.mark.parametrize("limit", ["MAX_LINES", "MAX_CHARACTERS"])
@pytest.mark.parametrize("suffix", [".conll", ".conllu"])
def test_endless_sentence_of_conll_is_an_error_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, limit: str
) -> None:
    monkeypatch.setattr(conll_lines, limit, 5)
    path = tmp_path / f"a{suffix}.zst"
    path.write_bytes(zstandard.compress(b"1\ta\t_\n\n1\tb\t_\n" + b"2\tb\t_\n" * 10))
    line = {"MAX_LINES": 8, "MAX_CHARACTERS": 4}[limit]
    with pytest.raises(ValueError, match=rf"a{suffix}\.zst, line {line}: a sentence of more than"):
        list(read(CorpusSettings((str(path),))))


def test_endless_number_of_short_sentences_of_conll_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conll, "MAX_CHARACTERS", 100)
    path = tmp_path / "a.conll"
    path.write_text("a\n\n" * 50)
    with pytest.raises(ValueError, match="a document of more than"):
        list(read(CorpusSettings((str(path),))))


def test_lines_that_start_a_document_split_it(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("A title\n\nChapter 1\n\nIt was cold.\nSaid Chapter One.\n\nChapter 2\n\nIt was warm.\n")
    settings = CorpusSettings((str(path),), document_unit="file", document_start=r"Chapter \d+$")
    assert [document.text for document in read(settings)] == [
        "A title",
        "Chapter 1\n\nIt was cold.\nSaid Chapter One.",
        "Chapter 2\n\nIt was warm.",
    ]
    rows = tmp_path / "books.jsonl"
    rows.write_text('{"text": "Chapter 1\\nA.\\nChapter 2\\nB."}\n')
    assert [one.text for one in read(replace(settings, inputs=(str(rows),)))] == ["Chapter 1\nA.", "Chapter 2\nB."]


@pytest.mark.parametrize(("pattern", "message"), [("(", "regular expression, got '\\('"), ("x*", "matches an empty")])
def test_a_wrong_start_of_documents_is_named(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"document_start: .*{message}"):
        CorpusSettings(("a.txt",), document_start=pattern)
