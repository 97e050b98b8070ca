"""Check that the tables and the verdicts in docs/experiments.md are those of their result files.

usage: python bench/experiment_docs.py   (exit code 1 if a cell or a verdict differs)

A section names its files as `bench/results/experiment_….json`. A table has a layout of `bertwright experiment`: rows
and columns of the file, columns as rows ("ours"), steps and series (figure 5), or pre-trainings. Other tables are not
checked; the output names them. A line that begins with "- " and contains "at this budget" is a verdict: it must be a
sentence of the file, unless the file is older than the sentences.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "experiments.md"
RESULTS = re.compile(r"bench/results/(experiment_\w+\.json)")
NUMBER = re.compile(r"^\*?(\d[\d,.]*(?: ± \d+\.\d)?)")
STEPS = re.compile(r"^[\d,]+$")
VERDICT = "at this budget"


class Mismatch(NamedTuple):
    """A cell of the docs that differs from its result file."""

    section: str
    row: str
    column: str
    docs: str
    file: str


class Outcome(NamedTuple):
    """What was checked."""

    cells: int
    mismatches: list[Mismatch]
    unchecked: list[str]
    """Sections and headings of tables without a known layout."""
    verdicts: int = 0
    """Verdicts that are sentences of their files."""
    unknown_verdicts: tuple[str, ...] = ()
    """Verdicts that are not."""


def read_cells(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Read the cells of a result file by row and column; a file with several commands has several reports."""
    record = json.loads((ROOT / "bench" / "results" / name).read_text(encoding="utf-8"))
    reports = [record] if "cells" in record else record.values()
    return {(cell["row"], cell["column"]): cell for report in reports for cell in report["cells"]}


def read_pretrainings(name: str) -> dict[tuple[str, str], str]:
    """Read the formatted table of pre-trainings of a result file, by row and title."""
    record = json.loads((ROOT / "bench" / "results" / name).read_text(encoding="utf-8"))
    texts = dict[tuple[str, str], str]()
    for run in record.get("pretrainings", ()):
        row, next_sentence = run["name"], run["next_sentence"]
        texts |= {(row, f"held-out loss at {rate}"): f"{loss:.3f}" for rate, loss in run["losses"].items()}
        texts[row, "chosen"], texts[row, "perplexity"] = f"{run['learning_rate']:g}", f"{run['perplexity']:.1f}"
        texts[row, "next sentence, held out"] = "" if next_sentence is None else f"{100 * next_sentence:.1f}%"
    return texts


def read_sentences(name: str) -> set[str]:
    """Read the verdicts of a result file; empty for a file that has none."""
    record = json.loads((ROOT / "bench" / "results" / name).read_text(encoding="utf-8"))
    return {claim["sentence"] for claim in record.get("claims", ()) if "sentence" in claim}


def list_verdicts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the last result file named in the section, and the verdict, of each verdict with a file."""
    file = ""
    for line in text.split("\n"):
        file = "" if line.startswith("#") else (RESULTS.findall(line) or [file])[-1]
        if file and line.startswith("- ") and VERDICT in line:
            yield file, line.removeprefix("- ")


def format_score(cell: dict[str, Any]) -> str:
    """Format a cell as reports do: in percent with the deviation, or as a perplexity."""
    if cell["column"] == "perplexity":
        return f"{cell['mean']:.2f}"
    deviation = "" if cell["std"] is None else f" ± {100 * cell['std']:.1f}"
    return f"{100 * cell['mean']:.1f}{deviation}"


def name_column(title: str) -> str:
    """Return the column of a title: "qnli acc." is qnli, "stsb ρ, test" is stsb test.

    >>> [name_column(title) for title in ("stsb ρ, test", "squad EM", "held-out perplexity", "conll2003 features F1")]
    ['stsb test', 'squad EM', 'perplexity', 'features']
    >>> name_column("*rte acc., at the floor*")
    'rte'
    """
    title = title.strip("*").removesuffix(", at the floor")
    if "perplexity" in title:
        return "perplexity"
    if "features" in title:
        return "features"
    base, is_test = title.removesuffix(", test"), title.endswith(", test")
    name = base if base.endswith(" EM") else base.split()[0]
    return f"{name} test" if is_test else name


def list_tables(text: str) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Yield the section, the result files named there so far, and the rows of each table, headings first."""
    section, files, table = "", list[str](), list[list[str]]()
    for line in [*text.split("\n"), ""]:
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip().strip("|").split("|")])
            continue
        if table:
            yield section, files, [table[0], *table[2:]]
            table = []
        if line.startswith("#"):
            section, files = line.strip("# "), []
        files = files + RESULTS.findall(line)


def expected_cells(table: list[list[str]], rows: set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield row, column and text of each cell of a table; none if the layout is unknown."""
    header, *lines = table
    for label, *cells in lines:
        if label in rows:
            yield from ((label, name_column(title), cell) for title, cell in zip(header[1:], cells, strict=True))
        elif "ours" in header:
            yield "ours", name_column(label), cells[header.index("ours") - 1]
        elif STEPS.match(label) and header[0] == "steps":
            series = ""
            for title, cell in zip(header[1:], cells, strict=True):
                named, _, rest = title.rpartition(": ")
                series = named or series
                yield f"{series}, {label} steps", name_column(rest), cell


def check_docs(text: str) -> Outcome:
    """Compare all tables of a Markdown text with their result files."""
    count, mismatches, unchecked = 0, list[Mismatch](), list[str]()
    for section, files, table in list_tables(text):
        if not files:
            continue
        if table[0][0] == "pre-training":
            texts, titles = read_pretrainings(files[0]), table[0][1:]
            pairs = [(row, *pair) for row, *cells in table[1:] for pair in zip(titles, cells, strict=True)]
            compared = [Mismatch(section, *pair, texts.get(pair[:2], "")) for pair in pairs]
            count += sum(bool(pair.docs or pair.file) for pair in compared)
            mismatches += [pair for pair in compared if pair.docs != pair.file]
            continue
        known = read_cells(files[0])
        expected = list(expected_cells(table, {row for row, _ in known}))
        if not expected:
            unchecked.append(f"{section}: {' | '.join(table[0])}")
        for row, column, cell in expected:
            shown, record = NUMBER.match(cell), known.get((row, column))
            docs, file = shown[1] if shown else "", format_score(record) if record else ""
            count += bool(docs or file)
            if docs != file:
                mismatches.append(Mismatch(section, row, column, docs, file))
    verdicts = [(line, sentences) for file, line in list_verdicts(text) if (sentences := read_sentences(file))]
    unknown = tuple(line for line, sentences in verdicts if line not in sentences)
    return Outcome(count, mismatches, unchecked, len(verdicts) - len(unknown), unknown)


def main() -> int:
    """Print what differs; return the exit code."""
    outcome = check_docs(DOCS.read_text(encoding="utf-8"))
    for mismatch in outcome.mismatches:
        print(f"{mismatch.section}: {mismatch.row}, {mismatch.column}: docs {mismatch.docs!r}, file {mismatch.file!r}")
    for name in outcome.unchecked:
        print(f"not checked: {name}")
    for line in outcome.unknown_verdicts:
        print(f"not a verdict of its file: {line}")
    print(f"{outcome.cells} cells compared, {len(outcome.mismatches)} differ; {outcome.verdicts} verdicts agree")
    return int(bool(outcome.mismatches or outcome.unknown_verdicts))


if __name__ == "__main__":
    sys.exit(main())
