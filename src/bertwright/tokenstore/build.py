"""Parallel, resumable builder of token stores from documents, for training and held-out evaluation.

A finished folder contains

    train/  held_out/  tokenizer/      two token stores and the tokenizer that they were made with
    build.json                         what was built, and counts of what was dropped

During the build, `.unfinished-DIGEST/` contains the finished shards. DIGEST is computed from the
inputs, the vocabulary and the sentence splitter, so a build resumes only from its own shards. `train/` appears last.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertwright.base import files, object_storage
from bertwright.base.object_storage import as_url, display
from bertwright.base.reporter import SILENT, Advance, Reporter
from bertwright.base.settings import check_limit
from bertwright.corpus.documents import CONLL_FORMATS, CONLL_VERSION, CorpusSettings, list_corpus_files, shard_corpus
from bertwright.corpus.sentences import RULES_VERSION
from bertwright.executors.executor import Executor, ExecutorSettings
from bertwright.executors.open_executor import open_executor
from bertwright.tokenstore.build_part import (
    ShardSpec,
    ShardSummary,
    check_written,
    list_missing,
    read_chunks,
    read_summary,
    select_documents,
    write_shard,
)
from bertwright.tokenstore.store import (
    FORMAT_VERSION,
    DocumentChunk,
    Provenance,
    StoreHeader,
    TokenStore,
    read_header,
)
from bertwright.tokenstore.store_writer import write_store
from bertwright.vocabulary.tokenizer import TextTokenizer

# input bytes per shard: about half a second of work, the most that each worker loses if it is killed
SHARD_BYTES = 4 << 20
RESUME_HINT = "finished shards are saved: run the same command again to resume"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class BuildSettings(ExecutorSettings):
    """Settings of a token store build."""

    held_out: float = 0.01
    """Share of the documents that are held out of training to measure the validation loss; 0 holds out none. Documents
    are chosen by a digest of their text, so equal documents stay together. If the share is above 0, each side gets at
    least two different documents (one, if there are fewer than four)."""
    held_out_inputs: tuple[str, ...] = ()
    """Inputs that are held out instead of a share of the documents; they are read like the others."""

    def __post_init__(self) -> None:
        check_limit(self, "from 0 to below 1", "held_out")
        super().__post_init__()


class BuildResult(NamedTuple):
    """Headers of the stores that a build wrote, and counts of what it dropped."""

    train: StoreHeader
    held_out: StoreHeader | None
    empty_documents: int
    """Documents that were dropped because they have no token."""
    empty_sentences: int
    """Sentences that were dropped because they have no token."""
    unknown_tokens: int
    """[UNK] in both stores: characters, or words, that the vocabulary lacks."""
    held_out_in_train: int
    """Held-out documents with a text that is also in train (possible only with `held_out_inputs`)."""


def build(
    folder: Path | str,
    corpus: CorpusSettings,
    tokenizer: TextTokenizer,
    settings: BuildSettings | None = None,
    reporter: Reporter = SILENT,
    executor: Executor | None = None,
) -> BuildResult:
    """Build the token stores in `folder`, or resume an interrupted build of the same inputs and settings.

    The stores are bit-equal whatever the number of workers and interruptions. A finished folder is left as it is.
    Inputs are identified by name, size and modification time. `executor` writes the shards; None: the one that the
    settings choose.

    Raises ValueError if the folder holds a finished store of other inputs, if the build would overwrite files, if
    another process is building there, or if the text cannot be read or tokenized. Raises OSError if the disk is full
    or a worker dies; finished shards are saved.
    """
    folder, settings = Path(folder), settings or BuildSettings()
    held_out = [replace(corpus, inputs=settings.held_out_inputs)] if settings.held_out_inputs else []
    corpora = [corpus, *held_out]
    size = sum(file.size for one in corpora for file in list_corpus_files(one))
    with reporter.progress("preparing", size, "bytes") as advance:  # also while large files are divided
        plan = _make_plan(folder, corpora, tokenizer)
        with _explain_disk_full(folder), files.lock_folder(folder):
            files.remove_stale_parts(folder)
            if files.exists(folder / "train"):  # written last, and whole or absent
                return _read_result(folder, plan, settings)
            _check_overwrites_nothing(folder)
            with nullcontext(executor) if executor else open_executor(settings) as workers:
                _write_shards(plan, tokenizer, workers, reporter, advance)
            return _publish(folder, plan, tokenizer, settings)


class _Plan(NamedTuple):
    """Shards of a build."""

    folder: Path
    """Folder of the finished shards."""
    shards: list[ShardSpec]
    """Shards of the corpus, then shards of the held-out inputs."""
    num_corpus_shards: int
    digest: str


def _make_plan(folder: Path, corpora: Sequence[CorpusSettings], tokenizer: TextTokenizer) -> _Plan:
    sources = [(corpus, source) for corpus in corpora for source in shard_corpus(corpus, SHARD_BYTES)]
    inputs = [file for _, source in sources for file in source.files]  # one of several shards, several times
    versions = [corpora[0].sentence_splitter, RULES_VERSION, FORMAT_VERSION, SHARD_BYTES]
    versions += [CONLL_VERSION] if any(file.format in CONLL_FORMATS for file in inputs) else []
    # Without an option that is not used, so that stores from before there was one are recognized.
    options = [
        {name: value for name, value in asdict(corpus).items() if (name, value) != ("document_start", None)}
        for corpus in corpora
    ]
    described = [options, [asdict(file) for file in inputs], versions]
    digest = files.digest_bytes(json.dumps(described).encode(), tokenizer.digest.encode())
    unfinished = folder / f".unfinished-{digest}"
    shards = [ShardSpec(unfinished, number, corpus, source) for number, (corpus, source) in enumerate(sources)]
    return _Plan(unfinished, shards, sum(corpus is corpora[0] for corpus, _ in sources), digest)


@contextmanager
def _explain_disk_full(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        reason = "no space left; finished shards are saved: free some space and run the same command again to resume"
        raise OSError(error.errno, reason, str(folder)) from None


def _read_result(folder: Path, plan: _Plan, settings: BuildSettings) -> BuildResult:
    if not files.exists(folder / "build.json"):
        raise ValueError(f"{folder}: not a token store (it has train/, but no build.json); choose another folder")
    record = files.read_json(folder / "build.json")
    if not isinstance(record, dict) or (record.get("plan"), record.get("held_out")) != (plan.digest, settings.held_out):
        raise ValueError(
            f"{folder}: finished store of other inputs, or with another vocabulary, --sentence-splitter or --held-out; "
            "delete the folder, or choose another"
        )
    _remove_other_builds(folder, plan=None)
    train = _read_header(folder / "train")
    held_out = _read_header(folder / "held_out") if files.exists(folder / "held_out") else None
    return BuildResult(train, held_out, **record["counts"])


def _read_header(store: Path) -> StoreHeader:
    """Return the header of a finished store, and check its files unless that takes a copy of them."""
    return read_header(store) if as_url(store) else TokenStore.open(store).header


def _check_overwrites_nothing(folder: Path) -> None:
    """Raise ValueError if a folder has content that no interrupted build has left, such as a vocabulary or a run."""
    url = as_url(folder)
    paths = [folder / name for name in object_storage.list_names(url)] if url else sorted(folder.iterdir())
    if _list_unfinished(folder):
        return
    for path in paths:
        if path.name != files.LOCK_FILE:
            raise ValueError(
                f"{display(path)}: already exists and is not from an interrupted build; choose another folder"
            )


def _write_shards(
    plan: _Plan, tokenizer: TextTokenizer, executor: Executor, reporter: Reporter, advance: Advance
) -> None:
    # created before other builds' shards are deleted, so that `_check_overwrites_nothing` finds an interrupted build
    files.ensure_folder(plan.folder)
    is_changed = _remove_other_builds(plan.folder.parent, plan)
    files.remove_stale_parts(plan.folder)
    missing = list_missing(plan.shards)
    if finished := len(plan.shards) - len(missing):
        reporter.note(f"resuming an interrupted build: {finished} of {len(plan.shards)} shards are finished")
    elif is_changed:
        reporter.note(
            "starting from scratch: the inputs, the vocabulary or the sentence splitter have changed since the "
            "interrupted build"
        )
    advance(sum(shard.source.size for shard in plan.shards) - sum(shard.source.size for shard in missing))
    try:
        with closing(executor.run(write_shard, tokenizer, missing)) as finished_shards:
            for number, _ in finished_shards:
                check_written(missing[number])
                advance(missing[number].source.size)
    except ChildProcessError as error:
        raise ChildProcessError(f"{error}; {RESUME_HINT}") from None


def _remove_other_builds(folder: Path, plan: _Plan | None) -> bool:
    """Delete the shards of all builds but `plan`; return whether there were any."""
    stale_folders = [stale for stale in _list_unfinished(folder) if plan is None or stale != plan.folder]
    for stale in stale_folders:
        _discard(stale)
    return bool(stale_folders)


def _list_unfinished(folder: Path) -> list[Path]:
    if (url := as_url(folder)) is None:
        return list(folder.glob(".unfinished-*"))
    parts = {name.partition("/")[0] for name in object_storage.list_names(url)}
    return [folder / name for name in sorted(parts) if name.startswith(".unfinished-")]


def _discard(folder: Path) -> None:
    """Delete the shards of a build. A dying worker may still write there; the next build deletes that."""
    if url := as_url(folder):
        object_storage.remove(url)
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(folder: Path, plan: _Plan, tokenizer: TextTokenizer, settings: BuildSettings) -> BuildResult:
    """Write the stores from the finished shards; `train` comes last. It takes 40 bytes of memory per document."""
    summaries = [read_summary(shard) for shard in plan.shards]
    sizes = [len(summary.digests) for summary in summaries]
    digests = np.concatenate([summary.digests for summary in summaries])
    summaries = [summary._replace(digests=digests[:0]) for summary in summaries]
    held_out = _choose_held_out(digests, sum(sizes[: plan.num_corpus_shards]), plan, settings)
    shared = 0  # documents that are chosen by their digest are on one side
    if settings.held_out_inputs:
        shared = int(np.count_nonzero(np.isin(digests[held_out, 0], digests[~held_out, 0])))
    counts = {
        name: sum(getattr(summary, name) for summary in summaries)
        for name in ("empty_documents", "empty_sentences", "unknown_tokens")
    } | {"held_out_in_train": shared}
    splitter = f"{plan.shards[0].corpus.sentence_splitter}/{RULES_VERSION}"
    provenance = Provenance(tokenizer.digest, tokenizer.num_ids, tokenizer.lowercase, splitter)

    _remove_if_exists(folder / "tokenizer")
    with files.atomic_folder(folder / "tokenizer") as temporary:
        tokenizer.save(temporary)
    files.write_json(folder / "build.json", {"plan": plan.digest, "held_out": settings.held_out, "counts": counts})
    headers: dict[str, StoreHeader] = {}
    for split, chosen in (("held_out", held_out), ("train", ~held_out)):
        _remove_if_exists(folder / split)  # written by an interrupted build
        if not chosen.any():
            continue
        chosen_by_shard = np.split(chosen, np.cumsum(sizes)[:-1])
        corpus_digest = files.digest_bytes(digests[chosen].astype("<u8", copy=False).data.cast("B"))

        with files.atomic_folder(folder / split) as temporary:
            chunks = _read_chosen(plan, summaries, chosen_by_shard)
            headers[split] = write_store(temporary, chunks, provenance, corpus_digest)
    _discard(plan.folder)
    return BuildResult(headers["train"], headers.get("held_out"), **counts)


def _choose_held_out(digests: np.ndarray, num_corpus: int, plan: _Plan, settings: BuildSettings) -> np.ndarray:
    """Return which documents are held out, one bool per document.

    The first `num_corpus` documents come from the corpus, the rest from `held_out_inputs`.
    """
    inputs = ", ".join(plan.shards[0].corpus.inputs)
    if num_corpus == 0:
        raise ValueError(f"{inputs}: no documents with text; is this the right input, and the right --column?")
    if settings.held_out_inputs:
        if num_corpus == len(digests):
            raise ValueError(f"{', '.join(settings.held_out_inputs)}: no documents with text to hold out")
        return np.arange(len(digests)) >= num_corpus
    if settings.held_out == 0:
        return np.zeros(len(digests), dtype=bool)
    distinct = np.sort(digests[:, 0])  # `np.unique` would take several times the memory, for a hash table
    distinct = distinct[np.concatenate([[True], distinct[1:] != distinct[:-1]])]
    if len(distinct) < 2:
        raise ValueError(
            f"{inputs}: expected at least two different documents, got 1; use --held-out-inputs, --held-out 0, or "
            "another --document-unit (blank-line, file, line, section)"
        )
    min_documents = 2 if len(distinct) >= 4 else 1
    below = int(np.searchsorted(distinct, np.uint64(settings.held_out * 2.0**64)))
    limit = distinct[min(max(below, min_documents), len(distinct) - min_documents)]
    chosen: np.ndarray = digests[:, 0] < limit
    return chosen


def _read_chosen(
    plan: _Plan, summaries: Sequence[ShardSummary], chosen_by_shard: Sequence[np.ndarray]
) -> Iterator[DocumentChunk]:
    """Yield the chosen documents of all shards in order; `chosen_by_shard`: for each shard, one bool per document."""
    for shard, summary, chosen in zip(plan.shards, summaries, chosen_by_shard, strict=True):
        if not chosen.any():
            continue
        first = 0
        for chunk in read_chunks(shard, summary.chunks):
            last = first + len(chunk.document_lengths)
            if chosen[first:last].any():
                yield select_documents(chunk, chosen[first:last])
            first = last


def _remove_if_exists(folder: Path) -> None:
    if files.exists(folder):
        files.remove_folder(folder)
