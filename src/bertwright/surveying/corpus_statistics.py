"""Survey of a corpus: its figures, measured in one pass and bounded memory."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bertwright.corpus.documents import (
    CorpusSettings,
    CorpusShard,
    Document,
    describe_empty_corpus,
    list_readable_corpus_files,
    read_shard,
    shard_corpus,
)
from bertwright.corpus.sentences import make_document_splitter
from bertwright.executors.executor import Executor, SerialExecutor, run_in_order
from bertwright.surveying.sketches import (
    CharacterCounter,
    DistinctCounter,
    LengthHistogram,
    LengthSummary,
    LossyCounter,
    is_deleted,
    mark_shares,
    script_shares,
)
from bertwright.text.decoding import ReadStats
from bertwright.text.sources import EMPTY_FILE, InputFile

SHARD_BYTES = 1 << 22  # between two reports of progress
FILES_PER_TASK = 200  # small ones, which a worker measures together
LONG_LINE = 100_000  # characters
MAX_TEMPLATES = 8  # templates whose words are not known, named in a survey
MAX_REPEATED_LINE = 200  # characters of a line that may be listed as a frequent one
LONG_WORD = 120  # characters
SUMS = ("words", "long_lines", "blobs", "tags", "decomposed")  # figures that are sums over documents
BLOB = re.compile(rf"[A-Za-z0-9+/=_-]{{{LONG_WORD},}}")  # base64, hashes, minified code
TAG = re.compile(r"</?[A-Za-z][^<>\n]{0,200}>|&(?:[a-z]{2,6}|#\d{1,5});")


@dataclass(frozen=True)
class Unreadable:
    """A file that cannot be read, or only up to an error in it."""

    path: str
    message: str
    """File, location, error and fix."""
    documents: int
    """Number of documents before the error; they are in the figures."""

    @property
    def reason(self) -> str:
        """The message without the name of the file.

        >>> Unreadable("a.csv", "a.csv, line 3: expected 2 columns", 1).reason
        'line 3: expected 2 columns'
        """
        return self.message.removeprefix(self.path).lstrip(",: ")

    @property
    def is_empty(self) -> bool:
        return self.reason.startswith(EMPTY_FILE)


class UnreadableCorpusError(ValueError):
    """Raised if no file of a corpus can be read; `unreadable` lists the files."""

    def __init__(self, message: str, unreadable: tuple[Unreadable, ...] = ()) -> None:
        """`unreadable` has a default because an error of a worker is made again from its message alone."""
        super().__init__(message)
        self.unreadable = unreadable


@dataclass(frozen=True)
class Survey:
    """Figures of a corpus. Shares are between 0 and 1; lengths are in characters unless their name says otherwise."""

    files: int
    unreadable: tuple[Unreadable, ...]
    """Files that stop every later stage. `files` counts those among them with documents before the error."""
    bytes_on_disk: int
    bytes_of_text: int
    documents: int
    sentences: int
    words: int
    characters: int
    document_lengths: LengthSummary
    sentence_lengths: LengthSummary
    sentences_per_document: LengthSummary
    one_sentence_documents: float
    scripts: dict[str, float]
    lines: int
    duplicate_lines: float
    duplicate_documents: float
    frequent_lines: tuple[tuple[str, int], ...]
    bad_bytes: int
    first_bad_bytes: str
    null_values: int
    empty_documents: int
    dropped_sentences: int
    """Sentences of Wikipedia that are dropped, because the words of a template or formula in them are not known."""
    unknown_words: tuple[tuple[str, int], ...]
    """The most frequent of these templates, with their sentences."""
    control_characters: int
    replacement_characters: int
    long_lines: int
    blobs: int
    tags: int
    marked_letters: float
    """Share of the letters whose marks an uncased vocabulary strips by default."""
    frequent_marked: tuple[str, ...]
    """The most frequent of these letters."""
    dotless_letters: float
    """Share of Turkish ı and İ among the letters."""
    decomposed: int
    """Characters that Unicode's composed form (NFC) has not, such as separate accents and jamo."""


@dataclass
class _Totals:
    """Sums and sketches of one pass."""

    documents: LengthHistogram = field(default_factory=LengthHistogram)
    sentences: LengthHistogram = field(default_factory=LengthHistogram)
    per_document: LengthHistogram = field(default_factory=LengthHistogram)
    lines: DistinctCounter = field(default_factory=DistinctCounter)
    texts: DistinctCounter = field(default_factory=DistinctCounter)
    lines_by_document: list[list[str]] = field(default_factory=list)
    """Lines that the most frequent ones are chosen from, which depends on the order of documents."""
    characters: CharacterCounter = field(default_factory=CharacterCounter)
    oddities: Counter[str] = field(default_factory=Counter)
    """Figures of `Survey` that are plain sums."""
    stats: ReadStats = field(default_factory=ReadStats)

    def add(self, document: Document, sentences: list[str]) -> None:
        text = document.text
        lines = [tidy for line in text.split("\n") if (tidy := line.strip())]
        self.documents.add([len(text)])
        self.sentences.add(map(len, sentences))
        self.per_document.add([len(sentences)])
        self.lines.add(lines)
        self.texts.add([text])
        self.lines_by_document.append([line for line in lines if len(line) <= MAX_REPEATED_LINE])
        self.characters.add(text)
        words = text.split()
        if not unicodedata.is_normalized("NFC", text):
            pairs = ((word, unicodedata.normalize("NFC", word)) for word in words)
            self.oddities["decomposed"] += sum(
                max(1, len(word) - len(composed)) for word, composed in pairs if word != composed
            )
        self.oddities["words"] += len(words)
        self.oddities["long_lines"] += sum(len(line) > LONG_LINE for line in lines)
        self.oddities["blobs"] += sum(len(word) >= LONG_WORD and BLOB.search(word) is not None for word in words)
        self.oddities["tags"] += len(TAG.findall(text)) if "<" in text or "&" in text else 0

    def merge(self, later: _Totals, frequent: LossyCounter) -> None:
        """Add the documents of a shard that follows; its lines go into a counter of the most frequent ones."""
        for name in ("documents", "sentences", "per_document", "lines", "texts", "characters"):
            getattr(self, name).merge(getattr(later, name))
        self.oddities.update(later.oddities)
        self.stats.add(later.stats)
        for lines in later.lines_by_document:
            frequent.add(lines)

    def summarize(self, read: Sequence[InputFile], unreadable: Sequence[Unreadable], frequent: LossyCounter) -> Survey:
        characters, stats = self.characters.to_dict(), self.stats
        letters = {char: count for char, count in characters.items() if char.isalpha()}
        marked = mark_shares(characters)
        return Survey(
            files=len(read),
            unreadable=tuple(unreadable),
            bytes_on_disk=sum(file.size for file in read),
            bytes_of_text=stats.bytes_read,
            documents=self.texts.total,
            sentences=self.per_document.total,
            characters=self.documents.total,
            document_lengths=self.documents.summarize(),
            sentence_lengths=self.sentences.summarize(),
            sentences_per_document=self.per_document.summarize(),
            one_sentence_documents=self.per_document.counts[1] / self.texts.total,
            scripts=script_shares(letters),
            lines=self.lines.total,
            duplicate_lines=self.lines.duplicate_share(),
            duplicate_documents=self.texts.duplicate_share(),
            frequent_lines=frequent.top(),
            bad_bytes=stats.invalid_sequences,
            first_bad_bytes=stats.first_invalid,
            null_values=stats.null_values,
            empty_documents=stats.empty_documents,
            dropped_sentences=stats.dropped_sentences,
            unknown_words=tuple(stats.unknown_words.most_common(MAX_TEMPLATES)),
            control_characters=sum(count for char, count in characters.items() if is_deleted(char)),
            replacement_characters=characters.get("\ufffd", 0),
            marked_letters=sum(marked.values()),
            frequent_marked=tuple(marked)[:5],
            dotless_letters=(letters.get("ı", 0) + letters.get("İ", 0)) / (sum(letters.values()) or 1),
            **{name: self.oddities[name] for name in SUMS},
        )


class _FilePart(NamedTuple):
    """A shard of one file, or the reason why the file has none."""

    file: InputFile
    shard: CorpusShard | None
    is_last: bool
    """Whether the file ends here."""
    reason: str = ""


class _SurveyTask(NamedTuple):
    """Parts that one worker measures."""

    parts: tuple[_FilePart, ...]

    @property
    def name(self) -> str:
        first, *more = self.parts
        return first.file.path + (f" and {len(more):,} more files" if more else "")


def measure_corpus(
    settings: CorpusSettings, progress: Callable[[int], None] | None = None, executor: Executor | None = None
) -> Survey:
    """Measure a corpus in one pass; invalid bytes are counted and do not stop it.

    A file that cannot be read (a binary one, a broken row) is listed; the figures include its documents before the
    error. `progress` receives the number of bytes on disk read since its last call. `executor`: measures shards; None:
    this process does.
    Raises ValueError for inputs that name no file, or a file twice, and for a corpus without documents:
    UnreadableCorpusError if that is because files cannot be read.
    """
    lenient = replace(settings, encoding_errors="replace")
    inputs, failed = list_readable_corpus_files(settings)
    unreadable = [Unreadable(path, _reason(path, error), 0) for path, error in failed.items()]
    totals, frequent = _Totals(), LossyCounter()
    read: list[InputFile] = []
    broken: set[str] = set()
    before = done = 0
    tasks = _group_parts(_list_parts(settings, inputs, broken))
    for task, results in run_in_order(executor or SerialExecutor(), _measure, lenient, tasks):
        for part, (measured, reason) in zip(task.parts, results, strict=True):
            file = part.file
            if file.path in broken:
                continue
            totals.merge(measured, frequent)
            size = part.shard.size if part.shard and not reason else file.size - done
            if progress:
                progress(size)
            done += size
            if reason:
                broken.add(file.path)
                unreadable.append(Unreadable(file.path, reason, totals.texts.total - before))
            if reason or part.is_last:
                read += [file] if not reason or totals.texts.total > before else []
                before, done = totals.texts.total, 0
    if not totals.texts.total:
        if not unreadable:
            raise ValueError(describe_empty_corpus(settings, totals.stats))
        message = unreadable[0].message
        if len(unreadable) > 1:
            message = f"no documents: {len(unreadable):,} files cannot be read, the first is {message}"
        raise UnreadableCorpusError(message, tuple(unreadable))
    return totals.summarize(read, unreadable, frequent)


def _list_parts(settings: CorpusSettings, inputs: Sequence[InputFile], broken: Collection[str]) -> Iterator[_FilePart]:
    """Yield the shards of all files; the rest of a file that turns out to be broken is left out."""
    for file in inputs:
        try:
            shards = shard_corpus(settings, SHARD_BYTES, [file])
        except (ValueError, OSError) as error:
            yield _FilePart(file, None, True, _reason(file.path, error))
            continue
        for number, shard in enumerate(shards, 1):
            if file.path not in broken:
                yield _FilePart(file, shard, number == len(shards))


def _group_parts(parts: Iterable[_FilePart]) -> Iterator[_SurveyTask]:
    """Yield tasks of one shard, or of small files of together at most a shard's size."""
    group: list[_FilePart] = []
    size = 0
    for part in parts:
        new = part.shard.size if part.shard else 0
        if group and (size + new > SHARD_BYTES or len(group) == FILES_PER_TASK):
            yield _SurveyTask(tuple(group))
            group, size = [], 0
        group.append(part)
        size += new
    if group:
        yield _SurveyTask(tuple(group))


def _measure(task: _SurveyTask, settings: CorpusSettings) -> list[tuple[_Totals, str]]:
    """Measure each part of a task up to an error in it; also return the error's message, "" for none."""
    split = make_document_splitter(settings.sentence_splitter)
    results: list[tuple[_Totals, str]] = []
    for part in task.parts:
        totals, reason = _Totals(), part.reason
        try:
            for document in read_shard(settings, part.shard, totals.stats) if part.shard else ():
                totals.add(document, split(document))
        except (ValueError, OSError) as error:
            reason = _reason(part.file.path, error)
        totals.characters.trim()
        results.append((totals, reason))
    return results


def _reason(path: str, error: ValueError | OSError) -> str:
    """Return an error message that starts with the file's name, which the system's messages may lack.

    >>> _reason("a.txt", PermissionError(13, "Permission denied"))
    'a.txt: Permission denied'
    """
    return f"{path}: {error.strerror or error}" if isinstance(error, OSError) else str(error)
