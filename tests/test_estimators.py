"""Estimators: learning, scikit-learn's conventions, folders and pickles, invalid input."""
# ruff: noqa: N803 - X is scikit-learn's name

from __future__ import annotations

import inspect
import io
import json
import pickle
import pickletools
import signal
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
import polars
import pytest
import torch
from rich.console import Console
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks, get_tags

import bertwright
from bertwright import estimators
from bertwright.base.files import read_json
from bertwright.cli.render.terminal import TerminalReporter
from bertwright.estimators import (
    BertClassifier,
    BertEmbedder,
    BertEstimator,
    BertRegressor,
    BertReranker,
    BertTagger,
)
from bertwright.finetuning import run as finetuning
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.inference.convert import ConvertSettings, convert
from bertwright.tasks.presets import TaskSettings
from bertwright.training import fit as engine
from bertwright.training.device_settings import DeviceSettings
from small_runs import save_random_bert

BAD = "gloomy dull stale".split()
GOOD = "bright witty fresh".split()
FILLERS = "the film is a story of two cities in spring".split()
KINDS = (BertClassifier, BertRegressor, BertTagger, BertReranker)
QUICK: dict[str, Any] = {
    "epochs": 8.0,
    "batch_size": 8,
    "learning_rate": 1e-2,
    "dropout": 0.0,
    "device": "cpu",
    "dtype": "float32",
    "threads": 1,
}


class Reviews(NamedTuple):
    """Sentences with one word of mood each, and whether it is a good one."""

    texts: list[str]
    good: list[bool]


def make_reviews(number: int, seed: int) -> Reviews:
    rng = np.random.default_rng(seed)
    good = [bool(flag) for flag in rng.permutation(np.arange(number) % 2)]
    texts = [" ".join(rng.permutation([*rng.choice(FILLERS, 4), rng.choice(GOOD if flag else BAD)])) for flag in good]
    return Reviews(texts, good)


TRAIN, TEST = make_reviews(64, 0), make_reviews(24, 1)


def words_of(reviews: Reviews) -> list[list[str]]:
    return [text.split() for text in reviews.texts]


def pairs_of(reviews: Reviews) -> list[tuple[str, str]]:
    """Return pairs of a query and a text, where eight texts follow each other with one query."""
    return [(FILLERS[place // 8], text) for place, text in enumerate(reviews.texts)]


def tags_of(reviews: Reviews, tag: str) -> list[list[str]]:
    return [[tag if word in BAD + GOOD else "O" for word in words] for words in words_of(reviews)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write a model folder with random weights."""
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "intermediate_size": 64, "max_positions": 32}
    folder = tmp_path_factory.mktemp("bert") / "model"
    save_random_bert(folder, [*FILLERS, *BAD, *GOOD], initializer_range=0.1, **sizes)  # 0.1: learns in seconds
    return str(folder)


@pytest.fixture(scope="module")
def classifier(bert: str) -> BertClassifier:
    """Fit on labels 1 and 0."""
    return BertClassifier(bert, **QUICK).fit(TRAIN.texts, [int(flag) for flag in TRAIN.good])


@pytest.fixture(scope="module")
def regressor(bert: str) -> BertRegressor:
    return BertRegressor(bert, **QUICK).fit(TRAIN.texts, np.where(TRAIN.good, 1.0, -1.0))


@pytest.fixture(scope="module")
def tagger(bert: str) -> BertTagger:
    return BertTagger(bert, **QUICK).fit(words_of(TRAIN), tags_of(TRAIN, "B-MOOD"))


@pytest.fixture(scope="module")
def reranker(bert: str) -> BertReranker:
    return BertReranker(bert, **QUICK).fit(pairs_of(TRAIN)[:60], TRAIN.good[:60])


@pytest.fixture(name="fitted")
def fitted_estimator(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


every_fitted = pytest.mark.parametrize("fitted", ["classifier", "regressor", "tagger", "reranker"], indirect=True)
every_kind = pytest.mark.parametrize("kind", KINDS)


# --- Learning


def test_classifier_learns_labels(classifier: BertClassifier) -> None:
    truth = [int(flag) for flag in TEST.good]
    found = classifier.predict(TEST.texts)
    assert classifier.classes_.tolist() == [0, 1]
    assert found.dtype == classifier.classes_.dtype == np.dtype(int)
    assert classifier.score(TEST.texts, truth) == accuracy_score(truth, found) > 0.9
    probabilities = classifier.predict_proba(TEST.texts)
    assert probabilities.shape == (24, 2)
    assert probabilities.sum(1) == pytest.approx(1, abs=1e-12)
    assert (classifier.classes_[probabilities.argmax(1)] == found).all()
    answers = classifier.model_.classify(TEST.texts)
    assert probabilities[:, 1].tolist() == [answer.probabilities["1"] for answer in answers]


def test_regressor_learns_numbers(regressor: BertRegressor) -> None:
    truth = np.where(TEST.good, 1.0, -1.0)
    found = regressor.predict(TEST.texts)
    assert found.dtype == np.float64
    assert regressor.score(TEST.texts, truth) == r2_score(truth, found) > 0.8


def test_tagger_learns_spans(tagger: BertTagger) -> None:
    assert tagger.predict(words_of(TEST)) == tags_of(TEST, "B-MOOD")
    assert tagger.predict([["bright"] * 50, [], ["film"]]) == [["B-MOOD"] * 50, [], ["O"]]
    halves = [[tag if number % 2 else "O" for tag in tags] for number, tags in enumerate(tags_of(TEST, "B-MOOD"))]
    assert tagger.score(words_of(TEST), halves) == pytest.approx(2 / 3)  # 12 of 24 spans right, all 12 found


def test_tagger_of_plain_classes_has_the_accuracy_over_words(bert: str) -> None:
    tags = [["ADJ" if tag != "O" else "NOUN" for tag in row] for row in tags_of(TRAIN, "B-MOOD")]
    tagger = BertTagger(bert, **QUICK).fit(words_of(TRAIN), tags)
    assert tagger.score(words_of(TRAIN)[:1], [["ADJ"] * 5]) == 0.2  # one of the five


# --- Types of X and y


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["10", "9"]),  # sorted as text; the model itself sorts them as numbers
        np.array(["no", "yes"], dtype=object),
        np.array([7, -1], dtype=np.int16),
        np.array([2.0, 1.0]),
        np.array([True, False]),
    ],
    ids=str,
)
def test_predicted_labels_have_the_type_of_y_also_from_a_folder(bert: str, tmp_path: Path, labels: Any) -> None:
    classifier = BertClassifier(bert, **QUICK).fit(TRAIN.texts, labels[np.array(TRAIN.good, dtype=int)])
    assert classifier.classes_.tolist() == sorted(labels)
    assert classifier.classes_.dtype == labels.dtype
    assert classifier.predict(TEST.texts).dtype == labels.dtype
    assert classifier.score(TEST.texts, labels[np.array(TEST.good, dtype=int)]) > 0.9
    classifier.model_.save(tmp_path / "model")
    assert BertClassifier.from_folder(tmp_path / "model").classes_.dtype == labels.dtype
    classifier.save(tmp_path / "folder")
    opened = BertClassifier.from_folder(tmp_path / "folder", device="cpu", dtype="float32", threads=1)
    assert opened.classes_.tolist() == sorted(labels)
    assert opened.classes_.dtype == labels.dtype
    assert (opened.predict_proba(TEST.texts) == classifier.predict_proba(TEST.texts)).all()
    convert(ConvertSettings(str(tmp_path / "folder"), tmp_path / "copy"), TerminalReporter(Console(file=io.StringIO())))
    assert BertClassifier.from_folder(tmp_path / "copy").classes_.dtype == labels.dtype


@pytest.mark.parametrize(
    ("labels", "kinds"),
    [
        (["no", "maybe"], "U"),
        ([0, 1], "i"),
        ([True, False], "b"),
        (polars.Series(["no", "maybe"]), "UO"),
        (polars.Series([0, 1]), "i"),
    ],
)
def test_labels_may_be_lists_and_columns(bert: str, labels: Any, kinds: str) -> None:
    classifier = BertClassifier(bert, **QUICK | {"epochs": 0.1}).fit(["bright", "dull"], labels)
    assert classifier.classes_.dtype.kind in kinds
    assert classifier.classes_.tolist() == sorted(labels)


@pytest.mark.parametrize("labels", [[["no"], ["maybe"]], [[1], [0]]], ids=str)
@pytest.mark.parametrize("container", [np.array, polars.DataFrame])
def test_a_column_of_labels_is_one_label_per_text(bert: str, container: Any, labels: list[Any]) -> None:
    y = container(labels) if container is np.array else container(labels, orient="row")
    with pytest.warns(DataConversionWarning):
        classifier = BertClassifier(bert, **QUICK | {"epochs": 0.1}).fit(["bright", "dull"], y)
    assert classifier.classes_.tolist() == sorted(label for (label,) in labels)
    assert classifier.predict(["bright", "dull"]).shape == (2,)


def test_texts_may_be_lists_arrays_and_columns(classifier: BertClassifier) -> None:
    expected = classifier.predict_proba(TEST.texts)
    containers = (
        tuple(TEST.texts),
        np.array(TEST.texts),
        np.array(TEST.texts, dtype=object),
        polars.Series(TEST.texts),
        iter(TEST.texts),
    )
    for container in containers:
        assert (classifier.predict_proba(container) == expected).all()


def test_pairs_may_be_tuples_arrays_and_frames(bert: str) -> None:
    pairs = [("the film is", text) for text in TRAIN.texts]
    classifier = BertClassifier(bert, **QUICK).fit(pairs, TRAIN.good)
    frame = polars.DataFrame({"a": ["the film is"] * 24, "b": TEST.texts})
    assert classifier.score(frame, TEST.good) > 0.9
    expected = classifier.predict_proba(frame)
    as_lists = [["the film is", text] for text in TEST.texts]
    for container in (as_lists, np.array(as_lists), [np.array(pair) for pair in as_lists]):
        assert (classifier.predict_proba(container) == expected).all()
    with pytest.raises(ValueError, match="expected a pair of texts, got one text"):
        classifier.predict(TEST.texts)


# --- scikit-learn's conventions


def test_defaults_equal_those_of_finetune() -> None:
    settings = FinetuneSettings(Path("run"), TaskSettings("classification"))
    expected = {name: value for name, value in vars(settings).items() if not hasattr(value, "__dataclass_fields__")}
    expected |= (
        vars(settings.tuning) | vars(settings.device) | vars(settings.optimizer) | {"random_state": settings.seed}
    )
    expected["class_weight"] = settings.tuning.class_weights  # scikit-learn's name
    for name, parameter in inspect.signature(BertEstimator).parameters.items():
        if name not in ("model", "verbose", "max_length", "learning_rate"):  # the rate: chosen by the model's size
            assert parameter.default == expected[name], name


@pytest.mark.parametrize("kind", [*KINDS, BertEmbedder])
@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_estimator_cloneable,
        estimator_checks.check_estimator_tags_renamed,
        estimator_checks.check_valid_tag_types,
        estimator_checks.check_estimator_repr,
        estimator_checks.check_no_attributes_set_in_init,
        estimator_checks.check_do_not_raise_errors_in_init_or_set_params,
        estimator_checks.check_mixin_order,
        estimator_checks.check_parameters_default_constructible,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_set_params,
    ],
)
def test_checks_of_scikit_learn_pass(check: Callable[[str, BaseEstimator], None], kind: type[BertEstimator]) -> None:
    check(kind.__name__, kind("a folder"))


@every_kind
def test_estimator_tags_describe_text(kind: type[BertEstimator]) -> None:
    tags = get_tags(kind("a folder"))
    assert tags.input_tags.string
    assert not tags.input_tags.two_d_array
    assert tags.target_tags.required
    assert tags.estimator_type == {BertClassifier: "classifier", BertRegressor: "regressor"}.get(kind)


@every_fitted
def test_fit_changes_no_parameter_and_clone_copies_only_parameters(fitted: Any, bert: str) -> None:
    assert fitted.get_params() == type(fitted)(bert, **QUICK).get_params()
    copy = clone(fitted)
    assert copy.get_params() == fitted.get_params()
    assert set(vars(copy)) == set(copy.get_params())


@every_kind
def test_unfitted_estimator_raises(kind: type[Any], tmp_path: Path) -> None:
    for call in (lambda: kind("folder").predict(["a"]), lambda: kind("folder").save(tmp_path / "folder")):
        with pytest.raises(NotFittedError, match="is not fitted yet"):
            call()


def test_random_state_determines_the_result(bert: str, classifier: BertClassifier) -> None:
    def predict(random_state: Any) -> Any:
        copy = clone(classifier).set_params(random_state=random_state, epochs=1.0)
        return copy.fit(TRAIN.texts, TRAIN.good).predict_proba(TEST.texts).tolist()

    same, other = predict(np.random.RandomState(3)), predict(np.random.RandomState(4))
    assert same == predict(np.random.RandomState(3)) != other


def test_cross_validation_scores_above_chance(classifier: BertClassifier, tagger: BertTagger) -> None:
    assert cross_val_score(classifier, TRAIN.texts, TRAIN.good, cv=2).mean() > 0.7
    assert cross_val_score(tagger, words_of(TRAIN), tags_of(TRAIN, "B-MOOD"), cv=2).mean() > 0.7


def test_grid_search_over_a_pipeline_finds_the_better_setting(bert: str) -> None:
    pipeline = make_pipeline(FunctionTransformer(lambda texts: [text.lower() for text in texts]))
    pipeline.steps.append(("bert", BertClassifier(bert, **QUICK)))
    grid = {"bert__epochs": np.array([0.1, 6.0]), "bert__batch_size": np.array([8])}
    search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss").fit(TRAIN.texts, TRAIN.good)
    assert search.best_params_["bert__epochs"] == 6.0
    assert search.predict([text.upper() for text in TEST.texts]).tolist() == search.predict(TEST.texts).tolist()


def test_labels_of_any_magnitude_are_learned(bert: str) -> None:
    prices = np.where(TRAIN.good, 21_000.0, 20_000.0)
    assert (
        BertRegressor(bert, **QUICK).fit(TRAIN.texts, prices).score(TEST.texts, np.where(TEST.good, 21_000.0, 20_000.0))
        > 0.8
    )


# --- The transformer


def test_embedder_gives_the_vectors_of_embed_to_any_classifier(bert: str) -> None:
    embedder = BertEmbedder(bert, pooling="max", normalize=False, device="cpu", dtype="float32")
    expected = bertwright.load(bert, "cpu").embed(TEST.texts, "max", normalize=False)
    assert (embedder.fit_transform(TEST.texts) == expected).all()
    assert embedder.get_feature_names_out().tolist() == [f"bertembedder{index}" for index in range(32)]
    for round_trip in (pickle.dumps(embedder), pickle.dumps(embedder.fit())):
        assert (pickle.loads(round_trip).transform(polars.Series(TEST.texts)) == expected).all()
    pipeline = make_pipeline(embedder, LogisticRegression(C=100, max_iter=1000))
    search = GridSearchCV(pipeline, {"bertembedder__pooling": ["cls", "max"]}, cv=2).fit(TRAIN.texts, TRAIN.good)
    assert search.score(TEST.texts, TEST.good) > 0.9


def test_embedder_is_a_transformer_of_text_that_must_be_fitted(bert: str) -> None:
    tags = get_tags(BertEmbedder(bert))
    assert (tags.input_tags.string, tags.target_tags.required) == (True, False)
    assert tags.transformer_tags is not None
    with pytest.raises(NotFittedError):
        BertEmbedder(bert).transform(["the film"])
    for wrong, message in (([], "X: expected at least one"), ([3], "expected"), ("the film", "X")):
        with pytest.raises(ValueError, match=message):
            BertEmbedder(bert).fit().transform(wrong)
    with pytest.raises(ValueError, match="pooling"):
        BertEmbedder(bert, pooling="sum").fit().transform(["the film"])  # type: ignore[arg-type]


def test_embedder_learns_pairs(bert: str) -> None:
    rng = np.random.default_rng(2)
    moods = [GOOD, BAD] * 40
    pairs = [
        tuple(" ".join(rng.permutation([*rng.choice(FILLERS, 3), rng.choice(mood)])) for _ in "12") for mood in moods
    ]
    quick = {name: value for name, value in QUICK.items() if name != "dropout"}
    plain, trained = BertEmbedder(bert, **quick).fit(), BertEmbedder(bert, **quick).fit(pairs)
    rated = BertEmbedder(bert, **quick).fit(
        [(a, b) for a, b in zip(TEST.texts, TEST.texts[1:], strict=False)], range(23)
    )

    def gap(embedder: BertEmbedder) -> float:
        good, bad = (embedder.transform([f"the film is {word}" for word in words]) for words in (GOOD, BAD))
        return float(np.mean(good @ good.T) - np.mean(good @ bad.T))

    assert gap(trained) > gap(plain) + 0.2
    assert gap(rated) != gap(plain)
    assert (pickle.loads(pickle.dumps(trained)).transform(TEST.texts) == trained.transform(TEST.texts)).all()
    assert trained.get_params() == BertEmbedder(bert, **quick).get_params()


@pytest.mark.parametrize(
    ("X", "y", "named"),
    [
        ([("a", "b"), ("a",)], None, r"X\[1\]: expected two texts or more, got 1"),
        ([("a", "b"), "a"], None, r"X\[1\]: expected texts"),
        ([("a", "b"), ("c", "")], None, r"X\[1\]: expected texts"),
        ([("a", "b"), ("c", "d", "e")], [1, 2], r"X\[1\]: expected two texts, which y rates, got 3"),
        ([("a", "b"), ("c", "d")], [1, 1], "y: expected at least two different numbers"),
        ([("a", "b"), ("c", "d")], [1], "inconsistent"),
        ([("a", "b")], None, r"X\[0\]: a single row"),
    ],
)
def test_embedder_names_unusable_pairs(bert: str, X: Any, y: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        BertEmbedder(bert).fit(X, y)


def test_reranker_orders_texts(reranker: BertReranker) -> None:
    pairs, good = pairs_of(TEST), np.array(TEST.good, dtype=int)
    assert reranker.score(pairs, good) > 0.95
    order = np.random.default_rng(0).permutation(len(pairs))
    np.testing.assert_allclose(
        reranker.predict([pairs[place] for place in order]), reranker.predict(pairs)[order], 1e-5
    )
    first, *_ = reranker.rank("the film", TEST.texts, top_k=3)
    assert TEST.good[first.position]
    with pytest.raises(ValueError, match=r"X\[0\]: expected a pair"):
        reranker.predict(TEST.texts)
    with pytest.raises(ValueError, match=r"y\[1\]: expected a label 0, 1, … in 'label', got 0.5"):
        clone(reranker).fit(pairs[:2], [1, 0.5])


# --- Folders and pickles


def answers(fitted: Any) -> Any:
    if isinstance(fitted, BertTagger):
        return [(one.tags, one.probabilities) for one in fitted.model_.tag(words_of(TEST))]
    if isinstance(fitted, BertClassifier):
        return fitted.predict_proba(TEST.texts).tolist()
    if isinstance(fitted, BertReranker):
        return fitted.predict(pairs_of(TEST)).tolist()
    return fitted.predict(TEST.texts).tolist()


def joblib_round_trip(fitted: Any) -> Any:
    with io.BytesIO() as file:
        joblib.dump(fitted, file)
        file.seek(0)
        return joblib.load(file)


@every_fitted
@pytest.mark.parametrize("round_trip", [lambda one: pickle.loads(pickle.dumps(one)), joblib_round_trip])
def test_pickled_estimator_predicts_bit_equal(fitted: Any, round_trip: Callable[[Any], Any]) -> None:
    other = round_trip(fitted)
    assert answers(other) == answers(fitted)
    assert other.get_params() == fitted.get_params()
    assert isinstance(fitted.model_, type(other.model_))  # pickling has not changed it


@every_fitted
def test_pickle_has_the_files_of_a_folder_and_no_object_of_torch(fitted: Any, tmp_path: Path) -> None:
    pickled = pickle.dumps(fitted, protocol=2)  # protocol 2 names every class by one opcode
    named = {str(value).split()[0] for code, value, _ in pickletools.genops(pickled) if code.name == "GLOBAL"}
    assert "bertwright" in named
    assert not [name for name in named if name.startswith(("torch", "bertwright.models", "bertwright.inference"))]
    fitted.save(tmp_path / "folder")
    files = fitted.__getstate__()["model_"]
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "folder").iterdir()}
    assert "model.safetensors" in files


@every_fitted
def test_a_saved_folder_opens_again_and_another_fit_starts_from_it(fitted: Any, tmp_path: Path) -> None:
    fitted.save(tmp_path / "folder")
    opened = type(fitted).from_folder(tmp_path / "folder", **QUICK | {"epochs": 0.1})
    assert answers(opened) == answers(fitted)
    target = tags_of(TEST, "B-MOOD") if isinstance(fitted, BertTagger) else [float(flag) for flag in TEST.good]
    given = {BertTagger: words_of(TEST), BertReranker: pairs_of(TEST)}.get(type(fitted), TEST.texts)
    assert answers(clone(opened).fit(given, target)) != answers(fitted)
    with pytest.raises(ValueError, match="already exists"):
        fitted.save(tmp_path / "folder")


def test_labels_are_strings_without_the_file_of_classes(classifier: BertClassifier, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    classifier.save(folder)
    (folder / "checksums.json").unlink()
    for content in ({"classes": [0, 2], "dtype": "l"}, {"classes": [0, 1]}, [0, 1], {"classes": ["a"], "dtype": "l"}):
        (folder / "classes.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"classes\.json: expected the labels"):
            BertClassifier.from_folder(folder)
    classifier.save(tmp_path / "whole")
    bertwright.load(tmp_path / "whole").save(tmp_path / "again")
    assert BertClassifier.from_folder(tmp_path / "again").classes_.tolist() == classifier.classes_.tolist()
    (folder / "classes.json").unlink()
    opened = BertClassifier.from_folder(folder, device="cpu", dtype="float32")
    assert opened.classes_.tolist() == ["0", "1"]
    assert opened.predict(TEST.texts).tolist() == classifier.predict(TEST.texts).astype(str).tolist()


def test_folder_of_another_task_is_rejected(tagger: BertTagger, bert: str, tmp_path: Path) -> None:
    tagger.save(tmp_path / "folder")
    with pytest.raises(ValueError, match=r"BertClassifier needs .*classification, got .*tagging"):
        BertClassifier.from_folder(tmp_path / "folder")
    with pytest.raises(ValueError, match=r"BertTagger needs .*tagging, got .*no task"):
        BertTagger.from_folder(bert)


# --- Side effects


def test_fit_prints_only_if_verbose_and_leaves_no_files(
    bert: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        classifier = BertClassifier(bert, **QUICK | {"epochs": 1.0}).fit(TRAIN.texts, TRAIN.good)
        classifier.predict(TEST.texts)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    printed = capsys.readouterr()
    assert not printed.out
    assert not printed.err
    classifier.set_params(verbose=True, validation_fraction=0.25).fit(TRAIN.texts, TRAIN.good)
    output = capsys.readouterr().out
    assert "dev after step" in output
    assert str(tmp_path) not in output  # the temporary folder
    assert not list(tmp_path.iterdir())


def test_threads_predict_with_one_estimator(classifier: BertClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = classifier.predict_proba(TEST.texts).tobytes()
    monkeypatch.setattr(torch, "set_num_threads", lambda _: pytest.fail("the number of threads was set"))
    with ThreadPoolExecutor(4) as pool:
        assert {*pool.map(lambda _: classifier.predict_proba(TEST.texts).tobytes(), range(12))} == {alone}


def test_interrupted_fit_leaves_no_files(
    bert: str, classifier: BertClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    summarize = finetuning.summarize

    def interrupting(window: Any) -> dict[str, float]:
        signal.raise_signal(signal.SIGINT)
        return summarize(window)

    monkeypatch.setattr(finetuning, "summarize", interrupting)
    copy = clone(classifier).set_params(epochs=60.0)
    with pytest.raises(KeyboardInterrupt, match="fit was interrupted; nothing was saved"):
        copy.fit(TRAIN.texts, TRAIN.good)
    assert not hasattr(copy, "model_")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("with_plots")
def test_fit_writes_no_checkpoints_and_no_figures(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files: list[str] = []

    def watch(settings: FinetuneSettings, *rest: Any, **flags: Any) -> Path:
        model = finetuning.finetune(settings, *rest, **flags)
        files.extend(path.name for path in (settings.run / "checkpoints").iterdir())
        files.extend(path.name for path in settings.run.glob("*.png"))
        assert read_json(settings.run / "report.json")["steps"] == 16
        return model

    monkeypatch.setattr(estimators, "finetune", watch)
    BertClassifier(bert, **QUICK | {"epochs": 2.0}).fit(TRAIN.texts, TRAIN.good)
    assert not files


def test_fit_saves_one_best_checkpoint(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    evaluate = engine._Fit.evaluate

    def watch(run: Any) -> None:
        evaluate(run)
        counts.append(len(list((run.settings.run / "best").glob("step-*"))))

    monkeypatch.setattr(engine._Fit, "evaluate", watch)
    monkeypatch.setattr(finetuning, "evaluate_examples", improving(finetuning.evaluate_examples))
    BertClassifier(bert, **QUICK | {"epochs": 3.0, "validation_fraction": 0.25}).fit(TRAIN.texts, TRAIN.good)
    assert counts == [1, 1, 1]


def improving(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same function with an accuracy that rises with each call."""
    calls: list[int] = []

    def better(*given: Any, **named: Any) -> Any:
        calls.append(1)
        found = evaluate(*given, **named)
        return found._replace(scores=found.scores | {"accuracy": len(calls) / 100})

    return better


def test_process_of_torchrun_fits_and_predicts_by_itself(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On one rank of torchrun, an estimator does not wait for the other ranks."""
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    classifier = BertClassifier(bert, **QUICK | {"epochs": 1.0}).fit(TRAIN.texts, TRAIN.good)
    assert len(classifier.predict(TEST.texts)) == len(TEST.texts)
    assert not torch.distributed.is_initialized()


def test_truncated_texts_are_warned_of(bert: str) -> None:
    texts = ["a fine film " * 20, "dull", "fine", "a dull film"]
    with pytest.warns(UserWarning, match="train: 1 of 4 examples .* lose tokens: max_length is 8; raise max_length"):
        classifier = BertClassifier(bert, **QUICK | {"epochs": 1.0, "max_length": 8}).fit(texts, [1, 0, 1, 0])
    with pytest.warns(UserWarning, match="1 of 2 examples .* lose tokens"):
        classifier.predict(texts[:2])
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*lose tokens")
        classifier.predict(texts[1:])


# --- Misuse

NAN = float("nan")


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        ("one text", ["a"], r"X: expected a list, an array or a column, got .one text. \(str\)"),
        ({"text": ["bright"]}, ["a"], "X: .*got a dict"),
        (5, ["a"], r"X: .*got 5 \(int\)"),
        ([], [], "X: expected at least one example"),
        (["bright", None], ["a", "b"], r"X\[1\]: expected a text or a pair of texts \(a, b\), got None \(NoneType\)"),
        (["bright", NAN], ["a", "b"], r"X\[1\]: .*got nan \(float\)"),
        ([b"bright"], ["a"], r"X\[0\]: .*got b'bright' \(bytes\)"),
        (np.eye(2), ["a", "b"], r"X\[0\]: .*got \[1\.0, 0\.0\] \(list\)"),
        ([("a", "b", "c")], ["a"], r"X\[0\]: .*got \('a', 'b', 'c'\) \(tuple\)"),
        (["bright", ("a", "b")], ["a", "b"], r"X\[1\]: expected a text as in X\[0\], got a pair of texts"),
        (["bright", "a \ud800"], ["a", "b"], r"^X\[1\]: lone surrogate U\+D800 at character 2"),
        (["bright", "dull"], ["a", "\ud800"], r"^y\[1\]: lone surrogate U\+D800"),
        (["bright", "dull"], None, "y cannot be None"),
        (["bright", "dull"], ["a"], r"inconsistent numbers of samples: \[2, 1\]"),
        (["bright", "dull"], ["a", "a"], r"y: expected at least two classes, got one, 'a' \(str\)"),
        ({"bright", "dull"}, ["a", "b"], "X: expected a list.* got a set"),
        (["bright", "dull"], {"a", "b"}, "y: expected a list.* got a set"),
        (np.array("bright"), ["a"], "X: expected a list"),
        (
            ["bright", "dull"],
            [True, 2],
            r"y\[1\]: expected a label of the same type as y\[0\], True \(bool\), got 2 \(int\)",
        ),
        (["bright", "dull"], ["a", 1], r"y\[1\]: expected .* y\[0\], 'a' \(str\), got 1 \(int\)"),
        (["bright", "dull"], ["a", NAN], r"y\[1\]: expected .* y\[0\], 'a' \(str\), got nan \(float\)"),
        (["bright", "dull"], [1, NAN], "Input y contains NaN"),
        (["bright", "dull"], [1, None], r"y\[1\]: expected a label, got None"),
        (["bright", "dull"], [0.5, 1.25], "Unknown label type: continuous"),
        (["bright", "dull"], [["a", "b"], ["b", "a"]], "same"),
        (["bright", "dull"], np.array([[0, 2], [1, 0]]), "matrix of 0 and 1"),
        (["bright", "dull"], [["a"], [1]], "same type"),
        (["bright", "dull"], [[], []], "at least one label"),
        (["bright", "dull"], ["a", ""], "class '': no value in 'y'"),
    ],
)
def test_classifier_rejects_invalid_data(bert: str, X: Any, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        BertClassifier(bert, **QUICK).fit(X, y)
    assert "\n" not in str(caught.value)


def test_numbers_and_booleans_of_any_type_are_accepted(bert: str) -> None:
    texts = ["bright", "dull"]
    for y in ([Decimal("0.5"), Fraction(1, 3)], np.array([np.True_, 2], dtype=object), {"a": 1.0, "b": 2.0}.values()):
        assert np.isfinite(BertRegressor(bert, **QUICK).fit(texts, y).predict(texts)).all()
    found = BertClassifier(bert, **QUICK).fit(dict.fromkeys(texts).keys(), [True, np.False_])
    assert found.classes_.tolist() == [False, True]


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([1.0, NAN], "Input y contains NaN"),
        ([1.0, None], "Input y contains NaN"),
        ([1.0, float("inf")], "Input y contains infinity"),
        ([1.0, 10**400], "y: expected numbers"),
        (["a", "b"], "y: expected numbers, got .*'a'"),
        (np.array(["2026-11-22", "2026-11-23"], dtype="datetime64[D]"), "y: expected numbers, got .*2026-11-22"),
        ([1 + 2j, 3.0], r"y: expected numbers, got .*1\+2j"),
        ([np.complex64(1), 2**70], "Complex data not supported"),
        ([2.0, 2.0], "y: expected at least two different numbers, got 2 only"),
        ([1.0, 1e300], r"^X\[1\]: expected a finite number"),
        ([1.0], "inconsistent numbers of samples"),
    ],
)
def test_regressor_rejects_invalid_y(bert: str, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BertRegressor(bert, **QUICK).fit(["bright", "dull"], y)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (["a text"], [["O", "O"]], r"X\[0\]: expected a list of words \(str, not empty\), got 'a text' \(str\)"),
        ([[], []], [[], []], r"X\[0\]: neither this nor any other sentence has a word to learn from"),
        ([["film", ""]], [["O", "O"]], r"X\[0\]: .*got \['film', ''\] \(list\)"),
        ([["film"], ["is"]], [["O"], [3]], r"y\[1\]: expected a list of tags .*got \[3\] \(list\)"),
        ([["film", "a\udfff"]], [["O", "O"]], r"^X\[0\]: lone surrogate U\+DFFF"),
        ([["film"], ["is", "dull"]], [["O"], ["O"]], r"^X\[1\]: 2 words, but 1 tags"),
        ([["film"], ["is"]], [["O"]], "inconsistent numbers of samples"),
        ([["film"], ["is"]], [["O"], ["O"]], "all words have the tag 'O'"),
        ([["film"], ["is", "dull"]], [["B-X"], ["O", "Y"]], r"^X\[1\]: tag 'Y' of 'dull': expected a tag of iob2: O"),
    ],
)
def test_tagger_rejects_invalid_data(bert: str, X: Any, y: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BertTagger(bert, **QUICK).fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"epochs": "3"}, "BertClassifier: epochs: expected float, got '3'"),
        ({"epochs": 0}, "epochs: expected"),
        ({"batch_size": 2.5}, "BertClassifier: batch_size: expected int, got 2.5"),
        ({"learning_rate": -1.0}, "learning_rate: expected a number above 0, got -1.0"),
        ({"learning_rate": float("inf")}, "learning_rate: expected a number above 0, got inf"),
        ({"device": "gpu"}, "expected one of 'auto', 'cpu', 'cuda'"),
        ({"dtype": "float16"}, "expected one of 'auto', 'float32', 'bfloat16'"),
        ({"max_length": 33}, "max_length = 33: the model has 32 positions"),
        ({"validation_fraction": 1.5}, "validation_fraction: expected"),
        ({"freeze_layers": 9}, "freeze_layers = 9: this model has 1 layers"),
        ({"random_state": "seed"}, "cannot be used to seed"),
        ({"model": "nowhere"}, "nowhere: no such folder"),
    ],
)
def test_parameters_are_checked_in_fit(bert: str, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BertClassifier(bert, **QUICK).set_params(**parameters).fit(TRAIN.texts, TRAIN.good)


def test_predict_checks_its_input_as_fit_does(classifier: BertClassifier, tagger: BertTagger) -> None:
    with pytest.raises(ValueError, match="X: expected a list"):
        classifier.predict("bright")
    with pytest.raises(ValueError, match="X: expected at least one"):
        classifier.predict([])
    with pytest.raises(ValueError, match="expected one text, got a pair"):
        classifier.predict([("a", "b")])
    with pytest.raises(ValueError, match=r"X\[0\]: expected a list of words"):
        tagger.predict(["the film"])
    with pytest.raises(ValueError, match=r"X\[0\]: 1 words, but 2 tags"):
        tagger.score([["film"]], [["O", "O"]])
    with pytest.raises(ValueError, match="expected one of 'auto', 'cpu', 'cuda'"):
        pickle.loads(pickle.dumps(classifier)).set_params(device="tpu").predict(["film"])


def test_settings_reach_the_run(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[FinetuneSettings] = []

    def watch(settings: FinetuneSettings, *_: Any, **__: Any) -> Path:
        seen.append(settings)
        raise ValueError("seen")

    monkeypatch.setattr(estimators, "finetune", watch)
    given: dict[str, Any] = {
        "epochs": 2.5,
        "batch_size": 4,
        "dropout": 0.2,
        "freeze_layers": 1,
        "layerwise_lr_decay": 0.9,
    }
    rest: dict[str, Any] = {
        "learning_rate": 7e-5,
        "max_length": 20,
        "validation_fraction": 0.5,
        "random_state": np.int64(11),
    }
    device: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16", "threads": 3}
    with pytest.raises(ValueError, match="seen"):
        BertRegressor(bert, **given, **rest, **device).fit([("a", "b"), ("c", "d")], [1, 2])
    (settings,) = seen
    reached = vars(settings) | vars(settings.tuning)
    assert {name: reached[name] for name in given} == given
    assert (settings.seed, settings.tuning.validation_fraction, settings.optimizer.learning_rate) == (11, 0.5, 7e-5)
    assert settings.optimizer.bias_correction  # the other settings are the paper's
    assert settings.device == DeviceSettings(**device)
    assert (settings.task.task, settings.task.overrides.max_length, settings.task.overrides.text_pair) == (
        "regression",
        20,
        "pair",
    )


ASPECTS = "film story".split()
COLUMNS = np.array([[word in text.split() for word in ASPECTS] for text in TRAIN.texts], dtype=np.int64)


@pytest.fixture(scope="module")
def by_matrix(bert: str) -> BertClassifier:
    """Return a classifier that was fitted on two columns of 0 and 1, and a third of 0."""
    y = np.column_stack([COLUMNS, np.zeros(len(COLUMNS), dtype=np.int64)])
    return BertClassifier(bert, **QUICK).fit(TRAIN.texts, y)


def test_a_matrix_of_labels_is_learned_and_predicted_as_a_matrix(by_matrix: BertClassifier, tmp_path: Path) -> None:
    texts = ["the film", "a story of spring", "the story is a film", "spring"]
    expected = [[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]]
    assert by_matrix.predict(texts).tolist() == expected
    assert by_matrix.score(texts, np.array(expected)) == 1
    assert by_matrix.predict_proba(texts).shape == (4, 3)
    assert by_matrix.classes_.tolist() == [0, 1, 2]
    by_matrix.save(tmp_path / "saved")
    again = BertClassifier.from_folder(tmp_path / "saved", device="cpu", dtype="float32")
    assert again.predict(texts).tolist() == expected


def test_lists_of_labels_are_predicted_as_tuples(bert: str) -> None:
    lists = [[word for word, mark in zip(ASPECTS, row, strict=True) if mark] for row in COLUMNS.tolist()]
    classifier = BertClassifier(bert, **QUICK).fit(TRAIN.texts, lists)
    assert classifier.predict(["the film", "a story of a film", "spring"]) == [("film",), ("film", "story"), ()]
    assert classifier.score(["the film", "spring"], [["film"], ["story"]]) == 0.5
    copy = pickle.loads(pickle.dumps(classifier))
    assert copy.predict(["a story"]) == [("story",)]


def test_cross_validation_reads_a_matrix(bert: str) -> None:
    scores = cross_val_score(BertClassifier(bert, **QUICK), TRAIN.texts, COLUMNS, cv=2)
    assert scores.min() > 0.3  # chance: below 0.25
