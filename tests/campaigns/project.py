"""A small project with every kind of file that the commands read, written by the commands where they write it."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import random
import shutil
from pathlib import Path

import polars
import zstandard
from campaign import Commands

ANIMALS = "bear wolf crow hare".split()
LOCATIONS = "forest river".split()
CPU = "--device cpu --threads 1"
TINY = "--size tiny --hidden-size 16 --num-heads 2 --max-positions 32 --max-length 24 --batch-size 4 --long-ratio 0"
BRIEF = "--steps 9 --log-every 2 --eval-every 4 --eval-sequences 8 --save-every 3"
PRETRAIN = f"{TINY} {BRIEF} {CPU}"
TUNE = f"--epochs 2 --batch-size 8 --learning-rate 1e-2 --log-every 1 {CPU}"
KEEP = "--keep-checkpoints"  # for `reopen_run`
WINDOW = "--max-length 24 --max-query-length 8"
# Options after `--task KIND`, and the suffix of its files.
TASKS = {
    "classification": ("", ".tsv"),
    "regression": ("--text first --text-pair second --label score", ".csv"),
    "multiple-choice": ("--endings a b c --label right", ".jsonl"),
    "tagging": ("", ".conll"),
    "question-answering": (WINDOW, ".json"),
}


def make_documents(count: int, seed: int = 0) -> list[str]:
    """Return documents of a few sentences, one per line."""
    chance = random.Random(seed)
    return [
        "\n".join(
            f"The {chance.choice(ANIMALS)} sees the {chance.choice(ANIMALS)} in the {chance.choice(LOCATIONS)}."
            for _ in range(chance.randint(2, 6))
        )
        for _ in range(count)
    ]


def make_examples(kind: str, count: int, seed: int) -> str:
    """Return the content of a file with examples of a task."""
    chance = random.Random(seed)
    drawn = [(chance.randrange(4), chance.randrange(2)) for _ in range(count)]
    texts = [f"the {ANIMALS[animal]} sees the {LOCATIONS[location]}" for animal, location in drawn]
    if kind == "classification":
        rows = [f"{text}\t{location}" for text, (_, location) in zip(texts, drawn, strict=True)]
        return "\n".join(["text\tlabel", *rows]) + "\n"
    if kind == "regression":
        table = io.StringIO()
        rows = [[text, animal + 0.5, "the river"] for text, (animal, _) in zip(texts, drawn, strict=True)]
        csv.writer(table, lineterminator="\n").writerows([["first", "score", "second"], *rows])
        return table.getvalue()
    if kind == "multiple-choice":
        endings = dict(zip("abc", ANIMALS[:3], strict=True))
        rows = [{"prompt": text, "right": animal % 3} | endings for text, (animal, _) in zip(texts, drawn, strict=True)]
        return "".join(json.dumps(row) + "\n" for row in rows)
    if kind == "tagging":
        tags = "O B-ANIMAL O O B-LOCATION".split()
        rows = ["".join(f"{word} {tag}\n" for word, tag in zip(text.split(), tags, strict=True)) for text in texts]
        return "\n".join(rows)
    paragraphs = [
        {
            "context": text,
            "qas": [
                {
                    "id": f"q{number}",
                    "question": "who sees",
                    "answers": [{"text": ANIMALS[animal], "answer_start": text.index(ANIMALS[animal])}],
                }
            ],
        }
        for number, (text, (animal, _)) in enumerate(zip(texts, drawn, strict=True))
    ]
    return json.dumps({"version": "1.1", "data": [{"title": "Animals", "paragraphs": paragraphs}]})


def write_corpus(folder: Path, count: int) -> None:
    """Write the same documents in every format of a corpus."""
    documents = make_documents(count)
    text = "\n\n".join(documents) + "\n"
    (folder / "text.txt").write_text(text)
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
    polars.DataFrame({"text": documents}).write_parquet(folder / "text.parquet")
    for suffix, delimiter in ((".csv", ","), (".tsv", "\t")):
        with (folder / f"text{suffix}").open("w", newline="") as file:
            rows = [[" ".join(document.split("\n"))] for document in documents]
            csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([["text"], *rows])
    (folder / "text.txt.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    (folder / "text.txt.bz2").write_bytes(bz2.compress(text.encode()))
    (folder / "text.txt.zst").write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(text.encode()))
    sentences = [document.replace(".", " .").split("\n") for document in documents]
    lines = [
        f"# newdoc id = {number}\n" * (index == 0)
        + "".join(f"{n}\t{word}\t_\tX\t_\t_\t0\t_\t_\t_\n" for n, word in enumerate(sentence.split(), 1))
        for number, document in enumerate(sentences)
        for index, sentence in enumerate(document)
    ]
    (folder / "text.conllu").write_text("\n".join(lines) + "\n")


def build_project(folder: Path, commands: Commands) -> None:
    """Write data, and run the commands on it."""
    folder.mkdir()
    write_corpus(folder, 60)
    for kind, (_, suffix) in TASKS.items():
        for split, count, seed in (("train", 24, 1), ("dev", 12, 2)):
            (folder / f"{split}{suffix}").write_text(make_examples(kind, count, seed))
    questions = make_examples("classification", 1_821, 3).split("\n")[1:-1]  # as many as SST-2's test file has
    numbered = [f"{number}\t{line.split(chr(9))[0]}" for number, line in enumerate(questions)]
    (folder / "glue" / "SST-2").mkdir(parents=True)
    (folder / "glue" / "SST-2" / "test.tsv").write_text("\n".join(["index\tsentence", *numbered]) + "\n")
    (folder / "lines.txt").write_text("\n".join(line for text in make_documents(20, 3) for line in text.split("\n")))
    commands.check("vocabulary text.txt --output vocabulary --size 120 --min-frequency 2", folder)
    commands.check("prepare text.txt --vocabulary vocabulary --store store --workers 1 --held-out 0.1", folder)
    commands.check(f"pretrain --store store --run run {PRETRAIN}", folder)
    for kind, (options, suffix) in TASKS.items():
        files = f"--train train{suffix} --dev dev{suffix}"
        commands.check(f"finetune --task {kind} {options} {files} --model run/model --run {kind} {TUNE} {KEEP}", folder)


def reopen_run(run: Path) -> None:
    """Make a finished run one that was killed before its model was written."""
    shutil.rmtree(run / "model")
    (run / "report.json").unlink()
