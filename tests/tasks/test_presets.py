"""Published tasks: a few lines of each in their published format, under their published file names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from bertwright.base.settings import field_docs
from bertwright.inference.embed import EmbedSettings
from bertwright.inference.evaluate import EvaluateSettings
from bertwright.inference.predict_settings import PredictSettings
from bertwright.inference.text_settings import FillMaskSettings
from bertwright.tasks.presets import PRESETS, TaskSettings
from bertwright.tasks.task import options_of
from bertwright.tasks.task_types import TASK_TYPES, TaskOptions


def table(*rows: str) -> str:
    """Return rows with tabs in place of the bars that make them readable here."""
    return "".join("\t".join(cell.strip() for cell in row.split("|")) + "\n" for row in rows)


def squad(question: dict[str, Any], version: str) -> str:
    asked = {"id": "5733be28", "question": "Who sat?"} | question
    paragraphs = [{"context": "A cat sat.", "qas": [asked]}]
    return json.dumps({"version": version, "data": [{"title": "Cats", "paragraphs": paragraphs}]})


MNLI = table(
    "index | promptID | pairID | genre | sentence1_binary_parse | sentence2_binary_parse | sentence1_parse | "
    "sentence2_parse | sentence1 | sentence2 | label1 | gold_label",
    "0 | 31193 | 31193n | government | ( A cat ) | ( A dog ) | (ROOT A cat) | (ROOT A dog) | A cat. | A dog. | "
    "entailment | neutral",
)
QQP = table(
    "id | qid1 | qid2 | question1 | question2 | is_duplicate",
    "133273 | 213221 | 213222 | Who sat? | Whose hat? | 1",
)
STSB = table(
    "index | genre | filename | year | old_index | source1 | source2 | sentence1 | sentence2 | score",
    "3 | main-captions | MSRvid | 2012test | 0001 | none | none | A cat. | A dog. | 3.800",
)
SWAG = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label\n"
    '0,anetv_jkn,3416,"A cat, old. It",A cat.,It,gold,sits.,runs.,"eats, then sleeps.",flies.,2\n'
)
CONLL2003 = table(
    "-DOCSTART- -X- -X- O", "", "EU NNP B-NP B-ORG", "sat VBD B-VP O", "", "Peter NNP B-NP B-PER", "",
    "-DOCSTART- -X- -X- O", "", "Ann NNP B-NP B-PER",
)  # fmt: skip
UD = table(
    "# newdoc id = weblog-1", "# text = A cat",
    "1 | A | a | DET | DT | Definite=Ind | 2 | det | 2:det | _",
    "2 | cat | cat | NOUN | NN | Number=Sing | 0 | root | 0:root | _",
)  # fmt: skip

WHOLE, SCORED = ("train.tsv", "dev.tsv"), {"metric": "accuracy"}
F1 = {"metric": "f1", "pos_label": "1"}
SPANS = {"metric": "f1", "scheme": None}

# By task: the published files of train, dev and labeled test; the content of the first; some fields of its first
# example; and some settings of the task.
PUBLISHED: dict[str, tuple[tuple[str, ...], str, dict[str, Any], dict[str, Any]]] = {
    "cola": (
        WHOLE,
        table("gj04 | 0 | * | They drank the pub.", "gj04 | 1 | | They drank."),
        {"text": "They drank the pub.", "text_pair": None, "label": "0"},
        {"metric": "matthews"},
    ),
    "sst2": (
        WHOLE,
        table("sentence | label", "hide new secretions | 0"),
        {"text": "hide new secretions", "text_pair": None, "label": "0"},
        SCORED,
    ),
    "mrpc": (
        WHOLE,
        table("Quality | #1 ID | #2 ID | #1 String | #2 String", '1 | 702876 | 702977 | A "cat . | A dog .'),
        {"text": 'A "cat .', "text_pair": "A dog .", "label": "1"},
        F1,
    ),
    "stsb": (WHOLE, STSB, {"text": "A cat.", "text_pair": "A dog.", "label": 3.8}, {"metric": "spearman"}),
    "qqp": (WHOLE, QQP, {"text": "Who sat?", "text_pair": "Whose hat?", "label": "1"}, F1),
    "mnli": (
        ("train.tsv", "dev_matched.tsv"),
        MNLI,
        {"text": "A cat.", "text_pair": "A dog.", "label": "neutral"},
        SCORED,
    ),
    "mnli_mismatched": (
        ("train.tsv", "dev_mismatched.tsv"),
        MNLI,
        {"text": "A cat.", "text_pair": "A dog.", "label": "neutral"},
        SCORED,
    ),
    "qnli": (
        WHOLE,
        table("index | question | sentence | label", "0 | Who sat? | A cat sat. | entailment"),
        {"text": "Who sat?", "text_pair": "A cat sat.", "label": "entailment"},
        SCORED,
    ),
    "rte": (
        WHOLE,
        table("index | sentence1 | sentence2 | label", "0 | A cat sat. | A dog sat. | not_entailment"),
        {"text": "A cat sat.", "text_pair": "A dog sat.", "label": "not_entailment"},
        SCORED,
    ),
    "wnli": (
        WHOLE,
        table("index | sentence1 | sentence2 | label", "0 | A cat sat. It slept. | The cat slept. | 1"),
        {"text": "A cat sat. It slept.", "text_pair": "The cat slept.", "label": "1"},
        SCORED,
    ),
    "swag": (
        ("train.csv", "val.csv"),
        SWAG,
        {"prompt": "A cat.", "endings": ("It sits.", "It runs.", "It eats, then sleeps.", "It flies."), "label": 2},
        SCORED,
    ),
    "codah": (
        ("train.tsv", "dev.tsv", "test.tsv"),
        table("n | The cat cannot fly. It | flies. | sings. | walks. | swims. | 2"),
        {"prompt": "The cat cannot fly. It", "endings": ("flies.", "sings.", "walks.", "swims."), "label": 2},
        SCORED,
    ),
    "squad": (
        ("train-v1.1.json", "dev-v1.1.json"),
        squad({"answers": [{"text": "A cat", "answer_start": 0}]}, "1.1"),
        {"question": "Who sat?", "context": "A cat sat.", "answers": (("A cat", 0, False),), "is_impossible": False},
        {"metric": "f1", "allow_no_answer": False},
    ),
    "squad_v2": (
        ("train-v2.0.json", "dev-v2.0.json"),
        squad({"answers": [], "is_impossible": True, "plausible_answers": []}, "v2.0"),
        {"question": "Who sat?", "context": "A cat sat.", "answers": (), "is_impossible": True},
        {"metric": "f1", "allow_no_answer": True},
    ),
    "korquad": (
        ("KorQuAD_v1.0_train.json", "KorQuAD_v1.0_dev.json"),
        squad({"answers": [{"text": "cat", "answer_start": 2}]}, "KorQuAD_v1.0_train"),
        {"question": "Who sat?", "context": "A cat sat.", "answers": (("cat", 2, False),), "is_impossible": False},
        {"metric": "f1", "allow_no_answer": False, "scoring": "korquad"},
    ),
    "conll2003": (
        ("train.txt", "valid.txt", "test.txt"),
        CONLL2003,
        {"words": ("EU", "sat"), "tags": ("B-ORG", "O"), "before": (), "after": (("Peter",),)},  # without Ann
        SPANS | {"max_length": 512},
    ),
    "conll2000": (
        ("train.txt", "dev.txt", "test.txt"),
        table("A DT B-NP", "cat NN I-NP", "sat VBD B-VP", "", "Peter NNP B-NP"),
        {"words": ("A", "cat", "sat"), "tags": ("B-NP", "I-NP", "B-VP"), "before": (), "after": ()},
        SPANS,
    ),
    "ud_pos": (
        ("en_ewt-ud-train.conllu", "en_ewt-ud-dev.conllu", "en_ewt-ud-test.conllu"),
        UD,
        {"words": ("A", "cat"), "tags": ("DET", "NOUN")},
        {"metric": "accuracy", "scheme": None},
    ),
    "nsmc": (
        ("ratings_train.txt", "ratings_dev.txt", "ratings_test.txt"),
        table("id | document | label", '9976970 | "더빙.. 목소리 | 0'),
        {"text": '"더빙.. 목소리', "text_pair": None, "label": "0"},
        SCORED,
    ),
}


def test_every_preset_has_a_sample() -> None:
    assert set(PUBLISHED) == set(PRESETS)


def test_a_folder_of_data_that_has_moved_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x: no such folder$"):
        TaskSettings("codah", data=tmp_path / "x").files("train")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_files_are_read(tmp_path: Path, name: str) -> None:
    files, content, example, settings = PUBLISHED[name]
    (tmp_path / "test.tsv").touch()  # GLUE's test file has no labels, so it is not scored
    for file in files:
        (tmp_path / file).write_text(content, encoding="utf-8")
    published = TaskSettings(name, data=tmp_path)
    found = [[Path(path).name for path in published.files(split)] for split in ("train", "dev", "test")]
    assert found == [[file] for file in files] + [[]] * (3 - len(files))
    task = published.build_task()
    first, *_ = task.read(*published.files("train"))
    assert {key: getattr(first, key) for key in example} == example
    assert {key: getattr(task, key) for key in settings} == settings


@pytest.mark.parametrize(
    ("made", "name"),
    [
        (lambda: TaskSettings("classification", train="train.tsv"), "train"),  # type: ignore[arg-type]
        (lambda: TaskOptions(endings="abcd"), "endings"),  # type: ignore[arg-type]
        (lambda: PredictSettings("model", texts="hey"), "texts"),  # type: ignore[arg-type]
        (lambda: PredictSettings("model", inputs="a.tsv", output=Path("b.tsv")), "inputs"),  # type: ignore[arg-type]
        (lambda: EvaluateSettings("model", "dev.tsv"), "inputs"),  # type: ignore[arg-type]
        (lambda: FillMaskSettings("model", "a [MASK]"), "texts"),  # type: ignore[arg-type]
        (lambda: EmbedSettings("model", "good"), "texts"),  # type: ignore[arg-type]
        (lambda: EmbedSettings("model", inputs="my-file.txt"), "inputs"),  # type: ignore[arg-type]
    ],
)
def test_one_string_for_several_is_rejected(made: Callable[[], Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected a tuple of strings"):
        made()


def test_options_are_the_options_of_the_task_types() -> None:
    options = get_type_hints(TaskOptions)
    of_types = [(cls, option.name) for cls in TASK_TYPES.values() for option in options_of(cls)]
    assert options == {name: get_type_hints(cls)[name] | None for cls, name in of_types}
    assert not options.keys() & {"labels", "threshold", "mean", "scale", "max_short_rows"}
    docs = field_docs(TaskOptions)
    assert docs.keys() == options.keys()
    assert "Classification, multi-label, regression, multiple-choice, reranking: longest sequence" in docs["max_length"]
    assert "several windows [384]." in docs["max_length"]
    assert docs["doc_stride"].startswith("Question-answering: ")
    assert "[ending0 ending1 ending2 ending3]" in docs["endings"]
    with pytest.raises(ValueError, match=r"--doc-stride: not an option of tagging"):
        TaskOptions(doc_stride=3).apply_to(TASK_TYPES["tagging"]())


@pytest.mark.parametrize(
    ("kind", "name", "content"),
    [
        ("classification", "a.csv", "text,label\né,1\n"),
        ("regression", "a.json", '[{"text": "é", "label": 1}]'),
        ("multiple-choice", "a.tsv", "prompt\tending0\tending1\tending2\tending3\tlabel\né\ta\tb\tc\td\t1\n"),
        ("tagging", "a.conll", "é\tO\n"),
        ("tagging", "a.jsonl", '{"words": ["é"], "tags": ["O"]}\n'),
        ("question-answering", "a.jsonl", '{"question": "é", "context": "é", "answers": [{"text": "é"}]}\n'),
    ],
)
def test_files_of_every_task_type_are_read_in_their_encoding(
    kind: str, name: str, content: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("latin-1"))
    (example,) = TaskOptions(encoding="latin-1").apply_to(TASK_TYPES[kind]()).read(str(path))
    assert "é" in str(example)
    with pytest.raises(ValueError, match=r"byte \d+: e9 is not UTF-8 text.*--encoding"):
        list(TASK_TYPES[kind]().read(str(path)))
    with pytest.raises(ValueError, match="encoding is 'latin-99'"):
        TaskOptions(encoding="latin-99").apply_to(TASK_TYPES[kind]())
