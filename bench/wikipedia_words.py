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
from bertwright.text.decoding import ReadStats
from environment import describe_machine


def count_words(dump: str, encoding: str) -> tuple[Counter[str], ReadStats]:
    """Read all articles of a dump; return counts by what is counted, and the reader's own."""
    counts, stats = Counter[str](), ReadStats()
    render_template, is_hidden = wikipedia._Renderer._render_template, wikipedia._is_hidden

    def count_template(renderer: wikipedia._Renderer, node: Any) -> str:
        words = render_template(renderer, node)
        outcome = "unknown" if wikipedia.HAS_GAP.fullmatch(words) else "with their words" if words else "without words"
        counts[f"templates: {outcome}"] += 1
        return words

    def count_link(title: str, hidden: frozenset[str]) -> bool:
        shows_nothing = is_hidden(title, hidden)
        if ":" in title:
            counts[f"links with a colon: {'show nothing' if shows_nothing else 'with their words'}"] += 1
        return shows_nothing

    wikipedia._Renderer._render_template, wikipedia._is_hidden = count_template, count_link  # type: ignore[assignment]
    for document in read(CorpusSettings(inputs=(dump,), format="xml", encoding=encoding), stats=stats):
        counts["documents: articles"] += 1
        counts["characters of running text"] += len(document.text)
        counts["sentences kept"] += sum(len(split_sentences(line)) for line in document.text.split("\n"))
    wikipedia._Renderer._render_template, wikipedia._is_hidden = render_template, is_hidden  # type: ignore[method-assign]
    sections = CorpusSettings(inputs=(f"section={dump}",), format="xml", encoding=encoding)
    counts["documents: sections"] = sum(1 for _ in read(sections))
    counts["sentences dropped"] = stats.dropped_sentences
    return counts, stats


def main() -> None:
    """Print the counts, and the most frequent unknown templates in dropped sentences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump")
    parser.add_argument("--encoding", default="utf-8")
    parser.add_argument("--examples", type=int, default=12, help="unknown templates to print")
    arguments = parser.parse_args()
    print(describe_machine())
    counts, stats = count_words(arguments.dump, arguments.encoding)
    for name, count in sorted(counts.items()):
        print(f"{name:40} {count:12,}")
    names = ", ".join(f"{name} ({n})" for name, n in stats.unknown_words.most_common(arguments.examples))
    print("unknown templates of dropped sentences:", names)


if __name__ == "__main__":
    main()
