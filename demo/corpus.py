"""Write the demo's corpus: the English prose that every Python installation carries.

    python demo/corpus.py OUT.txt

Documents are the language manual's topics (`pydoc_data.topics`) and the modules of the standard library and of the
installers bundled with it: their docstrings and comment blocks in the order of the source. The file has prose only (no
code, doctests, tables, argument lists): one paragraph per line, a blank line between documents, no paragraph twice. The
same installation gives the same file. Every fifth module of the standard library is left out: labels.py scores its
sentences, which pre-training must not have read.
"""

from __future__ import annotations

import ast
import re
import sys
import sysconfig
import textwrap
import zipfile
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "turtledemo"}
SMALLEST = 3  # sentences in a document; fewer say nothing about what follows what
WORD = re.compile(r"[A-Za-z][a-z'’]*[,;:.]?$")
SENTENCE_END = re.compile(r"[.!?][)\"”'’]?$")
SENTENCES = re.compile(r"[.!?][)\"”'’]?(?:\s|$)")
MARKER = re.compile(r"^(?:[-*+•o]|\(?\w{1,2}[.)]|\[\d+\])\s+")
MARKUP = re.compile(r"``?|(?<!\w)\*\*?(?=\w)|(?<=\w)\*\*?(?!\w)|:\w+:(?=`)")
CODE = re.compile(
    r">>>|^\s*\.\. |[{};]$|^\s*[:@]\w+|\w\(.*\)\s*(?:->|=)|::=|={3,}|-{4,}|_{4,}|\s{4,}\S+\s{4,}|\|.*\|", re.M
)
CREDIT = re.compile(r"copyright|licen[cs]e|warrant|\ball rights reserved|https?://|\S@\S+\.\w|TODO|FIXME", re.I)


def main(out: str) -> None:
    seen: set[str] = set()
    documents = [document for paragraphs in sources() if (document := tidy(paragraphs, seen))]
    text = "\n\n".join(documents) + "\n"
    Path(out).write_text(text, encoding="utf-8")
    sentences = sum(len(SENTENCES.findall(document)) for document in documents)
    print(f"{out}: {len(text.encode()):,} bytes, {len(documents):,} documents, about {sentences:,} sentences")


def sources() -> Iterator[list[str]]:
    """Yield the raw paragraphs of each document."""
    for name in sorted(topics):
        yield paragraphs_of(topics[name])
    root = Path(sysconfig.get_path("stdlib"))
    files = [path for path in sorted(root.rglob("*.py")) if SKIPPED.isdisjoint(path.relative_to(root).parts)]
    for number, path in enumerate(files):
        if number % 5:  # every fifth file is scored by the task of labels.py
            yield module_paragraphs(path.read_bytes())
    for wheel in sorted(root.glob("ensurepip/_bundled/*.whl")):  # pip, setuptools; some distributions leave them out
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".py") and SKIPPED.isdisjoint(name.split("/")):
                    yield module_paragraphs(archive.read(name))


def module_paragraphs(content: bytes) -> list[str]:
    """Yield the docstrings and comment blocks of a module in source order."""
    try:
        source = content.decode()
        tree = ast.parse(source)
    except (UnicodeDecodeError, SyntaxError):  # a few files of the library are broken on purpose
        return []
    found: list[tuple[int, str]] = list(comment_blocks(source))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                found.append((node.body[0].lineno, docstring))
    return [paragraph for _, text in sorted(found) for paragraph in paragraphs_of(text)]


def comment_blocks(source: str) -> Iterator[tuple[int, str]]:
    block: list[str] = []
    for number, line in enumerate([*source.split("\n"), ""], 1):
        stripped = line.strip()
        if stripped.startswith("#") and not stripped.startswith("#!"):
            block.append(stripped.lstrip("#"))
        elif block:
            yield number, textwrap.dedent("\n".join(block))
            block = []


def paragraphs_of(text: str) -> list[str]:
    """Cut at blank lines and where a list's next item begins or the indentation changes to that of an example."""
    paragraphs: list[str] = []
    for block in re.split(r"\n\s*\n", text.expandtabs()):
        items = re.split(r"\n(?=\s*(?:[-*+•]|\(?\d{1,2}[.)])\s+\S)", block)
        paragraphs.extend(textwrap.dedent(item) for item in items)
    return paragraphs


def tidy(paragraphs: list[str], seen: set[str]) -> str:
    """Extract a document's prose, one paragraph per line; empty if there is too little of it."""
    paragraphs_of_prose: list[str] = []
    for paragraph in paragraphs:
        if not is_prose(paragraph):
            continue
        line = MARKUP.sub("", MARKER.sub("", " ".join(paragraph.split()), count=1))
        if line not in seen:
            seen.add(line)
            paragraphs_of_prose.append(line)
    return (
        "\n".join(paragraphs_of_prose)
        if sum(len(SENTENCES.findall(line)) for line in paragraphs_of_prose) >= SMALLEST
        else ""
    )


def is_prose(paragraph: str) -> bool:
    """Check that a paragraph is English prose: ends like a sentence, mostly words, no code, no table."""
    lines = paragraph.strip().split("\n")
    first = MARKER.sub("", lines[0].strip(), count=1)
    whole = (first[:1].isupper() or first[:1] in "\"“'(") and SENTENCE_END.search(lines[-1].strip())
    if not whole and len(paragraph.split()) < 12:  # a long comment is prose even if it starts in lower case
        return False
    if CODE.search(paragraph) or CREDIT.search(paragraph):
        return False
    indents = {len(line) - len(line.lstrip()) for line in lines[1:]}
    if len(indents) > 1:  # a signature and its explanation, an example within a paragraph
        return False
    words = paragraph.split()
    plain = sum(WORD.match(word) is not None for word in words)
    return len(words) >= 5 and plain >= 0.75 * len(words)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python demo/corpus.py OUT.txt")
    main(sys.argv[1])
