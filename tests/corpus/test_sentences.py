"""Sentence splitting: a gold set made by hand; no text is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertwright.corpus.documents import Document
from bertwright.corpus.sentences import LONGEST, make_document_splitter, split_sentences

# One case a line; ¶ stands where a sentence must end, ⏎ is a line end.
ENGLISH = """
It rained.¶ We stayed in.
Is it you?¶ It is!¶ Come in.
Mr. Hale met Mrs. Gaskell and Dr. Lee.¶ They talked.
Messrs. Boulton and Watt built it.¶ It worked.
Prof. Moriarty fell.¶ Holmes did not.
St. Paul's stands near Mt. Pleasant.¶ Go and see.
Gen. Grant and Col. Mosby met Capt. Kirk.¶ They spoke.
He lives in the U.S. Army barracks.¶ Not far.
She moved to the U.S.¶ The move was hard.
We saw J. R. R. Tolkien.¶ He smoked.
George W. Bush won.¶ Al Gore lost.
It was Plan B.¶ The first had failed.
See No. 5 and Nos. 6 and 7.¶ Then stop.
No.¶ I will not.
Fig. 3 shows it, cf. Fig. 4 on p. 12.¶ It is clear.
On Sept. 11 and Jan. 5 it snowed.¶ Then it thawed.
He paid $3.50 for version 2.0.1 of it.¶ It broke.
Pi is 3.14.¶ Not more.
Use tools, e.g. Make, i.e. the old one.¶ They work.
Apples, pears, etc. are fruit.¶ Eat them.
Apples, pears, etc.¶ They are fruit.
Acme Inc. announced it.¶ Shares rose.
Acme Inc. Chairman Bob Roe left.¶ He was old.
Acme Co.¶ The firm was small.
John Smith Jr. came.¶ We met.
At 5 p.m. Monday it closed.¶ We left.
It closed at 5 p.m.¶ We left.
“Well!” he said.¶ “I never.”
"Well!" he said.¶ "I never."
"Who is it?" she asked.¶ "Me."
“Stop!”¶ The car stopped.
He said “Stop.”¶ Then he went.
(This is an aside.)¶ This is not.
He left (as planned).¶ She stayed.
He left (he was tired.)¶ She stayed.
Wait... what?¶ Nothing.
Wait...¶ What is it?
Wait… what?¶ Nothing.
I wonder…¶ Perhaps not.
Well . . .¶ I do not know.¶ Do you?
What?!¶ No!!!¶ Yes.
Oh! what a day.¶ Come!
He came.¶ --The others stayed.
"Why?" -- he never knew.¶ We did.
1. First item here.¶ 2. Second item here.
(a) First item here.¶ (b) Second item here.
IV. The hunt begins.¶ It ends.
Visit www.example.com.¶ It is free.
Read notes.txt and run a.out now.¶ Done.
See Roe v. Wade.¶ It is law.
He weighs 80 kg.¶ She weighs 60.
Born c. 1340 and died 1400.¶ So it is said.
Emperor Huan (r. 146–168) ruled.¶ He died.
The school P.S. 187 is here.¶ It is old.
He won in 1990.¶ 250 people saw it.
Mr.  Hyde ran.¶ Dr.  Jekyll hid.
The street--Mr. Hyde's street--was dark.¶ He ran.
It was _his!_ he cried.¶ She wept.
_Never!_¶ She wept.
She has a Ph.D. from Yale.¶ It shows.
iPods sold well.¶ Then phones came.
A heading⏎⏎The text begins.¶ It ends.
One line without end⏎⏎⏎another
"It's 'tis."¶ 'Tis so.
‘Is it, ma’am?’ asked Mr. Wickfield.¶ ‘Ill!’ replied he.
He said [sic] so.[2]¶ She agreed.
"Who is it?" I asked.¶ "Me."
“Stop!” Mr. Hale cried.¶ “Why?” Holmes answered him.
“Stop!”¶ He cried out.¶ “Why?”¶ Holmes went away.
We waited and waited.¶ ¿Qué pasa?¶ Nada.
Élan is good.¶ École is bad.
"""
KOREAN = """\
그는 갔다.¶ 그녀는 남았다.
했습니다.¶그러나 아니었다.
왜 그랬을까?¶아무도 모른다.
정말!¶그래?¶ 몰라.
원주율은 3.14이다.¶ 끝이 없다.
2019. 4. 16. 발표했다.¶ 모두 놀랐다.
2019.4.16에 발표했다.¶ 모두 놀랐다.
그는 “간다.”라고 말했다.¶ 그리고 갔다.
그는 "간다." 라고 말했다.¶ 그리고 갔다.
"안녕하세요?"¶ 그가 물었다.
도와주십시오...¶ 부탁드립니다.
살고싶다..¶퇴사시켜줘.
동의합니다¶ 꼭 바꿔 주세요.
바랍니다.¶감사합니다.
합니다만 어렵습니다.¶ 죄송합니다.
한다고 합니다¶ 하지만 아닙니다.
1. 개요는 이렇다.¶ 2. 목적은 저렇다.
가. 첫째 항목이다.¶ 나. 둘째 항목이다.
동기¶ 2. 사업의 목적
이상이다.¶ (출처: 신문)
좋아요!!¶ 정말요?!¶ 네.
농도가 0.182%입니다.¶ 그런데도 풀려났다.
그는 Dr. Kim을 만났다.¶ 반가웠다.
나는… 모르겠다.¶ 너는?
A사는 U.S. Army와 계약했다.¶ 그 뒤는 모른다.
제목⏎본문이 있다.¶ 끝이다.
"갔다.¶ 그리고 왔다."고 했다.
했음.¶그 뒤로 없음.
※ 참고하십시오.¶ 끝.
"""
CHINESE_AND_JAPANESE = """\
我来了。¶你走了。
真的吗？¶是的！¶好。
他说：“我来。”¶她没说话。
价格是3.14元。¶不贵。
等等……我不知道。¶你呢？
什么？！¶不行。
（这是注。）¶这不是。
北京（首都）很大。¶上海也大。
今日は晴れ。¶明日は雨。
「行く。」と彼は言った。¶そして行った。
「行こう！」¶彼は立った。
本当ですか？¶はい。
バージョン2.0です。¶新しい。
すごい！！¶やった。
それは（たぶん）違う。¶そう。
それは……分からない。¶君は？
"""


@pytest.mark.parametrize("case", (ENGLISH + KOREAN + CHINESE_AND_JAPANESE).split("\n")[1:-1])
def test_sentences_equal_those_split_by_hand(case: str) -> None:
    case = case.replace("⏎", "\n")
    expected = [text.strip() for text in case.replace("\n", "¶").split("¶") if text.strip()]
    assert split_sentences(case.replace("¶", "")) == expected


def remove_spaces(text: str) -> str:
    return "".join(text.split())


PUNCTUATED = st.text(st.sampled_from(" \n\r\tabZ.!?…。！？다요니까1,'\"“”()「」-_—"), max_size=80)


@given(st.one_of(st.text(), PUNCTUATED))
def test_sentences_hold_all_text_without_outer_spaces(text: str) -> None:
    sentences = split_sentences(text)
    assert remove_spaces("".join(sentences)) == remove_spaces(text)
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


@given(PUNCTUATED)
def test_splitting_sentences_again_loses_no_text(text: str) -> None:
    again = [shorter for sentence in split_sentences(text) for shorter in split_sentences(sentence)]
    assert remove_spaces("".join(again)) == remove_spaces(text)


WRAPPED = """It was the best of times, it was the worst of times, it was the age of
wisdom, it was the age of foolishness. It was the epoch of belief, said Mr.
Dickens, it was the epoch of
incredulity.

It was the season of Light, it was
the season of Darkness."""


def test_wrapped_lines_are_joined_by_a_space() -> None:
    sentences = split_sentences(WRAPPED)
    assert [sentence.split(",")[0] for sentence in sentences] == [
        "It was the best of times",
        "It was the epoch of belief",
        "It was the season of Light",
    ]
    assert sentences[1].endswith("said Mr. Dickens, it was the epoch of incredulity.")
    assert split_sentences(WRAPPED.replace("\n", "\r\n")) == sentences
    assert split_sentences(WRAPPED.replace("\n\n", "\n \t\n")) == sentences


def test_wrapped_paragraph_of_two_lines_needs_no_lower_case() -> None:
    text = "It was the worst thing that could ever have happened to poor old\nMr. Hale of Margate."
    assert split_sentences(text) == [text.replace("\n", " ")]


WRAPPED_KOREAN = """나라의 말이 중국과 달라 한자와 서로 통하지 아니하므로 어리석은
백성이 말하고자 하는 바가 있어도 마침내 제 뜻을 실어 펴지
못하는 사람이 많다. 내가 이를 가엾게 여겨 새로 스물여덟 글자를
만드니 사람마다 쉽게 익혀 쓰게 하고자 할 따름이다."""


def test_wrapped_korean_lines_are_joined() -> None:
    assert [sentence[:3] for sentence in split_sentences(WRAPPED_KOREAN)] == ["나라의", "내가 "]


@pytest.mark.parametrize("end", ["x", "9"])
def test_first_words_are_split_whatever_the_last_character_is(end: str) -> None:
    assert split_sentences(f". 4567. Foo went home {end}") == [".", "4567.", f"Foo went home {end}"]


def test_paragraphs_of_one_line_are_not_joined() -> None:
    assert split_sentences("Early life\nHe was born. He grew.\nCareer\nHe worked.") == [
        "Early life",
        "He was born.",
        "He grew.",
        "Career",
        "He worked.",
    ]


def test_lines_of_verse_and_lists_are_not_joined() -> None:
    assert len(split_sentences("Tyger Tyger, burning bright,\nIn the forests of the night;\nWhat immortal hand")) == 3
    assert split_sentences("- Apples\n- Pears\n- Plums") == ["- Apples", "- Pears", "- Plums"]


def test_endless_text_is_split_at_white_space_without_loss() -> None:
    text = "word " * 5_000 + "x" * 25_000
    sentences = split_sentences(text)
    assert max(map(len, sentences)) <= LONGEST
    assert remove_spaces("".join(sentences)) == remove_spaces(text)
    assert all(sentence.split(" ")[-1] == "word" for sentence in sentences[:2])


@pytest.mark.parametrize(
    "run", [".", "! ", "…", ") ", ".)", "\n", "\n ", " ", "。", "니다 ", "(", ". (", "1. ", "[a", "다."]
)
def test_long_runs_of_one_character_are_split_in_linear_time(run: str) -> None:
    text = "a" + run * 200_000 + "b"  # a pattern that looks back over such a run would not come back today
    assert remove_spaces("".join(split_sentences(text))) == remove_spaces(text)


def test_line_splitter_gives_one_sentence_per_line() -> None:
    assert make_document_splitter("line")(Document(" A. B.\r\n\n C\n")) == ["A. B.", "C"]
    assert make_document_splitter("rules")(Document("A b. C d.")) == ["A b.", "C d."]
    with pytest.raises(ValueError, match=r"sentence_splitter is 'lines'.*rules"):
        make_document_splitter("lines")
