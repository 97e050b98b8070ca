"""Building of token stores from documents, for training and for held-out evaluation; in parallel and resumable.

A finished folder contains

    train/  held_out/  tokenizer/      two token stores and the tokenizer that they were made with
    build.json                         what was built, and counts of what was dropped

During the build, `.unfinished-DIGEST/` contains the finished shards. DIGEST is that of the inputs, the vocabulary and
the sentence rules, so a build resumes from shards of the same build only. `train/` appears last.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertwright import files
from bertwright.corpus.documents import CorpusSettings, shard_corpus
from bertwright.corpus.sentences import RULES_VERSION
from bertwright.settings import check_minimum
from bertwright.tokenstore.executor import Executor, make_executor
from bertwright.tokenstore.store import FORMAT_VERSION, DocumentBatch, Provenance, StoreHeader, TokenStore, write_store
from bertwright.tokenstore.worker import (
    ShardSummary,
    ShardTask,
    is_finished,
    read_chunks,
    read_summary,
    select_documents,
)
from bertwright.vocabulary.tokenizer import Tokenizer

SHARD_BYTES = 4 << 20  # of input per shard: about half a second of one core, which is what a kill can lose
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class PrepareSettings:
    """Settings by which a corpus becomes token stores."""

    held_out: float = 0.01
    """Share of the documents that is excluded from training, to measure the validation loss on. They are chosen by a
    digest of their text, so that equal documents stay together. Both sides get at least two different documents (one,
    if there are fewer than four). 0: none."""
    held_out_inputs: tuple[str, ...] = ()
    """Inputs that are held out instead of a share of the documents; they are read like the others."""
    workers: int | None = None
    """Worker processes; unset: one per core. The result does not depend on it."""

    def __post_init__(self) -> None:
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out is {self.held_out}; expected a share of the documents, from 0 to below 1")
        if self.workers is not None:
            check_minimum(self, 1, "workers")


class Progress(NamedTuple):
    """Progress of a build."""

    bytes_done: int
    """Of the inputs, as they are on disk."""
    bytes_total: int
    bytes_resumed: int
    """Done by an earlier, interrupted build, from which this one resumes."""
    note: str = ""
    """Notice for the user."""


class BuildResult(NamedTuple):
    """Stores that a build made, and what it dropped."""

    train: StoreHeader
    held_out: StoreHeader | None
    empty_documents: int
    """Documents that were dropped because they have no token."""
    empty_sentences: int
    """Sentences that were dropped because they have no token."""
    unknown_tokens: int
    """[UNK] in both stores: characters that the vocabulary lacks."""
    held_out_in_train: int
    """Held-out documents whose text is also that of a training document (possible with `held_out_inputs` only)."""


def build(
    folder: Path | str,
    corpus: CorpusSettings,
    tokenizer: Tokenizer,
    settings: PrepareSettings | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
    executor: Executor | None = None,
) -> BuildResult:
    """Build the token stores in `folder`, or resume an interrupted build of the same inputs, vocabulary and rules.

    The stores are bit-equal whatever the number of workers and interruptions. A finished folder is left as it is.
    Inputs are identified by name, size and modification time. `executor`: what runs the tasks; unset, local processes
    as `settings.workers` says.

    Raises ValueError if the folder holds a finished store of other inputs or files that a build would overwrite, if
    another process is building there, and as reading and tokenizing do. Raises OSError if the disk is full or a worker
    dies; finished shards are saved.
    """
    folder, settings = Path(folder), settings or PrepareSettings()
    held_out_corpus = replace(corpus, inputs=settings.held_out_inputs) if settings.held_out_inputs else None
    corpora = [corpus, held_out_corpus] if held_out_corpus else [corpus]
    plan = _Plan.of(folder, corpora, tokenizer)
    with _explain_disk_full(folder), files.lock_folder(folder):
        files.remove_stale_parts(folder)
        if (folder / "train").exists():
            return _read_result(folder, plan, settings)
        _check_overwrites_nothing(folder)
        _make_shards(plan, tokenizer, executor or make_executor(settings.workers), progress)
        return _publish(folder, plan, tokenizer, settings)


class _Plan(NamedTuple):
    """Shards of which a build consists."""

    folder: Path
    """Folder of the finished shards."""
    tasks: list[ShardTask]
    """Shards of the corpus, then those of the held-out inputs."""
    num_corpus_tasks: int
    digest: str

    @classmethod
    def of(cls, folder: Path, corpora: Sequence[CorpusSettings], tokenizer: Tokenizer) -> _Plan:
        sources = [(corpus, shard) for corpus in corpora for shard in shard_corpus(corpus, SHARD_BYTES)]
        inputs = [(file, file.local().stat().st_mtime_ns) for _, shard in sources for file in shard.files]
        rules = [corpora[0].sentence_splitter, RULES_VERSION, FORMAT_VERSION, SHARD_BYTES]
        described = [[asdict(corpus) for corpus in corpora], [(asdict(file), time) for file, time in inputs], rules]
        digest = files.digest_bytes(json.dumps(described).encode(), tokenizer.digest.encode())
        shards = folder / f".unfinished-{digest}"
        tasks = [ShardTask(shards, number, corpus, shard) for number, (corpus, shard) in enumerate(sources)]
        return cls(shards, tasks, sum(corpus is corpora[0] for corpus, _ in sources), digest)


@contextmanager
def _explain_disk_full(folder: Path) -> Iterator[None]:
    """Add to the error of a full disk what it means for the build."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        reason = "no space left; finished shards are saved: free some space and run the same command again to resume"
        raise OSError(error.errno, reason, str(folder)) from None


def _read_result(folder: Path, plan: _Plan, settings: PrepareSettings) -> BuildResult:
    """Return the result of a build that is already finished."""
    if not (folder / "build.json").is_file():
        raise ValueError(f"{folder}: not a token store (it has train/, but no build.json); name another folder")
    record = files.read_json(folder / "build.json")
    if not isinstance(record, dict) or (record.get("plan"), record.get("held_out")) != (plan.digest, settings.held_out):
        raise ValueError(
            f"{folder}: holds a finished store of other inputs, vocabulary, rules or held-out share; delete the "
            "folder, or name another"
        )
    _remove_shards_of_others(folder, plan=None)
    train = TokenStore.open(folder / "train").header
    held_out = TokenStore.open(folder / "held_out").header if (folder / "held_out").exists() else None
    return BuildResult(train, held_out, **record["counts"])


def _check_overwrites_nothing(folder: Path) -> None:
    """Raise ValueError if a build would overwrite files that no interrupted build has left."""
    if any(folder.glob(".unfinished-*")):
        return
    for name in ("tokenizer", "held_out", "build.json"):
        if (folder / name).exists():
            raise ValueError(f"{folder / name}: already exists, and not from an interrupted build; name another folder")


def _make_shards(plan: _Plan, tokenizer: Tokenizer, executor: Executor, progress: Callable[[Progress], None]) -> None:
    """Make all shards that are not finished."""
    plan.folder.mkdir(exist_ok=True)  # before the others are deleted: this folder marks `folder` as that of a build
    note = _remove_shards_of_others(plan.folder.parent, plan)
    files.remove_stale_parts(plan.folder)
    total = sum(task.source.size for task in plan.tasks)
    missing = [task for task in plan.tasks if not is_finished(plan.folder, task.number)]
    done = resumed = total - sum(task.source.size for task in missing)
    if resumed:
        finished = len(plan.tasks) - len(missing)
        note = f"resuming an interrupted build: {finished} of {len(plan.tasks)} shards are finished"
    progress(Progress(done, total, resumed, note))
    with closing(executor.run(missing, tokenizer)) as finished_tasks:
        for task in finished_tasks:
            done += task.source.size
            progress(Progress(done, total, resumed))


def _remove_shards_of_others(folder: Path, plan: _Plan | None) -> str:
    """Delete the shards of all builds but `plan`; return a notice if there were any, otherwise ""."""
    others = [other for other in folder.glob(".unfinished-*") if plan is None or other != plan.folder]
    for other in others:
        shutil.rmtree(other, ignore_errors=True)  # a dying worker may still write there; the next build deletes that
    return "starting from scratch: inputs, vocabulary or rules have changed since the interrupted build" * bool(others)


def _publish(folder: Path, plan: _Plan, tokenizer: Tokenizer, settings: PrepareSettings) -> BuildResult:
    """Write the stores from the finished shards; `train` comes last."""
    summaries = [read_summary(plan.folder, task.number) for task in plan.tasks]
    sizes = [len(summary.digests) for summary in summaries]
    digests = np.concatenate([summary.digests for summary in summaries])
    held_out = _choose_held_out(digests, sum(sizes[: plan.num_corpus_tasks]), plan, settings)
    shared = np.isin(digests[held_out, 0], digests[~held_out, 0])
    counts = {
        name: sum(getattr(summary, name) for summary in summaries)
        for name in ("empty_documents", "empty_sentences", "unknown_tokens")
    } | {"held_out_in_train": int(np.count_nonzero(shared))}
    rules = f"{plan.tasks[0].corpus.sentence_splitter}/{RULES_VERSION}"
    origin = Provenance(tokenizer.digest, tokenizer.vocab_size, tokenizer.lowercase, rules)

    _replace_folder(folder / "tokenizer", tokenizer.save)
    files.write_json(folder / "build.json", {"plan": plan.digest, "held_out": settings.held_out, "counts": counts})
    headers: dict[str, StoreHeader] = {}
    for split, chosen in (("held_out", held_out), ("train", ~held_out)):
        if not chosen.any():
            _remove_if_exists(folder / split)  # written by an interrupted build that held out a share
            continue
        by_shard = np.split(chosen, np.cumsum(sizes)[:-1])
        corpus = files.digest_bytes(digests[chosen].astype("<u8").tobytes())

        def write(path: Path, by_shard: Any = by_shard, corpus: str = corpus, split: str = split) -> None:
            headers[split] = write_store(path, _read_chosen(plan, summaries, by_shard), origin, corpus)

        _replace_folder(folder / split, write)
    shutil.rmtree(plan.folder, ignore_errors=True)
    return BuildResult(headers["train"], headers.get("held_out"), **counts)


def _choose_held_out(digests: np.ndarray, num_corpus: int, plan: _Plan, settings: PrepareSettings) -> np.ndarray:
    """Choose the documents that are held out: bool for each.

    The first `num_corpus` documents are those of the corpus, the others those of `held_out_inputs`.
    """
    inputs = ", ".join(plan.tasks[0].corpus.inputs)
    if num_corpus == 0:
        raise ValueError(f"{inputs}: no documents with text; is this the right input, and the right --column?")
    if settings.held_out_inputs:
        if num_corpus == len(digests):
            raise ValueError(f"{', '.join(settings.held_out_inputs)}: no documents with text to hold out")
        return np.arange(len(digests)) >= num_corpus
    if settings.held_out == 0:
        return np.zeros(len(digests), dtype=bool)
    distinct = np.unique(digests[:, 0])
    if len(distinct) < 2:
        raise ValueError(
            f"{inputs}: a single document cannot be divided between training and held-out evaluation; name held-out "
            "inputs, set --held-out 0, or see --document-unit (blank-line, file, line) for the extent of a document"
        )
    min_documents = 2 if len(distinct) >= 4 else 1
    below = int(np.searchsorted(distinct, np.uint64(settings.held_out * 2.0**64)))
    limit = distinct[min(max(below, min_documents), len(distinct) - min_documents)]
    chosen: np.ndarray = digests[:, 0] < limit
    return chosen


def _read_chosen(
    plan: _Plan, summaries: Sequence[ShardSummary], by_shard: Sequence[np.ndarray]
) -> Iterator[DocumentBatch]:
    """Yield the chosen documents of all shards in order; `by_shard` holds a bool for each document."""
    for task, summary, chosen in zip(plan.tasks, summaries, by_shard, strict=True):
        if not chosen.any():
            continue
        first = 0
        for documents in read_chunks(plan.folder, task.number, summary.chunks):
            last = first + len(documents.document_lengths)
            if chosen[first:last].any():
                yield select_documents(documents, chosen[first:last])
            first = last


def _replace_folder(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder atomically, in place of one that an interrupted build left."""
    _remove_if_exists(folder)
    with files.atomic_folder(folder) as temporary:
        write(temporary)


def _remove_if_exists(folder: Path) -> None:
    if folder.exists():
        files.remove_folder(folder)
