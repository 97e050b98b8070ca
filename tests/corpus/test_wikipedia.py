"""Wikipedia dumps: running text of articles, hand-worked; shards, damaged files, the commands that read them."""

from __future__ import annotations

import bz2
from pathlib import Path
from xml.sax.saxutils import escape

import mwparserfromhell
import pytest

import bertwright
from bertwright.corpus.documents import CorpusSettings, Document, read, read_shard, shard_corpus
from bertwright.corpus.wikipedia import extract_text
from bertwright.io.decoding import ReadStats

SEOUL = """{{Infobox city
| name = Seoul
* not a list item
}}
'''Seoul''' ({{lang|ko|서울}}; {{IPA|x}}; founded 1394) is the [[capital city|''capital'']] of [[South Korea]].<ref name="a">{{cite}}</ref>
[[File:Seoul.jpg|thumb|The [[palace]] at night]]It has many [[palace]]s &amp; gates&nbsp;now; H<sub>2</sub>O.<!-- checked -->

== Districts ==
The districts are:
* [[Jongno]]
** Samcheong
# first
: indented
; term : definition
{| class="wikitable"
|-
| Jongno || 150,000
|}
=== Later ===
Its [http://seoul.go.kr city hall] stands<br/>near http://example.org Alien: Covenant, see [[Alien: Covenant]]. <math>x^2</math>
__NOTOC__ [[Category:Capitals]] [[de:Seoul]]
"""  # noqa: E501
SEOUL_TEXT = """Seoul (founded 1394) is the capital of South Korea.

It has many palaces & gates now; H2O.

Its city hall stands near Alien: Covenant, see Alien: Covenant."""


def make_page(title: str, text: str, namespace: int = 0, extra: str = "") -> str:
    return (
        f"  <page>\n    <title>{title}</title>\n    <ns>{namespace}</ns>\n    <id>7</id>{extra}\n    <revision>\n"
        f'      <text bytes="3" xml:space="preserve">{escape(text)}</text>\n    </revision>\n  </page>\n'
    )


HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">
  <siteinfo><sitename>Wikipedia</sitename></siteinfo>
"""
DUMP = "".join(
    [
        HEAD,
        make_page("Seoul", SEOUL),
        make_page("Soul (city)", "#REDIRECT [[Seoul]]", extra='\n    <redirect title="Seoul" />'),
        make_page("Talk:Seoul", "Is it large?", namespace=1),
        make_page("Template:Lang", "Some ''words''.", namespace=10),
        make_page("Lists", "* only\n* a list"),
        make_page("부산", "'''부산'''은 [[대한민국]]의 도시이다."),
        "</mediawiki>\n",
    ]
)


def texts(path: Path, stats: ReadStats | None = None) -> list[Document]:
    return list(read(CorpusSettings((str(path),)), stats=stats))


def test_dump_yields_the_running_text_of_articles(tmp_path: Path) -> None:
    path = tmp_path / "wiki-pages-articles.xml"
    path.write_text(DUMP, encoding="utf-8")
    stats = ReadStats()
    last = DUMP[: DUMP.index("<title>부산")].count("\n")
    assert texts(path, stats) == [
        Document(SEOUL_TEXT, f"{path}:3"),
        Document("부산은 대한민국의 도시이다.", f"{path}:{last}"),
    ]
    assert stats.empty_documents == 1  # the article that is only a list


@pytest.mark.parametrize("name", ["wiki.xml.bz2", "wiki1.xml-p1p41242.bz2"])
def test_compressed_dump_in_several_streams_equals_the_plain_one(tmp_path: Path, name: str) -> None:
    plain, packed = tmp_path / "plain.xml", tmp_path / name
    plain.write_text(DUMP, encoding="utf-8")
    content = DUMP.encode()
    packed.write_bytes(bz2.compress(content[:900]) + bz2.compress(content[900:]))
    assert [document.text for document in texts(packed)] == [document.text for document in texts(plain)]


def test_of_a_history_the_last_revision_counts(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml"
    page = make_page("A", "First version.")
    page = page.replace("  </page>", "    <revision><text>The second version.</text></revision>\n  </page>")
    path.write_text(f"{HEAD}{page}</mediawiki>\n", encoding="utf-8")
    assert [document.text for document in texts(path)] == ["The second version."]


@pytest.mark.parametrize("target_bytes", [1, 700, 1 << 20])
def test_shards_of_a_dump_yield_the_documents_of_the_whole(tmp_path: Path, target_bytes: int) -> None:
    path = tmp_path / "wiki.xml"
    path.write_text(DUMP, encoding="utf-8")
    settings = CorpusSettings((str(path),))
    shards = shard_corpus(settings, target_bytes)
    assert len(shards) == {1: 7, 700: 3, 1 << 20: 1}[target_bytes]
    assert [document for shard in shards for document in read_shard(settings, shard)] == texts(path)


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("A ''very'' '''bold''' word.", "A very bold word."),
        ("One {{a|{{b}}}} two {{{c}}}.", "One two."),
        ("See [[:Category:Cats]] and [[Cat#Food|food]].", "See Category:Cats and food."),
        ("<blockquote>Said so.</blockquote><gallery>a.jpg</gallery>", "Said so."),
        ("Broken {| class=x\n| cell\n! head\nText.", "Broken {| class=x\n\nText."),
        ("First.\nSecond.\n\n\nThird.", "First.\n\nSecond.\n\nThird."),
        ("Open [[link and '' style <ref>.", "Open [[link and '' style <ref>."),
        ("Said.<ref name=a/> Done.<REF\nname='b'>{{cite|a=<b>x</b>}}</REF >", "Said. Done."),
        ("123 — 456", ""),
        ("", ""),
    ],
)
def test_extract_text_of_markup(wikitext: str, text: str) -> None:
    assert extract_text(wikitext) == text


def test_article_on_which_the_parser_fails_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise mwparserfromhell.parser.ParserError("stack is not empty")

    monkeypatch.setattr(mwparserfromhell, "parse", fail)
    assert extract_text("A word.") == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<html><body/></html>", r"wiki\.xml, line 1: expected a Wikipedia dump, .*<mediawiki>, got <html>"),
        (DUMP[:-400], r"wiki\.xml, line \d+: not the XML of a Wikipedia dump \(no element found\)"),
        (DUMP.replace("</title>", "", 1), r"wiki\.xml, line \d+: not the XML .*mismatched tag"),
        (HEAD + "</mediawiki>", "no documents"),
    ],
)
def test_damaged_dump_raises_an_error_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "wiki.xml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        texts(path)


def test_endless_page_raises_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertwright.corpus.wikipedia.MAX_CHARACTERS", 1000)
    monkeypatch.setattr("bertwright.io.decoding.BLOCK", 100)
    path = tmp_path / "wiki.xml"
    path.write_text(HEAD + make_page("Long", "word " * 1000), encoding="utf-8")
    with pytest.raises(ValueError, match=r"wiki\.xml: a page of more than 1,000 characters"):
        texts(path)


def test_vocabulary_and_prepare_read_a_dump(tmp_path: Path) -> None:
    articles = [make_page(f"Page {n}", f"{{{{box}}}}The [[cat]] number {n} sat.\n\nIt ran.\n* list") for n in range(40)]
    path = tmp_path / "wiki-pages-articles.xml.bz2"
    path.write_bytes(bz2.compress((HEAD + "".join(articles) + "</mediawiki>").encode()))
    corpus = CorpusSettings((str(path),))
    learned = bertwright.VocabularySettings(size=130, min_frequency=2)
    bertwright.learn_vocabulary(bertwright.LearnSettings(corpus, tmp_path / "vocabulary", learned))
    assert "cat" in (tmp_path / "vocabulary" / "vocab.txt").read_text().split()
    assert "box" not in (tmp_path / "vocabulary" / "vocab.txt").read_text().split()
    held_out = bertwright.BuildSettings(held_out=0, workers=1)
    built = bertwright.prepare(
        bertwright.PrepareSettings(corpus, str(tmp_path / "vocabulary"), tmp_path / "store", held_out)
    )
    assert (built.train.num_documents, built.train.num_sentences) == (40, 80)
