"""Re-ranking: candidates from tables of every layout, losses, scores, folders of CrossEncoder, and `rank`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss, MarginMSELoss, MSELoss

import bertwright
from bertwright.cli.main import run
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.tasks.collation import collate, micro_batches
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.ranking_examples import RankingExample, score_candidates
from bertwright.tasks.reranking import Reranking
from bertwright.tasks.task_folder import TaskModel, read_task, save_task_folder
from bertwright.tasks.task_types import TaskOptions
from bertwright.training.optimizer_settings import OptimizerSettings
from bertwright.vocabulary.wordpiece_tokenizer import SPECIAL_TOKENS, Tokenizer
from helpers import CPU
from small_runs import LOCATIONS, NOUNS, VERBS

TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *"abcdefgh"], lowercase=True)
CONFIG = BertConfig(13, 16, 1, 2, 32, max_positions=32, hidden_dropout=0.0, attention_dropout=0.0)
EXAMPLES = [
    RankingExample("a b", ("c d", "a", "e f g"), (0, 1, 0), (0.5, 2.0, -1.0), "line 1"),
    RankingExample("c", ("c c", "h"), (1, 0), (3.0, 0.0), "line 4"),
    RankingExample("e", ("b", "f", "e", "e g"), (0, 0, 1, 2), (0.0, 1.0, 4.0, 5.0), "line 6"),
]
PAIRS = [(example.query, text) for example in EXAMPLES for text in example.texts]


def make_model(loss: str = "binary", seed: int = 3) -> tuple[Reranking, EncoderForTask]:
    task = Reranking(ranking_loss=loss, max_length=32).with_labels_of(EXAMPLES)
    model = EncoderForTask(BertEncoder(CONFIG, seed=seed), task.head, seed).eval()
    torch.nn.init.normal_(model.head.get_submodule("classifier").weight, generator=torch.Generator().manual_seed(0))
    return task, model


def save(folder: Path, loss: str) -> Path:
    task, model = make_model(loss)
    save_task_folder(folder, TaskModel(model, task), TOKENIZER)
    return folder


# Tables


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "Question\tSentence\tLabel\na\tb\t1\na\tc\t0\nd\te\t0\na\tf\t1\n"),
        ("a.csv", "query,text,label\na,b,1\na,c,0\nd,e,0\na,f,1\n"),
        ("a.jsonl", '{"query": "a", "pos": ["b", "f"], "neg": ["c"]}\n{"query": "d", "pos": ["x"], "neg": ["e"]}\n'),
        ("b.jsonl", '{"anchor": "a", "positive": "b", "negative_1": "c"}\n{"anchor": "a", "positive": "f"}\n'),
        ("a.parquet", ""),
    ],
)
def test_rows_of_a_query_are_one_example(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    if name.endswith(".parquet"):
        import polars

        table = {"anchor": ["a", "a"], "positive": ["b", "f"], "negative_1": ["c", "c"]}
        polars.DataFrame(table).write_parquet(path)
    else:
        path.write_text(content)
    first = next(iter(Reranking().read(str(path))))
    assert first.query == "a"
    assert dict(zip(first.texts, first.grades or (), strict=True)) == {"b": 1, "f": 1, "c": 0}


def test_unlabeled_rows_are_examples_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("query\ttext\na\tb\na\tc\n")
    read = list(Reranking().read(str(tmp_path / "a.tsv"), labeled=False))
    assert [(one.query, one.texts, one.grades) for one in read] == [("a", ("b",), None), ("a", ("c",), None)]


def test_a_text_that_one_row_marks_as_relevant_is_relevant(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("query\ttext\tlabel\na\tb\t1\na\tb\t0\na\tc\t0\n")
    with pytest.warns(UserWarning, match="line 3"):
        (example,) = Reranking().read(str(tmp_path / "a.tsv"))
    assert (example.texts, example.grades) == (("b", "c"), (1, 0))


def test_scores_of_a_teacher_are_no_labels(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("query\ttext\tscore\na\tb\t0.9\na\tc\t0.1\n")
    with pytest.raises(ValueError, match=r"line 2: .*'score', got 0.9.*--ranking-loss mse"):
        list(Reranking().read(str(tmp_path / "a.tsv")))
    (example,) = Reranking(ranking_loss="mse").read(str(tmp_path / "a.tsv"))
    assert (example.grades, example.scores) == (None, (0.9, 0.1))


def test_a_table_of_single_texts_names_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabel\na\t1\nb\t0\n")
    with pytest.raises(ValueError, match=r"a.tsv: .*anchor = text, label = label.*--columns anchor=query"):
        Reranking().read(str(tmp_path / "a.tsv"))


# Losses


def loss_and_gradient(task: Reranking, logits: list[float]) -> tuple[float, list[float]]:
    """Return the mean loss of all examples for logits of their training sequences, and its gradient."""
    batch = collate(encoded := task.encode(EXAMPLES, TOKENIZER), np.arange(encoded.num_items))
    values = torch.tensor(logits, dtype=torch.float64).requires_grad_()
    loss = task.loss(values[:, None], batch) / batch.num_labels
    loss.backward()
    return loss.item(), values.grad.tolist()


LOGITS = [0.3, -1.0, 2.0, 0.5, 0.1, -0.4, 1.2, 0.0, -2.0]  # of PAIRS


class FixedScores(CrossEncoder):
    """A model of sentence-transformers that gives the numbers that it is told."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.numbers = torch.zeros(0)

    num_labels = 1
    device = torch.device("cpu")

    def preprocess(self, pairs: list[tuple[str, str]], **_: object) -> dict[str, torch.Tensor]:
        rows = dict(zip(PAIRS, self.numbers, strict=True))
        return {"scores": torch.stack([rows[pair] for pair in pairs])[:, None]}

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return features


def test_binary_and_teachers_losses_equal_sentence_transformers() -> None:
    theirs = FixedScores()
    queries, texts = [query for query, _ in PAIRS], [text for _, text in PAIRS]
    labels = torch.tensor([float(grade > 0) for example in EXAMPLES for grade in example.grades or ()])
    scores = torch.tensor([score for example in EXAMPLES for score in example.scores or ()])
    task, _ = make_model("binary")
    assert task.positive_weight == 5 / 4
    for loss, reference, target in (
        ("binary", BinaryCrossEntropyLoss(theirs, pos_weight=torch.tensor(task.positive_weight)), labels),
        ("mse", MSELoss(theirs), scores),
    ):
        theirs.numbers = torch.tensor(LOGITS).requires_grad_()
        value = reference([queries, texts], target)
        value.backward()
        ours = loss_and_gradient(replace(task, ranking_loss=loss), LOGITS)
        assert ours[0] == pytest.approx(value.item(), rel=1e-6)
        assert ours[1] == pytest.approx(theirs.numbers.grad.tolist(), abs=1e-6)


def test_margin_loss_equals_sentence_transformers() -> None:
    triples = [
        (one, p, n) for one in EXAMPLES for p, high in enumerate(one.grades or ()) if high
        for n, low in enumerate(one.grades or ()) if not low
    ]  # fmt: skip
    theirs = FixedScores()
    theirs.numbers = torch.tensor(LOGITS).requires_grad_()
    margins = torch.tensor([one.scores[p] - one.scores[n] for one, p, n in triples])
    inputs = [
        [one.query for one, _, _ in triples],
        [one.texts[p] for one, p, _ in triples],
        [one.texts[n] for one, _, n in triples],
    ]
    value = MarginMSELoss(theirs)(inputs, margins)
    rows = dict(zip(PAIRS, LOGITS, strict=True))
    logits = [rows[one.query, one.texts[place]] for one, p, n in triples for place in (p, n)]
    task, _ = make_model("margin")
    assert loss_and_gradient(task, logits)[0] == pytest.approx(value.item(), rel=1e-6)


def test_loss_of_candidates_is_a_softmax_over_a_positive_and_its_negatives() -> None:
    task, _ = make_model("candidates")
    encoded = task.encode(EXAMPLES, TOKENIZER)
    assert encoded.item_counts.tolist() == [3, 2, 3, 3]  # the third query has two positives
    assert encoded.example_ids.tolist() == [0] * 3 + [1] * 2 + [2] * 6
    logits = [-1.0, 0.3, 2.0, 0.5, 0.1, 0.0, -0.4, 1.2, -2.0, -0.4, 1.2]  # each positive first
    lists = [
        torch.tensor(logits[a:b], dtype=torch.float64).requires_grad_() for a, b in ((0, 3), (3, 5), (5, 8), (8, 11))
    ]
    value = sum(-F.log_softmax(scores, 0)[0] for scores in lists) / 4
    value.backward()
    ours = loss_and_gradient(task, logits)
    assert ours[0] == pytest.approx(value.item())
    assert ours[1] == pytest.approx([number for scores in lists for number in scores.grad.tolist()])


@pytest.mark.parametrize("loss", ["binary", "candidates", "margin"])
def test_micro_batches_add_up_to_the_step(loss: str) -> None:
    task, model = make_model(loss)
    encoded = task.encode(EXAMPLES, TOKENIZER)
    totals = []
    for max_tokens in (1, 1_000):
        made = micro_batches(encoded, 0, 4, 0, max_tokens)
        assert len(made) == (4 if max_tokens == 1 else 1)
        totals.append(sum(task.loss(model(batch), batch).item() / batch.num_labels for batch in made))
    assert totals[0] == pytest.approx(totals[1], abs=1e-6)


# Scores


def test_scores_of_a_query_are_those_worked_by_hand() -> None:
    ndcg = (1 / math.log2(3) + 2 / math.log2(4)) / (2 + 1 / math.log2(3))
    assert score_candidates((0, 1, 2), (0.9, 0.8, 0.1)) == pytest.approx((ndcg, 1 / 2, (1 / 2 + 2 / 3) / 2))
    assert score_candidates([1] + [0] * 10, range(11))[:2] == (0, 0)  # at rank 11


def test_equal_scores_do_not_profit_from_the_order_of_the_file() -> None:
    assert score_candidates((1, 0, 0), (0.5, 0.5, 0.5)) == pytest.approx((1 / 2, 1 / 3, 1 / 3))
    task = Reranking()
    assert "0.5" in task.single_class_warnings([(0.5, 0.5), (0.5,)])[0]
    assert not task.single_class_warnings([(0.5, 0.6)])


def test_queries_without_a_relevant_text_are_not_scored() -> None:
    task = Reranking(metric="map")
    examples = [*EXAMPLES, RankingExample("g", ("a", "b"), (0, 0), None, "line 9")]
    predictions = [(0.0, 1.0, 0.0), (1.0, 0.0), (0.0, 0.0, 0.4, 0.5), (1.0, 0.0)]
    assert task.score(examples, predictions) == pytest.approx({"ndcg@10": 1, "mrr@10": 1, "map": 1})
    assert "1 of 4" in task.warnings(examples)[0]
    assert "line 9" in task.warnings(examples)[0]
    assert task.example_scores(examples, predictions).values.tolist() == [[1.0]] * 3


# Folders


@pytest.mark.parametrize("loss", ["binary", "candidates"])
def test_scores_of_a_saved_folder_equal_cross_encoder(tmp_path: Path, loss: str) -> None:
    folder = save(tmp_path / "model", loss)
    theirs = CrossEncoder(str(folder), device="cpu").predict(PAIRS)
    ranked = [one for example in EXAMPLES for one in sorted(bertwright.load(folder, "cpu").rank(*example[:2]))]
    assert [one.score for one in ranked] == pytest.approx(theirs.tolist(), abs=1e-6)
    assert all(isinstance(one.score, float) for one in ranked)


@pytest.mark.parametrize("activation", ["torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"])
@pytest.mark.parametrize("layout", ["6", "4", "3"])
def test_folders_of_cross_encoder_are_re_rankers(tmp_path: Path, activation: str, layout: str) -> None:
    written = CrossEncoder(str(save(tmp_path / "source", "binary")), device="cpu")
    written.activation_fn = torch.nn.Sigmoid() if "Sigmoid" in activation else torch.nn.Identity()
    theirs = written.predict(PAIRS)
    written.save_pretrained(str(folder := tmp_path / "written"))
    config = json.loads((folder / "config.json").read_text())
    config.pop("sentence_transformers", None)
    if layout != "6":
        (folder / "config_sentence_transformers.json").unlink()
        name = {"4": "sentence_transformers", "3": "sbert_ce_default_activation_function"}[layout]
        config[name] = {"activation_fn": activation} if layout == "4" else activation
    (folder / "config.json").write_text(json.dumps(config))
    loaded = bertwright.load(folder, "cpu")
    assert loaded.task.score_name == ("probability" if "Sigmoid" in activation else "score")
    ranked = [one.score for example in EXAMPLES for one in sorted(loaded.rank(*example[:2]))]
    assert ranked == pytest.approx(theirs.tolist(), abs=1e-6)


def test_another_activation_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", "binary")
    config = json.loads((folder / "config.json").read_text())
    config["sentence_transformers"]["activation_fn"] = "torch.nn.modules.activation.Tanh"
    (folder / "checksums.json").unlink()
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config.json: activation_fn: .*Tanh"):
        bertwright.load(folder, "cpu")


# Use


def test_rank_returns_the_first_texts_with_their_positions(tmp_path: Path) -> None:
    model = bertwright.load(save(tmp_path / "model", "candidates"), "cpu")
    texts = ["a", "b c", "d", "e f"]
    ranked = model.rank("a b", texts)
    assert sorted(one.position for one in ranked) == [0, 1, 2, 3]
    assert [one.score for one in ranked] == sorted((one.score for one in ranked), reverse=True)
    assert all(one.text == texts[one.position] for one in ranked)
    assert model.rank("a b", texts, top_k=2) == ranked[:2]
    assert model.rank("a b", []) == []


def test_rank_names_what_is_wrong_and_the_way_out(tmp_path: Path, tiny_bert: Path) -> None:
    model = bertwright.load(save(tmp_path / "model", "binary"), "cpu")
    for arguments, message in (
        (("a", ["b", " "]), "text 1: .*empty"),
        (("", ["b"]), "query: .*empty"),
        (("a", "b"), "texts: expected a list"),
        (("a", ["b"], 0), "top_k: .*got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            model.rank(*arguments)
    with pytest.raises(ValueError, match="finetune --task reranking"):
        bertwright.load(tiny_bert, "cpu").rank("a", ["b"])


@pytest.mark.parametrize(
    ("loss", "grades", "scores", "message"),
    [
        ("binary", (1, 1), None, "line 1: .*all texts are marked as relevant; .*mine-negatives"),
        ("binary", (0, 0), None, "line 1: .*no text is marked as relevant"),
        ("mse", None, (0.5, 0.5), "line 1: .*all scores are 0.5"),
        ("margin", (1, 0), None, "line 1: expected a teacher's score"),
        ("binary", None, (0.5, 0.7), "line 1: .*not known"),
    ],
)
def test_nothing_to_compare_is_an_error(
    loss: str, grades: tuple[int, ...] | None, scores: tuple[float, ...] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Reranking(ranking_loss=loss).with_labels_of([RankingExample("a", ("b", "c"), grades, scores, "line 1")])


def test_no_query_with_a_relevant_text_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"line 1: .*no score is defined"):
        Reranking().check([RankingExample("a", ("b", "c"), (0, 0), None, "line 1")])


@pytest.fixture(scope="module")
def ranking_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.jsonl and dev.tsv: a text is relevant if it has one of half the nouns."""
    folder, rng = tmp_path_factory.mktemp("ranking"), np.random.default_rng(0)
    rows, lines = [], ["query\ttext\tlabel"]
    for number in range(160):
        query = f"the {NOUNS[number % 10]} {VERBS[number // 10 % 5]} in the {LOCATIONS[number // 50]}"
        positive, *negatives = [
            f"the {noun} sees" for noun in (rng.choice(NOUNS[:5]), *rng.choice(NOUNS[5:], 2, False))
        ]
        rows.append({"query": query, "positive": positive, "negative_1": negatives[0], "negative_2": negatives[1]})
        lines += [f"{query} .\t{text}\t{int(text == positive)}" for text in (positive, *negatives)]
    (folder / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "dev.tsv").write_text("\n".join(lines[:121]) + "\n")
    return folder


@pytest.mark.parametrize("loss", ["binary", "candidates"])
def test_a_run_learns_the_order_and_its_folder_is_used(
    tmp_path: Path, tiny_bert: Path, ranking_files: Path, loss: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {"train": (str(ranking_files / "train.jsonl"),), "dev": (str(ranking_files / "dev.tsv"),)}
    task = TaskSettings("reranking", **files, overrides=TaskOptions(ranking_loss=loss))
    optimizer = OptimizerSettings(learning_rate=3e-3, warmup_ratio=0.1, bias_correction=True)
    folder = finetune(
        FinetuneSettings(
            tmp_path / "run", task, str(tiny_bert), epochs=2.0, batch_size=16, optimizer=optimizer, device=CPU
        )
    )
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["scores"]["dev"]["ndcg@10"] > 0.8
    assert set(report["linear_floor"]) == {"linear model (words of both texts)"}
    assert isinstance(read_task(folder), Reranking)
    name = "probability" if loss == "binary" else "score"
    (tmp_path / "rows.tsv").write_text("query\ttext\nthe bear\tthe bear sees\nthe bear\tthe fox sees\n")
    arguments = [
        "predict",
        str(folder),
        "--inputs",
        str(tmp_path / "rows.tsv"),
        "--output",
        str(tmp_path / "out.jsonl"),
    ]
    assert run([*arguments, "--keep-columns", "text"]) == 0
    assert [set(json.loads(line)) for line in (tmp_path / "out.jsonl").open()] == [{name, "text"}] * 2
    assert run(["predict", str(folder), "the bear", "the bear sees", "the fox sees"]) == 0
    assert name in capsys.readouterr().out
    assert run(["evaluate", str(folder), str(ranking_files / "dev.tsv"), "--output", str(tmp_path / "s.json")]) == 0
    assert json.loads((tmp_path / "s.json").read_text())["map"] == pytest.approx(report["scores"]["dev"]["map"])
