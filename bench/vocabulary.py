"""Learning a vocabulary: bertwright beside the trainers of `tokenizers`, each run in a process of its own, interleaved.

    python bench/vocabulary.py --input ../shared/data/corpora/english_books

Time is from texts in memory to written files. bertwright uses one thread, `tokenizers` as many as there are cores.
Figures of quality are all taken in the same way: the counted words, cut up by the vocabulary, longest match first.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, trainers

from bertwright.kernels.cpu import peak_resident_memory
from bertwright.vocabulary.learn.wordpiece_trainer import (
    VocabularySettings,
    count_corpus_words,
    learn,
    vocabulary_stats,
    write_vocabulary,
)
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

OURS = {
    "bertwright, gain": VocabularySettings(),
    "bertwright, bpe": VocabularySettings(criterion="bpe"),
    "bertwright, gain, with unused tokens": VocabularySettings(drop_unused=False),
    "bertwright, bpe, with unused tokens": VocabularySettings(criterion="bpe", drop_unused=False),
}
TRAINERS = {
    "tokenizers WordPieceTrainer": (models.WordPiece, trainers.WordPieceTrainer, {}),
    "tokenizers BpeTrainer": (models.BPE, trainers.BpeTrainer, {"continuing_subword_prefix": "##"}),
}
TIMED = [*list(OURS)[:2], *TRAINERS]
KEYS = ("seconds", "counted", "peak")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--input",
        type=Path,
        default=Path("../shared/data/corpora/english_books"),
        help="a folder of .txt files (one document each) or .jsonl files, or one such file",
    )
    parser.add_argument("--field", default="content", help="the text's field in .jsonl files")
    parser.add_argument("--size", type=int, default=30_000, help="tokens of the vocabulary")
    parser.add_argument("--lowercase", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each; medians are printed")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)  # what this process runs
    parser.add_argument("--folder", type=Path, default=Path(), help=argparse.SUPPRESS)  # where this process writes
    return parser.parse_args()


def texts(settings: argparse.Namespace) -> list[str]:
    files = [settings.input] if settings.input.is_file() else sorted(settings.input.iterdir())
    found: list[str] = []
    for file in files:
        if file.suffix == ".jsonl":
            found += [json.loads(line)[settings.field] for line in file.open(encoding="utf-8")]
        elif file.suffix == ".txt":
            found.append(file.read_text(encoding="utf-8"))
    return found


def vocabulary_settings(name: str, settings: argparse.Namespace) -> VocabularySettings:
    return dataclasses.replace(OURS[name], size=settings.size, lowercase=settings.lowercase)


def run_child(settings: argparse.Namespace) -> None:
    """Learn once, write the vocabulary, print seconds and peak memory."""
    documents = texts(settings)
    before = peak_memory()
    start = time.perf_counter()
    if settings.child in OURS:
        ours = vocabulary_settings(settings.child, settings)
        counts = count_corpus_words(documents, ours)
        counted = time.perf_counter() - start
        write_vocabulary(settings.folder, learn(counts, ours), ours)
    else:
        counted = 0.0
        train_theirs(documents, settings)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "counted": counted, "peak": peak_memory(), "texts": before}))


def train_theirs(documents: list[str], settings: argparse.Namespace) -> None:
    model, trainer, options = TRAINERS[settings.child]
    backend = tokenizers.Tokenizer(model(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=settings.lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(
        documents,
        trainer(
            vocab_size=settings.size,
            special_tokens=list(SPECIAL_TOKENS),
            limit_alphabet=6000,
            min_frequency=5,
            show_progress=False,
            **options,
        ),
    )
    ids = backend.get_vocab()
    Tokenizer.from_tokens(sorted(ids, key=ids.__getitem__), lowercase=settings.lowercase).save(settings.folder)


def peak_memory() -> float:
    """Return the peak memory of this process so far, in MB."""
    return (peak_resident_memory() or 0) / 1024**2


def measure(name: str, settings: argparse.Namespace, folder: Path) -> dict[str, float]:
    options = ["--input", settings.input, "--field", settings.field, "--size", settings.size, "--folder", folder]
    case = "--lowercase" if settings.lowercase else "--no-lowercase"
    command = [sys.executable, __file__, *map(str, options), case, "--child", name]
    found: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def main(settings: argparse.Namespace) -> None:
    if settings.child:
        run_child(settings)
        return
    from environment import (  # imports torch, whose memory must not count in a child's peak
        describe_machine,
        keep_printed,
    )

    documents = texts(settings)
    megabytes = sum(len(text.encode()) for text in documents) / 1e6
    counts = count_corpus_words(documents, vocabulary_settings(TIMED[0], settings))
    del documents
    with tempfile.TemporaryDirectory() as index:
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in TIMED}
        for _ in range(settings.rounds):
            for name in TIMED:
                runs[name].append(measure(name, settings, Path(index, name)))
        vocabularies = {name: Tokenizer.load(Path(index, name)).tokens for name in TIMED}
    for name in OURS:
        if name not in vocabularies:
            vocabularies[name] = tuple(learn(counts, vocabulary_settings(name, settings)))
    keep_printed(__file__)
    print(f"{settings.size:,} tokens from {settings.input.name}, {megabytes:.1f} MB, {counts.total:,} words\n")
    print("| | seconds | of it counting | peak MB | tokens | tokens/word | [UNK] words | unused |\n|---|" + "---:|" * 7)
    for name, tokens in vocabularies.items():
        figures = vocabulary_stats(Tokenizer.from_tokens(tokens, lowercase=settings.lowercase), counts)
        measured = [statistics.median(run[key] for run in runs[name]) for key in KEYS if name in runs]
        cells = [f"{value:,.1f}" for value in measured] or [""] * len(KEYS)
        cells += [f"{figures.tokens:,}", f"{figures.fertility:.4f}", f"{figures.unknown:.4%}", f"{figures.unused:,}"]
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"\n{describe_machine()}; medians of {settings.rounds} runs in turn;")
    print(f"{runs[TIMED[0]][0]['texts']:.0f} MB of the peak are there, texts among them, before learning begins")


if __name__ == "__main__":
    main(parse_arguments())
