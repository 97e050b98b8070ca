"""`bertwright embed`: turn texts into vectors, compare a few on the screen, write the vectors of files as .npy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bertwright.base.files import check_absent, new_file
from bertwright.base.messages import count_of, shorten
from bertwright.base.npy import NpyWriter
from bertwright.base.reporter import SILENT, Fields, Heading, Line, Reporter, Rows
from bertwright.base.settings import Positional, check_minimum, check_not_str
from bertwright.corpus.documents import CorpusSettings, list_corpus_files, read, text_size
from bertwright.interop.model_files import model_folder
from bertwright.models.pooling import PoolingName, check_pooling
from bertwright.text.decoding import (
    FIX_CORPUS,
    EncodingErrors,
    ReadStats,
    TextCodec,
    check_encoding,
    check_stdin_alone,
)
from bertwright.text.sources import STDIN, InputFile
from bertwright.text.stdin_texts import expand_stdin, stdin_texts
from bertwright.training.device_settings import InferenceDeviceSettings

if TYPE_CHECKING:
    from bertwright.inference.bert import Bert
    from bertwright.tasks.unknown_rates import InputCounts


@dataclass(frozen=True)
class EmbedSettings:
    """Turn texts into vectors: compare a few on the screen, or write the vectors of files, in order, to --output."""

    model: Positional[str]
    """Model folder, run folder, or hub name."""
    texts: Positional[tuple[str, ...]] = ()
    """Texts to compare, at least two; one is enough with --output. - reads them from standard input, one per line, and
    skips blank lines. For files use --inputs."""
    inputs: tuple[str, ...] = ()
    """Files with texts: .txt (one per line, blank lines are skipped), .jsonl, .csv, .tsv, .parquet, also compressed; or
    - alone for standard input, one text per line."""
    column: str = "text"
    """Field or column with the text, in tables."""
    encoding: str = "utf-8"
    """Encoding of the texts in files and on standard input, such as utf-8, latin-1, cp949 or utf-16."""
    encoding_errors: EncodingErrors = "strict"
    """On bytes that are invalid in the encoding: stop with their location, or read each as U+FFFD."""
    output: Path | None = None
    """New .npy file for the vectors, N × H float32."""
    show_examples: int = 0
    """Also print this many texts of --inputs as they were read."""
    pooling: PoolingName | None = None
    """mean, max, weightedmean (later tokens count more) or mean_sqrt_len_tokens over all tokens; cls: the state of
    [CLS] or, in a left-to-right model, whose [CLS] sees only itself, of the last token; lasttoken. Unset: as the
    model's folder says if sentence-transformers wrote it (with its further layers, prompt and longest text), else
    mean."""
    normalize: bool | None = None
    """Scale every vector to length 1, so that dot products are cosines. Unset: as
    that folder says, else True."""
    max_length: int | None = None
    """Longest window in tokens; longer texts are read in several, or truncated if the folder has its own pooling.
    Unset: the folder's, else the model's positions."""
    prompt_name: str | None = None
    """Name of a prompt in a sentence-transformers folder, such as query, that comes before each text."""
    device: InferenceDeviceSettings = field(default_factory=InferenceDeviceSettings)

    def __post_init__(self) -> None:
        check_not_str(self, "texts", "inputs")
        check_minimum(self, 0, "show_examples")
        if bool(self.texts) == bool(self.inputs):
            raise ValueError("give either texts, or files with --inputs")
        if self.inputs and self.output is None:
            raise ValueError("--inputs needs a file for the vectors: add --output vectors.npy")
        check_pooling(self.pooling)
        check_stdin_alone(self.inputs)
        check_encoding(self.encoding)
        if self.texts != (STDIN,):
            self.check_number_of_texts(len(self.texts))
        if blank := [number for number, text in enumerate(self.texts, 1) if not text.strip()]:
            raise ValueError(f"text {blank[0]} of {len(self.texts)} is empty")

    @property
    def codec(self) -> TextCodec:
        """Encoding and treatment of invalid bytes."""
        return TextCodec(self.encoding, self.encoding_errors, FIX_CORPUS)

    @property
    def corpus(self) -> CorpusSettings:
        """The files as a corpus in which each line or row is a document."""
        return CorpusSettings(
            inputs=self.inputs,
            document_unit="line",
            column=self.column,
            encoding=self.encoding,
            encoding_errors=self.encoding_errors,
        )

    def check_number_of_texts(self, number: int) -> None:
        """Raise ValueError for one text without an output; piped texts are counted when they have been read."""
        if number == 1 and self.output is None:
            raise ValueError("one text has nothing to compare with: give another, or add --output vectors.npy")


def embed(settings: EmbedSettings, reporter: Reporter = SILENT) -> None:
    """Write the vectors of texts or files to a file, in constant memory, or print the cosines between some texts."""
    if settings.output is not None:
        check_absent(settings.output)
        if settings.output.suffix not in ("", ".npy"):
            raise ValueError(
                f"{settings.output}: vectors are written as .npy, not as {settings.output.suffix}; name it "
                f"{settings.output.with_suffix('.npy')} (numpy.load reads it, numpy.savetxt makes text of it)"
            )
    folder = model_folder(settings.model)
    files = list_corpus_files(settings.corpus) if settings.inputs not in ((), (STDIN,)) else []
    texts = expand_stdin(settings.texts, settings.codec) if settings.texts else []
    settings.check_number_of_texts(len(texts))
    from bertwright.inference.bert import embedding_warnings, load_in
    from bertwright.tasks.prediction import split_into_chunks
    from bertwright.tasks.unknown_rates import InputCounts
    from bertwright.training.context import execution_context

    with execution_context(settings.device) as context:
        counts = InputCounts()
        model = load_in(context, folder)
        if settings.output is None:
            vectors = _embed(model, texts, settings, counts)
            title = f"Cosines of {len(texts)} texts, vectors of {vectors.shape[1]} numbers"
            _print_cosines(reporter, title, texts, model.similarity(vectors, vectors))
        else:
            size = model.vector_size(settings.pooling)
            source = _read_files(settings, files, reporter) if settings.inputs else iter(texts)
            with new_file(settings.output) as temporary, NpyWriter(temporary, np.float32, (size,)) as array:
                for chunk in split_into_chunks(source):
                    array.append(_embed(model, chunk, settings, counts))
            reporter.record(Line(f"{settings.output}: {array.length:,} vectors of {size} numbers"))
    for warning in embedding_warnings(counts):
        reporter.note(warning)


def _embed(model: Bert, texts: Sequence[str], settings: EmbedSettings, counts: InputCounts) -> NDArray[np.float32]:
    vectors, more = model.embed_and_count(
        texts, settings.pooling, settings.normalize, max_length=settings.max_length, prompt_name=settings.prompt_name
    )
    counts.add(more)
    return vectors


def _read_files(settings: EmbedSettings, files: Sequence[InputFile], reporter: Reporter) -> Iterator[str]:
    """Yield the texts of all files, with progress in bytes; print a notice if rows had no text."""
    if settings.inputs == (STDIN,):
        yield from stdin_texts(settings.codec)
        return
    stats, last = ReadStats(), 0
    with reporter.progress("embedding", text_size(files), "bytes") as advance:
        for number, document in enumerate(read(settings.corpus, files, stats)):
            if number < settings.show_examples:
                reporter.record(Fields({f"text {number + 1}": shorten(document.text)}))
            yield document.text
            if stats.bytes_read > last:
                advance(stats.bytes_read - last)
                last = stats.bytes_read
    if skipped := stats.null_values + stats.empty_documents:
        reporter.note(
            f"{count_of(skipped, 'row', 'rows')} without a text: no vector, so later vectors have smaller numbers"
        )


def _print_cosines(reporter: Reporter, title: str, texts: Sequence[str], cosines: NDArray[np.float32]) -> None:
    reporter.record(Heading(title))
    columns = ("", "", *(str(number + 1) for number in range(len(texts))))
    rows = [
        (str(number + 1), text, *(f"{cosine:.3f}" for cosine in cosines[number])) for number, text in enumerate(texts)
    ]
    hint = "--output vectors.npy saves all vectors"
    reporter.record(Rows(columns, rows, texts=(1,), fixed=2, if_cut=hint))
