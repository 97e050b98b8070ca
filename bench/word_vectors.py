"""Word vectors of bertwright beside gensim's on the same text: word similarity, analogies, words per second, files.

Every run is a process of its own; runs of the two libraries alternate. gensim is installed elsewhere
(`python -m venv peer && peer/bin/pip install gensim`), because it is no dependency:

    python bench/word_vectors.py [--data DATA] --peer peer/bin/python --words 2000000
    python bench/word_vectors.py --table

Both read one sentence per line, split in advance by bertwright, and have the settings of word2vec.c or fastText. On one
thread gensim reads with `corpus_file`, its fastest way; on several it reads an iterable: with `corpus_file` each worker
lowers the rate by its own share of the text only. Rates: words of the text times epochs, per second of training alone;
and seconds from the text to the vectors. GloVe has no peer on PyPI and is printed alone. One scorer scores all files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from bertwright.corpus.documents import CorpusSettings
from bertwright.corpus.sentences import split_sentences
from bertwright.kernels.native_library import load_library
from bertwright.systems.word_vectors.glove import count_cooccurrences, train_glove
from bertwright.systems.word_vectors.skip_gram import train_fasttext, train_skip_gram
from bertwright.systems.word_vectors.vector_evaluation import read_examples, score_examples
from bertwright.systems.word_vectors.vector_settings import VectorModel, WordRule, WordVectorSettings
from bertwright.systems.word_vectors.word_stream import read_words
from bertwright.vocabulary.fasttext_file import Subwords, write_fasttext
from bertwright.vocabulary.vector_file import load_vectors
from bertwright.vocabulary.vector_formats import write_word2vec_binary
from bertwright.vocabulary.word_tokenizer import WORD
from contenders import run_alone
from environment import DATA, RESULTS, append_result, describe_machine, make_parser, print_heading, print_row
from study import format_mean, read_records

SIMILARITY = ("EN-MEN-TR-3k", "EN-MTurk-771", "EN-WS-353-ALL", "EN-SIMLEX-999")
FILE = RESULTS / "word_vectors.jsonl"
PEER = """
import json, sys, time
from gensim.models import FastText, KeyedVectors, Word2Vec
from gensim.models.fasttext import save_facebook_model
from gensim.models.word2vec import LineSentence
kind, text, output, threads, seed, buckets = sys.argv[1:]
shared = dict(sg=1, hs=0, negative=5, window=5, epochs=5, vector_size=100, min_count=5, workers=int(threads),
              seed=int(seed), min_alpha=1e-4)
start = time.perf_counter()
if kind == "fasttext":
    model = FastText(**shared, alpha=0.05, sample=1e-4, min_n=3, max_n=6, bucket=int(buckets))
else:
    model = Word2Vec(**shared, alpha=0.025, sample=1e-3)
reader = {"corpus_file": text} if threads == "1" else {"corpus_iterable": LineSentence(text)}
model.build_vocab(**reader)
middle, cpu = time.perf_counter(), time.process_time()
model.train(**reader, total_words=model.corpus_total_words, total_examples=model.corpus_count, epochs=5)
end = time.perf_counter()
if kind == "fasttext":
    save_facebook_model(model, output)
else:
    model.wv.save_word2vec_format(output, binary=True)
print(json.dumps({"train_s": end - middle, "cpu_s": time.process_time() - cpu, "total_s": end - start,
                  "words": int(sum(model.wv.get_vecattr(word, "count") for word in model.wv.index_to_key))}))
"""
OPEN = """
import sys
import numpy as np
from gensim.models import KeyedVectors
from gensim.models.fasttext import load_facebook_vectors
for path in sys.argv[1:]:
    if path.endswith(".ft.bin"):
        load_facebook_vectors(path)["qwzxunseen"]
    else:
        KeyedVectors.load_word2vec_format(path, binary=path.endswith(".bin"))
"""


def main() -> None:
    """Parse the arguments, then train, score and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with corpora and word_similarity")
    parser.add_argument("--peer", type=Path, help="Python with gensim")
    parser.add_argument("--words", type=int, default=2_000_000, help="words of text: half Wikipedia, half books")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--models", nargs="+", default=["skip-gram", "fasttext", "glove"])
    parser.add_argument("--buckets", type=int, default=200_000)
    parser.add_argument("--table", action="store_true", help="print the table of all recorded runs")
    options = parser.parse_args()
    if options.table:
        print_table(read_records(FILE))
        return
    print(describe_machine(1), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        write_text(options.data, options.words, text)
        records = []
        for threads in options.threads:
            for model in options.models:
                for seed in options.seeds:
                    for library in ("bertwright", "gensim"):
                        if library == "bertwright" or model != "glove":
                            record = measure(options, library, model, text, threads, seed, Path(folder))
                            records.append(record)
                            print(json.dumps(record), flush=True)
        check_files(options.peer, Path(folder))
    for record in records:
        append_result(FILE, {"words": options.words} | record, 1)
    print_table(records)


def write_text(data: Path, words: int, path: Path) -> None:
    """Write sentences of Wikipedia and of books, half of the words each, tokenized and in lower case, one per line."""
    with path.open("w") as file:
        for texts in (paragraphs(data / "corpora/english_wikipedia/train.txt"), books(data)):
            left = words // 2
            for text in texts:
                for sentence in split_sentences(text):
                    tokens = WORD.findall(sentence.lower())
                    file.write(" ".join(tokens) + "\n")
                    left -= len(tokens)
                if left <= 0:
                    break


def paragraphs(path: Path) -> Iterator[str]:
    """Yield the paragraphs of an article file."""
    yield from filter(str.strip, path.read_text().split("\n"))


def books(data: Path) -> Iterator[str]:
    """Yield the paragraphs of the books, book by book."""
    for path in sorted((data / "corpora/english_books").glob("*.txt")):
        yield from filter(str.strip, path.read_text().split("\n\n"))


def measure(
    options: argparse.Namespace, library: str, model: str, text: Path, threads: int, seed: int, folder: Path
) -> dict[str, Any]:
    """Train once in a new process; return rates and scores."""
    output = folder / f"{library}-{model}{'.ft' if model == 'fasttext' else ''}.bin"
    output.unlink(missing_ok=True)
    arguments = [model, str(text), str(output), str(threads), str(seed), str(options.buckets)]
    environment = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
    if library == "bertwright":
        record = run_alone(work, *arguments, environment=environment)
    else:
        command = [str(options.peer), "-c", PEER, *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | environment)
        record = json.loads(done.stdout.splitlines()[-1])
    file = load_vectors(output)
    scores = {}
    for name in SIMILARITY:
        path = options.data / "word_similarity" / f"{name}.txt"
        score = score_examples(file, name, list(read_examples(str(path))))
        scores[name] = round(score.score, 4)
        scores[f"{name} pairs"] = score.used
    questions = next(options.peer.parents[1].rglob("questions-words.txt"))
    analogies = score_examples(file, "analogies", list(read_examples(str(questions))))
    return {
        "library": library,
        "model": model,
        "threads": threads,
        "seed": seed,
        "vocabulary": len(file),
        "train_words_per_s": round(5 * record["words"] / record["train_s"]),
        "words_per_cpu_s": round(5 * record["words"] / record["cpu_s"]),
        "total_s": round(record["total_s"], 1),
        "scores": scores | {"analogies": round(analogies.score, 4), "analogies used": analogies.used},
    }


def work(model: str, text: str, output: str, threads: str, seed: str, buckets: str) -> dict[str, float]:
    """Train bertwright's vectors in this process, write them, and return the times."""
    torch.set_num_threads(int(threads))
    load_library("kernels")  # compile it, if needed, before the clock starts
    kind: VectorModel = model  # type: ignore[assignment]
    corpus = CorpusSettings((text,), document_unit="line", sentence_splitter="line")
    rule = WordRule(lowercase=False, split_punctuation=False)
    settings = WordVectorSettings(
        corpus, Path(output), kind, seed=int(seed), words=rule, subwords=Subwords(3, 6, int(buckets))
    )

    def ignore(_: int) -> None:
        pass

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        stream = read_words(corpus, rule, Path(folder), ignore)
        middle, cpu = time.perf_counter(), time.process_time()
        if model == "glove":
            pairs = count_cooccurrences(stream, settings.recipe.window, ignore)
            vectors, _ = train_glove(stream, pairs, settings, ignore)
        elif model == "fasttext":
            file = train_fasttext(stream, settings, ignore)
        else:
            vectors, _ = train_skip_gram(stream, settings, ignore)
        end, cpu = time.perf_counter(), time.process_time() - cpu
        if model == "fasttext":
            write_fasttext(Path(output), file)
        else:
            write_word2vec_binary(Path(output), stream.words, vectors)
        words = int(stream.counts.sum())
    return {"train_s": end - middle, "cpu_s": cpu, "total_s": end - start, "words": words}


def check_files(peer: Path, folder: Path) -> None:
    """Open bertwright's files with gensim; bertwright has opened gensim's to score them."""
    ours = sorted(map(str, folder.glob("bertwright-*.bin")))
    subprocess.run([str(peer), "-c", OPEN, *ours], check=True, capture_output=True)
    print(f"gensim opens {len(ours)} files of bertwright; bertwright has opened gensim's")


def print_table(records: list[dict[str, Any]]) -> None:
    """Print means over seeds as a Markdown table, and the ratio and the differences of the two libraries."""
    names = [*SIMILARITY, "analogies"]
    print_heading(["model", "threads", "library", "words/s", "words/CPU s", "total s", *names])
    groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["model"], record["threads"], record["library"]), []).append(record)
    for (model, threads, library), runs in groups.items():
        rates = [mean(run[name] for run in runs) for name in ("train_words_per_s", "words_per_cpu_s", "total_s")]
        cells = [f"{rates[0]:,.0f}", f"{rates[1]:,.0f}", f"{rates[2]:.1f}"]
        cells += [format_mean([100 * run["scores"][name] for run in runs]) for name in names]
        print_row([model, threads, library, *cells])


if __name__ == "__main__":
    main()
