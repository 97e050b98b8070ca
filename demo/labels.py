"""Write the demo's task: whether a sentence describes a module, a class or a function.

    python demo/labels.py FOLDER

The texts are the first sentences of the docstrings of the standard library, a real and labeled text that every Python
installation carries. FOLDER gets train.tsv, and dev.tsv from every fifth file, so that no file is in both.
"""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "turtledemo"}
KINDS = {ast.Module: "module", ast.ClassDef: "class", ast.FunctionDef: "function", ast.AsyncFunctionDef: "function"}
FIRST_SENTENCE = re.compile(r".+?[.!?](?=\s|$)", re.S)
FUNCTIONS = 5  # as many functions of one file at most: there are far more of them than of the others


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    root = Path(sysconfig.get_path("stdlib"))
    files = [path for path in sorted(root.rglob("*.py")) if SKIPPED.isdisjoint(path.relative_to(root).parts)]
    for split, chosen in (("train", [f for n, f in enumerate(files) if n % 5]), ("dev", files[::5])):
        pairs = [pair for path in chosen for pair in examples(path.read_bytes())]
        lines = "".join(f"{sentence}\t{label}\n" for sentence, label in pairs)
        (folder / f"{split}.tsv").write_text(f"text\tlabel\n{lines}", encoding="utf-8")
        counts = ", ".join(f"{number:,} {label}" for label, number in Counter(label for _, label in pairs).items())
        print(f"{folder / split}.tsv: {len(pairs):,} sentences ({counts})")


def examples(content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the first sentence of each docstring of a module, with what it describes."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # a few files of the library are broken on purpose
        return
    left = Counter(function=FUNCTIONS, module=1, **{"class": FUNCTIONS})
    for node in ast.walk(tree):
        label = KINDS.get(type(node))
        docstring = ast.get_docstring(node) if label else None  # type: ignore[arg-type]
        if label is None or not docstring or not (sentence := FIRST_SENTENCE.match(docstring)) or not left[label]:
            continue
        text = " ".join(sentence[0].split())
        if 4 <= len(text.split()) <= 40:
            left[label] -= 1
            yield text, label


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python demo/labels.py FOLDER")
    main(Path(sys.argv[1]))
