"""Ids of GPT's tokenizer beside `transformers`' `OpenAIGPTTokenizer`, line by line.

    bertwright vocabulary DATA/corpora/english_books --algorithm byte-pair --size 8000 --output bpe
    python bench/byte_pair_ids.py bpe DATA/corpora/{english_books,english_wikipedia,korean_wikipedia.txt}

The first argument is a folder with a byte-pair vocabulary, the others are text files, or folders of .txt files. Empty
lines are left out. Stops at the first line with other ids and prints it.
"""

from __future__ import annotations

import argparse
from itertools import chain, islice
from pathlib import Path

from transformers import OpenAIGPTTokenizer

from bertwright.vocabulary.byte_pair_tokenizer import BytePairTokenizer
from environment import describe_machine


def read_lines(path: Path, limit: int) -> list[str]:
    """Return the first lines of a file, or of the .txt files of a folder, that are not empty."""
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    lines = chain.from_iterable(file.read_text(encoding="utf-8").split("\n") for file in files)
    return list(islice(filter(str.strip, lines), limit))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--limit", type=int, default=20_000, help="lines of each file or folder (default: 20,000)")
    arguments = parser.parse_args()
    ours = BytePairTokenizer.load(arguments.vocabulary)
    theirs = OpenAIGPTTokenizer.from_pretrained(arguments.vocabulary)
    print(describe_machine())
    for path in arguments.texts:
        lines, num_tokens = read_lines(path, arguments.limit), 0
        encodings = zip(lines, ours.encode_raw_batch(lines), theirs(lines)["input_ids"], strict=True)
        for line, own, expected in encodings:
            if own.ids.tolist() != expected:
                raise SystemExit(f"{path}: {line!r}: expected ids {expected}, got {own.ids.tolist()}")
            num_tokens += len(expected)
        print(f"{path.name}: {len(lines):,} lines, {num_tokens:,} tokens, all ids equal", flush=True)


if __name__ == "__main__":
    main()
