"""Building of token stores: content, equal bits after kills and with any number of workers, errors."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bertwright.base import files
from bertwright.corpus.documents import CorpusSettings
from bertwright.executors.executor import SerialExecutor
from bertwright.executors.open_executor import make_local_executor
from bertwright.executors.processes import ProcessExecutor
from bertwright.tokenstore import build as build_module
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.tokenstore.store import TokenStore
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from helpers import WatchedReporter, stop_after

WORDS = "the a cat dog sat ran on under mat tree red big old and then it was there again far".split()
TRAIN_ONLY = BuildSettings(held_out=0, workers=1)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS], lowercase=True)


@pytest.fixture
def corpus(tmp_path: Path) -> CorpusSettings:
    """Two files, 60 documents of 1 to 40 lines, about 60 kB."""
    rng = random.Random(1)
    (tmp_path / "corpus").mkdir()
    for name in ("one", "two"):
        documents = []
        for _ in range(30):
            lines = [" ".join(rng.choices(WORDS, k=rng.randint(2, 20))) + "." for _ in range(rng.randint(1, 40))]
            documents.append("\n".join(lines))
        (tmp_path / "corpus" / f"{name}.txt").write_text("\n\n".join(documents) + "\n")
    return CorpusSettings(inputs=(str(tmp_path / "corpus"),), sentence_splitter="line")


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "SHARD_BYTES", 4000)


def lines_corpus(path: Path, text: str) -> CorpusSettings:
    path.write_text(text)
    return CorpusSettings(inputs=(str(path),), sentence_splitter="line")


def sentences(folder: Path, tokenizer: Tokenizer) -> list[list[str]]:
    """Return the content of a store as text: documents of sentences."""
    store = TokenStore.open(folder, tokenizer.digest)
    bounds = store.sentence_starts.tolist()
    texts = [tokenizer.decode(store.read_tokens(first, last)) for first, last in pairwise(bounds)]
    limits = store.document_starts.tolist()
    return [texts[first:last] for first, last in pairwise(limits)]


def content(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below a folder, without hidden ones."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_build_small_corpus_holds_its_tokens_and_counts_what_is_dropped(tmp_path: Path, tokenizer: Tokenizer) -> None:
    corpus = lines_corpus(tmp_path / "c.txt", "The cat sat.\nIt ran.\n\n\u200b\nA dog xyz ran\n\n\u200b\n")
    built = build(tmp_path / "s", corpus, tokenizer, TRAIN_ONLY)
    assert sentences(tmp_path / "s" / "train", tokenizer) == [["the cat sat.", "it ran."], ["a dog ran"]]
    assert (built.train.num_tokens, built.train.num_sentences, built.train.num_documents) == (11, 3, 2)
    assert (built.empty_sentences, built.unknown_tokens) == (2, 1)
    assert built.empty_documents == 1
    assert built.held_out is None
    assert Tokenizer.load(tmp_path / "s" / "tokenizer").digest == tokenizer.digest
    assert built.train.provenance.vocabulary_digest == tokenizer.digest
    assert built.train.provenance.sentence_splitter.startswith("line/")


def test_build_in_shards_holds_the_corpus_in_order(
    tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer
) -> None:
    build(tmp_path / "s", corpus, tokenizer, TRAIN_ONLY)
    expected = []
    for path in sorted((tmp_path / "corpus").iterdir()):
        expected += [document.strip().split("\n") for document in path.read_text().split("\n\n")]
    assert sentences(tmp_path / "s" / "train", tokenizer) == expected


def test_build_is_bit_equal_for_any_workers_and_shard_size(
    tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "one", corpus, tokenizer, BuildSettings(held_out=0.2, workers=1))
    build(tmp_path / "three", corpus, tokenizer, BuildSettings(held_out=0.2, workers=3))
    assert content(tmp_path / "one") == content(tmp_path / "three")
    build(tmp_path / "serial", corpus, tokenizer, BuildSettings(held_out=0.2), executor=SerialExecutor())
    assert content(tmp_path / "one") == content(tmp_path / "serial")
    monkeypatch.setattr(build_module, "SHARD_BYTES", 1 << 30)
    build(tmp_path / "whole", corpus, tokenizer, BuildSettings(held_out=0.2, workers=1))
    for split in ("train", "held_out"):
        assert content(tmp_path / "one" / split) == content(tmp_path / "whole" / split)


class RecordingExecutor(SerialExecutor):
    """Executor that records the shards that a build requests."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def run(self, function: Any, shared: Any, tasks: Any) -> Generator[tuple[int, Any]]:
        self.numbers = [task.number for task in tasks]
        yield from super().run(function, shared, tasks)


def test_executor_on_windows_is_serial(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_local_executor(3), ProcessExecutor)
    monkeypatch.setattr(sys, "platform", "win32")
    assert isinstance(make_local_executor(3), SerialExecutor)


def test_resumed_build_requests_missing_shards_only(
    tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer
) -> None:
    executor = RecordingExecutor()
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "s", corpus, tokenizer, reporter=stop_after(4), executor=executor)
    requested = executor.numbers
    build(tmp_path / "s", corpus, tokenizer, executor=executor)
    assert executor.numbers == requested[4:]


@pytest.mark.parametrize("damage", ["empty summary", "text summary", "truncated chunks", "no chunks"])
def test_damaged_shard_of_an_interrupted_build_is_written_again(
    tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer, damage: str
) -> None:
    build(tmp_path / "unbroken", corpus, tokenizer)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "s", corpus, tokenizer, reporter=stop_after(4))
    (summary, *_), (chunks, *_) = (
        sorted((tmp_path / "s").glob(f".unfinished-*/*{end}")) for end in (".npz", ".chunks")
    )
    match damage:
        case "empty summary":
            summary.write_bytes(b"")
        case "text summary":
            summary.write_text("text")
        case "truncated chunks":
            chunks.write_bytes(chunks.read_bytes()[:-1])
        case _:
            chunks.unlink()
    build(tmp_path / "s", corpus, tokenizer)
    assert content(tmp_path / "s") == content(tmp_path / "unbroken")


def test_files_of_sentences_are_split_by_line_whatever_the_splitter(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.conll"
    path.write_text("".join(f"{word} O\n{word} O\n. O\n{word} O\n\n" for word in WORDS[:5]))
    build(tmp_path / "s", CorpusSettings((str(path),)), tokenizer, TRAIN_ONLY)
    assert TokenStore.open(tmp_path / "s" / "train").num_sentences == 5


def test_held_out_documents_are_excluded_from_training(
    tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer
) -> None:
    build(tmp_path / "all", corpus, tokenizer, TRAIN_ONLY)
    built = build(tmp_path / "s", corpus, tokenizer, BuildSettings(held_out=0.3, workers=1))
    assert built.held_out is not None
    everything = sentences(tmp_path / "all" / "train", tokenizer)
    train, held_out = (sentences(tmp_path / "s" / split, tokenizer) for split in ("train", "held_out"))
    assert 8 < len(held_out) < 30  # 18 of 60 expected, standard deviation 3.5
    assert sorted(train + held_out) == sorted(everything)
    assert train == [document for document in everything if document in train]  # in order


@pytest.mark.parametrize(("share", "num_held_out"), [(1e-9, 2), (0.999999, 3)])
def test_both_stores_have_two_documents_for_any_share(
    tmp_path: Path, tokenizer: Tokenizer, share: float, num_held_out: int
) -> None:
    corpus = lines_corpus(tmp_path / "c.txt", "\n\n".join(f"{word} cat" for word in WORDS[:5]))
    built = build(tmp_path / "s", corpus, tokenizer, BuildSettings(held_out=share, workers=1))
    assert built.held_out is not None
    assert (built.train.num_documents, built.held_out.num_documents) == (5 - num_held_out, num_held_out)


def test_equal_documents_are_in_the_same_store(tmp_path: Path, tokenizer: Tokenizer) -> None:
    documents = [f"{first} {second}" for first in WORDS for second in WORDS]
    corpus = lines_corpus(tmp_path / "c.txt", "\n\n".join(documents * 2))
    built = build(tmp_path / "s", corpus, tokenizer, BuildSettings(held_out=0.5, workers=1))
    train, held_out = (sentences(tmp_path / "s" / split, tokenizer) for split in ("train", "held_out"))
    assert not {document[0] for document in train} & {document[0] for document in held_out}
    assert len(train) + len(held_out) == 800
    assert built.held_out_in_train == 0


def test_held_out_inputs_replace_the_share(tmp_path: Path, tokenizer: Tokenizer) -> None:
    corpus = lines_corpus(tmp_path / "c.txt", "the cat\n\na dog\n")
    (tmp_path / "h.txt").write_text("a tree\n\na dog\n\na mat\n")
    built = build(
        tmp_path / "s", corpus, tokenizer, BuildSettings(held_out_inputs=(str(tmp_path / "h.txt"),), workers=1)
    )
    assert sentences(tmp_path / "s" / "train", tokenizer) == [["the cat"], ["a dog"]]
    assert sentences(tmp_path / "s" / "held_out", tokenizer) == [["a tree"], ["a dog"], ["a mat"]]
    assert built.held_out_in_train == 1


def test_single_document_cannot_be_divided(tmp_path: Path, tokenizer: Tokenizer) -> None:
    corpus = lines_corpus(tmp_path / "c.txt", "the cat\nsat\n")
    with pytest.raises(ValueError, match=r"c\.txt: expected .*two .*documents, got 1; .* --held-out 0"):
        build(tmp_path / "s", corpus, tokenizer)
    assert build(tmp_path / "s", corpus, tokenizer, TRAIN_ONLY).train.num_documents == 1


def test_corpus_without_text_raises_an_error(tmp_path: Path, tokenizer: Tokenizer) -> None:
    corpus = lines_corpus(tmp_path / "c.txt", "\u200b\n\n\u200b\n")
    with pytest.raises(ValueError, match=r"c\.txt: no documents with text"):
        build(tmp_path / "s", corpus, tokenizer, TRAIN_ONLY)


def test_interrupted_build_resumes(tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer) -> None:
    build(tmp_path / "unbroken", corpus, tokenizer)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "s", corpus, tokenizer, reporter=stop_after(4))
    assert not (tmp_path / "s" / "train").exists()
    reporter = WatchedReporter()
    build(tmp_path / "s", corpus, tokenizer, reporter=reporter)
    assert reporter.done[0] >= 3 * 4000
    assert "resuming an interrupted build: " in reporter.notes[0]
    assert reporter.done[-1] == sum(p.stat().st_size for p in (tmp_path / "corpus").iterdir())
    assert content(tmp_path / "s") == content(tmp_path / "unbroken")
    assert not [path for path in (tmp_path / "s").iterdir() if path.name.startswith(".unfinished")]


def test_build_of_changed_inputs_starts_from_scratch(
    tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer
) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "s", corpus, tokenizer, reporter=stop_after(4))
    with (tmp_path / "corpus" / "two.txt").open("a") as file:
        file.write("\n\nit was far\n")
    reporter = WatchedReporter()
    build(tmp_path / "s", corpus, tokenizer, TRAIN_ONLY, reporter)
    assert reporter.done[0] == 0
    assert "starting from scratch" in reporter.notes[0]
    assert sentences(tmp_path / "s" / "train", tokenizer)[-1] == ["it was far"]


def test_finished_build_is_not_written_again(tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer) -> None:
    built = build(tmp_path / "s", corpus, tokenizer)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s" / "train").iterdir()}
    assert build(tmp_path / "s", corpus, tokenizer) == built
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "s" / "train").iterdir()} == before


def test_finished_build_of_other_inputs_is_not_overwritten(
    tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer
) -> None:
    build(tmp_path / "s", corpus, tokenizer)
    before = content(tmp_path / "s")
    other = Tokenizer.from_tokens([*tokenizer.tokens, "more"], lowercase=True)
    for changed in ((corpus, other, BuildSettings()), (corpus, tokenizer, BuildSettings(held_out=0.5))):
        with pytest.raises(ValueError, match="finished store of other inputs"):
            build(tmp_path / "s", *changed)
    assert content(tmp_path / "s") == before


@pytest.mark.parametrize("name", ["tokenizer", "held_out", "train", "build.json"])
def test_build_does_not_overwrite_files_of_others(
    tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer, name: str
) -> None:
    foreign = tmp_path / "s" / name / "a.txt"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("the cat sat")
    with pytest.raises(ValueError, match="choose another"):
        build(tmp_path / "s", corpus, tokenizer)
    assert foreign.read_text() == "the cat sat"


def test_second_build_in_a_folder_raises_an_error(tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer) -> None:
    with files.lock_folder(tmp_path / "s"), pytest.raises(ValueError, match="another process is writing there"):
        build(tmp_path / "s", corpus, tokenizer)


@pytest.mark.parametrize("workers", [0, -1, 1_025, 10**40])
def test_number_of_workers_out_of_range_is_rejected(workers: int) -> None:
    with pytest.raises(ValueError, match=f"workers: expected 1 to 1,024, got {workers}"):
        BuildSettings(workers=workers)


def test_error_of_a_worker_is_raised_by_the_build(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "c.txt").write_bytes(b"the cat\n\nthe \xff dog\n")
    with pytest.raises(ValueError, match=r"c.txt, byte 13: ff is not UTF-8"):
        build(tmp_path / "s", CorpusSettings(inputs=(str(tmp_path / "c.txt"),)), tokenizer)
    assert not (tmp_path / "s" / "train").exists()


def test_killed_worker_is_reported(tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer) -> None:
    def kill_workers(_: int) -> None:
        for pid in children(os.getpid()):
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(ChildProcessError, match=r"exit code -9: killed.*memory.*workers"):
        build(tmp_path / "s", corpus, tokenizer, BuildSettings(workers=1), WatchedReporter(kill_workers))
    build(tmp_path / "s", corpus, tokenizer)


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[1]) == parent and "worker_main(" in (stat.parent / "cmdline").read_text():
            found.append(int(stat.parent.name))
    return found


def test_full_disk_preserves_finished_shards(
    tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(build_module, "write_store", full)
        with pytest.raises(OSError, match="no space left; finished shards are saved") as caught:
            build(tmp_path / "s", corpus, tokenizer)
    assert caught.value.errno == errno.ENOSPC
    assert not (tmp_path / "s" / "train").exists()
    reporter = WatchedReporter()
    build(tmp_path / "s", corpus, tokenizer, reporter=reporter)
    assert len(reporter.done) == 1  # no shard had to be made again


def test_held_out_store_of_an_interrupted_build_is_removed(
    tmp_path: Path,
    corpus: CorpusSettings,
    tokenizer: Tokenizer,
    interrupted_in: Callable[..., AbstractContextManager[list[Any]]],
) -> None:
    with interrupted_in(build_module, "write_store", 2):  # that of train
        build(tmp_path / "s", corpus, tokenizer, BuildSettings(held_out=0.5))
    assert (tmp_path / "s" / "held_out").exists()
    for _ in range(2):
        assert build(tmp_path / "s", corpus, tokenizer, TRAIN_ONLY).held_out is None
        assert not (tmp_path / "s" / "held_out").exists()


def test_workers_do_not_import_modules_from_the_current_folder(
    tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])  # no string, which Python passes over
    for name in ("random", "numpy", "tokenizers"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not mine to import')")
    assert build(tmp_path / "s", corpus, tokenizer, BuildSettings(workers=2)).train.num_documents > 0


FULL_DISK_BUILD = """
import subprocess, sys
from pathlib import Path
from bertwright.corpus.documents import CorpusSettings
from bertwright.tokenstore import build
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from helpers import WatchedReporter

build.SHARD_BYTES = 4000
disk, corpus, vocabulary = sys.argv[1:]
for size in ("160k", "2m"):
    options = "size=" + size if size == "160k" else "remount,size=" + size
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk]).returncode:
        sys.exit("no mount")
    try:
        build.build(
            Path(disk) / "s", CorpusSettings(inputs=(corpus,), sentence_splitter="line"), Tokenizer.load(vocabulary),
            build.BuildSettings(workers=1), WatchedReporter(lambda done: print("done", done, flush=True)),
        )
        print("finished")
    except OSError as error:
        print(error.errno, error.strerror)
        print([path.name for path in (Path(disk) / "s").rglob("*") if ".part-" in path.name or path.name == "train"])
"""


@pytest.mark.slow
def test_full_file_system_preserves_finished_shards(
    tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer
) -> None:
    """Build on a file system in memory that is too small for the shards, then large enough."""
    for path in (tmp_path / "corpus").iterdir():
        path.write_text("\n\n".join([path.read_text()] * 8))
    tokenizer.save(tmp_path / "vocabulary")
    (tmp_path / "disk").mkdir()
    arguments = [str(tmp_path / "disk"), corpus.inputs[0], str(tmp_path / "vocabulary")]
    command = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", FULL_DISK_BUILD, *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if "unshare" in done.stderr or "no mount" in done.stderr:
        pytest.skip(f"needs a file system of its own, which this machine does not allow: {done.stderr.strip()}")
    lines = done.stdout.splitlines()
    assert lines[0] == "done 0"
    stop = next(number for number, line in enumerate(lines) if not line.startswith("done"))
    assert lines[stop].startswith(f"{errno.ENOSPC} no space left; finished shards are saved")
    assert lines[stop + 1] == "[]"
    assert int(lines[stop + 2].removeprefix("done ")) > 0
    assert lines[-1] == "finished", done.stderr


ORPHANED_WORKER = """
import os, subprocess, sys
from multiprocessing import Pipe
from pathlib import Path
from bertwright.corpus.documents import CorpusSettings, shard_corpus
from bertwright.tokenstore.build_part import ShardSpec, write_shard
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

folder, corpus, vocabulary, wait = sys.argv[1:]
ours, theirs = Pipe()
late = f"import time; time.sleep({wait}); from bertwright.executors.worker import worker_main; "
code = late + f"worker_main({theirs.fileno()}, {os.getpid()})"
worker = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
theirs.close()
settings = CorpusSettings(inputs=(corpus,), sentence_splitter="line")
ours.send((write_shard, Tokenizer.load(vocabulary)))
ours.send(ShardSpec(Path(folder), 0, settings, shard_corpus(settings, 3000)[0]))
if float(wait):
    os._exit(0)  # as a kill ends it
assert ours.recv() == (None, None)
"""


def test_worker_that_starts_after_the_death_of_its_parent_writes_nothing(
    tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer
) -> None:
    tokenizer.save(tmp_path / "vocabulary")

    def written_files(folder: str, wait: float) -> list[str]:
        arguments = [str(tmp_path / folder), corpus.inputs[0], str(tmp_path / "vocabulary"), str(wait)]
        # the worker inherits the pipe, so `run` returns after its end
        subprocess.run([sys.executable, "-c", ORPHANED_WORKER, *arguments], check=True, stdout=subprocess.PIPE)
        return sorted(path.name for path in tmp_path.glob(f"{folder}/*"))

    assert written_files("in time", 0) == ["000000.chunks", "000000.npz"]
    assert written_files("late", 1) == []


KILLED_BUILD = """
import sys
from pathlib import Path
from bertwright.corpus.documents import CorpusSettings
from bertwright.tokenstore import build
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

build.SHARD_BYTES = 3000
folder, corpus, vocabulary = sys.argv[1:]
print("ready", flush=True)
build.build(
    Path(folder), CorpusSettings(inputs=(corpus,), sentence_splitter="line"), Tokenizer.load(vocabulary),
    build.BuildSettings(held_out=0.2, workers=2),
)
"""


@pytest.mark.parametrize("count", [5, pytest.param(20, marks=pytest.mark.slow)])
def test_build_after_kills_is_bit_equal(
    tmp_path: Path, corpus: CorpusSettings, tokenizer: Tokenizer, count: int
) -> None:
    """Kill the building process at random moments, then let it finish."""
    tokenizer.save(tmp_path / "vocabulary")

    def start(folder: str) -> subprocess.Popen[bytes]:
        arguments = [str(tmp_path / folder), corpus.inputs[0], str(tmp_path / "vocabulary")]
        process = subprocess.Popen([sys.executable, "-c", KILLED_BUILD, *arguments], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    started = time.monotonic()
    assert start("unbroken").wait() == 0  # with the start of Python, so a little longer than a build
    unbroken_s = time.monotonic() - started
    expected = content(tmp_path / "unbroken")

    rng = random.Random(3)
    kills = rounds = 0
    while kills < count:
        folder = f"killed-{rounds}"
        process = start(folder)
        try:
            process.wait(rng.uniform(0, unbroken_s))
        except subprocess.TimeoutExpired:
            process.kill()
            kills += 1
        if process.wait() == 0:
            assert content(tmp_path / folder) == expected
            rounds += 1
    assert start(f"killed-{rounds}").wait() == 0
    assert content(tmp_path / f"killed-{rounds}") == expected
    assert sorted(path.name for path in (tmp_path / f"killed-{rounds}").iterdir()) == [
        ".lock", "build.json", "held_out", "tokenizer", "train"
    ]  # fmt: skip
