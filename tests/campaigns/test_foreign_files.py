"""Campaign: files and folders that other programs write, damaged in many ways, and small files built to cost much.

Character spans, SQuAD's relatives, tables with members and compressions, folders of sentence-transformers, vocabularies
as released, TensorFlow checkpoints: a command reads them, or ends with one message; no traceback, hang or gigabytes.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import zstandard
from campaign import SEED, Commands, Outcome, find_temporaries, scale, summarize
from project import CPU, WINDOW
from safetensors.numpy import save_file
from test_damaged_files import OF_BYTES, OF_TEXT, Damage

from bertwright.base.files import masked_crc32c
from bertwright.interop.tf_checkpoint import read_varint

pytestmark = pytest.mark.slow

NUM_FILES = 1_500
TEXT = "the bear sees the river in the forest"
SPANS = [[4, 8, "ANIMAL"], [18, 23, "LOCATION"]]
NAMED = [{"start": start, "end": end, "label": label} for start, end, label in SPANS]
ANSWER = {"text": "bear", "answer_start": 4}


class Form(NamedTuple):
    """A published form: a file, and the command that reads it."""

    name: str
    """Path of the file that is damaged."""
    command: str
    is_text: bool = True


def lines(*values: object) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


def paragraphs(*questions: dict[str, object]) -> object:
    return [{"context": TEXT, "qas": list(questions)}]


SPAN_FILES = {
    "doccano.jsonl": lines({"id": 1, "text": TEXT, "labels": SPANS}, {"id": 2, "text": "the mill", "labels": []}),
    "doccano-relations.jsonl": lines({"text": TEXT, "entities": [{"id": 1, "label": "ANIMAL", "start_offset": 4,
        "end_offset": 8}], "relations": [{"id": 1, "from_id": 1, "to_id": 1, "type": "near"}]}),
    "prodigy.jsonl": lines({"text": TEXT, "tokens": [{"text": "the", "start": 0, "end": 3, "id": 0}], "spans": NAMED,
        "answer": "accept"}),
    "label-studio.json": json.dumps([{"data": {"text": TEXT}, "annotations": [{"was_cancelled": False, "result": [
        {"value": {"start": s, "end": e, "labels": [label]}, "type": "labels"} for s, e, label in SPANS]}]}]).encode(),
    "spacy.json": json.dumps([[TEXT, {"entities": SPANS}], ["the mill", {"entities": []}]]).encode(),
    "cluener.json": lines({"text": TEXT, "label": {"ANIMAL": {"bear": [[4, 7]]}, "LOCATION": {"river": [[18, 22]]}}},
        {"text": "the mill", "label": {}}),
}  # fmt: skip
COLUMN_FILES = {
    "numbered.tsv": b"#\thttp://x [2009]\n1\tthe\tO\tO\n2\tbear\tB-ANIMAL\tO\n\n1\tthe\tO\tO\n2\triver\tO\tO\n\n",
    "brackets.conll": b"#begin document (a); part 000\n" + b"".join(
        b"a 0 %d %s NN (S* - - - A %s * -\n" % cells for cells in ((0, b"the", b"*"), (1, b"bear", b"(ANIMAL)"))
    ) + b"\n#end document\n",
    "seq.in": b"the bear sees\nthe river\n",
    "seq.out": b"O B-ANIMAL O\nO O\n",
}  # fmt: skip
QUESTION_FILES = {
    "v2.json": json.dumps({"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs(
        {"id": "a", "question": "who sees", "answers": [ANSWER], "is_impossible": False},
        {"id": "b", "question": "who", "answers": [{"text": "", "answer_start": -1}], "is_impossible": True,
         "plausible_answers": [ANSWER]})}]}).encode(),
    "klue.json": json.dumps({"data": [{"news_category": None, "paragraphs": paragraphs(
        {"guid": "a", "question": "who sees", "answers": [ANSWER], "question_type": 1})}]}).encode(),
    "list.json": json.dumps(paragraphs({"id": 3, "question": "who sees", "answers": ANSWER})).encode(),
    "columns.jsonl": lines({"id": "a", "context": TEXT, "question": "who", "answers": {"text": ["bear"],
        "answer_start": [4]}}, {"id": "b", "context": TEXT, "question": "who", "answers": {"text": [],
        "answer_start": []}}),
    "mrqa.jsonl": lines({"header": {"dataset": "x"}}, {"context": TEXT, "qas": [{"qid": "a", "question": "who sees",
        "answers": ["bear"], "detected_answers": [{"text": "bear", "char_spans": [[4, 7]]}]}]}),
    "newsqa.json": json.dumps({"data": [{"storyId": "s", "text": TEXT, "type": "dev", "questions": [
        {"q": "who", "consensus": {"s": 4, "e": 9}}, {"q": "why", "consensus": {"noAnswer": True}}]}]}).encode(),
}  # fmt: skip
TABLE = b"text,label\n" + b"the bear,0\nthe river,1\n" * 5
TABLE_FILES = {
    "splits.json": json.dumps({"train": [["the bear", "0"]], "test": [["the river", "1"]]}).encode(),
    "frame.json": json.dumps({"text": {"0": "the bear", "1": "the river"}, "label": {"0": 0, "1": 1}}).encode(),
    "array.json": json.dumps([{"text": "the bear", "label": 0}, {"text": "the river", "label": 1}]).encode(),
    "object.json": json.dumps({"data": [{"text": "the bear", "label": 0}]}).encode(),
    "fasttext.txt": b"__label__0 the bear sees\n__label__1 the river\n" * 4,
    "beside.jsonl": lines({"text": "the bear"}, {"text": "the river"}),
    "beside-labels.lst": b"0\n1\n",
    "semicolon.csv": TABLE.replace(b",", b";"),
    "trees.txt": b"(0 (1 the) (0 (0 old) (1 bear)))\n(1 (1 the) (1 river))\n",
    "marks.txt": b"the bear@0\nthe river@1\nthe old bear@0\nthe old river@1\n",
    "parts.jsonl": lines(*({"text": "the bear", "label": 0, "partition": name} for name in ("train", "test"))),
    "document.json": json.dumps({"type": "x", "text": ["the bear", "sees"], "label": 0}).encode(),
    "quoted.csv": b'text,label\n"the ""bear"", seen",0\n"the\nriver",1\n',
}
OPENED = {"splits.json": "splits.json#test", "parts.jsonl": "parts.jsonl#test", "beside-labels.lst": "beside.jsonl"}
PACKED = {".csv.gz": gzip.compress, ".csv.bz2": bz2.compress, ".csv.xz": lzma.compress,
          ".csv.zst": lambda content: zstandard.ZstdCompressor().compress(content)}  # fmt: skip
FORMS = [
    *(Form(name, f"evaluate tagging {name} --output new {CPU}") for name in SPAN_FILES),
    *(Form(name, f"evaluate tagging {name.replace('.out', '.in')} --output new {CPU}") for name in COLUMN_FILES),
    *(Form(name, f"predict tagging --inputs {name} --output new.jsonl {CPU}") for name in ("doccano.jsonl",)),
    *(Form(name, f"evaluate question-answering {name} --allow-no-answer True {WINDOW} --output new {CPU}")
      for name in QUESTION_FILES),
    *(Form(name, f"evaluate classification {OPENED.get(name, name)} --output new {CPU}") for name in TABLE_FILES),
    *(Form(f"packed{suffix}", f"evaluate classification packed{suffix} --output new {CPU}", is_text=False)
      for suffix in (*PACKED, ".zip")),
    *(Form(f"sentences/{name}", f"embed sentences 'the bear' 'the river' {CPU}")
      for name in ("modules.json", "1_Pooling/config.json", "2_Dense/config.json", "sentence_bert_config.json",
                   "config_sentence_transformers.json")),
    Form("sentences/2_Dense/model.safetensors", f"embed sentences 'the bear' 'the river' {CPU}", is_text=False),
    Form("sentences/modules.json", "info sentences"),
    *(Form(f"released/{name}", "prepare lines.txt --vocabulary released --store new --workers 1 --held-out 0")
      for name in ("vocab.txt", "vocab.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")),
    *(Form(f"google/{name}", "convert google new", is_text=name.endswith("json"))
      for name in ("bert_config.json", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001")),
]  # fmt: skip


def write_forms(folder: Path, commands: Commands) -> None:
    """Write each form undamaged into the project."""
    for name, content in (SPAN_FILES | COLUMN_FILES | QUESTION_FILES | TABLE_FILES).items():
        (folder / name).write_bytes(content)
    for suffix, pack in PACKED.items():
        (folder / f"packed{suffix}").write_bytes(pack(TABLE))
    with zipfile.ZipFile(folder / "packed.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data/table.csv", TABLE)
    shutil.copytree(folder / "run/model", sentences := folder / "sentences")
    (sentences / "checksums.json").unlink()
    modules = ["", "1_Pooling", "2_Dense", "3_Normalize"]
    kinds = [name.partition("_")[2] or "Transformer" for name in modules]
    listed = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(zip(modules, kinds, strict=True))
    ]
    size = json.loads((sentences / "config.json").read_text())["hidden_size"]
    pooling = {"word_embedding_dimension": size, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    dense = {
        "in_features": size,
        "out_features": 5,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Tanh",
    }
    files = {
        "modules.json": listed, "1_Pooling/config.json": pooling, "2_Dense/config.json": dense,
        "sentence_bert_config.json": {"max_seq_length": 20, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {"query": "the "}, "default_prompt_name": None},
    }  # fmt: skip
    for name, value in files.items():
        (sentences / name).parent.mkdir(exist_ok=True)
        (sentences / name).write_text(json.dumps(value))
    weights = {"linear.weight": np.ones((5, size), np.float32), "linear.bias": np.ones(5, np.float32)}
    save_file(weights, sentences / "2_Dense/model.safetensors")
    (released := folder / "released").mkdir()
    shutil.copy(folder / "vocabulary/vocab.txt", released)
    (released / "tokenizer_config.json").write_text('{"do_lower_case": true, "tokenizer_class": "BertTokenizer"}')
    (released / "special_tokens_map.json").write_text('{"mask_token": "[MASK]", "unk_token": {"content": "[UNK]"}}')
    (released / "added_tokens.json").write_text(json.dumps({"[ENT]": len((released / "vocab.txt").open().readlines())}))
    commands.check("convert run/model google --format google", folder)


def test_foreign_files_are_read_or_rejected(project: Path, commands: Commands) -> None:
    work = project.parent / "foreign"
    shutil.copytree(project, work)
    write_forms(work, commands)
    for form in FORMS:
        commands.check(form.command, work)
        remove_output(work)
    chance = random.Random(SEED)
    results: Counter[str] = Counter()
    failures = []
    count = scale(NUM_FILES)
    for number in range(count):
        form = FORMS[number % len(FORMS)]
        path = work / form.name
        content = damaged = path.read_bytes()
        while damaged == content:
            damage: Damage = chance.choice(OF_TEXT if form.is_text else OF_BYTES)
            damaged = damage(content, chance)
            if form.name.endswith(".index") and chance.random() < 0.8:  # else a checksum catches all damage
                damaged = renew_checksums(damaged)
        path.write_bytes(damaged)
        outcome = commands(form.command, work)
        results["read" if outcome.code == 0 else "rejected"] += 1
        if problems := find_problems(outcome, work):
            saved = project.parent / f"foreign-{number}-{Path(form.name).name}"
            saved.write_bytes(damaged)
            failures.append(f"{number} {form.name} {damage.__name__}: {'; '.join(problems)}; {saved}\n  {outcome}")
        path.write_bytes(content)
        remove_output(work)
    summarize(
        f"foreign files: {count:,} of {len(FORMS)} kinds: {results['rejected']:,} rejected with one message, "
        f"{results['read']:,} read; {len(failures)} failures"
    )
    assert not failures, "\n\n".join(failures)


def renew_checksums(index: bytes) -> bytes:
    """Make the checksum of the data block of an index right, so that the parser sees its damage."""
    try:
        _, offset = read_varint(index, len(index) - 48)
        _, offset = read_varint(index, offset)
        size, _ = read_varint(index, offset)  # the statistics lie behind the only data block
        size -= 5 + 8 + 5
        content = index[: size + 1]
    except IndexError:
        return index
    return content + masked_crc32c(content).to_bytes(4, "little") + index[size + 5 :]


def find_problems(outcome: Outcome, folder: Path) -> list[str]:
    problems = [outcome.problem] if outcome.problem else []
    problems += ["exit code 1"] if outcome.code == 1 else []
    problems += [f"left {find_temporaries(folder)}"] if find_temporaries(folder) else []
    problems += ["left an output"] if outcome.code and any(path.exists() for path in outputs(folder)) else []
    return problems


def outputs(folder: Path) -> list[Path]:
    return [folder / "new", folder / "new.jsonl"]


def remove_output(folder: Path) -> None:
    for path in outputs(folder):
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


# Small files that could cost much.

MANY = 200_000
EVALUATE = f"evaluate {{}} bomb{{}} --output new {CPU}"
TAG, ANSWER_IT, CLASSIFY = (
    EVALUATE.format(kind, "{}") for kind in ("tagging", f"question-answering {WINDOW}", "classification")
)
ZEROS = b"a" * (1 << 22)


def zipped(*members: tuple[str, bytes]) -> bytes:
    with zipfile.ZipFile(buffer := io.BytesIO(), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def nested_spans(depth: int) -> object:
    value: object = SPANS
    for _ in range(depth):
        value = {"value": {"result": value}}
    return value


BOMBS: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "many spans of one text": (".jsonl", lambda: lines({"text": TEXT * 3_000, "spans": SPANS * 20_000}), TAG),
    "spans nested deeply": (".jsonl", lambda: lines({"text": TEXT, "spans": nested_spans(180)}), TAG),
    "lists nested deeply": (".jsonl", lambda: b'{"text": "\\u0041 b", "spans": ' + b"[" * 940 + b"]" * 940 + b"}", TAG),
    "columns nested deeply": (".jsonl", lambda: b'{"text": "a", "x": ' + b'{"x":' * 940 + b"1" + b"}" * 941, CLASSIFY),
    "many other columns": (".csv", lambda: b",".join(b"c%d" % n for n in range(MANY)) + b"\n", CLASSIFY),
    "a huge offset": (".jsonl", lambda: lines({"text": TEXT, "spans": [[0, 10**18, "ANIMAL"]]}), TAG),
    "negative offsets": (".jsonl", lambda: lines({"text": TEXT, "spans": [[-5, -1, "ANIMAL"], [8, 4, "X"]]}), TAG),
    "annotations that are no objects": (
        ".json", lambda: json.dumps([{"data": {"text": TEXT}, "annotations": [{"result": []}, 5]}]).encode(), TAG),
    "cancelled annotations": (".json", lambda: json.dumps(
        [{"data": {"text": TEXT}, "annotations": [{"result": [], "was_cancelled": True}, None]}]).encode(), TAG),
    "many questions of one text": (".json", lambda: json.dumps(
        {"data": [{"paragraphs": paragraphs(*({"id": str(n), "question": "who", "answers": [ANSWER]}
                                              for n in range(3_000)))}]}).encode(), ANSWER_IT),
    "trees nested deeply": (".json", lambda: b'{"data": ' + b'[{"paragraphs": ' * 300 + b"[]" + b"}]" * 300 + b"}",
                            ANSWER_IT),
    "many members": (".json", lambda: json.dumps({f"k{n}": [["a", "0"]] for n in range(20_000)}).encode(), CLASSIFY),
    "one long line, gz": (".csv.gz", lambda: gzip.compress(b"text,label\n" + ZEROS * 100), CLASSIFY),
    "one long line, xz": (".csv.xz", lambda: lzma.compress(b"text,label\n" + ZEROS * 100, preset=0), CLASSIFY),
    "one long line, zst": (".csv.zst", lambda: zstandard.compress(b"text,label\n" + ZEROS * 100), CLASSIFY),
    "one long line, zip": (".zip", lambda: zipped(("t.csv", b"text,label\n" + ZEROS * 100)), CLASSIFY),
    "one huge JSON, gz": (".json.gz", lambda: gzip.compress(b"[" + b"[" * (1 << 28)), CLASSIFY),
    "blanks, gz": (".jsonl.gz", lambda: gzip.compress(b"\n" * (1 << 26)), CLASSIFY),
    "an archive with many members": (".zip", lambda: zipped(*((f"{n}.csv", b"") for n in range(20_000))), CLASSIFY),
    "an archive in an archive": (".zip", lambda: zipped(("a.zip", zipped(("t.csv", TABLE)))), CLASSIFY),
    "an archive with an absolute path": (".zip", lambda: zipped(("/etc/../x.csv", TABLE)), CLASSIFY),
    "many columns": (".csv", lambda: b",".join(b"c%d" % n for n in range(MANY)) + b"\n" + b"," * MANY, CLASSIFY),
    "label columns of lines": (".txt", lambda: b"__label__a " * MANY + b"\n", CLASSIFY),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_small_files_cost_little(name: str, project: Path, commands: Commands) -> None:
    suffix, make, command = BOMBS[name]
    path = project / f"bomb{suffix}"
    path.write_bytes(make())
    try:
        outcome = commands(command.format(suffix), project)
    finally:
        path.unlink()
        remove_output(project)
    assert outcome.problem is None, str(outcome)[:3000]
    assert outcome.code in (0, 2), str(outcome)[:3000]


FOLDER_BOMBS = {
    "a vocabulary with one long line": ("released/vocab.txt", lambda old: old + b"x" * (1 << 25) + b"\n"),
    "a vocabulary of blank lines": ("released/vocab.txt", lambda old: old + b"\n" * (1 << 21)),
    "a distant id": ("released/added_tokens.json", lambda old: b'{"[ENT]": 2000000000}'),
    "many modules": ("sentences/modules.json", lambda old: json.dumps(json.loads(old) * 3_000).encode()),
    "a huge size": (
        "sentences/2_Dense/config.json", lambda old: old.replace(b'"out_features": 5', b'"out_features": 1e18')),
    "a huge length": ("sentences/sentence_bert_config.json", lambda old: b'{"max_seq_length": 1e30}'),
    "a negative length": ("sentences/sentence_bert_config.json", lambda old: b'{"max_seq_length": -4}'),
    "a module outside of the folder": (
        "sentences/modules.json", lambda old: old.replace(b'"1_Pooling"', b'"../run/model"')),
    "a huge model": (
        "google/bert_config.json", lambda old: old.replace(b'"num_hidden_layers": ', b'"num_hidden_layers": 99999')),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDER_BOMBS)
def test_small_folders_cost_little(name: str, project: Path, commands: Commands) -> None:
    work = project.parent / "folders"
    if not work.exists():
        shutil.copytree(project, work)
        write_forms(work, commands)
    file, change = FOLDER_BOMBS[name]
    content = (work / file).read_bytes()
    changed = change(content)
    assert changed != content
    (work / file).write_bytes(changed)
    try:
        outcome = commands(next(form.command for form in FORMS if form.name == file), work)
    finally:
        (work / file).write_bytes(content)
        remove_output(work)
    assert outcome.problem is None, str(outcome)[:3000]
    assert outcome.code in (0, 2), str(outcome)[:3000]
