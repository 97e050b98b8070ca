"""Feature probes: heads learn from frozen states, runs resume, and input that does not fit is rejected."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from rich.console import Console

from bertwright.base.files import read_json
from bertwright.base.settings import from_table, read_toml
from bertwright.cli.render.terminal import TerminalReporter
from bertwright.inference.info import InfoSettings, info
from bertwright.interop.huggingface import save_model
from bertwright.metrics.example_scores import ExampleScores, compute_scores
from bertwright.metrics.seed_summary import summarize_seeds
from bertwright.models.representations import REPRESENTATIONS
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_types import TaskOptions
from bertwright.training.loop import DivergedError
from bertwright.training.run_folder import read_run_settings
from bertwright.trials import probe_data, probe_training
from bertwright.trials.cells import Cell, Score, read_cells
from bertwright.trials.paper.table7 import PAPER_F1
from bertwright.trials.probe import probe
from bertwright.trials.probe_settings import ProbeSettings
from bertwright.trials.probe_training import epoch_batches
from bertwright.trials.table import Table
from bertwright.trials.table_plot import plot
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from harness import run_and_capture, run_with_output
from helpers import CPU

SPLIT_FILES = ("train.jsonl", "dev.jsonl", "test.jsonl")
ANIMALS, LOCATIONS = "bear deer fish wolf crow".split(), "forest river mountain valley".split()

Make = Callable[..., ProbeSettings]


def tagged_sentences(number: int, seed: int) -> str:
    """Return sentences in which an article has the tag of the next noun: a head must read adjacent words."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(number):
        words, tags = [], []
        for _ in range(int(rng.integers(1, 4))):
            is_location = rng.random() < 0.5
            words += [
                "the",
                str(rng.choice(LOCATIONS if is_location else ANIMALS)),
                str(rng.choice(["sees", "hears", "."])),
            ]
            tags += ["B-LOC", "I-LOC", "O"] if is_location else ["B-ANI", "I-ANI", "O"]
        lines.append(json.dumps({"words": words, "tags": tags}))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory, vocabulary_folder: Path) -> Path:
    """Return a random model with four layers, so that it has a sum of the last four."""
    tokenizer = Tokenizer.load(vocabulary_folder)
    config = BertConfig(
        tokenizer.vocab_size, hidden_size=24, num_layers=4, num_heads=2, intermediate_size=32, max_positions=32,
        initializer_range=0.06,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("bert") / "model"
    save_model(folder, BertForPretraining(config, seed=5), tokenizer)
    return folder


@pytest.fixture
def make(tmp_path: Path, bert: Path) -> Make:
    """Return a function from changed fields to the settings of a small run."""
    for seed, (split, number) in enumerate({"train": 240, "dev": 60, "test": 50}.items()):
        (tmp_path / f"{split}.jsonl").write_text(tagged_sentences(number, seed), encoding="utf-8")

    def settings(**changes: Any) -> ProbeSettings:
        fields: dict[str, Any] = {
            "run": tmp_path / "run",
            "task": TaskSettings(
                "tagging", **{split: (str(tmp_path / f"{split}.jsonl"),) for split in ("train", "dev", "test")}
            ),
            "model": str(bert),
            "representations": ("last",),
            "seeds": (0, 1),
            "learning_rates": (3e-2,),
            "epochs": 3,
            "batch_size": 16,
            "lstm_size": 16,
            "dropout": 0.1,
            "device": CPU,
        }
        return ProbeSettings(**(fields | changes))

    return settings


run_probe = partial(run_with_output, probe, columns=80)


def test_dry_run_prints_the_missing_heads_and_the_cost_and_writes_nothing(tmp_path: Path, make: Make) -> None:
    settings = make(dry_run=True)
    before = sorted(tmp_path.rglob("*"))
    printed = " ".join(run_probe(settings)[1].split())
    assert sorted(tmp_path.rglob("*")) == before
    states = sum(len(json.loads(line)["words"]) for name in SPLIT_FILES for line in (tmp_path / name).open())
    assert "heads 2 to train" in printed
    assert f"disk space {2 * 24 * states / 1e3:,.1f} kB for the features" in printed
    assert "estimated time" in printed
    assert "tagging, best by f1" in printed
    run_probe(replace(settings, dry_run=False, seeds=(0,)))
    before = sorted(tmp_path.rglob("*"))
    resumed = " ".join(run_probe(replace(settings, resume=True))[1].split())
    assert "heads 1 to train" in resumed
    assert "features cached already" in resumed
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(ValueError, match="already holds a run"):
        run_probe(settings)


def test_without_layers_of_the_lstm_a_linear_head_reads_each_layer(make: Make) -> None:
    settings = make(representations=("each-layer",), seeds=(0,), lstm_layers=0, epochs=1)
    _, printed = run_probe(settings)
    assert "linear, 5 outputs" in " ".join(printed.split())
    assert "BiLSTM" not in printed
    scores = {name: result["f1"] for name, result in read_scores(settings.run).items()}
    assert {*scores} == {f"{name}-lr0.03-seed0" for name in ("embeddings", "layer-1", "layer-2", "layer-3", "layer-4")}
    assert all(0 < score < 1 for score in scores.values())


def read_scores(run: Path) -> dict[str, dict[str, float]]:
    """Return the scores of the finished heads by name."""
    return {path.parent.name: read_json(path)["scores"] for path in run.glob("runs/*/result.json")}


def test_heads_learn_from_every_representation(make: Make) -> None:
    settings = make(representations=tuple(REPRESENTATIONS), seeds=(0,), epochs=6)
    table, printed = run_probe(settings)
    assert table.rows == list(REPRESENTATIONS)
    means = {key: cell.summary.mean for key, cell in table.cells.items()}
    assert means.keys() == {(row, split) for row in REPRESENTATIONS for split in ("dev", "test")}
    assert all(mean > 0.9 for mean in means.values())  # predicting only O has f1 0
    assert len(read_scores(settings.run)) == 6
    for split in ("dev", "test"):  # the last four of four layers are all of them
        assert means["sum-last-four", split] == means["sum-all", split]
    for row in REPRESENTATIONS:
        (line,) = (line for line in printed.splitlines() if line.lstrip().startswith(f"{row} "))
        dev, test = (f"{100 * means[row, split]:.2f}" for split in ("dev", "test"))
        assert line.split()[1:] == [dev, "(1)", test, "(1)", "0.03"]
    assert "paper" not in printed
    report = read_json(settings.run / "report.json")
    assert report["metric"] == "f1"
    assert report["cells"] == json.loads(json.dumps(table.to_record()["cells"]))
    assert from_table(ProbeSettings, read_toml(settings.run / "settings.toml"), "there") == settings
    assert sorted(path.name for path in (settings.run / "features/dev").iterdir()) == [
        "features.json", *(f"layer-{layer:02d}.npy" for layer in range(5))
    ]  # fmt: skip


@pytest.mark.slow
def test_each_layer_is_scored_alone_and_plotted(make: Make) -> None:
    settings = make(representations=("last", "each-layer"), epochs=2)
    table, printed = run_probe(settings)
    names = ["embeddings", "layer-1", "layer-2", "layer-3", "layer-4"]
    assert table.rows == ["embeddings", "last", *names[1:]]
    for split in ("dev", "test"):  # the last layer, under two names
        assert table.cells["last", split].scores == table.cells["layer-4", split].scores
    assert len({cell.summary.mean for cell in table.cells.values()}) > 2
    assert all(f"{name} " in printed for name in names)
    assert f"{settings.run}/layers.png" in "".join(printed.split())
    assert (settings.run / "layers.png").read_bytes().startswith(b"\x89PNG")
    assert "heads 12, of 6 representations" in " ".join(printed.split())
    described = run_and_capture(info, InfoSettings(settings.run))
    assert "runs done 12 of 12" in " ".join(described.split())

    wider = replace(settings, resume=True, representations=("each-layer",), seeds=(2,))
    table, _ = run_probe(wider)
    assert {cell.summary.seeds for cell in table.cells.values()} == {3}
    assert len(read_scores(settings.run)) == 18


def test_plot_of_layers_has_a_point_per_layer_with_its_deviation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: (figures.append(figure), path.touch()))
    scores = {"embeddings": (0.5, 0.6), "layer-1": (0.7, 0.8), "layer-2": (0.6, 0.6)}
    dev = [summarize_seeds(of_seeds) for of_seeds in scores.values()]
    cells = read_cells(
        Score(name, "dev", score, seed) for name, of_seeds in scores.items() for seed, score in enumerate(of_seeds)
    )
    places = {name: ("f1", number) for number, name in enumerate(scores)}
    plot(Table("f1", {"dev": "dev"}, [*scores], cells), tmp_path / "layers.png", places, "layer")
    (panel,) = figures[0].axes
    (bars,) = panel.containers
    line, _, (deviations,) = bars
    assert line.get_xydata().tolist() == [[0, pytest.approx(55)], [1, pytest.approx(75)], [2, pytest.approx(60)]]
    heights = [segment[1, 1] - segment[0, 1] for segment in deviations.get_segments()]
    assert heights == pytest.approx([200 * (one.std or 0) for one in dev])
    assert (panel.get_xlabel(), panel.get_title()) == ("layer", "dev")


def test_result_is_that_of_the_best_epoch_on_dev(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    scores = probe_training.score

    def record(*given: Any) -> dict[str, float]:
        found = scores(*given)
        seen.append(found["f1"])
        return dict(found)

    for module in (probe_training, probe_data):
        monkeypatch.setattr(module, "score", record)
    settings = make(seeds=(0,), epochs=6)
    run_probe(settings)
    (scored,) = read_scores(settings.run).values()
    assert len(seen) == 7  # six epochs on dev, the best one on test
    assert scored["dev"] == scored["f1"] == max(seen[:6])
    assert scored["epoch"] == seen.index(max(seen[:6])) + 1
    assert scored["test"] == scored["test_f1"] == seen[6]
    numbers = ExampleScores.load(settings.run / "examples" / "last-lr0.03-seed0.npz")
    assert numbers is not None
    assert compute_scores(numbers, np.ones((1, 60))) == pytest.approx([scored["dev"]])


def test_run_interrupted_inside_a_head_has_the_same_results_on_resume(
    make: Make, tmp_path: Path, monkeypatch: Any
) -> None:
    whole = make(run=tmp_path / "whole")
    run_probe(whole)
    settings, make_spec = make(), probe_data.make_spec
    trained = []

    def send_ctrl_c(*given: Any) -> Any:
        """Return a training that gets Ctrl-C in the middle of the second head."""
        training = make_spec(*given)
        trained.append(training)

        def loss(batch: Any) -> Any:
            if len(trained) == 2 and training.optimizer.steps == 20:
                os.kill(os.getpid(), signal.SIGINT)
            return training.loss(batch)

        return replace(training, loss=loss)

    monkeypatch.setattr(probe_data, "make_spec", send_ctrl_c)
    with pytest.raises(KeyboardInterrupt, match=r"1 of 2 runs are finished.*bertwright probe --run \S+/run --resume"):
        run_probe(settings)
    assert trained[1].optimizer.steps == 21
    expected = read_scores(whole.run)
    assert read_scores(settings.run) == {"last-lr0.03-seed0": expected["last-lr0.03-seed0"]}
    monkeypatch.setattr(probe_data, "make_spec", lambda *given: trained.append(None) or make_spec(*given))
    table, printed = run_probe(replace(settings, resume=True))
    assert len(trained) == 3
    assert "1 of 2 heads are already finished" in printed
    assert read_scores(settings.run) == expected
    dev = table.cells["last", "dev"].summary
    assert dev.seeds == 2
    assert f" {100 * dev.mean:.2f} ± {100 * dev.std:.2f} (2) " in printed


def test_resumed_run_may_only_add_heads(make: Make) -> None:
    settings = make(seeds=(0,), epochs=1)
    run_probe(settings)
    before = read_scores(settings.run)
    with pytest.raises(ValueError, match=r"already holds a run; resume it with --resume"):
        run_probe(settings)
    with pytest.raises(ValueError, match=r"settings\.toml: epochs was 1, now 2"):
        run_probe(replace(settings, resume=True, epochs=2))
    wider = replace(settings, resume=True, representations=("embeddings", "last"), learning_rates=(3e-2, 1e-6))
    table, _ = run_probe(wider)
    after = read_scores(settings.run)
    assert before.items() <= after.items()
    assert {*after} == {f"{name}-lr{rate}-seed0" for name in ("last", "embeddings") for rate in ("0.03", "1e-06")}
    assert [(row, table.cells[row, "dev"].learning_rate) for row in table.rows] == [
        ("embeddings", 3e-2),
        ("last", 3e-2),
    ]


def test_heads_added_on_resume_join_the_unfinished_ones(
    make: Make, monkeypatch: Any, interrupted_in: Callable[..., AbstractContextManager[list[Any]]]
) -> None:
    settings = make(epochs=1)
    with interrupted_in(probe_data, "make_spec", 2):
        run_probe(settings)
    table, printed = run_probe(replace(settings, resume=True, representations=("embeddings",), seeds=(7,)))
    assert "1 of 6 heads are already finished" in printed
    asked = {f"{name}-lr0.03-seed{seed}" for name in ("last", "embeddings") for seed in (0, 1, 7)}
    assert {*read_scores(settings.run)} == asked
    assert [(row, table.cells[row, "dev"].summary.seeds) for row in table.rows] == [("embeddings", 3), ("last", 3)]
    written = from_table(ProbeSettings, read_toml(settings.run / "settings.toml"), "there")
    assert written == replace(settings, representations=("last", "embeddings"), seeds=(0, 1, 7))

    monkeypatch.setattr(probe_data, "make_spec", lambda *_: pytest.fail("trained again"))
    assert run_probe(read_run_settings(ProbeSettings, settings.run))[0] == table


def test_resume_with_changed_files_is_rejected(make: Make, tmp_path: Path) -> None:
    settings = make(seeds=(0,), epochs=1)
    run_probe(settings)
    dev = tmp_path / "dev.jsonl"
    content = dev.read_text(encoding="utf-8")
    dev.write_text(content.replace("I-LOC", "O", 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"result\.json: a result of other settings .*features: "):
        run_probe(replace(settings, resume=True))
    dev.write_text(content.replace("bear", "deer", 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"features/dev: holds features of other data"):
        run_probe(replace(settings, resume=True))
    dev.write_text(content, encoding="utf-8")
    (settings.run / "runs/last-lr0.03-seed0/result.json").write_text('{"scores": {}}')
    with pytest.raises(ValueError, match=r"last-lr0\.03-seed0/result\.json: damaged; delete"):
        run_probe(replace(settings, resume=True))
    (settings.run / "results.jsonl").touch()
    for is_dry in (True, False):
        with pytest.raises(ValueError, match=r"results\.jsonl: .*earlier version; start again in another --run"):
            run_probe(replace(settings, resume=True, dry_run=is_dry))


def test_heads_that_diverge_are_counted_beside_the_others(make: Make) -> None:
    settings = make(learning_rates=(3e-2, 1e30), seeds=(0,), lstm_layers=0, dropout=0.0)
    table, _ = run_probe(settings)
    assert {cell.learning_rate for cell in table.cells.values()} == {3e-2}
    assert "diverged" in run_probe(replace(settings, resume=True))[1]
    with pytest.raises(DivergedError, match=r"all heads diverged; the first one: .*"):
        run_probe(replace(settings, run=settings.run / "other", learning_rates=(1e30,)))


def test_runs_may_share_features(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make(run=tmp_path / "one", features=tmp_path / "states", seeds=(0,), epochs=1)
    run_probe(first)
    monkeypatch.setattr(
        "bertwright.inference.feature_cache.prediction_batches", lambda *_: pytest.fail("computed again")
    )
    run_probe(replace(first, run=tmp_path / "two"))
    assert read_scores(tmp_path / "one") == read_scores(tmp_path / "two")
    assert not (tmp_path / "two/features").exists()

    printed = io.StringIO()
    info(InfoSettings(tmp_path / "states"), TerminalReporter(Console(file=printed, width=120)))
    text = printed.getvalue()
    layers = sorted(path.stem.removeprefix("layer-") for path in (tmp_path / "states/dev").glob("layer-*.npy"))
    assert "states of a frozen encoder" in text
    assert text.count(f"numbers, of layer {', '.join(str(int(layer)) for layer in layers)}") == 3
    path = tmp_path / "states/dev" / f"layer-{layers[0]}.npy"
    content = path.read_bytes()
    for damaged in (content[:-1], b"x"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"states/dev: .*damaged.*; delete the folder"):
            info(InfoSettings(tmp_path / "states"))


def test_warnings_about_the_data_are_printed(make: Make, tmp_path: Path) -> None:
    _, printed = run_probe(make(seeds=(0,), epochs=1, task=replace(make().task, dev=(str(tmp_path / "train.jsonl"),))))
    assert "used for training and for scoring; its score says little about other examples" in " ".join(printed.split())


def test_features_of_other_data_are_rejected_before_writing(make: Make, tmp_path: Path) -> None:
    first = make(run=tmp_path / "one", features=tmp_path / "states", seeds=(0,), epochs=1)
    run_probe(first)
    dev = tmp_path / "dev.jsonl"
    dev.write_text(dev.read_text(encoding="utf-8").replace("bear", "deer", 1), encoding="utf-8")
    with pytest.raises(ValueError, match=r"states/dev: holds features of other data"):
        run_probe(replace(first, run=tmp_path / "two"))
    assert not (tmp_path / "two").exists()


def test_sentence_without_words_is_ignored(make: Make, tmp_path: Path) -> None:
    for split in ("train", "dev"):
        path = tmp_path / f"{split}.jsonl"
        path.write_text(path.read_text(encoding="utf-8") + '{"words": [], "tags": []}\n', encoding="utf-8")
    table, _ = run_probe(make(seeds=(0,)))
    assert table.cells["last", "dev"].summary.mean > 0.9


def test_table_for_conll_2003_has_the_scores_of_the_paper(make: Make, tmp_path: Path) -> None:
    for path in tmp_path.glob("*.jsonl"):
        lines = path.read_text(encoding="utf-8").replace("-ANI", "-PER")
        path.write_text(lines + '{"words": ["a", "b"], "tags": ["B-ORG", "B-MISC"]}\n', encoding="utf-8")
    _, printed = run_probe(make(representations=("last", "embeddings"), seeds=(0,), epochs=1))
    for name in ("last", "embeddings"):
        (line,) = (line for line in printed.splitlines() if line.lstrip().startswith(f"{name} "))
        assert line.split()[-1] == f"{PAPER_F1[name]:.1f}"
    assert "Paper: BERT BASE on the dev set of CoNLL-2003" in " ".join(printed.split())


def test_text_is_classified_by_a_linear_layer_on_cls(make: Make, tmp_path: Path) -> None:
    """In the embeddings, [CLS] is equal for all texts, and so is the prediction; higher layers have seen the words."""
    rng = np.random.default_rng(0)
    for split, number in (("train", 160), ("dev", 60)):
        lines = [("the bear .\tanimal", "the forest .\tplace")[label] for label in rng.integers(0, 2, number)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(["text\tlabel", *lines, ""]), encoding="utf-8")
    task = TaskSettings("classification", train=(f"{tmp_path}/train.tsv",), dev=(f"{tmp_path}/dev.tsv",))
    changes = {"epochs": 20, "learning_rates": (1e-1,), "dropout": 0.0, "pooling": "cls"}
    settings = make(task=task, representations=("embeddings", "last"), **changes)
    table, printed = run_probe(settings)
    assert table.cells["embeddings", "dev"].summary.max < 0.65
    assert table.cells["last", "dev"].summary.min == 1.0
    assert [*table.columns] == ["dev"]
    assert "paper" not in printed
    assert "BiLSTM" not in printed


def test_input_that_does_not_fit_is_rejected_before_writing(make: Make, tmp_path: Path, bert: Path) -> None:
    article = {"context": "the bear", "qas": [{"id": "1", "question": "who", "answers": []}]}
    article["qas"][0]["answers"] = [{"text": "bear", "answer_start": 4}]  # type: ignore[index]
    (tmp_path / "squad.json").write_text(json.dumps({"data": [{"title": "", "paragraphs": [article]}]}))
    squad = TaskSettings("question-answering", train=(f"{tmp_path}/squad.json",), dev=(f"{tmp_path}/squad.json",))
    task = make().task
    for changes, message in (
        ({"task": replace(task, dev=())}, "no dev examples: name files with --dev"),
        ({"model": None}, "no model given: --model"),
        ({"task": squad}, "reads the states of all tokens, too many to cache; fine-tune"),
        ({"task": replace(task, overrides=TaskOptions(max_length=33))}, "max_length = 33: the model has 32 positions"),
    ):
        run = tmp_path / "rejected"
        with pytest.raises(ValueError, match=message):
            run_probe(make(run=run, seeds=(0,), epochs=1, **changes))
        assert not run.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": ()}, "seeds: expected one or more values"),
        ({"seeds": (1, 1)}, "each only once"),
        ({"representations": ("last", "last")}, "each only once"),
        ({"learning_rates": (0.0,)}, "learning_rates: expected a number above 0"),
        ({"learning_rates": (float("nan"),)}, "learning_rates: expected a number above 0"),
        ({"epochs": 0}, "epochs: expected at least 1, got 0"),
        ({"lstm_size": 15}, "lstm_size must be even, half for each direction, not 15"),
        ({"lstm_layers": -1}, "lstm_layers: expected at least 0, got -1"),
        ({"dropout": 1.0}, "dropout: .*got 1.0"),
    ],
)
def test_impossible_settings_are_rejected(make: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**changes)


@given(st.lists(st.integers(0, 30), min_size=1).filter(any), st.integers(1, 5), st.integers(0, 3))
def test_epoch_has_every_example_with_states_once(lengths: list[int], batch_size: int, seed: int) -> None:
    batches = epoch_batches(np.array(lengths), batch_size, seed, epoch=1)
    assert sorted(number for batch in batches for number in batch) == list(np.flatnonzero(lengths))
    assert all(len(batch) <= batch_size for batch in batches)
    assert len(batches) == -(-np.count_nonzero(lengths) // batch_size)


def test_epochs_differ_and_batches_have_similar_lengths() -> None:
    lengths = np.random.default_rng(0).integers(1, 50, 1000)
    first, second, other_seed = (epoch_batches(lengths, 8, *seeds) for seeds in ((0, 0), (0, 1), (1, 0)))
    assert not np.array_equal(first[0], second[0])
    assert not np.array_equal(first[0], other_seed[0])
    assert np.mean([np.ptp(lengths[batch]) for batch in first]) < 4  # in random batches of 8: about 38
    assert np.std(np.diff([lengths[batch].mean() for batch in first])) > 10  # short and long batches are mixed


def score(rate: float, seed: int, dev: float, test: float) -> list[Score]:
    return [Score("last", split, value, seed, rate, selected_by=dev) for split, value in (("dev", dev), ("test", test))]


def read_dev_and_test(*scores: list[Score]) -> tuple[Cell, Cell]:
    cells = read_cells(one for pair in scores for one in pair)
    return cells["last", "dev"], cells["last", "test"]


def test_table_shows_the_rate_with_the_best_dev_mean() -> None:
    dev, test = read_dev_and_test(score(1e-3, 0, 0.8, 0.9), score(1e-2, 0, 0.7, 0.5), score(1e-2, 1, 0.95, 0.6))
    assert dev.learning_rate == test.learning_rate == 1e-2
    assert dev.summary.mean == pytest.approx(0.825)
    assert dev.summary.std == pytest.approx(0.25 / 2**0.5)
    assert test.summary.mean == pytest.approx(0.55)


def test_complete_rate_ranks_above_an_incomplete_one() -> None:
    lucky, whole = score(1e-3, 0, 0.99, 0.9), [score(1e-2, seed, 0.6, 0.5) for seed in (0, 1)]
    for scores in ([lucky, *whole], [*whole, lucky]):
        assert [(cell.learning_rate, cell.summary.seeds) for cell in read_dev_and_test(*scores)] == [(1e-2, 2)] * 2
    dev, _ = read_dev_and_test(lucky, score(1e-2, 1, 0.6, 0.5))  # both are incomplete: the better mean counts
    assert dev.learning_rate == 1e-3


def test_probe_under_torchrun_is_rejected(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="single process"):
        run_probe(make())
