"""Toy inputs of the old artefacts: a corpus, and examples of each task, written from nothing by a fixed seed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

NOUNS = "bear deer fish wolf crow hare duck seal lynx mole".split()
VERBS = "sees hears fears finds meets".split()
PLACES = "forest river mountain valley meadow".split()
GERMAN = dict(zip("one two three four five six".split(), "eins zwei drei vier fünf sechs".split(), strict=True))
SPLITS = {"train": 48, "dev": 16}


def write_inputs(folder: Path) -> None:
    """Write all toy inputs into a new folder."""
    folder.mkdir(parents=True)
    (folder / "corpus.txt").write_text(corpus(90), encoding="utf-8")
    for split, count in SPLITS.items():
        rng = np.random.default_rng(count)
        for name, make in MAKERS.items():
            (folder / f"{split}.{name}").write_text(make(count, rng), encoding="utf-8")


def write_tables(folder: Path) -> None:
    """Write toy files of two published tasks, under their own names, into a new folder."""
    names = {"train": ("SST-2/train.tsv", "conll2003/train.txt"), "dev": ("SST-2/dev.tsv", "conll2003/valid.txt")}
    for split, (texts, words) in names.items():
        rng = np.random.default_rng(SPLITS[split] + 1)
        for name in (texts, words):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        rows = [f"{sentence(rng, place)}\t{place % 2}" for place in rng.integers(len(PLACES), size=SPLITS[split])]
        (folder / texts).write_text("\n".join(["sentence\tlabel", *rows]) + "\n", encoding="utf-8")
        (folder / words).write_text("-DOCSTART- O\n\n" + tagged_words(SPLITS[split], rng), encoding="utf-8")


def corpus(documents: int) -> str:
    """Return documents in which the place determines the nouns, so that there is context to learn from."""
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(documents):
        place = int(rng.integers(len(PLACES)))
        count = int(rng.integers(6, 14))
        texts.append("\n".join(sentence(rng, place).capitalize() for _ in range(count)))
    return "\n\n".join(texts) + "\n"


def sentence(rng: np.random.Generator, place: int) -> str:
    first, second = NOUNS[2 * place], NOUNS[2 * place + 1]
    return f"the {first} {VERBS[rng.integers(5)]} the {second} in the {PLACES[place]} ."


def labeled_texts(count: int, rng: np.random.Generator) -> str:
    """Return a table of texts and pairs with a label, several labels, and a number."""
    lines = ["text\tother\tlabel\tlabels\tscore"]
    for _ in range(count):
        place, other = (int(number) for number in rng.integers(len(PLACES), size=2))
        labels = ("wet" if place in (1, 4) else "dry", *(["high"] if place > 1 else []))
        texts = f"{sentence(rng, place)}\t{sentence(rng, other)}"
        lines.append(f"{texts}\t{labels[0]}\t{'|'.join(labels)}\t{abs(place - other)}")
    return "\n".join(lines) + "\n"


def tagged_words(count: int, rng: np.random.Generator) -> str:
    """Return sentences in CoNLL columns, with names of one or two words."""
    lines: list[str] = []
    for _ in range(count):
        name = [*(["Mr"] if rng.integers(2) else []), rng.choice(NOUNS).capitalize()]
        lines += ["the O", f"{rng.choice(NOUNS)} O", f"{rng.choice(VERBS)} O"]
        lines += [f"{word} {'I' if n else 'B'}-PER" for n, word in enumerate(name)]
        lines += ["in O", "the O", f"{rng.choice(PLACES).capitalize()} B-LOC", ". O", ""]
    return "\n".join(lines) + "\n"


def questions(count: int, rng: np.random.Generator) -> str:
    """Return a SQuAD file whose answers are places."""
    paragraphs = []
    for number in range(count):
        place = int(rng.integers(len(PLACES)))
        context = f"{sentence(rng, place)} {sentence(rng, (place + 1) % 5)}"
        answer = {"text": PLACES[place], "answer_start": context.index(PLACES[place])}
        asked = {"id": f"q{number}", "question": f"where is the {NOUNS[2 * place]} ?", "answers": [answer]}
        paragraphs.append({"context": context, "qas": [asked]})
    return json.dumps({"version": "1.1", "data": [{"title": "toy", "paragraphs": paragraphs}]})


def choices(count: int, rng: np.random.Generator) -> str:
    """Return prompts with two endings, of which one names the place of the prompt's animals."""
    lines = ["prompt\tending0\tending1\tlabel"]
    for _ in range(count):
        place, label = int(rng.integers(len(PLACES))), int(rng.integers(2))
        endings = [f"it is the {PLACES[(place + (index != label)) % 5]}" for index in range(2)]
        lines.append(
            "\t".join([f"where the {NOUNS[2 * place]} meets the {NOUNS[2 * place + 1]}", *endings, str(label)])
        )
    return "\n".join(lines) + "\n"


def numbers(count: int, rng: np.random.Generator) -> list[list[str]]:
    return [rng.choice(list(GERMAN), rng.integers(1, 5)).tolist() for _ in range(count)]


def english(count: int, rng: np.random.Generator) -> str:
    return "".join(" ".join(words) + "\n" for words in numbers(count, np.random.default_rng(count)))


def german(count: int, rng: np.random.Generator) -> str:
    """Return the translations of `english`: the German numbers in reversed order."""
    made = numbers(count, np.random.default_rng(count))
    return "".join(" ".join(GERMAN[word] for word in reversed(words)) + "\n" for words in made)


MAKERS: dict[str, Callable[[int, np.random.Generator], str]] = {
    "tsv": labeled_texts,
    "conll": tagged_words,
    "squad.json": questions,
    "choices.tsv": choices,
    "en": english,
    "de": german,
}
"""Content of a split's file, by the end of its name."""
