"""Training of text vectors: runs, their folders, parts of a step, ranks, resume, and what a user hears of bad data."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor

import bertwright
from bertwright.base.files import read_json
from bertwright.base.reporter import MUTE
from bertwright.base.settings import from_table
from bertwright.finetuning import finetune_state
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.tables.retrieval_folders import RetrievalSet
from bertwright.tables.text_roles import TextRow
from bertwright.tasks.collation import split_step
from bertwright.tasks.embedding import Embedding
from bertwright.tasks.embedding_batches import TEXTS_PER_CLASS, FileOrder, label_texts
from bertwright.tasks.embedding_data import RetrievalExample
from bertwright.tasks.embedding_objective import VectorObjective
from bertwright.tasks.prediction import prediction_batches
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_types import TaskOptions
from bertwright.training import checkpoint, throughput
from bertwright.training.whole_batch_loss import RowOutput, WholeBatchLoss, backward
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from harness import check_interrupted_run, interrupt_at_step, read_untimed, run_and_capture, run_on_ranks, same_weights
from small_runs import FILLERS, NOUNS

Make = Callable[..., FinetuneSettings]


def sentence(rng: np.random.Generator, noun: int) -> str:
    words = [NOUNS[noun], *rng.choice(FILLERS, int(rng.integers(2, 7)))]
    return " ".join(rng.permutation(words))


def write_tables(folder: Path) -> None:
    """Write tables of pairs about the same noun, of rated pairs, of classes and of texts alone."""
    rng = np.random.default_rng(3)
    pairs = [(sentence(rng, n % 10), sentence(rng, n % 10)) for n in range(120)]
    rated = [(*pair, 5.0) for pair in pairs[:40]]
    rated += [(sentence(rng, n % 10), sentence(rng, (n + 1 + n % 7) % 10), 0.5 + 0.01 * n) for n in range(40)]
    classes = [(sentence(rng, n % 10), f"class {n % 10}") for n in range(80)]
    tables = {
        "pairs": ("question\tanswer", pairs),
        "rated": ("sentence1\tsentence2\tscore", rated),
        "classes": ("text\tlabel", classes),
        "texts": ("text", [(pair[0],) for pair in pairs]),
    }
    for name, (header, rows) in tables.items():
        lines = [header, *("\t".join(map(str, row)) for row in rows)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    write_tables(folder)
    return folder


@pytest.fixture
def make_run(make_tuning: Make, tables: Path) -> Make:
    """Return a function from the name of a training table, options and changed fields to settings of a run."""

    def make(run: Path, train: str, options: dict[str, Any] | None = None, dev: str = "rated", **more: Any) -> Any:
        files = {"train": (str(tables / f"{train}.tsv"),), "dev": (str(tables / f"{dev}.tsv"),)}
        task = TaskSettings("embedding", **files, overrides=TaskOptions(**(options or {})))
        return make_tuning(run, **({"task": task, "epochs": 2.0} | more))

    return make


def dev_scores(run: Path) -> dict[str, float]:
    return {name: scores["spearman_cosine"] for name, scores in read_json(run / "report.json")["scores"].items()}


@pytest.mark.parametrize("train", ["pairs", "rated", "classes"])
def test_run_learns_from_each_kind_of_columns(train: str, tmp_path: Path, make_run: Make) -> None:
    finetune(make_run(tmp_path / "run", train, dev="rated"), MUTE)
    scores = dev_scores(tmp_path / "run")
    assert scores["dev"] > scores["dev before"] + 0.1
    evaluated = [record for record in read_untimed(tmp_path / "run") if record["kind"] == "dev"]
    assert evaluated[0]["step"] == 0


def test_a_run_whose_first_weights_could_not_be_written_resumes(
    tmp_path: Path, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken = finetune(make_run(tmp_path / "unbroken", "pairs"), MUTE)
    settings = make_run(tmp_path / "broken", "pairs")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(checkpoint, "save", raise_full_disk)
        finetune(settings, MUTE)
    assert [record["step"] for record in read_untimed(tmp_path / "broken")] == [0]
    resumed = finetune(replace(settings, resume=True), MUTE)
    assert same_weights(unbroken, resumed)
    assert read_untimed(tmp_path / "unbroken") == read_untimed(tmp_path / "broken")


def raise_full_disk(*_: Any) -> None:
    raise OSError("full")


@pytest.mark.parametrize("train", ["pairs", "texts"])
def test_run_without_dev_files_gives_a_folder_that_loads(train: str, tmp_path: Path, make_run: Make) -> None:
    settings = make_run(tmp_path / "run", train, epochs=0.5)
    folder = finetune(replace(settings, task=replace(settings.task, dev=())), MUTE)
    assert bertwright.load(folder).embed(["the bear sees"]).shape == (1, 32)


def test_best_weights_may_be_the_ones_before_training(tmp_path: Path, make_run: Make, tiny_bert: Path) -> None:
    optimizer = replace(make_run(tmp_path / "run", "texts").optimizer, learning_rate=1e-9)
    settings = make_run(tmp_path / "run", "texts", optimizer=optimizer)
    text = run_and_capture(finetune, settings)
    report = read_json(settings.run / "report.json")
    assert report["best_step"] == 0
    assert "dev after step 0" in text
    before, after = (bertwright.load(folder).embed("the bear sees", "mean") for folder in (tiny_bert, settings.run))
    np.testing.assert_allclose(before, after, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_sentence_transformers_reads_the_folder(pooling: str, tmp_path: Path, make_run: Make) -> None:
    prompts = ("query=find the ", "document=the ")
    options = {"prompts": prompts, "max_length": 20, "dims": (32, 8)}
    folder = finetune(make_run(tmp_path / "run", "pairs", options, pooling=pooling), MUTE)
    theirs, ours = SentenceTransformer(str(folder), device="cpu"), bertwright.load(folder)
    texts = ["the bear sees the forest", "the", "the bear " * 30]
    assert theirs.prompts == {"query": "find the ", "document": "the "}
    assert theirs.max_seq_length == 20
    for name in (None, "query", "document"):
        expected = theirs.encode(texts, prompt_name=name, show_progress_bar=False)
        with pytest.warns(UserWarning, match="lose tokens"):
            vectors = ours.embed(texts, prompt_name=name)
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-6)
    modules = json.loads((folder / "modules.json").read_text())
    assert [row["type"].rpartition(".")[2] for row in modules] == ["Transformer", "Pooling", "Normalize"]
    assert {row["type"].rpartition(".")[0] for row in modules} == {"sentence_transformers.models"}
    assert json.loads((folder / "1_Pooling" / "config.json").read_text())[
        f"pooling_mode_{pooling}_token" + "s" * (pooling == "mean")
    ]


def test_longest_text_of_the_folder_is_the_models(tmp_path: Path, make_run: Make) -> None:
    folder = finetune(make_run(tmp_path / "run", "texts", epochs=0.5), MUTE)
    positions = read_json(folder / "config.json")["max_position_embeddings"]
    theirs = SentenceTransformer(str(folder), device="cpu")
    assert theirs.max_seq_length == positions < Embedding().max_length
    expected = theirs.encode("the bear " * positions, show_progress_bar=False)
    with pytest.warns(UserWarning, match="lose tokens"):
        np.testing.assert_allclose(bertwright.load(folder).embed("the bear " * positions), expected, atol=1e-6)


def test_training_goes_on_from_a_trained_folder_with_its_settings(tmp_path: Path, make_run: Make) -> None:
    options = {"prompts": ("query=the ",), "max_length": 20}
    first = finetune(make_run(tmp_path / "first", "pairs", options, pooling="cls"), MUTE)
    second = finetune(make_run(tmp_path / "second", "pairs", model=str(first), epochs=0.5), MUTE)
    task = read_json(second / "task.json")
    assert (task["pooling"], task["prompts"], task["max_length"]) == (["cls"], ["query=the "], 20)


def test_interrupted_run_resumes_to_the_same_bits(
    tmp_path: Path, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "CPU_TOKENS", 64)
    monkeypatch.setattr(throughput, "GRAPH_MEMORY", 1)
    settings = make_run(tmp_path / "whole", "pairs", {"prompts": ("query=the ",), "dims": (32, 8)}, pooling="cls")
    settings = replace(settings, task=replace(settings.task, test=settings.task.dev))
    broken = check_interrupted_run(finetune, settings, 6, monkeypatch)
    whole, again = (read_json(run / "report.json") for run in (settings.run, broken.run))
    assert {*whole["scores"]} == {"dev before", "dev", "test before", "test"}
    assert {*whole["gain"]} == {"dev", "test"}
    assert [again[name] for name in ("scores", "gain")] == [whole[name] for name in ("scores", "gain")]


def test_a_decoder_learns_and_is_resumed_to_the_same_bits(
    tmp_path: Path, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "CPU_TOKENS", 64)
    settings = make_run(tmp_path / "whole", "texts", {"vector_loss": "tsdae"}, save_every=1, epochs=4.0)
    check_interrupted_run(finetune, settings, 6, monkeypatch)
    losses = [record["loss"] for record in read_untimed(settings.run) if record["kind"] == "train"]
    assert losses[-1] < 0.9 * losses[0]
    folder = settings.run / "model"
    texts = ["the bear sees", "a wolf"]
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts, normalize_embeddings=True)
    np.testing.assert_allclose(bertwright.load(folder, "cpu").embed(texts, normalize=True), theirs, atol=1e-6)


def run_until_killed(settings: FinetuneSettings, calls: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Train in a process that a SIGKILL ends before it computes this many parts of steps; return whether it did."""

    def work() -> None:
        counted = itertools.count(1)

        def count(*arguments: Any) -> Any:
            if next(counted) > calls:
                os.kill(os.getpid(), signal.SIGKILL)
            return compute(*arguments)

        monkeypatch.setattr(finetune_state, "count_sizes", count)  # called once per part and pass
        finetune(replace(settings, resume=(settings.run / "settings.toml").exists()), MUTE)

    compute = finetune_state.count_sizes
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.slow
def test_run_killed_inside_its_steps_ends_with_the_same_bits(
    tmp_path: Path, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throughput, "CPU_TOKENS", 64)
    monkeypatch.setattr(throughput, "GRAPH_MEMORY", 1)
    settings = make_run(tmp_path / "whole", "pairs", {"dims": (32, 8)}, save_every=1)
    parts = itertools.count()
    compute = finetune_state.count_sizes
    with monkeypatch.context() as patch:
        patch.setattr(finetune_state, "count_sizes", lambda *given: (next(parts), compute(*given))[1])
        finetune(settings, MUTE)
    num_calls, steps = next(parts), read_json(settings.run / "report.json")["steps"]
    assert num_calls > 4 * steps  # a step has several parts in two passes
    rng, kills, broken = np.random.default_rng(0), 0, replace(settings, run=tmp_path / "broken")
    while kills < 20:
        killed = run_until_killed(broken, int(rng.integers(num_calls // 2)), monkeypatch)
        kills += killed
        if not killed:
            assert same_weights(settings.run / "model", broken.run / "model")
            shutil.rmtree(broken.run)
    run_until_killed(broken, num_calls + 1, monkeypatch)
    assert same_weights(settings.run / "model", broken.run / "model")
    assert read_json(broken.run / "report.json")["scores"] == read_json(settings.run / "report.json")["scores"]


def test_resumed_run_reports_the_gain_of_weights_that_an_earlier_process_found(
    tmp_path: Path, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = replace(make_run(tmp_path / "run", "texts").optimizer, learning_rate=1e-9)
    settings = make_run(tmp_path / "run", "texts", optimizer=optimizer)
    with interrupt_at_step(3, monkeypatch):
        finetune(settings, MUTE)
    finetune(replace(settings, resume=True), MUTE)
    report = read_json(settings.run / "report.json")
    assert report["best_step"] == 0
    assert report["gain"]["dev"]["mean"] == 0


@pytest.mark.parametrize(
    ("train", "loss"),
    [
        ("pairs", None),
        pytest.param("rated", None, marks=pytest.mark.slow),
        pytest.param("classes", None, marks=pytest.mark.slow),
        ("texts", "tsdae"),
    ],
)
def test_two_ranks_compute_the_same_as_one(train: str, loss: str | None, tmp_path: Path, make_run: Make) -> None:
    alone = make_run(tmp_path / "alone", train, {"vector_loss": loss}, log_every=1, epochs=0.5)
    finetune(alone, MUTE)
    together = replace(alone, run=tmp_path / "together")
    run_on_ranks(2, finetune, together, MUTE)
    for one, two in zip(read_untimed(alone.run), read_untimed(together.run), strict=True):
        if one["kind"] == "train":
            assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
            assert two["gradient_norm"] == pytest.approx(one["gradient_norm"], rel=1e-4)


ROWS = 64
TASK = Embedding(vector_loss="ranking", pooling=("mean",), size=32)


@pytest.fixture(scope="module")
def model(vocabulary_folder: Path) -> tuple[EncoderForTask, Tokenizer]:
    """A model with dropout, in training mode."""
    from bertwright.interop.sentence_modules import make_sentence_modules
    from bertwright.models.heads import VectorHead

    tokenizer = Tokenizer.load(vocabulary_folder)
    encoder = BertEncoder(BertConfig(tokenizer.vocab_size, 32, 2, 2, 64, 64, initializer_range=0.2), seed=1)
    head = VectorHead(TASK.head, ("mean",), make_sentence_modules(None, ("mean",), 32, 64, {}), encoder)
    return EncoderForTask(encoder, head).train(), tokenizer


def compute_gradients(
    model: EncoderForTask, tokenizer: Tokenizer, task: Embedding, max_tokens: int, num_parts: int
) -> dict[str, Tensor]:
    """Return the gradients of a step of 64 pairs of three words each, in parts of some tokens."""
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice([*NOUNS, *FILLERS], 3)) for _ in range(2 * ROWS)]
    rows = [TextRow(texts[n], f"line {n}", (texts[n + ROWS],)) for n in range(ROWS)]
    parts = split_step(task.encode(rows, tokenizer), np.arange(ROWS), step=3, seed=0, max_tokens=max_tokens)
    assert len(parts) == num_parts

    def vectors(batch: Any) -> RowOutput:
        return RowOutput(model(batch), batch.labels, {"tokens": torch.zeros(())})

    model.zero_grad()
    backward(WholeBatchLoss(vectors, VectorObjective.of(task, rows)), parts)
    return {
        name: parameter.grad.to_dense() for name, parameter in model.named_parameters() if parameter.grad is not None
    }


@pytest.mark.parametrize("options", [{}, {"symmetric": True, "dims": (32, 8)}, {"all_pairs": True}])
def test_parts_give_the_gradients_of_the_direct_batch(
    options: dict[str, Any], model: tuple[EncoderForTask, Tokenizer]
) -> None:
    task = replace(TASK, **options)
    direct = compute_gradients(*model, task, 10_000, num_parts=1)
    for rows, num_parts in ((1, 64), (7, 10), (64, 1)):
        parts = compute_gradients(*model, task, rows * 10, num_parts)
        for name, gradient in direct.items():
            assert (parts[name] - gradient).norm() <= 1e-6 * max(float(gradient.norm()), 1e-2), name


def test_every_row_is_used_once_per_epoch() -> None:
    rows = [TextRow(f"text {n}", f"file {n >= 20}, line {n}", (f"answer {n}",)) for n in range(60)]
    task = replace(TASK, weights=())
    one = [TextRow(*row[:1], f"one, line {n}", *row[2:]) for n, row in enumerate(rows)]
    steps = [*map(task.item_order(None, one, 8, seed=2), range(15))]  # type: ignore[arg-type]  # two epochs
    assert set(Counter(np.concatenate(steps).tolist()).values()) == {2}
    weighted = replace(TASK, weights=(3.0, 1.0))
    steps = [*map(weighted.item_order(None, rows, 5, seed=2), range(200))]  # type: ignore[arg-type]
    of_first = [step for step in steps if step.max() < 20]
    assert all(step.min() >= 20 for step in steps if step.max() >= 20)
    assert 130 < len(of_first) < 170
    assert Counter(np.concatenate(of_first[:4]).tolist()) == Counter(range(20))


def test_steps_of_classes_have_groups_of_one_class() -> None:
    rows = [TextRow(f"text {n}", f"line {n}", label=str(min(n // 8, 4))) for n in range(33)]  # the last class has one
    labels = label_texts(rows)
    task = replace(TASK, vector_loss="labels")
    encoded = task.encode(rows, Tokenizer.from_tokens([*SPECIAL_TOKENS, "text"], lowercase=True))
    items_of = task.item_order(encoded, rows, 3 * TEXTS_PER_CLASS, seed=1)
    used: Counter[int] = Counter()
    for step in range(3):  # nine groups
        found = items_of(step)
        assert all(len({*group}) == 1 for group in labels[found, 2].reshape(-1, TEXTS_PER_CLASS).tolist())
        used.update(found.tolist())
    assert used == Counter({**dict.fromkeys(range(32), 1), 32: TEXTS_PER_CLASS})
    with pytest.raises(ValueError, match=r"batch_size = 7.*--batch-size 8"):
        task.step_warnings(rows, 7)
    assert "a step reads 8 rows" in task.step_warnings(rows, 10)[0]


def test_a_batch_that_no_step_can_have_leaves_no_run(tmp_path: Path, make_run: Make) -> None:
    with pytest.raises(ValueError, match="batch_size = 4"):
        finetune(make_run(tmp_path / "run", "classes", batch_size=4), MUTE)
    assert not (tmp_path / "run").exists()


def test_retrieval_sets_have_no_cosine_of_two_texts(tmp_path: Path) -> None:
    write_retrieval_set(tmp_path / "nouns")
    (example,) = TASK.read(str(tmp_path / "nouns"))
    with pytest.raises(ValueError, match=r"nouns: .*bertwright evaluate"):
        TASK.to_record(example, np.ones((40, 32), np.float32))


def test_a_comma_in_the_id_of_a_query_splits_no_file() -> None:
    places = ["a/train.tsv, query q1", "a/train.tsv, query 1, 2", "a/train.tsv, query 1, 3", "b, c.tsv, line 2"]
    order = FileOrder.of([TextRow("a", place, ("b",)) for place in places], ())
    assert order.sizes.tolist() == [3, 1]


@pytest.mark.parametrize(
    ("lines", "options", "named"),
    [
        (["question\tanswer", "a\t"], {}, "line 2"),
        (["question\tanswer", "a\tb"], {}, "single row"),
        (["sentence1\tsentence2\tscore", "a\tb\t1", "c\td\t1"], {}, "have the score 1"),
        (["text\tlabel", "a\tx", "b\tx"], {}, "have the class 'x'"),
        (
            ["sentence1\tsentence2\tscore", "a\tb\t1", "c\td\t5"],
            {"vector_loss": "cosine"},
            "line 3: expected a score from 0",
        ),
        (["question\tanswer", "a\tb", "c\td"], {"vector_loss": "cosent"}, "anchor and positive; expected ranking"),
        (["question\tanswer", "a\tb", "c\td"], {"vector_loss": "cosnt"}, "cosent"),
        (["question\tanswer", "a\tb", "c\td"], {"metric": "accuracy"}, "spearman_cosine"),
        (["question\tanswer", "a\tb", "c\td"], {"dims": (64,)}, "1 to 32"),
        (["question\tanswer", "a\tb", "c\td"], {"prompts": ("query: ",)}, "NAME=TEXT"),
        (["question\tanswer", "a\tb", "c\td"], {"weights": (1.0, 2.0)}, "1 training files"),
        (["question\tanswer", "a\tb", "c\td"], {"max_length": 100}, "64 positions"),
        (["question\tanswer", "a\tb", "c\td"], {"similarity_scale": 0.0}, "similarity_scale: .*above 0, got 0"),
        (["question\tanswer", "a\tb", "c\td"], {"similarity_scale": -20.0}, "above 0, got -20"),
        (["question\tanswer", "a\tb", "c\td"], {"weights": (0.0,)}, "weights: .*above 0"),
        (["question\tanswer", "a\tb", "c\td"], {"weights": (2.0, -1.0)}, "weights: .*from 0"),
        (["question\tanswer", "a\tb", "c\td"], {"all_pairs": True, "hardness": 5.0}, "hardness: all_pairs"),
        (["question\tanswer", "a\tb", "c\td"], {"all_pairs": True, "symmetric": True}, "symmetric: all_pairs"),
        (["question\tanswer", "a\tb", "c\td"], {"guide_margin": 0.1}, "guide_margin: no guide"),
        (["text\tlabel", "a\tx", "b\ty"], {"symmetric": True}, "symmetric: labels"),
        (["text\tlabel", "a\tx", "b\ty"], {"weights": (1.0,)}, "weights: labels"),
        (["text", "a", "b"], {"guide": "model"}, "guide: simcse"),
        (["text", "a", "b"], {"vector_loss": "tsdae", "dims": (8,)}, "dims: tsdae"),
        (["text", "a", "b"], {"vector_loss": "tsdae", "similarity_scale": 5.0}, "similarity_scale: tsdae"),
        (["query\tpositive\tnegative", "a\tb\tb", "c\td\tc"], {"vector_loss": "triplet"}, "line 2: each negative"),
    ],
)
def test_unusable_data_is_refused_with_its_place(
    lines: list[str], options: dict[str, Any], named: str, tmp_path: Path, make_run: Make, tables: Path
) -> None:
    path = tmp_path / "train.tsv"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=named):
        settings = make_run(tmp_path / "run", "pairs", options)
        finetune(replace(settings, task=replace(settings.task, train=(str(path),))), MUTE)
    assert not (tmp_path / "run").exists()


def test_a_guide_is_a_folder_of_any_model(tmp_path: Path, make_run: Make, tiny_bert: Path) -> None:
    plain, guided = (
        make_run(tmp_path / name, "pairs", options, epochs=0.5, log_every=1)
        for name, options in (("plain", {}), ("guided", {"guide": str(tiny_bert), "guide_margin": -0.001}))
    )
    losses = []
    for settings in (plain, guided):
        finetune(settings, MUTE)
        losses.append(next(record["loss"] for record in read_untimed(settings.run) if record["kind"] == "train"))
    assert losses[1] < losses[0]  # fewer wrong answers


def write_retrieval_set(folder: Path) -> None:
    """Write documents and queries about nouns, in BEIR's layout."""
    rng = np.random.default_rng(4)
    documents = [{"_id": f"d{n}", "title": "", "text": sentence(rng, n % 10)} for n in range(30)]
    queries = [{"_id": f"q{n}", "text": sentence(rng, n % 10)} for n in range(20)]
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, numbers in (("train", range(10)), ("test", range(10, 20))):
        lines = [f"q{n}\td{n % 10 + k}\t1" for n in numbers for k in (0, 10, 20)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")


def test_folders_of_beir_are_read_for_training_and_scores(tmp_path: Path, make_run: Make) -> None:
    write_retrieval_set(tmp_path / "nouns")
    settings = make_run(tmp_path / "run", "pairs", epochs=8.0)
    files = {"train": (str(tmp_path / "nouns"),), "dev": (str(tmp_path / "nouns" / "qrels" / "test.tsv"),)}
    finetune(replace(settings, task=replace(settings.task, **files, test=(str(tmp_path / "nouns"),))), MUTE)
    report = read_json(tmp_path / "run" / "report.json")
    assert report["metric"] == "cosine_ndcg@10"
    assert list(report["scores"]) == ["dev before", "dev", "test before", "test"]
    assert report["scores"]["test"] == report["scores"]["dev"]
    assert report["scores"]["dev"]["cosine_ndcg@10"] > report["scores"]["dev before"]["cosine_ndcg@10"] + 0.1
    assert 0 < report["gain"]["dev"]["low"] < report["gain"]["dev"]["mean"] < report["gain"]["dev"]["high"]


def test_several_folders_of_beir_are_read_one_by_one(tmp_path: Path, make_run: Make) -> None:
    for name in ("Ba", "Bb"):
        write_retrieval_set(tmp_path / name)
    settings = make_run(tmp_path / "run", "pairs", epochs=0.5)
    train, dev = (tuple(str(tmp_path / name / "qrels" / f"{split}.tsv") for name in ("Ba", "Bb"))
                  for split in ("train", "test"))  # fmt: skip
    for files in (train, (str(tmp_path / "Ba"), str(tmp_path / "Bb"))):
        task = replace(settings.task, train=files, dev=dev[:1])
        printed = run_and_capture(finetune, replace(settings, task=task, dry_run=True))
        assert "rows 60 with" in " ".join(printed.split())
    pairs = (*dev[:1], settings.task.train[0])
    for files in (dev, pairs):
        with pytest.raises(ValueError, match=r"test\.tsv: a retrieval set"):
            finetune(replace(settings, task=replace(settings.task, train=train, dev=files)), MUTE)
    with pytest.raises(ValueError, match=r"B\*/qrels/train\.tsv: judgements without texts"):
        finetune(replace(settings, task=replace(settings.task, train=(str(tmp_path / "B*/qrels/train.tsv"),))), MUTE)


@pytest.mark.parametrize("split", ["train", "dev"])
def test_judgements_without_an_answer_are_refused(split: str, tmp_path: Path, make_run: Make) -> None:
    write_retrieval_set(tmp_path / "nouns")
    path = tmp_path / "nouns" / "qrels" / "test.tsv"
    path.write_text(path.read_text().replace("\t1\n", "\t0\n"))
    settings = make_run(tmp_path / "run", "pairs")
    with pytest.raises(ValueError, match=r"test\.tsv: no judgement is above 0"):
        finetune(replace(settings, task=replace(settings.task, **{split: (str(path),)})), MUTE)


def test_first_numbers_are_trained_beside_the_whole_vector(tmp_path: Path, make_run: Make) -> None:
    folder = finetune(make_run(tmp_path / "run", "pairs", {"dims": (16, 8)}, epochs=0.5), MUTE)
    assert read_json(folder / "task.json")["dims"] == [32, 16, 8]


def test_prompts_of_a_pooling_without_them_are_not_trained(tmp_path: Path, make_run: Make) -> None:
    first = finetune(make_run(tmp_path / "first", "pairs", {"prompts": ("query=the ",)}, epochs=0.5), MUTE)
    path = first / "1_Pooling" / "config.json"
    path.write_text(json.dumps(read_json(path) | {"include_prompt": False}))
    (first / "checksums.json").unlink()
    with pytest.raises(ValueError, match=r"leaves out the prompts.*--prompts none="):
        finetune(make_run(tmp_path / "second", "pairs", model=str(first), epochs=0.5), MUTE)
    finetune(make_run(tmp_path / "second", "pairs", {"prompts": ("none=",)}, model=str(first), epochs=0.5), MUTE)
    with_guide = make_run(tmp_path / "third", "pairs", {"guide": str(first)}, epochs=0.5)
    finetune(with_guide, MUTE)


def test_loaded_model_embeds_queries_documents_and_first_numbers(tmp_path: Path, make_run: Make) -> None:
    options = {"prompts": ("query=find the ",), "dims": (32, 8)}
    model = bertwright.load(finetune(make_run(tmp_path / "run", "pairs", options, epochs=0.5), MUTE))
    texts = ["the bear sees", "the forest"]
    np.testing.assert_array_equal(model.embed_query(texts), model.embed(texts, prompt_name="query"))
    np.testing.assert_array_equal(model.embed_document(texts), model.embed(texts))
    short = model.embed(texts, dims=8)
    expected = model.embed(texts)[:, :8]
    np.testing.assert_allclose(short, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-6)
    vectors = model.embed(texts)
    np.testing.assert_allclose(model.similarity(texts, "the bear sees"), vectors @ vectors[:1].T, atol=1e-6)
    np.testing.assert_array_equal(model.similarity(vectors, texts), model.similarity(texts, vectors))
    with pytest.raises(ValueError, match="dims: expected 1 to the 32"):
        model.embed(texts, dims=33)


@pytest.mark.parametrize(
    ("table", "batch_size", "epochs", "rate"),
    [("pairs", 64, 10.0, 2e-5), ("rated", 32, 4.0, 2e-5), ("classes", 64, 3.0, 1e-5)],
)
def test_defaults_follow_from_the_rows(
    table: str, batch_size: int, epochs: float, rate: float, tables: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 384}')
    given = {
        "run": "run",
        "model": str(tmp_path),
        "task": {"task": "embedding", "train": [str(tables / f"{table}.tsv")]},
    }
    settings = from_table(FinetuneSettings, given, "settings")
    assert (settings.batch_size, settings.epochs) == (batch_size, epochs)
    assert (settings.optimizer.learning_rate, settings.optimizer.weight_decay) == (pytest.approx(4 * rate), 0.0)


def test_a_retrieval_set_is_scored_in_batches_of_bounded_size() -> None:
    tokenizer = Tokenizer.from_tokens([*SPECIAL_TOKENS, *NOUNS, *FILLERS], lowercase=True)
    rng = np.random.default_rng(0)
    texts = {str(number): sentence(rng, number % 10) for number in range(60)}
    grades = {"0": {"10": 1}}
    sets = [RetrievalExample(RetrievalSet(dict([*texts.items()][:n]), texts, grades), str(n)) for n in (3, 5)]
    encoder = BertEncoder(BertConfig(tokenizer.vocab_size, 16, 1, 2, 32, 32)).eval()
    encoded = Embedding().encode(sets, tokenizer, labeled=False)
    batches = [*prediction_batches(encoder, encoder.config, encoded, 40)]
    assert max(batch.packing.num_tokens for _, batch in batches) <= 40
    outputs = np.arange(len(encoded.positions), dtype=np.float32)[:, None]
    vectors = Embedding().decode(sets, encoded, outputs)
    assert [len(one) for one in vectors] == [63, 65]
    np.testing.assert_array_equal(np.concatenate(vectors), outputs)
