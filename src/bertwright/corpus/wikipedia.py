"""Articles of a Wikipedia dump (`pages-articles.xml`), as running text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from xml.parsers import expat

from bertwright.io.lines import MAX_CHARACTERS

ROOT = "mediawiki"  # the element around a whole dump
ARTICLE_NAMESPACE = "0"
FIELDS = ("ns", "text")  # elements of a page that are read

INLINE_TAGS = frozenset(
    "abbr b bdi big blockquote center cite del dfn div em font i ins kbd nowiki p poem q s samp small span strong sub "
    "sup tt u var".split()
)  # their content belongs to the running text; other tags are dropped with their content, such as ref, table, math
LIST_ITEMS = frozenset("li dd dt".split())
LIST_MARK = "\ue000"  # a private-use character that replaces the mark of a list item

# A link to a file, a category, another language or another wiki. In titles such as "Alien: Covenant" a space follows.
OTHER_NAMESPACE = re.compile(r"[^\s:]+:\S")
# Half of the markup of an article; removed first, since the parser takes most of the time.
REFERENCE = re.compile(r"<ref\b[^<>]*/>|<ref\b[^<>]*>.*?</ref\s*>", re.DOTALL | re.IGNORECASE)
BEHAVIOUR_SWITCH = re.compile(r"__[A-Z]+__")
# Brackets after a template in them was removed: "Seoul (; born 1394)".
EMPTY_BRACKETS = re.compile(r"\([,;:\s]*\)")
BRACKET_START = re.compile(r"\(\s*(?:[,;:]\s*)+")
SPACES = re.compile(r"[ \t\xa0]+")
SPACE_BEFORE_MARK = re.compile(r" (?=[,.;)](?:\s|$))")


def read_articles(
    path: str, blocks: Iterable[str], line: int = 1, is_complete: bool = True
) -> Iterator[tuple[int, str]]:
    """Yield line and text of each article of a dump, or of a slice of one that starts and ends between pages.

    Redirects and pages of other namespaces (talk, files, categories, templates) are skipped. `line` is the number of
    the first line; if it is not 1, the beginning of the dump is missing. `is_complete`: the end of the dump is there.
    Memory is bounded by the longest page. Raises ValueError for text that is not the XML of a dump.
    """
    pages = _PageParser()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = lambda name, _: pages.start(name, parser.CurrentLineNumber + line - 1)
    parser.EndElementHandler = pages.end
    parser.CharacterDataHandler = pages.add
    try:
        if line > 1:
            parser.Parse(f"<{ROOT}>", False)
        for block in blocks:
            parser.Parse(block, False)
            for number, wikitext in pages.take():
                yield number, extract_text(wikitext)
            if pages.size > MAX_CHARACTERS:
                raise ValueError(
                    f"{path}: a page of more than {MAX_CHARACTERS:,} characters; is this a Wikipedia dump?"
                )
        if is_complete:
            parser.Parse("", True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise ValueError(
            f"{path}, line {error.lineno + line - 1}: not the XML of a Wikipedia dump ({reason})"
        ) from None
    except _NotADumpError as error:
        raise ValueError(
            f"{path}, line {line}: expected a Wikipedia dump, which starts with <{ROOT}>, got <{error}>; extract "
            "the text of other XML first"
        ) from None


class _NotADumpError(Exception):
    """Name of a root element other than a dump's."""


@dataclass
class _PageParser:
    """Collector of articles from the events of an XML parser."""

    articles: list[tuple[int, str]] = field(default_factory=list)
    size: int = 0
    """Characters of the page so far."""
    path: list[str] = field(default_factory=list)
    """Elements that are open."""
    first_line: int = 0
    is_redirect: bool = False
    content: dict[str, list[str]] = field(default_factory=dict)
    """Of the page, by field."""

    def start(self, name: str, line: int) -> None:
        if not self.path and name != ROOT:
            raise _NotADumpError(name)
        self.path.append(name)
        if name == "page":
            self.first_line, self.is_redirect, self.size = line, False, 0
            self.content = {name: [] for name in FIELDS}
        elif name == "redirect":
            self.is_redirect = True
        elif name == "revision" and "text" in self.content:  # a dump with histories: the last one counts
            self.content["text"], self.size = [], 0

    def add(self, text: str) -> None:
        if self.path[-1] in FIELDS and "page" in self.path:
            self.content[self.path[-1]].append(text)
        self.size += len(text)

    def end(self, name: str) -> None:
        self.path.pop()
        if name == "page":
            self.size = 0
            if not self.is_redirect and "".join(self.content["ns"]).strip() == ARTICLE_NAMESPACE:
                self.articles.append((self.first_line, "".join(self.content["text"])))

    def take(self) -> list[tuple[int, str]]:
        """Return the articles since the last call."""
        taken, self.articles = self.articles, []
        return taken


def extract_text(wikitext: str) -> str:
    r"""Extract the running text of a page: paragraphs, with a blank line between them.

    Dropped are headings, lists, tables, templates, references, formulas, images and links to other wikis; and lines
    that end with a colon, which usually introduce a list.

    >>> extract_text("'''Seoul''' ({{lang|ko|서울}}) is the [[capital city|capital]].<ref>x</ref>\n* a list")
    'Seoul is the capital.'
    """
    import mwparserfromhell  # used by this format only

    try:
        code = mwparserfromhell.parse(REFERENCE.sub("", wikitext))
    except mwparserfromhell.parser.ParserError:  # a defect of the parser: the article counts as an empty document
        return ""
    rendered = BEHAVIOUR_SWITCH.sub("", _render(code))
    paragraphs = (_tidy(line) for line in rendered.split("\n") if LIST_MARK not in line)
    return "\n\n".join(line for line in paragraphs if _is_running_text(line))


def _render(code: Any) -> str:
    """Return the text of parsed wikitext; list items start with LIST_MARK."""
    from mwparserfromhell import nodes

    texts = []
    for node in code.nodes:
        if isinstance(node, nodes.Text):
            texts.append(node.value)
        elif isinstance(node, nodes.HTMLEntity):
            texts.append(node.normalize())
        elif isinstance(node, nodes.Wikilink):
            if not OTHER_NAMESPACE.match(str(node.title).strip()):
                texts.append(_render(node.text) if node.text else str(node.title).strip().lstrip(":"))
        elif isinstance(node, nodes.ExternalLink):
            texts.append(_render(node.title) if node.brackets and node.title else "")
        elif isinstance(node, nodes.Heading):
            texts.append("\n")
        elif isinstance(node, nodes.Tag):
            texts.append(_render_tag(node))
    return "".join(texts)


def _render_tag(node: Any) -> str:
    tag = str(node.tag).strip().lower()
    if tag in LIST_ITEMS:
        return LIST_MARK
    if tag in ("br", "hr"):
        return " " if tag == "br" else "\n"
    return _render(node.contents) if tag in INLINE_TAGS and node.contents else ""


def _tidy(line: str) -> str:
    """Remove what dropped templates leave behind: empty brackets, repeated spaces."""
    line = BRACKET_START.sub("(", EMPTY_BRACKETS.sub("", line))
    return SPACE_BEFORE_MARK.sub("", SPACES.sub(" ", line)).strip()


def _is_running_text(line: str) -> bool:
    is_table_row = line.startswith(("|", "!", "{|"))  # left over from a table with damaged markup
    return bool(line) and not is_table_row and not line.endswith(":") and any(map(str.isalpha, line))
