"""Measure what the text of a Wikipedia dump keeps: words of templates, links with a colon, sentences, documents.

usage: python bench/wikipedia_words.py DUMP [--examples 12]

DUMP: a `pages-articles` dump or a part of one, such as the two parts among the test data of the PyPI package gensim
(`gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2`).
"""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from bertwright.corpus import wikipedia
from bertwright.corpus.documents import CorpusSettings, read
from bertwright.corpus.sentences import split_sentences
from environment import describe_machine


def count_words(dump: str) -> tuple[Counter[str], Counter[str]]:
    """Read all articles of a dump; return counts by what is counted, and the unknown templates by name."""
    counts, unknown = Counter[str](), Counter[str]()
    render_template, tidy, is_hidden = wikipedia._render_template, wikipedia._tidy, wikipedia._is_hidden

    def count_template(node: Any, hidden: frozenset[str]) -> str:
        text = render_template(node, hidden)
        outcome = "unknown" if text == wikipedia.GAP else "with their words" if text else "without words"
        counts[f"templates: {outcome}"] += 1
        unknown[str(node.name).strip().lower()] += outcome == "unknown"
        return text

    def count_sentences(line: str) -> str:
        text = tidy(line)
        if wikipedia._is_running_text(text):
            counts["sentences kept"] += len(split_sentences(text))
            free = wikipedia.FREE_GAP.sub("", wikipedia.IN_BRACKETS.sub("", line.strip()))
            counts["sentences dropped"] += sum(wikipedia.GAP in sentence for sentence in split_sentences(free))
        return text

    def count_link(title: str, hidden: frozenset[str]) -> bool:
        shows_nothing = is_hidden(title, hidden)
        if ":" in title:
            counts[f"links with a colon: {'show nothing' if shows_nothing else 'with their words'}"] += 1
        return shows_nothing

    wikipedia._render_template, wikipedia._tidy, wikipedia._is_hidden = count_template, count_sentences, count_link
    for document in read(CorpusSettings(inputs=(dump,), format="xml")):
        counts["documents: articles"] += 1
        counts["characters of running text"] += len(document.text)
    wikipedia._render_template, wikipedia._tidy, wikipedia._is_hidden = render_template, tidy, is_hidden
    counts["documents: sections"] = sum(1 for _ in read(CorpusSettings(inputs=(f"section={dump}",), format="xml")))
    return counts, unknown


def main() -> None:
    """Print the counts, and the most frequent unknown templates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump")
    parser.add_argument("--examples", type=int, default=12, help="unknown templates to print")
    arguments = parser.parse_args()
    print(describe_machine())
    counts, unknown = count_words(arguments.dump)
    for name, count in sorted(counts.items()):
        print(f"{name:40} {count:12,}")
    print("unknown templates:", ", ".join(f"{name} ({n})" for name, n in unknown.most_common(arguments.examples)))


if __name__ == "__main__":
    main()
