"""Check names and text of this project against docs/glossary.md.

    python tests/test_language.py --counts [CHECKOUT]

prints how often overloaded and banned words occur, per room, in this checkout or another one.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
GLOSSARY = ROOT / "docs" / "glossary.md"

# Words with too many meanings (section B.0 of the review of cd55b79), for --counts.
OVERLOADED = "place rows kept part piece run form inner width report".split()

OPENERS = """
what how where which whether why who whose of its so as for some those one this that these such if
""".split()
RATES = "second minute step epoch batch line page word document sentence sequence example token layer pass".split()
COUNTED = """
tokens sequences examples steps documents sentences pages lines words seconds minutes times questions windows texts
bytes numbers samples pairs predictions targets passes products files rows
""".split()
PER = re.compile(rf"\b(?:{'|'.join(COUNTED)}) an? (?:{'|'.join(RATES)})\b", re.IGNORECASE)
MAX_PHRASE = 5  # words in a row, in the pattern of an expected message
VERBS_IN_ED = "embed feed need proceed seed speed".split()
PARTICIPLES = """
bound built chosen done drawn found given held kept known left lost made met sent shown spent taken told written
""".split()


class Banned(NamedTuple):
    """A row of the table of banned identifiers."""

    words: tuple[str, ...]
    use: str
    exempt: tuple[str, ...]


@cache
def glossary_table(heading: str) -> list[list[str]]:
    """Return the rows of the table under a heading, without its header."""
    section = GLOSSARY.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.split("\n") if line.startswith("|")]
    return [[cell.strip(" |") for cell in row] for row in rows if not set(row[0]) <= set("-:| ")][1:]


@cache
def verbs() -> frozenset[str]:
    """Return the verbs that may open a function's docstring."""
    return frozenset(word for (cell,) in glossary_table("Verbs") for word in cell.split())


@cache
def banned_identifiers() -> list[Banned]:
    """Return the banned words of identifiers."""
    rows = [[*row, ""] for row in glossary_table("Banned identifiers")]
    return [Banned(tuple(extract_code(row[0])[0].split("_")), row[1], tuple(extract_code(row[2]))) for row in rows]


@cache
def banned_phrases() -> list[tuple[str, re.Pattern[str], str]]:
    """Return the first word, a pattern and a replacement for each banned phrase."""
    return [
        (phrase.split()[0].lower(), re.compile(rf"\b{re.escape(phrase)}\b".replace(r"\ ", r"\s+"), re.IGNORECASE), use)
        for phrases, use in glossary_table("Banned phrases")
        for phrase in extract_code(phrases)
    ]


def extract_code(cell: str) -> list[str]:
    """Return the texts between backticks."""
    return re.findall(r"`([^`]+)`", cell)


# Checks


def check_file(path: Path, root: Path = ROOT) -> list[str]:
    """Return every violation in a file, as `file:line: what; what to do`."""
    text, name = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
    if path.suffix == ".md":
        found = check_markdown(text)
    elif path.suffix == ".py":
        found = check_python(text, name)
    else:
        found = check_cpp(text, name)
    return [f"{name}:{line}: {problem}" for line, problem in sorted(set(found))]


def check_markdown(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and problem for each banned phrase outside code."""
    blank = re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    yield from check_text(blank, 1)


def check_python(source: str, name: str) -> Iterator[tuple[int, str]]:
    """Yield line and problem for each violation in names, docstrings, comments and messages."""
    tree = ast.parse(source)
    for line, identifier in [(1, Path(name).stem), *defined_names(tree)]:
        yield from ((line, problem) for problem in check_identifier(identifier, name))
    for line, comment in comments(source):
        yield from check_text(comment, line)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from check_docstring(node, verbs_required=not name.startswith("tests/"))
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and not name.startswith("tests/"):
            yield from check_text(node.value, node.lineno)  # type: ignore[attr-defined]


def check_cpp(source: str, name: str) -> Iterator[tuple[int, str]]:
    """Yield line and problem for each violation in a C++ file's identifiers and comments."""
    for match in re.finditer(r"(?:^[ \t]*//.*\n?)+|//.*|/\*.*?\*/", source, flags=re.MULTILINE | re.DOTALL):
        yield from check_text(re.sub(r"^\s*/[/*]", "", match[0], flags=re.MULTILINE), line_of(source, match.start()))
    code = re.sub(
        r"/\*.*?\*/|//[^\n]*|\"[^\"\n]*\"", lambda match: "\n" * match[0].count("\n"), source, flags=re.DOTALL
    )
    for match in re.finditer(r"[A-Za-z_]\w*", code):
        yield from ((line_of(code, match.start()), problem) for problem in check_identifier(match[0], name))


def check_identifier(identifier: str, name: str) -> Iterator[str]:
    """Yield a problem for each banned word in an identifier."""
    for words, use, exempt in find_banned(identifier):
        if not set(exempt) & {*Path(name).parts, Path(name).stem}:
            yield f"identifier {identifier}: {'_'.join(words)} is banned; use {use}"


@cache
def find_banned(identifier: str) -> list[Banned]:
    """Return the banned words in an identifier, whatever file it is in."""
    names = split_identifier(identifier)
    suspects = [banned for banned in banned_identifiers() if contains(names, banned.words)]
    return [
        banned
        for banned in suspects
        if contains(
            split_identifier(re.sub("|".join(map(re.escape, banned.exempt)) or "$^", "", identifier)), banned.words
        )
    ]


def split_identifier(identifier: str) -> list[str]:
    """Split snake_case and CamelCase into lower-case words.

    >>> split_identifier("_HTTPPart_of2")
    ['http', 'part', 'of', '2']
    """
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", identifier)]


def contains(words: list[str], banned: tuple[str, ...]) -> bool:
    """Return whether the banned words follow each other in `words`, the last one possibly in plural."""
    size = len(banned)
    ends = {banned[-1], banned[-1] + "s"}
    return any(
        tuple(words[start : start + size - 1]) == banned[:-1] and words[start + size - 1] in ends
        for start in range(len(words) - size + 1)
    )


def check_text(text: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield line and problem for each banned phrase in a text that starts at a line; `code` is exempt."""
    text = re.sub(r"``?[^`]*``?", lambda code: "`" + "\n" * code[0].count("\n"), text)
    lowered = text.lower()
    for first, pattern, use in [*banned_phrases(), ("", PER, "per")]:
        for match in pattern.finditer(text) if first in lowered else ():
            phrase = " ".join(match[0].split())
            yield line + text.count("\n", 0, match.start()), f"text “{phrase}” is banned; use {use}"


def check_docstring(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, verbs_required: bool
) -> Iterator[tuple[int, str]]:
    """Yield line and problem if a docstring opens with a wrong word, or a function is called by a participle."""
    line = node.body[0].lineno if node.body else 1
    word = re.sub(r"\W+$", "", (ast.get_docstring(node) or " ").split(" ")[0].split("\n")[0]).lower()
    if word in OPENERS:
        yield line, f"docstring opens with “{word.capitalize()}”; open with an imperative verb or a noun"
    if isinstance(node, ast.Module | ast.ClassDef) or any("property" in ast.unparse(d) for d in node.decorator_list):
        return
    if verbs_required and word and word not in verbs() and word not in OPENERS:
        yield line, f"docstring of function {node.name} opens with “{word}”, no verb of the glossary"
    bare = node.name.strip("_")
    if bare in PARTICIPLES or (re.fullmatch(r"[a-z]+ed", bare) and bare not in VERBS_IN_ED):
        yield node.lineno, f"function {node.name} is called by a participle; use an imperative verb"


def defined_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and name of everything that a module defines or assigns to."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from ((node.lineno, alias.asname) for alias in node.names if alias.asname)


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each comment; comments on consecutive lines are one."""
    start, block = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and (token.start[0] != start + len(block) or token.line.strip() != token.string):
            yield start, "\n".join(block)
            block = []
        if not block:
            start = token.start[0]
        block.append(token.string.lstrip("# "))
    if block:
        yield start, "\n".join(block)


def line_of(text: str, offset: int) -> int:
    """Return the line number of a character offset."""
    return text.count("\n", 0, offset) + 1


# Files


def all_files(root: Path = ROOT) -> list[Path]:
    """Return all files that are checked."""
    patterns = ("src/**/*.py", "src/**/*.h", "src/**/*.cpp", "tests/**/*.py", "bench/*.py", "demo/*.py", "docs/**/*.md")
    return sorted({path for pattern in (*patterns, "*.md") for path in root.glob(pattern)})


@pytest.mark.parametrize("name", [path.relative_to(ROOT).as_posix() for path in all_files()])
def test_file_follows_the_glossary(name: str) -> None:
    assert not check_file(ROOT / name)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def f(place): pass", "identifier place: place is banned"),
        ("OLD_PLACES = 1", "identifier OLD_PLACES: place is banned"),
        ("class KeptRows: pass", "identifier KeptRows: kept is banned"),
        ("x.way_on = 1", "identifier way_on: way_on is banned"),
        ("# go on\n#   with it", "text “go on with” is banned"),
        ("f = 'the file is there already'", "text “there already” is banned"),
        ("x = 1  # 5 tokens a second", "text “tokens a second” is banned; use per"),
        ('"""Whether it is."""', "docstring opens with “Whether”"),
        ('def f():\n    """Tokens."""', "docstring of function f opens with “tokens”"),
        ("def scored(): pass", "function scored is called by a participle"),
    ],
)
def test_violation_is_found(source: str, problem: str) -> None:
    assert any(problem in found for _, found in check_python(source, "src/bertwright/models/x.py"))


@pytest.mark.parametrize(
    "source",
    [
        "replace = placeholder = remove_stale_parts = held_out = word_piece = WordPiece = 1",
        "# a `place` in code is exempt: `go on with`",
        '@property\ndef fused() -> bool:\n    """Fused kernels are usable."""',
        'def embed(path):\n    """Return the vectors of a sentence."""',
        "from x import kept\nkept(place=1)",
    ],
)
def test_good_source_passes(source: str) -> None:
    assert not list(check_python(source, "src/bertwright/models/x.py"))


def test_cpp_comments_and_identifiers_are_checked() -> None:
    source = 'int kept;  // part "from"\n// rows that are\n// parted here\nauto text = "kept";\n'
    found = [(line, problem.split(";")[0]) for line, problem in check_cpp(source, "src/bertwright/models/x.h")]
    assert found == [(3, "text “parted” is banned"), (1, "identifier kept: kept is banned")]


# Counts


def test_expected_messages_name_location_key_and_value() -> None:
    """Patterns of `match` hold no sentences: a message may be worded better without changing its tests."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.keyword) and node.arg == "match" and isinstance(node.value, ast.Constant)):
                continue
            phrases = re.split(r"\.\*|\\.|[^a-zA-Z -]", node.value.value)
            longest = max(phrases, key=lambda phrase: len(phrase.split()))
            assert len(longest.split()) <= MAX_PHRASE, f"{path.name}:{node.value.lineno}: {longest!r}: use .*"


def count_words(root: Path) -> dict[str, Counter[str]]:
    """Count overloaded words in each room of src, bench and tests, wherever they stand: names, comments, strings."""
    counts: dict[str, Counter[str]] = {}
    for path in all_files(root):
        words = Counter(
            word.removesuffix("s") if word not in OVERLOADED else word
            for identifier in re.findall(r"\w+", path.read_text(encoding="utf-8"))
            for word in split_identifier(identifier)
        )
        counts.setdefault(room_of(path, root), Counter()).update(words)
    return counts


def count_violations(root: Path) -> dict[str, Counter[str]]:
    """Count violations in each room, by what is violated."""
    counts: dict[str, Counter[str]] = {}
    for path in all_files(root):
        kinds = (re.sub(r"^identifier \S+: (\S+) .*", r"identifier \1", problem) for problem in check_file(path, root))
        kinds = (kind.split(": ", 1)[1].split(" is banned")[0].split(";")[0] for kind in kinds)
        shortened = (re.sub(r"^identifier \S+: ", "identifier ", kind) for kind in kinds)
        general = (re.sub(r"(docstring|function)( of function)? \S+ (opens|is)", r"\1 \3", kind) for kind in shortened)
        counts.setdefault(room_of(path, root), Counter()).update(re.sub(r"(opens) with.*", r"\1", g) for g in general)
    return counts


def room_of(path: Path, root: Path) -> str:
    """Return the directory under src/bertwright, or the directory under the root."""
    names = path.relative_to(root).parts
    if names[0] == "src":
        return names[2] if len(names) > 3 else "(src)"
    return names[0] if len(names) > 1 else "(root)"


def print_counts(root: Path) -> None:
    """Print both counts as tables: words by rooms."""
    for title, counts, listed in (
        ("occurrences of overloaded words", count_words(root), OVERLOADED),
        ("violations of the glossary", count_violations(root), None),
    ):
        totals = sum(counts.values(), Counter[str]())
        print(f"\n{title}\n\n| | total | {' | '.join(counts)} |\n|---|{'---:|' * (len(counts) + 1)}")
        for word in listed or [word for word, _ in totals.most_common()]:
            print(f"| {word} | {totals[word]} | {' | '.join(str(counts[room][word]) for room in counts)} |")
        if listed is None:
            sums = [counts[room].total() for room in counts]
            print(f"| all | {sum(sums)} | {' | '.join(map(str, sums))} |")


if __name__ == "__main__":
    if sys.argv[1:2] != ["--counts"]:
        sys.exit(__doc__)
    print_counts(Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else ROOT)
