"""Ids of GPT's tokenizer beside `transformers`' `OpenAIGPTTokenizer`, line by line.

    bertwright vocabulary DATA/corpora/english_books --algorithm byte-pair --size 8000 --output bpe
    python bench/byte_pair_ids.py bpe DATA/corpora/english_books DATA/corpora/english_wikipedia

The first argument is a folder with a byte-pair vocabulary, the others are text files, or folders of .txt files. Empty
lines are left out. Stops at the first line with other ids and prints it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformers import OpenAIGPTTokenizer

from bertwright.vocabulary.byte_pair_tokenizer import BytePairTokenizer
from environment import describe_machine


def read_files(paths: Sequence[Path]) -> Iterator[tuple[Path, list[str]]]:
    """Yield each file with its lines that are not empty."""
    for path in paths:
        for file in sorted(path.glob("*.txt")) if path.is_dir() else [path]:
            yield file, list(filter(str.strip, file.read_text(encoding="utf-8").split("\n")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocabulary", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    chosen = parser.parse_args()
    ours = BytePairTokenizer.load(chosen.vocabulary)
    theirs = OpenAIGPTTokenizer.from_pretrained(chosen.vocabulary)
    num_lines = num_tokens = 0
    for file, lines in read_files(chosen.texts):
        encodings = zip(lines, ours.encode_raw_batch(lines), theirs(lines)["input_ids"], strict=True)
        for line, own, expected in encodings:
            if own.ids.tolist() != expected:
                raise SystemExit(f"{file}: {line!r}: expected ids {expected}, got {own.ids.tolist()}")
            num_lines += 1
            num_tokens += len(expected)
    print(describe_machine())
    print(f"{num_lines:,} lines, {num_tokens:,} tokens: all ids equal")


if __name__ == "__main__":
    main()
