"""Wikipedia dumps: running text of articles, hand-worked; shards, damaged files, the commands that read them."""

from __future__ import annotations

import bz2
import time
from pathlib import Path
from xml.sax.saxutils import escape

import mwparserfromhell
import pytest

import bertwright
from bertwright.corpus import wikipedia
from bertwright.corpus.documents import CorpusSettings, Document, read, read_shard, shard_corpus
from bertwright.corpus.wikipedia import extract_sections
from bertwright.surveying.corpus_statistics import measure_corpus
from bertwright.surveying.diagnosis import diagnose
from bertwright.text.decoding import ReadStats

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
SEOUL_TEXT = """Seoul (서울; founded 1394) is the capital of South Korea.

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
    assert texts(path, stats) == [Document(SEOUL_TEXT), Document("부산은 대한민국의 도시이다.")]
    assert stats.empty_documents == 1  # the article that is only a list


def test_each_section_of_an_article_is_a_document(tmp_path: Path) -> None:
    path, town = tmp_path / "wiki.xml", "A town.\n== History ==\nOld.\n== See also ==\n* a list"
    path.write_text(HEAD + make_page("Seoul", SEOUL) + make_page("Town", town) + "</mediawiki>", encoding="utf-8")
    by_section = [document.text for document in read(CorpusSettings((f"section={path}",)))]
    assert by_section == [*SEOUL_TEXT.rsplit("\n\n", 1), "A town.", "Old."]


def test_sections_of_plain_text_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A town.")
    with pytest.raises(ValueError, match=r"a\.txt: expected a Wikipedia dump .*got \.txt; use file=, line= or"):
        list(read(CorpusSettings((f"section={tmp_path / 'a.txt'}",))))


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


def extract_text(wikitext: str) -> str:
    return "\n\n".join(extract_sections(wikitext))


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("A ''very'' '''bold''' word.", "A very bold word."),
        ("One {{lang|fr|{{nowrap|deux trois}}}} two {{{c}}}.", "One deux trois two."),
        ("Called ''''x''''' and '''y''.", "Called 'x and y."),
        ("See [[:Category:Cats]] and [[Cat#Food|food]].", "See Category:Cats and food."),
        ("<blockquote>Said so.</blockquote><gallery>a.jpg</gallery>", "Said so."),
        ("Broken {| class=x\n| cell\n! head\nText.", "Broken {| class=x\n\nText."),
        ("First.\nSecond.\n\n\nThird.", "First.\n\nSecond.\n\nThird."),
        ("Open [[link and '' style <ref>.", "Open [[link and style <ref>."),
        ("Said.<ref name=a/> Done.<REF\nname='b'>{{cite|a=<b>x</b>}}</REF >", "Said. Done."),
        ("123 — 456", ""),
        ("", ""),
    ],
)
def test_extract_text_of_markup(wikitext: str, text: str) -> None:
    assert extract_text(wikitext) == text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("It is {{convert|3|to|5|ft|m|abbr=on}} deep.", "It is 3 to 5 ft deep."),
        ("About {{formatnum:1300}} people {{circa|1874}}.", "About 1300 people c. 1874."),
        ("A {{nowrap|1=big {{abbr|St.|Saint}} mill}} {{ndash}} old.", "A big St. mill – old."),
        ("{{lang-ru|Москва|Moskva}} and {{langx|fr|eau}} and {{transl|ja|ISO|mizu}}.", "Москва and eau and mizu."),
        ("It cost {{US$|5 million|2010}}, or {{GBP|4}}.", "It cost US$5 million, or £4."),
        ("{{frac|1|2}} of {{val|1.5|u=kg}}, <code>x</code>.", "1/2 of 1.5 kg, x."),
        ("The mill is {{unknown|a}} long. It is old.", "It is old."),
        ("Let <math>x</math> be a number. It is <chem>H2O</chem>. Yes.", "Yes."),
        ("{{PAGENAME}} is a river. It is long.", "It is long."),
        ("방앗간은 {{모름}}이다. 오래되었다.", "오래되었다."),
        ("東京は{{不明}}である。古い。", "古い。"),
        ("It said:{{sfnp|Smith|2000}}\n{{quote|The ''mill'' is old.|Ann}}\nYes.", "The mill is old.\n\nYes."),
        ("{{Quote|text=It stands.|author=Ann}}", "It stands."),
        ("The {{vanchor|mill}}{{mdashb}}old, {{flag|Peru}}.", "The mill – old, Peru."),
        (
            "{{Box}}The mill{{x}} is old.{{x}} It {{citation needed}} stands. {{x}} Yes.",
            "The mill is old. It stands. Yes.",
        ),
        ("{{hatnote}} The mill (from {{unknown}}; old) is old.", "The mill (from; old) is old."),
    ],
)
def test_templates_keep_their_words_or_the_sentence_is_dropped(wikitext: str, text: str) -> None:
    assert extract_text(wikitext) == text


@pytest.mark.parametrize("target_bytes", [1, 1 << 20])
def test_dropped_sentences_are_counted_and_their_templates_named(tmp_path: Path, target_bytes: int) -> None:
    gone = ["It has {{Pop_density|3}} people.", "Let <math>x</math> be {{#if: a|b}}.", "It is {{pop density|4}} so."]
    free = "{{infobox|a}}A town ({{ipa|b}}).{{fact}} It {{lang|fr|est}} old."
    path = tmp_path / "wiki.xml"
    path.write_text(HEAD + "".join(make_page("A", f"{free} {text}") for text in gone) + "</mediawiki>\n")
    settings, stats = CorpusSettings((str(path),)), ReadStats()
    for shard in shard_corpus(settings, target_bytes):
        more = ReadStats()
        assert {document.text for document in read_shard(settings, shard, more)} <= {"A town. It est old."}
        stats.add(more)
    assert stats.dropped_sentences == 3
    assert stats.unknown_words == {"pop density": 2, "<math>": 1, "#if": 1}
    figures = measure_corpus(settings)
    assert (figures.dropped_sentences, figures.unknown_words[0]) == (3, ("pop density", 2))
    assert "3 sentences of Wikipedia (33.3%) are dropped" in "".join(diagnose(figures))
    assert "pop density (2), <math> (1), #if (1)" in "".join(diagnose(figures))


@pytest.mark.parametrize(
    ("link", "text"),
    [
        ("[[Alien:Covenant]]", "Alien:Covenant"),
        ("[[Re:Zero|the series]]", "the series"),
        ("[[wikt:mill|mill]]", "mill"),
        ("[[Wikipedia:Style|style]]", "style"),
        ("[[:Category:Cats|cats]]", "cats"),
        ("[[file:a.jpg|thumb|A cat]]", ""),
        ("[[Foto:a.jpg|thumb|A cat]]", ""),
        ("[[분류:강]]", ""),
        ("[[zh-min-nan:Hoa]]", ""),
    ],
)
def test_links_with_a_colon_keep_their_words(link: str, text: str) -> None:
    assert extract_text(f"See {link} now.") == f"See {text} now.".replace("  ", " ")


@pytest.mark.parametrize(
    "opening",
    ["<ref>", "{{a|", "{{#if:|", "{{{a|", "[[a|", "[ftp://x ", "<b>", "<b a='", "{|\n|a\n", "<!-- a", "''a'''b"],
)
def test_unclosed_markup_takes_linear_time(opening: str) -> None:
    started = time.process_time()
    text = extract_text(f"The mill. {opening * 20_000}")
    assert time.process_time() - started < 3  # from 9 seconds to minutes before
    assert text == "" or opening == "''a'''b"


def test_some_unclosed_markup_leaves_the_text() -> None:
    text = "The mill <b>is {{a| old. [[It" + " stands." * 10_000
    assert extract_text(text) == text


NAMESPACES = (
    '<namespaces><namespace key="0" /><namespace key="1">Talk</namespace><namespace key="6">Datei</namespace>'
    '<namespace key="10" case="first-letter">Vorlage</namespace><namespace key="14">Luokka</namespace></namespaces>'
)


@pytest.mark.parametrize("target_bytes", [1, 1 << 20])
@pytest.mark.parametrize("listed", [True, False])
def test_dump_without_namespaces_of_pages_reads_them_from_titles(
    tmp_path: Path, listed: bool, target_bytes: int
) -> None:
    skipped = ["Talk:Mill", "Vorlage:Box"] if listed else ["Talk:Mill", "Template:Box", "User talk:Ann", "분류:강"]
    titles = ["Mill", *skipped, "Alien: Covenant", "Re:Zero"]
    pages = "".join(make_page(title, f"About {title}.").replace("<ns>0</ns>", "") for title in titles)
    path = tmp_path / "wiki.xml"
    head = HEAD.replace("</siteinfo>", NAMESPACES * listed + "</siteinfo>")
    path.write_text(f"{head}{pages}</mediawiki>\n", encoding="utf-8")
    settings = CorpusSettings((str(path),))
    shards = shard_corpus(settings, target_bytes)
    assert [document.text for shard in shards for document in read_shard(settings, shard)] == [
        f"About {title}." for title in ("Mill", "Alien: Covenant", "Re:Zero")
    ]


def test_links_to_files_are_known_by_the_namespaces_of_the_dump(tmp_path: Path) -> None:
    path = tmp_path / "wiki.xml"
    page = make_page("A", "One. [[Luokka:X]] [[Datei:x|y]]")
    path.write_text(HEAD.replace("</siteinfo>", NAMESPACES + "</siteinfo>") + page + "</mediawiki>\n")
    assert [document.text for document in texts(path)] == ["One."]


@pytest.mark.parametrize("token", ["<mediawiki x='", "<mediawiki><!-- ", "<mediawiki><"])
def test_endless_xml_token_is_an_error(token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wikipedia, "MAX_SILENT", 1 << 20)
    path = tmp_path / "wiki.xml"
    path.write_text(token + "a" * (4 << 20))
    with pytest.raises(ValueError, match=r"wiki\.xml, line 1: .*more than 1,048,576 characters"):
        texts(path)


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
    monkeypatch.setattr("bertwright.text.decoding.BLOCK", 100)
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
