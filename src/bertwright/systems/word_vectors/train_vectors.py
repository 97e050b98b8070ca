"""`bertwright word-vectors`: text → vectors in the files of word2vec, fastText or GloVe."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from bertwright.base.files import atomic_folder, check_absent, write_json, write_text
from bertwright.base.reporter import SILENT, Fields, Heading, Reporter
from bertwright.base.settings import write_settings
from bertwright.corpus.documents import list_corpus_files, text_size
from bertwright.systems.word_vectors.vector_settings import WordVectorSettings
from bertwright.systems.word_vectors.word_stream import WordStream, read_words
from bertwright.vocabulary.fasttext_file import compose_vectors, write_fasttext
from bertwright.vocabulary.vector_file import VectorFile, load_vectors
from bertwright.vocabulary.vector_formats import write_text_vectors, write_word2vec_binary

SHOWN = 3  # words whose neighbours the result table shows
FIRST_SHOWN = 200  # the rank of the first of them: more frequent words have little meaning


def train_word_vectors(settings: WordVectorSettings, reporter: Reporter = SILENT) -> VectorFile:
    """Learn word vectors and write their folder atomically; return the vectors.

    Raises ValueError if the folder exists, and for text that cannot be read or has too few words.
    """
    from bertwright.training.context import execution_context
    from bertwright.training.device_settings import DeviceSettings

    check_absent(settings.output)
    device = DeviceSettings(device="cpu", threads=settings.threads)
    with (
        atomic_folder(settings.output) as folder,  # created first: a full or read-only disk shows before the work
        tempfile.TemporaryDirectory(dir=folder, prefix=".words-") as work,  # deleted with it after a kill
        execution_context(device, distributed=False) as context,
    ):
        with reporter.progress("reading words", text_size(list_corpus_files(settings.corpus)), "bytes") as advance:
            stream = read_words(settings.corpus, settings.words, Path(work), advance)
        start = time.perf_counter()
        result = _train(settings, stream, folder, reporter)
        seconds = time.perf_counter() - start
        lines = (f"{word} {count}\n" for word, count in zip(stream.words, stream.counts.tolist(), strict=True))
        write_text(folder / "counts.txt", "".join(lines))
        write_settings(folder / "settings.toml", settings, "bertwright word-vectors: all settings, defaults included")
        words_read = int(stream.counts.sum())
        tokens = words_read * settings.recipe.epochs
        write_json(folder / "report.json", {"tokens": tokens, "seconds": seconds})
    reporter.record(Heading(f"Word vectors {settings.output}"))
    vectors = load_vectors(settings.output)
    fields = {
        "model": f"{settings.model}, {settings.size} numbers per word",
        "words with a vector": f"{len(vectors):,} of {len(stream.ids) - 1:,}",
        "words of the text": f"{words_read:,}, {settings.recipe.epochs} times",
        "time": f"{seconds:,.1f} s, {tokens / seconds:,.0f} words/s ({context.threads} threads)",
    }
    for row in range(min(FIRST_SHOWN, len(vectors) - SHOWN), min(FIRST_SHOWN + SHOWN, len(vectors))):
        word = vectors.word(max(row, 0))
        fields[f"nearest to {word}"] = ", ".join(similar.word for similar in vectors.nearest([word], 5))
    reporter.record(Fields(fields | result))
    return vectors


def _train(settings: WordVectorSettings, stream: WordStream, folder: Path, reporter: Reporter) -> dict[str, str]:
    """Train and write the files of the model; return rows of the result table."""
    from bertwright.systems.word_vectors.glove import count_cooccurrences, train_glove
    from bertwright.systems.word_vectors.skip_gram import train_fasttext, train_skip_gram

    recipe = settings.recipe
    if settings.model == "glove":
        with reporter.progress("counting pairs", stream.length) as advance:
            pairs = count_cooccurrences(stream, recipe.window, advance)
        with reporter.progress("training", None) as advance:
            vectors, losses = train_glove(stream, pairs, settings, advance)
        write_text_vectors(folder / "vectors.txt", stream.words, vectors, header=False)
        return {"pairs of words": f"{len(pairs.keys):,}", "loss": f"{losses[0]:.4f} → {losses[-1]:.4f}"}
    with reporter.progress("training", stream.length * recipe.epochs) as advance:
        if settings.model == "fasttext":
            model = train_fasttext(stream, settings, advance)
        else:
            vectors, _ = train_skip_gram(stream, settings, advance)
    if settings.model == "fasttext":
        vectors = compose_vectors(model, stream.words, np.arange(len(stream.words)))
        write_fasttext(folder / "vectors.bin", model)
        write_text_vectors(folder / "vectors.vec", stream.words, vectors, header=True)
    else:
        write_word2vec_binary(folder / "vectors.bin", stream.words, vectors)
        write_text_vectors(folder / "vectors.txt", stream.words, vectors, header=True)
    return {}
