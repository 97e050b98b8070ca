"""What a corpus is like, measured in one pass and bounded memory, before any money is spent on it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from bertwright.corpus.documents import CorpusSettings, InputFile, ReadStats, nothing_read, read_shard, shard_corpus
from bertwright.corpus.sentences import make_sentence_splitter
from bertwright.corpus.sketches import (
    CharacterCounter,
    DistinctCounter,
    LengthHistogram,
    LengthSummary,
    LossyCounter,
    is_deleted,
    scripts,
)
from bertwright.io.sources import check_inputs

PIECE = 1 << 22  # bytes between two reports of progress
SMALL = 1_000_000  # words
LONG_LINE = 100_000  # characters
LONG_WORD = 120  # characters
BLOB = re.compile(rf"[A-Za-z0-9+/=_-]{{{LONG_WORD},}}")  # base64, hashes, minified code
TAG = re.compile(r"</?[A-Za-z][^<>\n]{0,200}>|&(?:[a-z]{2,6}|#\d{1,5});")


@dataclass(frozen=True)
class Unreadable:
    """A file that cannot be read, at all or from some place on."""

    path: str
    message: str
    """Its name, what is wrong, where, and the way out."""
    documents: int
    """So many stand before that place, and count."""

    @property
    def reason(self) -> str:
        """The same without its name.

        >>> Unreadable("a.csv", "a.csv, line 3: 2 columns expected", 1).reason
        'line 3: 2 columns expected'
        """
        return self.message.removeprefix(self.path).lstrip(",: ")


class UnreadableCorpusError(ValueError):
    """No file of the corpus can be read; `unreadable` has them all."""

    def __init__(self, message: str, unreadable: tuple[Unreadable, ...]) -> None:
        super().__init__(message)
        self.unreadable = unreadable


@dataclass(frozen=True)
class Survey:
    """What `survey` found. Shares lie between 0 and 1; lengths are in characters unless their name says otherwise."""

    files: int
    unreadable: tuple[Unreadable, ...]
    """Files that every later stage would refuse; those without a document before the bad place are not in `files`."""
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


@dataclass
class _Totals:
    """All that one pass adds up."""

    split: Callable[[str], list[str]]
    documents: LengthHistogram = field(default_factory=LengthHistogram)
    sentences: LengthHistogram = field(default_factory=LengthHistogram)
    per_document: LengthHistogram = field(default_factory=LengthHistogram)
    lines: DistinctCounter = field(default_factory=DistinctCounter)
    texts: DistinctCounter = field(default_factory=DistinctCounter)
    frequent: LossyCounter = field(default_factory=LossyCounter)
    characters: CharacterCounter = field(default_factory=CharacterCounter)
    oddities: Counter[str] = field(default_factory=Counter)

    def add(self, text: str) -> None:
        sentences = self.split(text)
        lines = [tidy for line in text.split("\n") if (tidy := line.strip())]
        self.documents.add([len(text)])
        self.sentences.add(map(len, sentences))
        self.per_document.add([len(sentences)])
        self.lines.add(lines)
        self.texts.add([text])
        self.frequent.add(line for line in lines if len(line) <= 200)
        self.characters.add(text)
        words = text.split()
        long = [word for word in words if len(word) >= LONG_WORD]
        self.oddities["words"] += len(words)
        self.oddities["long lines"] += sum(len(line) > LONG_LINE for line in lines)
        self.oddities["long words"] += len(long)
        self.oddities["urls"] += text.count("://") + text.count("www.")
        self.oddities["blobs"] += sum(BLOB.search(word) is not None for word in long)
        self.oddities["tags"] += len(TAG.findall(text)) if "<" in text or "&" in text else 0


def survey(settings: CorpusSettings, progress: Callable[[int], None] | None = None) -> Survey:
    """Read the whole corpus once and say what it is like; bytes that are not UTF-8 are counted, not refused.

    A file that cannot be read (a binary one, a broken row) is found out about like everything else: it is listed, and
    the figures are those of the others and of what stands before the broken row. `progress` is told how many more
    bytes on disk have been read. Raises ValueError for inputs that name nothing, or a file twice, and where there is no
    document at all: UnreadableError if that is since files cannot be read.
    """
    lenient = replace(settings, encoding_errors="replace")
    inputs, refused = check_inputs(settings)
    unreadable = [Unreadable(path, _reason(path, error), 0) for path, error in refused.items()]
    findings = ReadStats()
    totals = _Totals(make_sentence_splitter(settings.sentence_splitter))
    read: list[InputFile] = []
    for file in inputs:
        before, done = totals.texts.total, 0
        try:
            for piece in shard_corpus(settings, PIECE, [file]):
                for document in read_shard(lenient, piece, findings):
                    totals.add(document.text)
                done += piece.size
                if progress:
                    progress(piece.size)
            read.append(file)
        except (ValueError, OSError) as error:
            documents = totals.texts.total - before
            unreadable.append(Unreadable(file.path, _reason(file.path, error), documents))
            read += [file] if documents else []
            if progress:
                progress(file.size - done)
    if not totals.texts.total:
        raise _nothing(settings, findings, unreadable)
    characters = totals.characters.found()
    letters = {char: count for char, count in characters.items() if char.isalpha()}
    number = sum(letters.values()) or 1
    return Survey(
        files=len(read),
        unreadable=tuple(unreadable),
        bytes_on_disk=sum(file.size for file in read),
        bytes_of_text=findings.bytes_read,
        documents=totals.texts.total,
        sentences=totals.per_document.total,
        words=totals.oddities["words"],
        characters=totals.documents.total,
        document_lengths=totals.documents.lengths(),
        sentence_lengths=totals.sentences.lengths(),
        sentences_per_document=totals.per_document.lengths(),
        one_sentence_documents=totals.per_document.counts[1] / totals.texts.total,
        scripts=scripts(letters),
        upper_case=sum(count for char, count in letters.items() if char.isupper()) / number,
        lines=totals.lines.total,
        duplicate_lines=totals.lines.duplicates(),
        duplicate_documents=totals.texts.duplicates(),
        frequent_lines=totals.frequent.top(),
        bad_bytes=findings.invalid_sequences,
        first_bad_bytes=findings.first_bad,
        null_values=findings.null_values,
        empty_documents=findings.empty_documents,
        control_characters=sum(count for char, count in characters.items() if is_deleted(char)),
        replacement_characters=characters.get("\ufffd", 0),
        long_lines=totals.oddities["long lines"],
        long_words=totals.oddities["long words"],
        urls=totals.oddities["urls"],
        blobs=totals.oddities["blobs"],
        tags=totals.oddities["tags"],
    )


def _reason(path: str, error: ValueError | OSError) -> str:
    """What is wrong with a file: a message of ours names it, one of the system's may not.

    >>> _reason("a.txt", PermissionError(13, "Permission denied"))
    'a.txt: Permission denied'
    """
    return f"{path}: {error.strerror or error}" if isinstance(error, OSError) else str(error)


def _nothing(settings: CorpusSettings, findings: ReadStats, unreadable: list[Unreadable]) -> ValueError:
    if not unreadable:
        return ValueError(nothing_read(settings, findings))
    reason = unreadable[0].message
    if len(unreadable) > 1:
        reason = f"not one document: {len(unreadable):,} files cannot be read, the first is {reason}"
    return UnreadableCorpusError(reason, tuple(unreadable))


def diagnose(survey: Survey) -> list[str]:
    """What will hurt pre-training, each with its figure and the way out; empty when nothing will."""
    return [
        *_file_warnings(survey),
        *_document_warnings(survey),
        *_repetition_warnings(survey),
        *_character_warnings(survey),
    ]


def _file_warnings(survey: Survey) -> Iterator[str]:
    if survey.unreadable:
        yield (
            f"{len(survey.unreadable):,} files cannot be read, and every later stage stops at the first of them. Mend "
            "them, move them away, or name the others by a glob such as folder/**/*.txt."
        )


def _document_warnings(survey: Survey) -> Iterator[str]:
    if survey.documents == 1:
        yield (
            "There is one document only: no sentence pair from another document, so no next-sentence negatives. Put "
            "blank lines between documents, or give one file a document (--document-unit file)."
        )
    elif survey.one_sentence_documents > 0.5:
        yield (
            f"{survey.one_sentence_documents:.0%} of the documents are a single sentence, which has no next one. If "
            "blank lines end paragraphs here, say what a document is (--document-unit file, or file= before an input); "
            "otherwise train with the masked-LM objective alone."
        )
    elif survey.sentences_per_document.mean < 4:
        yield (
            f"Documents have {survey.sentences_per_document.mean:.1f} sentences on average, fewer than two segments of "
            "128 tokens need; most sequences will be short. Whole files or articles as documents serve better."
        )
    if survey.words < SMALL and "Han" not in survey.scripts and "Kana" not in survey.scripts:
        yield (
            f"{survey.words:,} words are little text: BERT saw 3,300 million (section 3.1). Under {SMALL:,}, expect a "
            "model that learns frequent words and repeats them; add text, or start from a released model."
        )
    if survey.sentence_lengths.p99 > 2_000:
        yield (
            f"One sentence in a hundred is longer than {survey.sentence_lengths.p99:,} characters: text without "
            "punctuation, tables or code. Sentences of more than 10,000 characters are cut."
        )


def _repetition_warnings(survey: Survey) -> Iterator[str]:
    if survey.duplicate_documents > 0.01:
        yield (
            f"{survey.duplicate_documents:.1%} of the documents repeat an earlier one word for word; they train the "
            "model to recite, and leak into held-out text unless they fall together. Remove them."
        )
    if survey.duplicate_lines > 0.1:
        yield f"{survey.duplicate_lines:.1%} of the lines repeat an earlier one: headers, footers, menus? Remove them."
    line, count = max(survey.frequent_lines, key=lambda item: item[1], default=("", 0))
    if len(line) >= 20 and count > max(20, survey.documents // 10):
        yield f"Boilerplate: {line[:70]!r} occurs {count:,} times. Remove such lines before training."


def _character_warnings(survey: Survey) -> Iterator[str]:
    if survey.bad_bytes:
        yield (
            f"{survey.bad_bytes:,} byte sequences are not UTF-8 (first: {survey.first_bad_bytes}). Convert the file, "
            "or read them as U+FFFD with --encoding-errors replace; without either, every later stage stops there."
        )
    if survey.replacement_characters > survey.bad_bytes:
        number = survey.replacement_characters - survey.bad_bytes
        yield f"{number:,} U+FFFD stand in the text itself: characters lost in an earlier conversion. Convert again."
    if survey.control_characters:
        yield (
            f"{survey.control_characters:,} control characters, or invisible ones such as U+200B (zero-width space) "
            "and U+00AD (soft hyphen); the tokenizer drops them, joining what they part."
        )
    if survey.null_values:
        yield f"{survey.null_values:,} rows have no text (null) and are left out."
    if survey.empty_documents:
        yield f"{survey.empty_documents:,} rows hold nothing but white space and are left out."
    second = sorted(survey.scripts.values(), reverse=True)[1:2]
    if second and second[0] > 0.05 and not {"Kana", "Hangul"} & set(list(survey.scripts)[:2]):
        shares = ", ".join(f"{script} {share:.0%}" for script, share in list(survey.scripts.items())[:3])
        yield f"Mixed scripts ({shares}): they share one vocabulary; make it larger, or train one model for each."
    if survey.tags > survey.words / 200:
        apart = survey.words // survey.tags
        yield f"{survey.tags:,} HTML tags and entities: markup, one to {apart} words. Extract the text."
    if survey.blobs > survey.documents / 10 and survey.blobs > 10:
        yield f"{survey.blobs:,} strings of 120 or more letters and digits without a space (base64, code). Remove them."
    if survey.long_lines:
        yield f"{survey.long_lines:,} lines are longer than {LONG_LINE:,} characters. Is this the right format?"
