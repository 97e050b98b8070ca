"""Write Korean text and tasks for the tour of README.ko.md, which anyone can make without a download.

    python demo/korean.py FOLDER

All of it is generated from the names, sentences and questions of korean.toml, from a fixed seed: documents about an
invented country, and three tasks in the form, and under the names, of published ones. FOLDER gets

- corpus.txt: one paragraph per line, a blank line between documents;
- nsmc/: film reviews with their sentiment, in the columns of NSMC;
- klue-ner/: a character and its tag per line, as in KLUE-NER;
- korquad/: questions about other documents, as in KorQuAD 1.0.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from string import Formatter
from typing import Any, NamedTuple

DOCUMENTS = 3_000
REVIEWS = {"train": 3_000, "test": 600}
TAGGED = {"train": 2_500, "dev": 300}
QUESTIONED = {"train": 400, "dev": 80}  # documents with questions
SENTENCES_PER_PARAGRAPH = 5

AFTER_VOWEL = {"은": "는", "이": "가", "을": "를", "과": "와", "으로": "로", "이며": "며"}
LABELS = {  # of KLUE-NER: locations, organizations, persons, dates, times, quantities
    "town": "LC", "home": "LC", "river": "LC", "mountain": "LC",
    "school": "OG", "company": "OG", "hall": "OG",
    "person": "PS", "other": "PS",
    "born": "DT", "founded": "DT", "opened": "DT", "month": "DT", "season": "DT",
    "time": "TI", "length": "TI",
    "people": "QT",
}  # fmt: skip


class Slot(NamedTuple):
    """A name in a sentence: [start:end] without the particle."""

    field: str
    start: int
    end: int


class Sentence(NamedTuple):
    """A sentence, its names, and questions by the field of the name that answers them."""

    text: str
    slots: tuple[Slot, ...]
    questions: Mapping[str, str]


def main(folder: Path) -> None:
    material = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    rng = Random(0)
    documents = [make_document(rng.choice(material["articles"]), material, rng) for _ in range(DOCUMENTS)]
    text = "\n\n".join("\n".join(paragraphs_of(document)) for document in documents) + "\n"
    write(folder / "corpus.txt", text, f"{len(documents):,} documents")
    for split, lines in make_reviews(material["reviews"], rng).items():
        write(folder / f"nsmc/ratings_{split}.txt", "id\tdocument\tlabel\n" + "".join(lines), f"{len(lines):,} reviews")
    for split, number in TAGGED.items():
        sentences = [rng.choice(make_document(rng.choice(material["articles"]), material, rng)) for _ in range(number)]
        lines = [tag_characters(sentence, f"{split}_{n:05}") for n, sentence in enumerate(sentences)]
        write(folder / f"klue-ner/klue-ner-v1.1_{split}.tsv", "\n".join(lines), f"{number:,} sentences")
    asked = [article for article in material["articles"] if not article.get("in_order")]
    for split, number in QUESTIONED.items():
        articles = [ask_about(make_document(rng.choice(asked), material, rng), f"{n}") for n in range(number)]
        count = sum(len(article["paragraphs"][0]["qas"]) for article in articles)
        tree = {"version": f"KorQuAD_v1.0_{split}", "data": articles}
        content = json.dumps(tree, ensure_ascii=False, indent=1)
        write(folder / f"korquad/KorQuAD_v1.0_{split}.json", content, f"{count:,} questions")


def write(path: Path, text: str, count: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"{path}: {len(text.encode()):,} bytes, {count}")


# Sentences


def render(template: str, names: Mapping[str, str]) -> tuple[str, tuple[Slot, ...]]:
    """Fill in the names of a template, each with the form of its particle that fits it."""
    text, slots = "", []
    for literal, field, particle, _ in Formatter().parse(template):
        text += literal
        if field:
            slots.append(Slot(field, len(text), len(text) + len(names[field])))
            text += attach(names[field], particle or "")
    return text, tuple(slots)


def attach(name: str, particle: str) -> str:
    """Add a particle to a name: the given form after a consonant, often another after a vowel."""
    final = (ord([letter for letter in name if "가" <= letter <= "힣"][-1]) - ord("가")) % 28  # 0: vowel, 8: ㄹ
    vowel = final == 0 or (final == 8 and particle == "으로")
    return name + (AFTER_VOWEL.get(particle, particle) if vowel else particle)


def make_document(article: Mapping[str, Any], material: Mapping[str, Any], rng: Random) -> list[Sentence]:
    """Write an opening and most of the article's facts about newly drawn names, in order or shuffled."""
    names = draw_names(material["names"], rng) | {"review": make_review(material["reviews"], rng)[0]}
    subjects = article["facts"]
    if not article.get("in_order"):
        subjects = rng.sample(subjects, rng.randint(len(subjects) - 3, len(subjects)))
    sentences = [Sentence(*render(rng.choice(article["openings"]), names), {})]
    for subject in subjects:
        asked = subject.get("questions", {})
        questions = {field: render(rng.choice(wordings), names)[0] for field, wordings in asked.items()}
        sentences.append(Sentence(*render(rng.choice(subject["statements"]), names), questions))
    return sentences


def paragraphs_of(document: list[Sentence]) -> Iterator[str]:
    for start in range(0, len(document), SENTENCES_PER_PARAGRAPH):
        yield " ".join(sentence.text for sentence in document[start : start + SENTENCES_PER_PARAGRAPH])


def draw_names(names: Mapping[str, Any], rng: Random) -> dict[str, str]:
    """Draw a name for every field that a template may have."""

    def draw(words: str) -> str:
        return rng.choice(words.split())

    def join(*lists: str) -> str:
        return "".join(map(draw, lists))

    year, (town, home) = rng.randint(1900, 1990), rng.sample(names["stems"].split(), 2)
    crop = draw(names["crops"])
    thousands = rng.randint(1, 9)
    return {
        "town": town + draw(names["towns"]),
        "home": home + draw(names["towns"]),
        "river": join(names["waters"], names["rivers"]),
        "mountain": join(names["peaks"], names["mountains"]),
        "person": join(names["surnames"], *names["given"]),
        "other": join(names["surnames"], *names["given"]),
        "school": join(names["stems"], names["schools"]),
        "company": join(names["stems"], names["companies"]),
        "hall": join(names["stems"], names["halls"]),
        "festival": f"{town} {crop} 축제",
        "title": "《{} {}》".format(*map(draw, names["titles"])),
        "award": f"{town} {draw(names['awards'])}",
        "born": f"{year - rng.randint(20, 40)}년",
        "founded": f"{year}년",
        "opened": f"{year + rng.randint(2, 30)}년",
        "month": f"{rng.randint(1, 12)}월",
        "time": rng.choice(
            ["오전 7시", "오전 8시", "오전 9시", "오전 10시", "오전 11시", "낮 12시", "오후 1시", "오후 2시"]
        ),
        "length": f"{rng.randint(80, 160)}분",
        "people": rng.choice([f"{rng.randint(1, 9)}만 {thousands}천 명", f"{thousands},{rng.randint(100, 999)}명"]),
        "crop": crop,
        **{one: draw(names[f"{one}s"]) for one in ("product", "job", "vehicle", "season")},
    }


# Tasks


def make_reviews(material: Mapping[str, Any], rng: Random) -> dict[str, list[str]]:
    """Write NSMC's lines, no review twice."""
    labels: dict[str, int] = {}
    while len(labels) < sum(REVIEWS.values()):
        text, label = make_review(material, rng)
        labels.setdefault(text, label)
    lines = [f"{number}\t{text}\t{label}\n" for number, (text, label) in enumerate(labels.items(), 1)]
    return {"train": lines[: REVIEWS["train"]], "test": lines[REVIEWS["train"] :]}


def make_review(material: Mapping[str, Any], rng: Random) -> tuple[str, int]:
    """Write a film review and its sentiment, 1 for good. After "but", the last clause decides."""
    label = rng.randrange(2)
    same, opposite = (material[name] for name in (("bad", "good") if label == 0 else ("good", "bad")))
    (stem, past), (and_stem, _), (but_stem, but_past) = (
        rng.choice(one["predicates"].split(",")).split() for one in (same, same, opposite)
    )
    final = rng.choice([f"{past}다", f"{past}어요", f"{stem}네요", f"{past}음", f"{but_stem}지 않았다"])
    verdict = rng.choice(same["verdicts"].split(",")).strip()
    first, second = rng.sample(material["subjects"].split(), 2)
    text = rng.choice(
        [
            f"{attach(first, '이')} {final}",
            f"{attach(first, '은')} {but_stem}지만 {attach(second, '이')} {final}",
            f"{first}도 {and_stem}고 {second}도 {final}",
            f"{attach(first, '은')} {but_past}는데 {verdict}",
            f"{attach(first, '이')} {and_stem}고 {verdict}",
            verdict,
        ]
    )
    opening = rng.choice(["", "", "", "솔직히 ", "진짜 ", "정말 ", "개인적으로 "])
    return opening + text + rng.choice(material["endings"]), label


def tag_characters(sentence: Sentence, number: str) -> str:
    """Write KLUE-NER's lines of a sentence: a comment, then each character, a tab and its tag."""
    tags = ["O"] * len(sentence.text)
    for field, start, end in sentence.slots:
        if label := LABELS.get(field):
            tags[start:end] = [f"B-{label}"] + [f"I-{label}"] * (end - start - 1)
    lines = [f"{letter}\t{tag}\n" for letter, tag in zip(sentence.text, tags, strict=True)]
    return f"## klue-ner-v1_{number}\t{sentence.text}\n" + "".join(lines)


def ask_about(document: list[Sentence], title: str) -> dict[str, Any]:
    """Return an article of KorQuAD's tree: a document as one paragraph, and its questions."""
    questions: list[dict[str, Any]] = []
    context = ""
    for sentence in document:
        for field, question in sentence.questions.items():
            slot = next((slot for slot in sentence.slots if slot.field == field), None)
            if slot:
                start = len(context) + slot.start
                answer = {"text": sentence.text[slot.start : slot.end], "answer_start": start}
                questions.append({"id": f"{title}-{len(questions)}", "question": question, "answers": [answer]})
        context += sentence.text + " "
    return {"title": title, "paragraphs": [{"context": context.strip(), "qas": questions}]}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python demo/korean.py FOLDER")
    main(Path(sys.argv[1]))
