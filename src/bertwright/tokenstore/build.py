"""Documents → token stores for training and for held-out evaluation: in parallel, and resumable at any moment.

A finished folder holds

    train/  held_out/  tokenizer/      two token stores and the tokenizer that they were made with
    build.json                         what was built, and what was left out

While it is built, `.unfinished-DIGEST/` holds the finished parts of the corpus; DIGEST is that of the inputs, the
vocabulary and the sentence rules, so that only parts of the same build are gone on with. `train/` appears last.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertwright import files
from bertwright.corpus.documents import CorpusSettings, shard_corpus
from bertwright.corpus.sentences import RULES_VERSION
from bertwright.kernels.cpu import available_cpus
from bertwright.tokenstore.store import FORMAT_VERSION, DocumentBatch, Provenance, StoreHeader, TokenStore, write_store
from bertwright.tokenstore.worker import (
    PartSummary,
    PartTask,
    is_finished,
    read_chunks,
    read_summary,
    selected,
    write_part,
)
from bertwright.vocabulary.tokenizer import Tokenizer

PIECE_BYTES = 4 << 20  # of input in one part: about half a second of one core, which is what a kill can lose
OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class PrepareSettings:
    """How a corpus becomes token stores."""

    held_out: float = 0.01
    """Share of the documents that is kept from training, to measure the loss on. They are chosen by a digest of their
    text, so that equal documents stay together; each side has two different documents at least (one, where there are
    fewer than four). 0: none."""
    held_out_inputs: tuple[str, ...] = ()
    """Inputs that are held out, in place of a share of the documents; they are read like the others."""
    workers: int | None = None
    """Worker processes; None: one for every core. The result does not depend on it."""

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out is {self.held_out}; it is a share of the documents, from 0 to below 1")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers is {self.workers}; one at least is needed")


class Progress(NamedTuple):
    """How far a build is."""

    bytes_done: int
    """Of the inputs, as they lie on disk."""
    bytes_total: int
    bytes_kept: int
    """Done by an earlier build that did not finish; this one goes on from there."""
    note: str = ""
    """Something worth telling the user, once."""


class BuildResult(NamedTuple):
    """What a build made."""

    train: StoreHeader
    held_out: StoreHeader | None
    empty_documents: int
    """Dropped for having no token at all."""
    empty_sentences: int
    """Dropped for having no token."""
    unknown_tokens: int
    """[UNK] in both stores: characters that the vocabulary does not have."""
    held_out_in_train: int
    """Held-out documents whose text is also one of the training documents (possible with `held_out_inputs` only)."""


def build(
    folder: Path | str,
    corpus: CorpusSettings,
    tokenizer: Tokenizer,
    settings: PrepareSettings | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> BuildResult:
    """Build `folder`, or go on where an unfinished build of the same inputs, vocabulary and rules stopped.

    The stores are the same to the bit whatever the number of workers and of interruptions. A folder that is already
    finished is left as it is. Parts are known by their inputs' names, sizes and times of change.
    Raises ValueError where the folder holds a finished build of something else, or files of someone else that would
    have to go, or where another process builds there, and what reading and tokenizing raise; OSError where the disk is
    full, and where a worker dies: what is finished is kept.
    """
    folder, settings = Path(folder), settings or PrepareSettings()
    held_corpus = replace(corpus, inputs=settings.held_out_inputs) if settings.held_out_inputs else None
    corpora = [corpus, held_corpus] if held_corpus else [corpus]
    plan = _Plan.of(folder, corpora, tokenizer)
    with _explain_disk_full(folder), files.lock_folder(folder):
        files.remove_stale_parts(folder)
        if (folder / "train").exists():
            return _finished(folder, plan, settings)
        _refuse_foreign(folder)
        _make_parts(plan, tokenizer, settings.workers or available_cpus(), progress)
        return _publish(folder, plan, tokenizer, settings)


class _Plan(NamedTuple):
    """The parts that a build consists of."""

    parts: Path
    tasks: list[PartTask]
    num_train: int
    """So many tasks are the corpus; the others are the inputs that are held out."""
    digest: str

    @classmethod
    def of(cls, folder: Path, corpora: Sequence[CorpusSettings], tokenizer: Tokenizer) -> _Plan:
        shares = [[(corpus, piece) for piece in shard_corpus(corpus, PIECE_BYTES)] for corpus in corpora]
        inputs = [(file, _mtime(file.local())) for share in shares for _, piece in share for file in piece.files]
        rules = [corpora[0].sentence_splitter, RULES_VERSION, FORMAT_VERSION, PIECE_BYTES]
        described = [[asdict(corpus) for corpus in corpora], [(asdict(file), at) for file, at in inputs], rules]
        digest = files.digest_bytes(json.dumps(described).encode(), tokenizer.digest.encode())
        parts = folder / f".unfinished-{digest}"
        together = [task for share in shares for task in share]
        tasks = [PartTask(parts, number, corpus, piece) for number, (corpus, piece) in enumerate(together)]
        return cls(parts, tasks, len(shares[0]), digest)


def _mtime(path: Path) -> int:
    return path.stat().st_mtime_ns


@contextmanager
def _explain_disk_full(folder: Path) -> Iterator[None]:
    """Say what a full disk means for the build."""
    try:
        yield
    except OSError as error:
        if error.errno not in OUT_OF_SPACE:
            raise
        told = "no space left; finished parts are kept: free some space and run the same command again to go on"
        raise OSError(error.errno, told, str(folder)) from None


def _finished(folder: Path, plan: _Plan, settings: PrepareSettings) -> BuildResult:
    """The stores that a finished build left."""
    if not (folder / "build.json").is_file():
        raise ValueError(f"{folder}: holds train/ but no build.json, so this is no token store; name another folder")
    record = files.read_json(folder / "build.json")
    if not isinstance(record, dict) or (record.get("plan"), record.get("held_out")) != (plan.digest, settings.held_out):
        raise ValueError(
            f"{folder}: holds a finished store of other inputs, vocabulary, rules or held-out share; "
            "delete the folder, or name another"
        )
    _clear(folder, keep=None)
    headers = [
        TokenStore.open(folder / side).header if (folder / side).exists() else None for side in ("train", "held_out")
    ]
    assert headers[0] is not None
    return BuildResult(headers[0], headers[1], **record["counts"])


def _refuse_foreign(folder: Path) -> None:
    """What a build replaces at its end must be an unfinished build's: someone may keep a corpus in held_out/."""
    if any(folder.glob(".unfinished-*")):
        return
    for name in ("tokenizer", "held_out", "build.json"):
        if (folder / name).exists():
            raise ValueError(f"{folder / name}: is there already, left by no unfinished build; name another folder")


def _make_parts(plan: _Plan, tokenizer: Tokenizer, workers: int, progress: Callable[[Progress], None]) -> None:
    """Have every part made that is not there yet."""
    plan.parts.mkdir(exist_ok=True)  # first: at every moment it shows that this folder is a build's
    note = _clear(plan.parts.parent, keep=plan.parts)
    files.remove_stale_parts(plan.parts)
    total = sum(task.piece.size for task in plan.tasks)
    missing = [task for task in plan.tasks if not is_finished(plan.parts, task.number)]
    done = kept = total - sum(task.piece.size for task in missing)
    if kept:
        note = (
            f"going on with an unfinished build: {len(plan.tasks) - len(missing)} of {len(plan.tasks)} parts are there"
        )
    progress(Progress(done, total, kept, note))
    for task in _run_tasks(missing, tokenizer, min(workers, len(missing))):
        done += task.piece.size
        progress(Progress(done, total, kept))


def _clear(folder: Path, keep: Path | None) -> str:
    """Delete the parts of other builds; say so if there were any."""
    others = [other for other in folder.glob(".unfinished-*") if other != keep]
    for other in others:
        shutil.rmtree(other, ignore_errors=True)  # what a dying worker still adds goes the next time
    return (
        "begun anew: the inputs, the vocabulary or the rules have changed since the last, unfinished build"
        if others
        else ""
    )


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    connection: Connection


@contextmanager
def _started(tokenizer: Tokenizer, count: int) -> Iterator[list[_Worker]]:
    """Worker processes, dead again on leaving.

    Plain processes and not a `multiprocessing` pool: its children import the user's script once more, and outlive a
    parent that is killed. A connection that breaks tells these that the parent is gone. They are a group of their own,
    which a terminal's Ctrl-C does not reach: the building process decides.
    """
    one_thread = dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "POLARS_MAX_THREADS"), "1")
    environment = os.environ | one_thread | {"TOKENIZERS_PARALLELISM": "false"}
    workers: list[_Worker] = []
    try:
        for _ in range(count):
            ours, theirs = Pipe()
            with theirs:
                # Modules are found where we found ours, and not in the current folder, where -c looks first.
                places = [place for place in sys.path if isinstance(place, str)]  # Python passes over others, too
                code = f"import sys; sys.path[:] = {places!r}; from bertwright.tokenstore.worker import worker_main; "
                code += f"worker_main({theirs.fileno()}, {os.getpid()})"
                command = [sys.executable, "-c", code]
                process = subprocess.Popen(
                    command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, process_group=0
                )
            workers.append(_Worker(process, ours))
            _send(workers[-1], tokenizer, "its start")
        yield workers
    finally:
        for worker in workers:
            worker.connection.close()
            worker.process.kill()
            worker.process.wait()


def _run_tasks(tasks: Sequence[PartTask], tokenizer: Tokenizer, count: int) -> Iterator[PartTask]:
    """Have the tasks done by `count` workers; give each as it is finished."""
    if sys.platform == "win32":  # where no connection can be passed to a child, this process works
        for task in tasks:
            write_part(task, tokenizer)
            yield task
        return
    waiting = iter(tasks)
    with _started(tokenizer, count) as workers:
        at_work: dict[Connection, tuple[_Worker, PartTask]] = {}
        idle = list(workers)
        while True:
            while idle and (task := next(waiting, None)) is not None:
                worker = idle.pop()
                _send(worker, task, _task_files(task))
                at_work[worker.connection] = worker, task
            if not at_work:
                return
            for ready in wait(list(at_work)):
                assert isinstance(ready, Connection)
                worker, task = at_work.pop(ready)
                _answer(worker, task)
                idle.append(worker)
                yield task


def _send(worker: _Worker, message: Tokenizer | PartTask, at: str) -> None:
    try:
        worker.connection.send(message)
    except (BrokenPipeError, ConnectionResetError):
        raise _worker_died(worker, at) from None


def _answer(worker: _Worker, task: PartTask) -> None:
    try:
        error = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        raise _worker_died(worker, _task_files(task)) from None
    if error is not None:
        raise error


def _worker_died(worker: _Worker, at: str) -> ChildProcessError:
    code = worker.process.wait()
    reason = "killed, most often for lack of memory: use fewer workers" if code == -9 else "its message is above"
    return ChildProcessError(
        f"a worker process died on {at} (exit code {code}: {reason}); finished parts are kept, "
        "the same command goes on from there"
    )


def _task_files(task: PartTask) -> str:
    return ", ".join(file.path for file in task.piece.files)


def _publish(folder: Path, plan: _Plan, tokenizer: Tokenizer, settings: PrepareSettings) -> BuildResult:
    """Make the stores from the parts; `train` comes last."""
    summaries = [read_summary(plan.parts, task.number) for task in plan.tasks]
    sizes = [len(summary.digests) for summary in summaries]
    digests = np.concatenate([summary.digests for summary in summaries])
    held_out = _held_out(digests, sum(sizes[: plan.num_train]), plan, settings)
    shared = np.isin(digests[held_out, 0], digests[~held_out, 0])
    counts = {
        name: sum(getattr(summary, name) for summary in summaries)
        for name in ("empty_documents", "empty_sentences", "unknown_tokens")
    } | {"held_out_in_train": int(np.count_nonzero(shared))}
    rules = f"{plan.tasks[0].corpus.sentence_splitter}/{RULES_VERSION}"
    origin = Provenance(tokenizer.digest, tokenizer.vocab_size, tokenizer.lowercase, rules)

    _replaced(folder / "tokenizer", tokenizer.save)
    files.write_json(folder / "build.json", {"plan": plan.digest, "held_out": settings.held_out, "counts": counts})
    headers: dict[str, StoreHeader] = {}
    for side, chosen in (("held_out", held_out), ("train", ~held_out)):
        if not chosen.any():
            _removed(folder / side)  # of an unfinished build that held out a share
            continue
        of_part = np.split(chosen, np.cumsum(sizes)[:-1])
        corpus = files.digest_bytes(digests[chosen].astype("<u8").tobytes())

        def write(path: Path, of_part: Any = of_part, corpus: str = corpus, side: str = side) -> None:
            headers[side] = write_store(path, _chosen(plan, summaries, of_part), origin, corpus)

        _replaced(folder / side, write)
    shutil.rmtree(plan.parts, ignore_errors=True)
    return BuildResult(headers["train"], headers.get("held_out"), **counts)


def _held_out(digests: np.ndarray, num_train: int, plan: _Plan, settings: PrepareSettings) -> np.ndarray:
    """Which documents are held out: bool for each. `num_train` of them are of the corpus, the others were named."""
    named = ", ".join(plan.tasks[0].corpus.inputs)
    if num_train == 0:
        raise ValueError(f"no documents with text in {named}; is this the right input, and the right --column?")
    if settings.held_out_inputs:
        if num_train == len(digests):
            raise ValueError(f"no documents with text in {', '.join(settings.held_out_inputs)} to hold out")
        return np.arange(len(digests)) >= num_train
    if settings.held_out == 0:
        return np.zeros(len(digests), dtype=bool)
    different = np.unique(digests[:, 0])
    if len(different) < 2:
        raise ValueError(
            f"{named}: one document cannot be shared between training and held-out evaluation; name held-out inputs, "
            "set --held-out 0, or see --document-unit (blank-line, file, line) for what one document is"
        )
    least = 2 if len(different) >= 4 else 1
    below = int(np.searchsorted(different, np.uint64(settings.held_out * 2.0**64)))
    limit = different[min(max(below, least), len(different) - least)]
    chosen: np.ndarray = digests[:, 0] < limit
    return chosen


def _chosen(plan: _Plan, summaries: Sequence[PartSummary], of_part: Sequence[np.ndarray]) -> Iterator[DocumentBatch]:
    for task, summary, chosen in zip(plan.tasks, summaries, of_part, strict=True):
        if not chosen.any():
            continue
        first = 0
        for documents in read_chunks(plan.parts, task.number, summary.chunks):
            last = first + len(documents.document_lengths)
            if chosen[first:last].any():
                yield selected(documents, chosen[first:last])
            first = last


def _replaced(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder, whole or not at all, in place of one that an unfinished build left."""
    _removed(folder)
    with files.atomic_folder(folder) as part:
        write(part)


def _removed(folder: Path) -> None:
    if folder.exists():
        files.remove_folder(folder)
