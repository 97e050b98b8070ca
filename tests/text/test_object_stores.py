"""Inputs and stores on object storage: fsspec's local and memory file systems, and a real S3 server."""

import errno
import gzip
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import polars
import pytest
import zstandard
from fsspec.registry import known_implementations

from bertwright.base import files, object_storage
from bertwright.cli import main as cli
from bertwright.corpus.documents import CorpusSettings, list_corpus_files, read, read_shard, shard_corpus
from bertwright.executors.executor import SerialExecutor
from bertwright.text import sources
from bertwright.tokenstore import build as build_module
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.tokenstore.store import TokenStore
from bertwright.vocabulary.learn.learn_vocabulary import LearnSettings, learn_vocabulary
from bertwright.vocabulary.learn.wordpiece_trainer import VocabularySettings
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from helpers import WatchedReporter, stop_after, text_reporter

TEXT = "".join(f"The cat sat {number}.\nIt ran.\n\n" for number in range(60))


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    """Start an S3 server on this machine; return its address."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a bucket, which the environment gives access to."""
    s3fs = pytest.importorskip("s3fs")
    environment = {"AWS_ENDPOINT_URL": s3_server, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    for name, value in (environment | {"AWS_DEFAULT_REGION": "us-east-1"}).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    if not fsspec.filesystem("s3").exists("books"):
        fsspec.filesystem("s3").mkdir("books")
    return "s3://books"


@pytest.fixture(params=["file", "memory", "s3"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a new folder of each kind of store."""
    monkeypatch.setenv("BERTWRIGHT_CACHE", str(tmp_path / "cache"))
    match request.param:
        case "file":
            return f"file://{tmp_path}/bucket"
        case "memory":
            return f"memory://{tmp_path.name}"
        case _:
            return f"{request.getfixturevalue('s3')}/{tmp_path.name}"


def put(url: str, content: bytes | str) -> None:
    with fsspec.open(url, "wb", auto_mkdir=True) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def content(folder: str) -> dict[str, bytes]:
    system, path = fsspec.core.url_to_fs(folder, use_listings_cache=False)
    return {name.split(path.strip("/") + "/")[-1]: system.cat_file(name) for name in system.find(path)}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_tokens("[PAD] [UNK] [CLS] [SEP] [MASK] . the cat sat it ran".split(), lowercase=True)


def test_inputs_of_all_formats_are_read_as_on_this_machine(bucket: str, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.mkdir()
    (local / "a.txt").write_text(TEXT)
    (local / "b.txt.gz").write_bytes(gzip.compress(b"B one.\n\nB two.\n"))
    (local / "c.txt.zst").write_bytes(zstandard.compress(b"C one.\n\nC two.\n" * 99))
    polars.DataFrame({"text": ["D"]}).write_parquet(local / "d.parquet")
    (local / ".hidden.txt").write_text("not read")
    for path in local.iterdir():
        put(f"{bucket}/{path.name}", path.read_bytes())
    expected = list(read(CorpusSettings((str(local),))))
    corpus = CorpusSettings((bucket,))
    documents = list(read(corpus))
    assert [document.text for document in documents] == [document.text for document in expected]
    shards = shard_corpus(corpus, 300)
    assert len(shards) > 5
    assert [document for shard in shards for document in read_shard(corpus, shard)] == documents
    assert [file.path for file in list_corpus_files(CorpusSettings((f"{bucket}/*.gz",)))] == [f"{bucket}/b.txt.gz"]


def test_store_and_vocabulary_are_built_in_a_bucket_with_the_same_bytes(
    bucket: str, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Build, interrupt, resume, finish, open; all through the bucket."""
    monkeypatch.setattr(build_module, "SHARD_BYTES", 300)
    put(f"{bucket}/text.txt", TEXT)
    (tmp_path / "text.txt").write_text(TEXT)
    build(tmp_path / "store", CorpusSettings((str(tmp_path / "text.txt"),)), tokenizer, BuildSettings(0.2, workers=1))
    corpus, url = CorpusSettings((f"{bucket}/text.txt",)), f"{bucket}/store"
    executor, reporter = SerialExecutor(), WatchedReporter()
    with pytest.raises(KeyboardInterrupt):
        build(Path(url), corpus, tokenizer, BuildSettings(0.2), stop_after(2), executor)
    assert not files.exists(Path(url) / "train")
    built = build(Path(url), corpus, tokenizer, BuildSettings(0.2), reporter, executor)
    assert "2 of" in reporter.notes[0]
    assert build(Path(url), corpus, tokenizer, BuildSettings(0.2), executor=executor) == built  # it is finished
    expected = {str(path.relative_to(tmp_path / "store")): path for path in (tmp_path / "store").rglob("*")}
    for name, data in content(url).items():
        assert name == "build.json" or data == expected[name].read_bytes()  # the plan has the names of inputs
    assert {name for name, path in expected.items() if path.is_file() and path.name != ".lock"} == {*content(url)}
    store = TokenStore.open(Path(url) / "train", tokenizer.digest)
    assert (store.num_tokens, store.folder.name) == (built.train.num_tokens, "train")
    assert open_tokenizer(Path(url) / "tokenizer").digest == tokenizer.digest
    put(f"{bucket}/text.txt", TEXT + "More.")
    with pytest.raises(ValueError, match=f"^{Path(url).as_posix()}: finished store of other inputs|{url}: finished"):
        build(Path(url), corpus, tokenizer, BuildSettings(0.2), executor=executor)
    learned = Path(f"{bucket}/vocabulary")
    settings = LearnSettings(corpus, learned, VocabularySettings(size=300, min_frequency=1))
    vocabulary = learn_vocabulary(settings, text_reporter())
    assert open_tokenizer(learned).digest == vocabulary.digest
    with pytest.raises(ValueError, match=f"^{bucket}/vocabulary: already exists"):
        learn_vocabulary(settings, text_reporter())


@pytest.mark.parametrize("when", ["writing", "uploading"])
def test_write_that_fails_half_way_leaves_nothing(bucket: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, uploaded = Path(f"{bucket}/folder"), list[str]()
    put_file = object_storage._put

    def fail_at_second(system: Any, file: Path, path: str) -> None:
        uploaded.append(path)
        if len(uploaded) == 2:
            with system.transaction, system.open(path, "wb") as target:
                target.write(b"half")
                raise OSError("disk on fire")
        put_file(system, file, path)

    if when == "uploading":
        monkeypatch.setattr(object_storage, "_put", fail_at_second)
    with pytest.raises(OSError, match="disk on fire"), files.atomic_folder(folder) as temporary:
        (temporary / "b.txt").write_text("first")
        (temporary / "a.txt").write_text("second")
        if when == "writing":
            raise OSError("disk on fire")
    assert [path.rpartition("/")[2] for path in uploaded] == (["b.txt", "a.txt"] if when == "uploading" else [])
    with pytest.raises(KeyboardInterrupt), files.atomic_file(Path(f"{bucket}/file.txt")) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert object_storage.list_names(bucket) == []


def test_folder_whose_upload_was_killed_is_refused_and_replaced(
    bucket: str, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, marked = Path(f"{bucket}/vocabulary"), list[bool]()
    put_file = object_storage._put

    def note_mark(system: Any, file: Path, path: str) -> None:
        marked.append(system.exists(path.rpartition("/")[0] + "/.incomplete"))
        put_file(system, file, path)

    put(f"{bucket}/vocabulary/.incomplete", "")
    put(f"{bucket}/vocabulary/vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nhalf\n")
    put(f"{bucket}/vocabulary/left-over.txt", "half")
    assert not files.exists(folder)
    for name in ("vocabulary", ""):
        with pytest.raises(ValueError, match=r"its upload was interrupted; run the command"):
            open_tokenizer(Path(f"{bucket}/{name}"))
    monkeypatch.setattr(object_storage, "_put", note_mark)
    with files.atomic_folder(folder) as temporary:
        tokenizer.save(temporary)
    assert marked == [True] * 3
    assert {*content(f"{bucket}/vocabulary")} == {"vocab.txt", "tokenizer.json", "tokenizer_config.json"}
    assert open_tokenizer(folder).digest == tokenizer.digest
    with pytest.raises(ValueError, match="already exists"):
        files.check_absent(folder)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.parametrize("finished", [pytest.param(n, marks=[pytest.mark.slow] * (n != 2)) for n in range(4)])
def test_vocabulary_whose_upload_is_killed_is_learned_again(
    tmp_path: Path, finished: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BERTWRIGHT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text(TEXT)
    url = f"file://{tmp_path}/bucket/vocabulary"
    command = f"vocabulary {tmp_path / 'text.txt'} --output {url} --size 300 --min-frequency 1 --workers 1".split()
    put_file, uploaded = object_storage._put, list[str]()

    def put_some(system: Any, file: Path, path: str) -> None:
        if len(uploaded) == finished:
            os._exit(9)
        uploaded.append(path)
        put_file(system, file, path)

    if not (child := os.fork()):
        object_storage._put = put_some  # type: ignore[assignment]
        os._exit(cli.run(command))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert len(content(url)) == finished + 1
    assert cli.run(["tokenize", url, "cat"]) == 2
    assert "interrupted" in capsys.readouterr().err
    assert cli.run(command) == 0
    assert cli.run(["tokenize", url, "cat"]) == 0
    assert ".incomplete" not in content(url)


SMALL_RUN = (
    "--size tiny --hidden-size 32 --num-heads 2 --max-positions 32 --max-length 32 --batch-size 4 --steps 2 "
    "--long-ratio 0 --device cpu --dtype float32 --threads 1"
).split()


def run_pretrain(store: Path | str, run: Path, *options: str) -> int:
    return cli.run(["pretrain", "--store", str(store), "--run", str(run), *SMALL_RUN, *options])


@pytest.fixture(scope="module")
def local_model(store: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Weights of a run on a store of this machine."""
    run = tmp_path_factory.mktemp("local") / "run"
    assert run_pretrain(store, run) == 0
    return (run / "model" / "model.safetensors").read_bytes()


def test_pretraining_on_a_store_of_a_bucket_copies_it_once(
    bucket: str, store: Path, local_model: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in store.rglob("*"):
        if path.is_file():
            put(f"{bucket}/store/{path.relative_to(store).as_posix()}", path.read_bytes())
    capsys.readouterr()
    runs = [tmp_path / "first", tmp_path / "second"]
    for run in runs:
        assert run_pretrain(f"{bucket}/store", run) == 0
        assert (run / "model" / "model.safetensors").read_bytes() == local_model
        assert f'store = "{bucket}/store"' in (run / "settings.toml").read_text()
    [copy] = (tmp_path / "cache" / "objects").glob("*/store")
    printed = capsys.readouterr().out.replace("\n", "").replace(" ", "")
    assert printed.count(f"{bucket}/store: read from its copy {copy}".replace(" ", "")) == 2
    shutil.rmtree(runs[0] / "model")
    assert cli.run(["pretrain", "--run", str(runs[0]), "--resume"]) == 0  # from the last step


def test_missing_store_of_a_bucket_is_one_message(
    bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(f"{bucket}/text.txt", TEXT)
    assert run_pretrain(f"{bucket}/nowhere", tmp_path / "run") == 2
    expected = f"{bucket}/nowhere/train: no token store (header.json is missing); build one with `bertwright prepare`"
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_processes_that_need_a_folder_share_one_copy(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after one that failed half-way. A changed folder has another copy."""
    for name in ("a", "b"):
        put(f"{bucket}/folder/{name}.txt", name)
    download, attempts = object_storage.download, list[str]()

    def download_at_second(url: str, folder: Path, progress: Callable[[int], None]) -> None:
        attempts.append(url)
        download(url, folder, progress)
        if len(attempts) == 1:
            raise OSError(errno.ENOSPC, "disk is full")

    monkeypatch.setattr(object_storage, "download", download_at_second)
    with pytest.raises(OSError, match=r"disk is full: '.*/folder'"):
        files.local_folder(Path(f"{bucket}/folder"))
    monkeypatch.setattr(files, "WAIT_S", 0.01)
    with ThreadPoolExecutor(3) as threads:
        copies = {*threads.map(files.local_folder, [Path(f"{bucket}/folder")] * 3)}
    assert len(attempts) == 2
    [copy] = copies
    assert {path.name: path.read_text() for path in copy.iterdir()} == {"a.txt": "a", "b.txt": "b"}
    put(f"{bucket}/folder/b.txt", "new")
    assert (files.local_folder(Path(f"{bucket}/folder")) / "b.txt").read_text() == "new"
    assert (copy / "b.txt").read_text() == "b"


LEAVING = [
    "/tmp/attack/x",
    "../../x",
    "a/../../x",
    "./x",
    "a//x",
    "..",
    "a\\..\\x",
    "\\x",
    "C:/x",
    "a\0x",
    "a::file:///x",
]


@pytest.mark.parametrize("name", LEAVING)
def test_object_whose_name_leaves_the_folder_is_refused_and_nothing_is_copied(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_storage, "list_names", lambda _: ["a.txt", name])
    put("memory://leaving/a.txt", "a")
    with pytest.raises(ValueError, match=r"^memory://leaving: ") as caught:
        object_storage.download("memory://leaving", tmp_path / "copy", lambda _: None)
    assert repr(name) in str(caught.value)
    assert not (tmp_path / "copy").exists()


def test_name_of_a_file_and_of_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_storage, "list_names", lambda _: ["a", "a/b"])
    with pytest.raises(ValueError, match=r"^memory://both: .*'a'"):
        object_storage.download("memory://both", tmp_path, lambda _: None)


@pytest.mark.parametrize("key", ["voc/{tmp}/absolute", "voc/../../../dots", "voc/./dot", "voc//empty"])
def test_command_on_a_bucket_whose_keys_leave_the_folder_writes_nothing_outside(
    key: str, s3: str, tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    boto3 = pytest.importorskip("boto3")
    monkeypatch.setenv("BERTWRIGHT_CACHE", str(tmp_path / "cache"))
    tokenizer.save(tmp_path / "local")
    client, bucket = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"]), s3.removeprefix("s3://")
    folder = f"{tmp_path.name}/voc"
    for name, body in {path.name: path.read_bytes() for path in (tmp_path / "local").iterdir()}.items():
        client.put_object(Bucket=bucket, Key=f"{folder}/{name}", Body=body)
    for name in ("", "sub/", "sub/sub/"):  # as web consoles show folders
        client.put_object(Bucket=bucket, Key=f"{folder}/{name}", Body=b"")
    assert object_storage.list_names(f"{s3}/{folder}") == sorted(path.name for path in (tmp_path / "local").iterdir())
    assert cli.run(["tokenize", f"{s3}/{folder}", "the cat"]) == 0
    client.put_object(Bucket=bucket, Key=f"{tmp_path.name}/{key.format(tmp=tmp_path)}", Body=b"EVIL")
    capsys.readouterr()
    before = {*tmp_path.rglob("*")}
    assert cli.run(["tokenize", f"{s3}/{folder}", "the cat"]) == 2
    message = capsys.readouterr().err
    assert f"{s3}/{folder}" in message
    assert repr(key.format(tmp=tmp_path).removeprefix("voc/")) in message.replace("\n", "")
    assert {path for path in {*tmp_path.rglob("*")} - before if path.is_file() and path.name != ".lock"} == set()


def test_folders_of_a_web_console_are_no_inputs(s3: str, tmp_path: Path) -> None:
    client = pytest.importorskip("boto3").client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
    for name in ("a.txt", "b.txt/", ""):
        client.put_object(Bucket=s3.removeprefix("s3://"), Key=f"{tmp_path.name}/{name}", Body=b"text" * bool(name))
    for pattern in ("", "/*"):
        [file] = list_corpus_files(CorpusSettings((f"{s3}/{tmp_path.name}{pattern}",)))
        assert file.path == f"{s3}/{tmp_path.name}/a.txt"


def test_file_that_changes_while_it_is_read_is_reported(bucket: str) -> None:
    put(f"{bucket}/a.txt", TEXT)
    [file] = list_corpus_files(CorpusSettings((bucket,)))
    put(f"{bucket}/a.txt", TEXT + "More.")
    with pytest.raises(ValueError, match=f"^{bucket}/a.txt: changed while it was read"):
        list(read(CorpusSettings((bucket,)), [file]))


def test_errors_name_the_url_and_the_way_out(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def error_of(url: str) -> str:
        with pytest.raises((ValueError, OSError)) as caught:
            list_corpus_files(CorpusSettings((url,)))
        return str(caught.value)

    assert error_of("gopher://a/b.txt").startswith("gopher://a/b.txt: unknown scheme; known are file://, s3:// and gs")
    assert error_of("s3://no-such-bucket/a.txt").startswith("s3://no-such-bucket/a.txt: no such bucket, folder or file")
    assert "no file with a known suffix" in error_of_empty(s3, error_of)
    monkeypatch.setitem(known_implementations, "odd", {"class": "no_such_package.A", "err": "Install it"})
    assert "pip install 'bertwright[scale]'" in error_of("odd://a/b.txt")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    pytest.importorskip("s3fs").S3FileSystem.clear_instance_cache()
    message = error_of(f"{s3}/a.txt")
    assert message.startswith(f"{s3}/a.txt: no credentials")
    assert "AWS_ACCESS_KEY_ID" in message


def error_of_empty(s3: str, error_of: Any) -> str:
    put(f"{s3}/odd/readme.md", "text")
    return str(error_of(f"{s3}/odd"))


def test_paths_of_this_machine_are_no_urls() -> None:
    assert object_storage.as_url(Path("s3://b/a") / "train") == "s3://b/a/train"
    assert [object_storage.as_url(path) for path in ("a.txt", "/a/b", "C:/a", "hf://datasets/a", "line=a.txt")] == [
        None
    ] * 5
    assert not sources.is_remote("a.txt")
    assert sources.is_remote("s3://b/a.txt")
