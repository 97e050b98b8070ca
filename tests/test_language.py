"""Check identifiers and a few patterns of text; STYLE's other rules are for readers. Docstrings: ruff's D401."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = sorted(path for folder in ("src", "bench", "demo", "tests") for path in (ROOT / folder).rglob("*.py"))

# Words of identifiers that say little, or that have a common name: remaining, min, max, format, resume, …
BANNED = set(
    """
    kept piece told tell spoken kin twin settle worth footing neighbor remark fact mend aim thing
    refuse refusal highest lowest
    """.split()
)
EXEMPT = re.compile("word_?piece", re.IGNORECASE)

# Phrases that lean on the text before them, and how often they may occur in src and docs.
PHRASES = {"those of": 10, "that of": 10, "of which": 10}

MAX_PHRASE = 5  # words in a row, in the pattern of an expected message


def defined_names(tree: ast.Module) -> Iterator[str]:
    """Yield the name of everything that a module defines or assigns to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def split_identifier(name: str) -> list[str]:
    """Split snake_case and CamelCase into lower-case words without a plural s."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", EXEMPT.sub("", name))
    return [word.lower().removesuffix("s") for word in words]


def test_identifiers_contain_no_banned_word() -> None:
    assert split_identifier("KEPTPieces_of") == ["kept", "piece", "of"]
    # Files without such a word are not parsed, because parsing all takes seconds.
    words, capitalized = ("|".join(map(form, BANNED)) for form in (str, str.capitalize))
    part = re.compile(rf"(?<![A-Za-z])(?i:{words})s?(?![a-z])|(?:{capitalized})s?(?![a-z])")
    texts = ((path.name, path.read_text(encoding="utf-8")) for path in CODE)
    trees = ((name, ast.parse(text)) for name, text in texts if part.search(text))
    names = {(path, name) for path, tree in trees for name in defined_names(tree)}
    assert sorted((path, name) for path, name in names if BANNED & set(split_identifier(name))) == []


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases_that_lean_on_the_text_before_them_are_rare(phrase: str) -> None:
    files = [
        path for pattern in ("src/**/*.py", "src/**/*.h", "src/**/*.cpp", "docs/**/*.md") for path in ROOT.glob(pattern)
    ]
    pattern = re.compile(rf"\b{phrase}\b".replace(" ", r"\s+(?:#\s+|//\s+)?"), re.IGNORECASE)
    counts = {path.name: len(pattern.findall(path.read_text(encoding="utf-8"))) for path in files}
    assert sum(counts.values()) <= PHRASES[phrase], {name: count for name, count in counts.items() if count}


def test_expected_messages_name_location_key_and_value() -> None:
    """Patterns of `match` hold no sentences: a message may be worded better without changing its tests."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "match" and isinstance(node.value, ast.Constant):
                phrases = re.split(r"\.\*|\\.|[^a-zA-Z -]", node.value.value)
                longest = max(phrases, key=lambda phrase: len(phrase.split()))
                assert len(longest.split()) <= MAX_PHRASE, f"{path.name}:{node.value.lineno}: {longest!r}: use .*"
