"""Sentence splitting by rules for English, Korean, Chinese and Japanese text.

One compiled pattern finds every position where a sentence may end and checks what follows (a lower-case word continues
the sentence). For a lone full stop, the word before it decides (`Mr.`, `J.`, `U.S.`, `No. 5`). No text is lost: the
sentences, joined, equal the text up to white space.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertwright.corpus.documents import Document

RULES_VERSION = 2  # raised with every change of the output; a token store records it
LONGEST = 10_000  # characters; text without sentence ends (tables, base64) is cut here, at white space if possible

LOWER = "".join(letter for letter in map(chr, range(0x0590)) if letter.islower())  # Latin, Greek, Cyrillic, Armenian
OPEN = "\"'“‘«(\\[{「『【《〈（*_"
CLOSE = "\"'”’»)\\]}」』】》〉）*_"
CLOSE_ONLY = "”’»)\\]}」』】》〉）"  # never opens a quotation, as a straight quote may
SAID = (
    "said|asked|cried|replied|answered|exclaimed|[ie]nquired|repeated|returned|demanded|muttered|murmured|whispered"
    "|shouted|called|added|began|continued|interrupted|observed|[r]emarked|thought"
)

# One character class comes first, so that the search skips to candidates at the speed of a scan; then the conditions.
_HEAD, _WIDE_HEAD = r"[.!?\n\r]", r"[.!?…\n\r。！？｡니]"
_ENDS = rf"""
    (?<=[\n\r]) \s*+                              # a line end that `_unwrap` has not joined
  | (?<=[.!?…]) (?<![.!?…][.!?…]) NO_PAUSE            # the first of a run: .  ?!  ...
    [.!?…]*+
    (?: [.!?…{CLOSE}] | \[[\w ]{{1,20}}\] ){{0,20}}+   # closing quotes, brackets, a footnote's [2]; bounded, since
                                                  # `.).).)…` would be read to its end from every one of its stops
    \s++
    (?! (?! \(\w{{1,3}}\) ) [{OPEN}]*+ (?: [–—-]++ [ ]?+ [{OPEN}]*+ )?+ [{LOWER}]   # lower case continues
      | (?<=[!?]["”'’]\s) (?! (?: He | She | It | They | We | You ) \b ) (?: [A-Z][\w.]*+ [ ] ){{1,2}} (?: {SAID} ) \b
      | [.,;:!?…{CLOSE_ONLY}] QUOTED )            # “Who?” Mr. Hale asked.
"""
_WIDE_ENDS = rf"""
  | (?<=[。！？｡]) (?<![。！？｡!?…][。！？｡]) [。！？｡!?…]*+         # no space is needed after it
    (?: [{CLOSE}]++ (?! [ぁ-ん、，] ) | (?! [{CLOSE}、，] ) ) \s*+     # 「…。」と continues
  | (?<=[가-힣][.!?]) (?<! [^다요죠까음함됨임] [.] ) [.!?]*+
    (?= [가-힣A-Z0-9(“‘「『<※■▶○] )                                  # 했습니다.그러나
  | (?<=니) 다 \s++
    (?! 라[고는며] | [하이]?[고며] | 만\b | [.,;:!?…{CLOSE}] )          # 바랍니다 그리고
"""
# Dots are a pause, except after the ending of a verb: 나는… 모르겠다.
_NO_PAUSE = r"(?! (?: (?<=…) | (?=[.…]) ) (?<=[가-힣][.…]) (?<![다요죠까음함됨임네지오군걸][.…]) [.…]*+ \s++ [가-힣] )"
_QUOTED = r"| 이?라[고는며] | 하?[고며]\s"  # “간다.” 라고 말했다.

# ASCII text, which Python detects in constant time, needs only half of the pattern.
_ASCII_END = re.compile(f"{_HEAD} (?: {_ENDS.replace('NO_PAUSE', '').replace('QUOTED', '')} )", re.VERBOSE)
_END = re.compile(
    f"{_WIDE_HEAD} (?: {_ENDS.replace('NO_PAUSE', _NO_PAUSE).replace('QUOTED', _QUOTED)} {_WIDE_ENDS} )", re.VERBOSE
)

# A name or a number follows these: never an end.
_TITLES = frozenset(
    "Mr Mrs Ms Messrs Mme Mlle Dr Prof St Rev Hon Gen Col Capt Lt Sgt Maj Cpl Cmdr Adm Gov Sen Rep Pres Supt Fr Mt Ft "
    "Sta Ste Msgr Mons Esq vs v viz cf eg ie ca approx al".split()
)
# A full stop after these and before a number marks an abbreviation: No. 5, Fig. 3, Sept. 11.
_COUNTED = frozenset(
    "No Nos no nos Fig Figs fig figs Vol vol Vols vols Ch ch Chap chap Sec sec Sect Art art p pp P Pp l ll Eq eq Ex "
    "Jan Feb Mar Apr Jun Jul Aug Sept Sep Oct Nov Dec c ca verse Op op Rs Tab tab r b d m fl".split()
)
# After these, and after initials (J., U.S., p.m.), a capital letter proves nothing; a word that starts sentences does.
_OPEN_ENDED = frozenset("Jr Sr Inc Ltd Co Corp Bros Ave Blvd Rd Sq Univ Dept Assn etc Ph Dist Cie Mfg Ry Hwy".split())
_STARTS_SENTENCE = re.compile(
    r"[\"'“‘(\[]*(?:The|A|An|I|He|She|It|We|You|They|This|That|These|Those|There|Then|In|On|At|As|But|And|Or|For|From|If"
    r"|When|While|Where|What|Why|How|Who|His|Her|Its|Our|My|Your|Their|After|Before|Since|Although|However|No|Yes|So|By"
    r"|With|To|Not|Now|Some|Many|Most|All|One|Such|Both|During|Under|Because|Once|Here)\b(?![.'’])"
)
_INITIALS = re.compile(r"(?:[A-Za-z]{1,2}\.)+[A-Za-z]{1,2}")  # U.S  p.m  Ph.D
_MARKER = re.compile(r"\W*(?:\d{1,3}|[ivxlcIVXLC]{1,5}|[A-Za-z가-하])\W*")  # 1.  (2)  IV.  a)  가.


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, in order, stripped and not empty.

    Blank lines end sentences. So do single line ends, except in text that was wrapped at a width: there, they are
    read as spaces. More than 10,000 characters without an end are cut at white space.

    >>> split_sentences('Mr. Hale paid $3.50 at 5 p.m. “Well!” he said. “Is it No. 5?” It was...')
    ['Mr. Hale paid $3.50 at 5 p.m.', '“Well!” he said.', '“Is it No. 5?”', 'It was...']
    >>> split_sentences("그는 갔다. 왜 갔을까?아무도 모른다.")
    ['그는 갔다.', '왜 갔을까?', '아무도 모른다.']
    """
    text = text.strip()
    if "\n" in text:
        text = _unwrap(text)
    sentences: list[str] = []
    start = 0
    for match in (_ASCII_END if text.isascii() else _END).finditer(text):
        stop, end = match.span()
        if text[stop] == "." and text[stop + 1] == " " and not text[stop + 2 : end].strip(" "):
            word = text.rfind(" ", start, stop) + 1 or start
            if _is_continued(text, word, stop, end):
                continue
            if _is_item(text, start, word, stop, end):
                end = word
        if end - start < 9 and text[end - 1] == " " and _MARKER.fullmatch(text, start, end):
            continue  # the number of a list item or heading belongs to the text that follows
        sentences.append(text[start:end].rstrip())
        start = end
    if start < len(text):
        sentences.append(text[start:])
    if len(text) > LONGEST:
        return [chunk for sentence in sentences for chunk in _cut(sentence)]
    return sentences


def _is_item(text: str, start: int, word: int, stop: int, after: int) -> bool:
    """Return whether the number before the full stop opens a list item in Korean or Chinese: 동기 2. 사업의 목적."""
    return start < word and stop - word < 3 and text[word:stop].isdigit() and text[after : after + 1] >= "\u1100"


def _is_continued(text: str, begin: int, stop: int, after: int) -> bool:
    """Return whether the full stop after the word at `begin` belongs to an abbreviation, an initial or a date."""
    word = text[begin:stop].rpartition("-")[2].lstrip("\"'“‘«([—–_*")
    if word in _TITLES:
        return True
    following = text[after : after + 1]
    if begin > 2 and word.isdigit() and text[begin - 2 : begin] == ". " and text[begin - 3].isdigit():
        return True  # 2019. 4. 16. 발표
    if following.isdigit():
        if word.isdigit():
            return not text[after : after + 3].isdigit()
        return word in _COUNTED or _INITIALS.fullmatch(word) is not None  # P.S. 187
    if len(word) == 1:
        return text[stop - 2 : stop - 1] == "(" or (word.isupper() and not _STARTS_SENTENCE.match(text, after))
    if word in _OPEN_ENDED or _INITIALS.fullmatch(word):
        return following not in '"“' and not _STARTS_SENTENCE.match(text, after)
    return False


# --- lines

_LINE_START = re.compile(r"\n[^\S\n]*(?=\S)")
_LOWER_START = re.compile(rf"\n[^\S\n]*[{LOWER}]")
_BLANK_LINES = re.compile(r"\n\s*\n")
_SPACED_BLANK = re.compile(r"\n[^\S\n]+(?=\n)")
_WINDOW = 1 << 14  # characters; a long text is judged by three windows
# Share of lines that start in lower case: in wrapped English prose 0.7 to 0.8, with one paragraph per line below 0.1.
_WRAP_SHARE = 0.4
_FULL_LINE = 45  # characters; verse is mostly shorter
_LINE_END = ".!?…:;。！？\"'”’)]」』"


def _unwrap(text: str) -> str:
    """Turn the line ends of wrapped text into spaces; blank lines become carriage returns, which end sentences."""
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if not _is_wrapped(text):
        return text
    if "\n " in text or "\n\t" in text:
        text = _SPACED_BLANK.sub("\n", text)
    return text.replace("\n\n", "\r").replace("\n", " ")  # \r is also white space


def _is_wrapped(text: str) -> bool:
    if len(text) > 3 * _WINDOW:
        middle = len(text) // 2
        text = text[:_WINDOW] + text[middle : middle + _WINDOW] + text[-_WINDOW:]
    breaks = len(_LINE_START.findall(text)) - len(_BLANK_LINES.findall(text))
    if breaks < 1:
        return False
    if len(_LOWER_START.findall(text)) >= _WRAP_SHARE * breaks:
        return True
    # With few lines, or in a script without case: full lines without punctuation at the end were wrapped.
    lines = [line.rstrip() for line in text.split("\n") if line and not line.isspace()]
    longest = max(map(len, lines))
    full = max(0.7 * longest, _FULL_LINE if text.isascii() else 0)
    wrapped = sum(len(line) > full and line[-1] not in _LINE_END for line in lines[:-1])
    return 20 <= longest <= 120 and wrapped > 0.6 * breaks


def _cut(sentence: str) -> list[str]:
    """Cut a sentence of more than LONGEST characters, at white space if possible."""
    chunks: list[str] = []
    start = 0
    while len(sentence) - start > LONGEST:
        space = sentence.rfind(" ", start + LONGEST // 2, start + LONGEST)
        end = space if space > 0 else start + LONGEST
        chunks.append(sentence[start:end].rstrip())
        start = end + (space > 0)
    chunks.append(sentence[start:])
    return [chunk for chunk in chunks if chunk and not chunk.isspace()]


def make_document_splitter(kind: str) -> Callable[[Document], list[str]]:
    """Return the splitter that `CorpusSettings.sentence_splitter` names: `rules`, or `line` for one sentence per line.

    Documents whose lines are sentences are split by lines in any case. Raises ValueError for another name.
    """
    if kind not in ("rules", "line"):
        raise ValueError(f"sentence_splitter is {kind!r}; expected 'rules' or 'line'")
    return lambda document: (
        _split_lines(document.text) if kind == "line" or document.has_sentence_lines else split_sentences(document.text)
    )


def _split_lines(text: str) -> list[str]:
    return [tidy for line in text.split("\n") if (tidy := line.strip())]
