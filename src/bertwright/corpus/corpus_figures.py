"""Survey of a corpus: its figures, measured in one pass and bounded memory."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from bertwright.corpus.documents import (
    CorpusSettings,
    Document,
    describe_empty_corpus,
    list_readable_corpus_files,
    read_shard,
    shard_corpus,
)
from bertwright.corpus.sentences import make_document_splitter
from bertwright.corpus.sketches import (
    CharacterCounter,
    DistinctCounter,
    LengthHistogram,
    LengthSummary,
    LossyCounter,
    is_deleted,
    mark_shares,
    script_shares,
)
from bertwright.io.decoding import ReadStats
from bertwright.io.sources import InputFile

SHARD_BYTES = 1 << 22  # between two reports of progress
LONG_LINE = 100_000  # characters
LONG_WORD = 120  # characters
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


class UnreadableCorpusError(ValueError):
    """Raised if no file of a corpus can be read; `unreadable` lists the files."""

    def __init__(self, message: str, unreadable: tuple[Unreadable, ...]) -> None:
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
    upper_case: float
    lines: int
    duplicate_lines: float
    duplicate_documents: float
    frequent_lines: tuple[tuple[str, int], ...]
    bad_bytes: int
    first_bad_bytes: str
    null_values: int
    empty_documents: int
    control_characters: int
    replacement_characters: int
    long_lines: int
    long_words: int
    urls: int
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

    split: Callable[[Document], list[str]]
    documents: LengthHistogram = field(default_factory=LengthHistogram)
    sentences: LengthHistogram = field(default_factory=LengthHistogram)
    per_document: LengthHistogram = field(default_factory=LengthHistogram)
    lines: DistinctCounter = field(default_factory=DistinctCounter)
    texts: DistinctCounter = field(default_factory=DistinctCounter)
    frequent: LossyCounter = field(default_factory=LossyCounter)
    characters: CharacterCounter = field(default_factory=CharacterCounter)
    oddities: Counter[str] = field(default_factory=Counter)

    def add(self, document: Document) -> None:
        """Add a document."""
        text, sentences = document.text, self.split(document)
        lines = [tidy for line in text.split("\n") if (tidy := line.strip())]
        self.documents.add([len(text)])
        self.sentences.add(map(len, sentences))
        self.per_document.add([len(sentences)])
        self.lines.add(lines)
        self.texts.add([text])
        self.frequent.add(line for line in lines if len(line) <= 200)
        self.characters.add(text)
        words = text.split()
        if not unicodedata.is_normalized("NFC", text):
            pairs = ((word, unicodedata.normalize("NFC", word)) for word in words)
            self.oddities["decomposed"] += sum(
                max(1, len(word) - len(composed)) for word, composed in pairs if word != composed
            )
        long = [word for word in words if len(word) >= LONG_WORD]
        self.oddities["words"] += len(words)
        self.oddities["long lines"] += sum(len(line) > LONG_LINE for line in lines)
        self.oddities["long words"] += len(long)
        self.oddities["urls"] += text.count("://") + text.count("www.")
        self.oddities["blobs"] += sum(BLOB.search(word) is not None for word in long)
        self.oddities["tags"] += len(TAG.findall(text)) if "<" in text or "&" in text else 0

    def summarize(self, read: Sequence[InputFile], unreadable: Sequence[Unreadable], stats: ReadStats) -> Survey:
        """Return the figures of all documents added."""
        characters = self.characters.to_dict()
        letters = {char: count for char, count in characters.items() if char.isalpha()}
        number = sum(letters.values()) or 1
        marked = mark_shares(characters)
        return Survey(
            files=len(read),
            unreadable=tuple(unreadable),
            bytes_on_disk=sum(file.size for file in read),
            bytes_of_text=stats.bytes_read,
            documents=self.texts.total,
            sentences=self.per_document.total,
            words=self.oddities["words"],
            characters=self.documents.total,
            document_lengths=self.documents.summarize(),
            sentence_lengths=self.sentences.summarize(),
            sentences_per_document=self.per_document.summarize(),
            one_sentence_documents=self.per_document.counts[1] / self.texts.total,
            scripts=script_shares(letters),
            upper_case=sum(count for char, count in letters.items() if char.isupper()) / number,
            lines=self.lines.total,
            duplicate_lines=self.lines.duplicate_share(),
            duplicate_documents=self.texts.duplicate_share(),
            frequent_lines=self.frequent.top(),
            bad_bytes=stats.invalid_sequences,
            first_bad_bytes=stats.first_invalid,
            null_values=stats.null_values,
            empty_documents=stats.empty_documents,
            control_characters=sum(count for char, count in characters.items() if is_deleted(char)),
            replacement_characters=characters.get("\ufffd", 0),
            long_lines=self.oddities["long lines"],
            long_words=self.oddities["long words"],
            urls=self.oddities["urls"],
            blobs=self.oddities["blobs"],
            tags=self.oddities["tags"],
            marked_letters=sum(marked.values()),
            frequent_marked=tuple(marked)[:5],
            dotless_letters=(letters.get("ı", 0) + letters.get("İ", 0)) / number,
            decomposed=self.oddities["decomposed"],
        )


def measure_corpus(settings: CorpusSettings, progress: Callable[[int], None] | None = None) -> Survey:
    """Measure a corpus in one pass; invalid bytes are counted and do not stop it.

    A file that cannot be read (a binary one, a broken row) is listed; the figures include its documents before the
    error. `progress` receives the number of bytes on disk read since its last call.
    Raises ValueError for inputs that name no file, or a file twice, and for a corpus without documents:
    UnreadableCorpusError if that is because files cannot be read.
    """
    lenient = replace(settings, encoding_errors="replace")
    inputs, failed = list_readable_corpus_files(settings)
    unreadable = [Unreadable(path, _reason(path, error), 0) for path, error in failed.items()]
    stats = ReadStats()
    totals = _Totals(make_document_splitter(settings.sentence_splitter))
    read: list[InputFile] = []
    for file in inputs:
        before, done = totals.texts.total, 0
        try:
            for shard in shard_corpus(settings, SHARD_BYTES, [file]):
                for document in read_shard(lenient, shard, stats):
                    totals.add(document)
                done += shard.size
                if progress:
                    progress(shard.size)
            read.append(file)
        except (ValueError, OSError) as error:
            documents = totals.texts.total - before
            unreadable.append(Unreadable(file.path, _reason(file.path, error), documents))
            read += [file] if documents else []
            if progress:
                progress(file.size - done)
    if not totals.texts.total:
        raise _nothing(settings, stats, unreadable)
    return totals.summarize(read, unreadable, stats)


def _reason(path: str, error: ValueError | OSError) -> str:
    """Return an error message that starts with the file's name, which the system's messages may lack.

    >>> _reason("a.txt", PermissionError(13, "Permission denied"))
    'a.txt: Permission denied'
    """
    return f"{path}: {error.strerror or error}" if isinstance(error, OSError) else str(error)


def _nothing(settings: CorpusSettings, stats: ReadStats, unreadable: list[Unreadable]) -> ValueError:
    if not unreadable:
        return ValueError(describe_empty_corpus(settings, stats))
    reason = unreadable[0].message
    if len(unreadable) > 1:
        reason = f"no documents: {len(unreadable):,} files cannot be read, the first is {reason}"
    return UnreadableCorpusError(reason, tuple(unreadable))
