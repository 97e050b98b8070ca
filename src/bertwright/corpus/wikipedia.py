"""Articles of a Wikipedia dump (`pages-articles.xml`), as running text."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import unescape
from typing import Any
from xml.parsers import expat

from bertwright.base.optional import needs
from bertwright.corpus.sentences import split_sentences
from bertwright.corpus.wikipedia_templates import name_template, show_template
from bertwright.text.decoding import ReadStats
from bertwright.text.lines import MAX_CHARACTERS

ROOT = "mediawiki"  # the element around a whole dump
ARTICLE, FILE, CATEGORY = "0", "6", "14"  # keys of namespaces
FIELDS = ("ns", "title", "text")  # elements of a page that are read
MAX_SILENT = 1 << 26  # characters of XML without an element or a text; expat takes quadratic time for a longer token

NAMESPACE = re.compile(r'<namespace key="(-?\d+)"[^<>]*>([^<>]+)</namespace>')
# Names by key, in lower case, for dumps that list none.
NAMESPACES = {
    **dict.fromkeys("media special talk user wikipedia mediawiki template help portal module draft".split(), "other"),
    **dict.fromkeys("file image datei bild fichier archivo 파일 ファイル 文件 файл".split(), FILE),
    **dict.fromkeys("category kategorie catégorie categoría categoria 분류 分类 分類 категория".split(), CATEGORY),
}

HIDDEN = frozenset(name for name, key in NAMESPACES.items() if key in (FILE, CATEGORY))

INLINE_TAGS = frozenset(
    "abbr b bdi big blockquote center cite code del dfn div em font i ins kbd nowiki p poem q s samp small span strong "
    "sub sup tt u var".split()
)  # their content belongs to the running text; other tags are dropped with their content, such as ref and table
FORMULA_TAGS = frozenset("math chem ce score hiero".split())
LIST_MARK, SECTION_MARK = "\ue000", "\ue002"  # private-use characters: a list item; the start of a section
SHOWN_TAGS = {"br": " ", "hr": "\n"} | dict.fromkeys("li dd dt".split(), LIST_MARK)
# Private-use characters in place of templates and formulas whose words are not known, one for each name on a page.
FIRST_GAP, LAST_GAP = 0xF0000, 0xFFFFD
GAP = f"[{chr(FIRST_GAP)}-{chr(LAST_GAP)}]"
HAS_GAP = re.compile(GAP)
SECTION_LEVEL = 2  # level of a section's heading, as in "== History =="; deeper headings divide a section

LANGUAGE = re.compile(r"(?:[a-z]{2,3}|simple)(?:-[a-z]+)*")
MEDIA = re.compile(r".*\.(?:jpe?g|png|svg|gif|tiff?|webp|og[agv]|web[mp]|pdf|djvu|mp[34]|wav)", re.IGNORECASE)
# Half of the markup of an article; removed first, since the parser takes most of the time.
REFERENCE = re.compile(r"<ref\b[^<>]*/>|<ref\b[^<>]*>.*?</ref\s*>", re.DOTALL | re.IGNORECASE)
STYLE = re.compile(r"'{2,}")  # of four apostrophes, one is text, and of more than five all but five
REFERENCE_END = re.compile(r"</ref\s*>", re.IGNORECASE)

# The parser reads from each opening without an end to the end of the page, 2 million characters per second.
MAX_UNFINISHED = 10_000_000
MARKUP = re.compile(
    r"(?P<open>\{\{|\[\[|<!--|\[(?=[a-z+.-]{2,20}:|//)|^[ \t:]*+\{\|)|(?P<close>\}\}|\]\]?|-->|^[ \t]*+\|\}(?!\}))"
    r"|<(?P<end>/?)(?P<tag>[a-z]++)[^<>]*+>?|(?P<line>\n)",
    re.MULTILINE | re.IGNORECASE,
)
CLOSES = {"}}": "{{", "]]": "[[", "]": "[", "-->": "<!--", "|}": "{|"}
SINGLE_TAGS = frozenset("br wbr hr meta link img li dd dt th td tr".split())

BEHAVIOUR_SWITCH = re.compile(r"__[A-Z]+__")
IN_BRACKETS = re.compile(rf"\([^()]*{GAP}[^()]*\)")
GAP_IN_BRACKETS = re.compile(rf"(?:[,;:]\s*)?{GAP}")
# A gap that is no part of a sentence: before the first one, at the end of a word, or after a sentence.
FREE_GAP = re.compile(
    rf"^(?:{GAP}\s*+)++(?![a-zß-ÿα-ωа-я])|(?<=[^\s(\[\"'“‘«„「『—–]){GAP}+(?!\w)|(?<=[.!?。！？])\s+{GAP}"
)
# Brackets after a template in them was removed: "Seoul (; born 1394)".
EMPTY_BRACKETS = re.compile(r"\([,;:\s]*\)")
BRACKET_START = re.compile(r"\(\s*(?:[,;:]\s*)+")
SPACES = re.compile(r"[ \t\xa0]+")
SPACE_BEFORE_MARK = re.compile(r" (?=[,.;)](?:\s|$))")


def read_namespaces(head: str) -> dict[str, str]:
    """Return the names of the namespaces that the beginning of a dump lists, in lower case, with their keys.

    >>> read_namespaces('<namespace key="0" /><namespace key="1" case="first-letter">Talk</namespace>')
    {'talk': '1'}
    """
    return {unescape(name).lower(): key for key, name in NAMESPACE.findall(head)}


def read_articles(
    path: str,
    blocks: Iterable[str],
    line: int,
    is_complete: bool,
    namespaces: Mapping[str, str],
    stats: ReadStats,
) -> Iterator[list[str]]:
    """Yield the sections of each article of a dump, or of a slice of one that starts and ends between pages.

    The first of them is the text before the first title of a section. `stats`: counts the sentences that are dropped,
    and names their templates.

    Redirects and pages of other namespaces (talk, files, categories, templates) are skipped; in dumps without `<ns>`
    the prefix of a title tells, by the `namespaces` of the dump. `line` is the number of the first line; if it is not
    1, the beginning of the dump is missing. `is_complete`: the end of the dump is there. Memory is bounded by the
    longest page. Raises ValueError for text that is not the XML of a dump.
    """
    pages = _PageParser(f"{path}, line {line}", namespaces or NAMESPACES)
    hidden = frozenset(name for name, key in (NAMESPACES | dict(pages.namespaces)).items() if key in (FILE, CATEGORY))
    silent = 0
    parser = pages.make_xml_parser()
    try:
        if line > 1:
            parser.Parse(f"<{ROOT}>", False)
        for block in blocks:
            events = pages.events
            parser.Parse(block, False)
            silent = 0 if pages.events > events else silent + len(block)
            if silent > MAX_SILENT:
                raise ValueError(
                    f"{path}, line {parser.CurrentLineNumber + line - 1}: a tag or comment of more than "
                    f"{MAX_SILENT:,} characters; is this a Wikipedia dump?"
                )
            taken, pages.articles = pages.articles, []
            for wikitext in taken:
                yield extract_sections(wikitext, hidden, stats)
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


@dataclass
class _PageParser:
    """Collector of articles from the events of an XML parser."""

    place: str
    """File and first line, for messages."""
    namespaces: Mapping[str, str]
    """Keys of namespaces by name, in lower case."""
    articles: list[str] = field(default_factory=list)
    """Wikitext of the articles that have ended."""
    events: int = 0
    """Number of elements and texts so far."""
    size: int = 0
    """Characters of the page so far."""
    path: list[str] = field(default_factory=list)
    """Elements that are open."""
    is_redirect: bool = False
    content: dict[str, list[str]] = field(default_factory=dict)
    """Of the page, by field."""

    def make_xml_parser(self) -> expat.XMLParserType:
        """Return a parser that reports its events here."""
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.CharacterDataHandler = self.add
        return parser

    def start(self, name: str, _: Mapping[str, str]) -> None:
        if not self.path and name != ROOT:
            raise ValueError(
                f"{self.place}: expected a Wikipedia dump, which starts with <{ROOT}>, got <{name}>; extract the text "
                "of other XML first"
            )
        self.path.append(name)
        self.events += 1
        if name == "page":
            self.is_redirect, self.size = False, 0
            self.content = {name: [] for name in FIELDS}
        elif name == "redirect":
            self.is_redirect = True
        elif name == "revision" and "text" in self.content:  # a dump with histories: the last one counts
            self.content["text"], self.size = [], 0

    def add(self, text: str) -> None:
        if self.path[-1] in FIELDS and "page" in self.path:
            self.content[self.path[-1]].append(text)
        self.size += len(text)
        self.events += 1

    def end(self, name: str) -> None:
        self.path.pop()
        self.events += 1
        if name == "page":
            self.size = 0
            if not self.is_redirect and self._namespace() == ARTICLE:
                self.articles.append("".join(self.content["text"]))

    def _namespace(self) -> str:
        """Return the key of the page's namespace; a dump of before 2011 has it in the title only."""
        prefix = _prefix("".join(self.content["title"]))
        in_title = "other" if prefix.endswith(" talk") else self.namespaces.get(prefix, ARTICLE)
        return "".join(self.content["ns"]).strip() or in_title


def _prefix(title: str) -> str:
    """Return the part of a title before its first colon, in lower case; "" if it has none."""
    prefix, colon, _ = title.partition(":")
    return prefix.replace("_", " ").strip().lower() if colon else ""


def extract_sections(wikitext: str, hidden: frozenset[str] = HIDDEN, stats: ReadStats | None = None) -> list[str]:
    r"""Extract the running text before the first section of a page, and of each section; empty texts are left out.

    Dropped are headings, lists, tables, references, images and links to other languages; lines that end with a colon,
    which usually introduce a list; and sentences with a formula or a template whose words are not known, which are
    counted in `stats`. `hidden`: names of namespaces, in lower case, whose links show nothing. A page with so much
    unclosed markup that the parser would take minutes has no text.

    >>> extract_sections("A city.\n== History ==\nOld.\n=== Later ===\nA town.\n== Notes ==\n== Sights ==\nHills.")
    ['A city.', 'Old.\n\nA town.', 'Hills.']
    """
    with needs("wiki", "a dump of Wikipedia"):
        import mwparserfromhell  # used by this format only

    last = max((match.end() for match in REFERENCE_END.finditer(wikitext)), default=0)
    # Without an end further on, REFERENCE would read the rest of the page from each opening.
    wikitext = REFERENCE.sub("", wikitext[:last]) + wikitext[last:]
    wikitext = STYLE.sub(lambda match: "'" * max(len(match[0]) - 5, len(match[0]) == 4), wikitext)
    if _unfinished(wikitext) > MAX_UNFINISHED:
        return []
    try:
        code = mwparserfromhell.parse(wikitext)
    except mwparserfromhell.parser.ParserError:  # a defect of the parser: the article counts as an empty document
        return []
    renderer, dropped, texts = _Renderer(hidden), list[str](), []
    rendered = BEHAVIOUR_SWITCH.sub("", renderer.render(code))
    for section in rendered.split(SECTION_MARK):
        paragraphs = (_tidy(line, dropped) for line in section.split("\n") if LIST_MARK not in line)
        texts.append("\n\n".join(line for line in paragraphs if _is_running_text(line)))
    if stats is not None:
        stats.dropped_sentences += len(dropped)
        for name, gap in renderer.gaps.items():
            if count := sum(gap in sentence for sentence in dropped):
                stats.unknown_words[name] += count
    return [text for text in texts if text]


def _unfinished(wikitext: str) -> int:
    r"""Return the sum of the distances from each opening without an end to the end of the page.

    >>> _unfinished("{{a}} [[b {{c}}"), _unfinished("<b>x</b><br>"), _unfinished("[ftp://x y\n[//x]")
    (9, 0, 10)
    """
    openings: dict[str, list[int]] = defaultdict(list)
    total = 0
    for match in MARKUP.finditer(wikitext):
        if mark := match["open"]:
            openings[mark.strip(" \t:")].append(match.start())
        elif mark := match["close"]:
            if start := openings[CLOSES[mark.strip()]]:
                start.pop()
        elif name := match["tag"]:
            if match["end"]:
                if start := openings[name.lower()]:
                    start.pop()
            elif name.lower() not in SINGLE_TAGS and not match[0].endswith("/>"):
                openings[name.lower()].append(match.start())
        else:  # a link to another site ends with its line
            total += sum(match.start() - start for start in openings.pop("[", ()))
    return total + sum(len(wikitext) - start for starts in openings.values() for start in starts)


@dataclass
class _Renderer:
    """Renderer of parsed wikitext; list items start with LIST_MARK."""

    hidden: frozenset[str]
    """Names of namespaces, in lower case, whose links show nothing."""
    gaps: dict[str, str] = field(default_factory=dict)
    """Characters in place of unknown words, by the name of their template or tag."""

    def render(self, code: Any) -> str:
        from mwparserfromhell import nodes

        texts = []
        for node in code.nodes:
            if isinstance(node, nodes.Text):
                texts.append(node.value)
            elif isinstance(node, nodes.HTMLEntity):
                texts.append(node.normalize())
            elif isinstance(node, nodes.Wikilink):
                if not _is_hidden(str(node.title).strip(), self.hidden):
                    texts.append(self.render(node.text) if node.text else str(node.title).strip().lstrip(":"))
            elif isinstance(node, nodes.ExternalLink):
                texts.append(self.render(node.title) if node.brackets and node.title else "")
            elif isinstance(node, nodes.Heading):
                texts.append(f"\n{SECTION_MARK}" if node.level <= SECTION_LEVEL else "\n")
            elif isinstance(node, nodes.Tag):
                texts.append(self._render_tag(node))
            elif isinstance(node, nodes.Template):
                texts.append(self._render_template(node))
        return "".join(texts)

    def _render_tag(self, node: Any) -> str:
        tag = str(node.tag).strip().lower()
        if tag in SHOWN_TAGS:
            return SHOWN_TAGS[tag]
        if tag in FORMULA_TAGS:
            return self._gap(f"<{tag}>")
        return self.render(node.contents) if tag in INLINE_TAGS and node.contents else ""

    def _render_template(self, node: Any) -> str:
        title = str(node.name).strip()
        parameters = {str(parameter.name).strip(): self.render(parameter.value).strip() for parameter in node.params}
        words = show_template(title, parameters)
        return self._gap(name_template(title)) if words is None else words

    def _gap(self, name: str) -> str:
        return self.gaps.setdefault(name, chr(min(FIRST_GAP + len(self.gaps), LAST_GAP)))


def _is_hidden(title: str, hidden: frozenset[str]) -> bool:
    """Return whether a link shows nothing in the text: to a file, a category or the page in another language.

    >>> [_is_hidden(title, HIDDEN) for title in ("Image:a.jpg", "de:Seoul", "Re:Zero", "wikt:mill", ":Category:Cats")]
    [True, True, False, False, False]
    """
    prefix = _prefix(title)
    is_other_language = LANGUAGE.fullmatch(title.partition(":")[0]) is not None
    return prefix != "" and (prefix in hidden or is_other_language or MEDIA.fullmatch(title) is not None)


def _tidy(line: str, dropped: list[str]) -> str:
    """Remove what dropped templates leave behind: sentences without some of their words, empty brackets, spaces.

    The sentences are added to `dropped`.
    """
    if HAS_GAP.search(line):
        line = IN_BRACKETS.sub(lambda match: GAP_IN_BRACKETS.sub("", match[0]), line)
        line = FREE_GAP.sub("", line.strip())
    if HAS_GAP.search(line):
        sentences = split_sentences(line)
        dropped += (sentence for sentence in sentences if HAS_GAP.search(sentence))
        line = " ".join(sentence for sentence in sentences if not HAS_GAP.search(sentence))
    line = BRACKET_START.sub("(", EMPTY_BRACKETS.sub("", line))
    return SPACE_BEFORE_MARK.sub("", SPACES.sub(" ", line)).strip()


def _is_running_text(line: str) -> bool:
    is_table_row = line.startswith(("|", "!", "{|"))  # left over from a table with damaged markup
    return bool(line) and not is_table_row and not line.endswith(":") and any(map(str.isalpha, line))
