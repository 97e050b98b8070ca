"""scikit-learn estimators for raw text: classifier, regressor, tagger, re-ranker, and a transformer to vectors.

    classifier = BertClassifier("run/model", epochs=2).fit(texts, labels)
    classifier.predict(["A joy from start to end."])
    make_pipeline(BertEmbedder("run/model"), LogisticRegression()).fit(texts, labels)
    BertEmbedder("run/model").fit(pairs).transform(texts)

`fit` calls `bertwright.finetune` with a temporary run folder; call that function yourself if you want scores, plots and
checkpoints. Its notices, such as about truncated texts, become Python warnings. A fitted estimator is pickled as the
files of its model folder, never as Python objects of torch.
"""
# ruff: noqa: N803 - X and y are scikit-learn's names, and it passes them by name

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch

from bertwright.base.files import write_json
from bertwright.base.optional import needs
from bertwright.base.reporter import SILENT
from bertwright.base.settings import field_docs, from_table, merge
from bertwright.cli.render.terminal import terminal_reporter
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings, TuningSettings, hidden_size_of, schedule_for
from bertwright.inference.bert import Bert, Text, load
from bertwright.inference.python_inputs import abbreviate, check_text, check_words, text_example, to_list
from bertwright.interop.model_files import CLASSES, model_folder, read_model_config
from bertwright.tables.tables import format_label
from bertwright.tables.tag_example import TagExample
from bertwright.tables.text_roles import TextRow
from bertwright.tasks.embedding import Embedding
from bertwright.tasks.embedding_data import default_schedule
from bertwright.tasks.ranking_examples import RankingExample, group_queries
from bertwright.tasks.reranking import RankedText
from bertwright.tasks.text_task import TextExample
from bertwright.training.context import select_device, select_dtype
from bertwright.training.device_settings import DeviceSettings

with needs("sklearn", "scikit-learn's interface"):
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        ClassNamePrefixFeaturesOutMixin,
        RegressorMixin,
        TransformerMixin,
    )
    from sklearn.utils import assert_all_finite, check_array, check_consistent_length, check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted


# Parameters of the estimators that are fields of these settings, with the same names and defaults.
BOUND: dict[type[Any], tuple[str, ...]] = {
    FinetuneSettings: ("epochs", "batch_size"),
    TuningSettings: (
        "pooling", "head_init", "dropout", "freeze_layers", "layerwise_lr_decay", "validation_fraction",
    ),
}  # fmt: skip


class BertOnDevice(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The base of all estimators: a fitted `Bert`, its device, and saving as a model folder."""

    threads: int | None = None
    random_state: int | np.random.RandomState | None
    verbose: bool
    model_: Bert

    def _store(self, given: Mapping[str, Any]) -> None:
        """Store the constructor's parameters, unchanged; `fit` checks them, as `clone` and `set_params` need it."""
        for name in self._get_param_names():
            setattr(self, name, given[name])

    def save(self, folder: str | Path) -> None:
        """Write a new Hugging Face folder, atomically. Raises ValueError if the path already exists."""
        check_is_fitted(self, "model_")
        self.model_.save(folder)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "model_" in state:
            with TemporaryDirectory(prefix="bertwright-") as folder:
                model = Path(folder) / "model"
                self.save(model)
                files = (path for path in model.rglob("*") if path.is_file())  # folders: sentence-transformers' modules
                state["model_"] = {path.relative_to(model).as_posix(): path.read_bytes() for path in files}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "model_" in state:
            with TemporaryDirectory(prefix="bertwright-") as folder:
                for name, content in state["model_"].items():
                    path = Path(folder) / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
                state = state | {"model_": load(folder, "cpu")}
        super().__setstate__(state)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags

    @property
    def _device(self) -> dict[str, Any]:
        """The parameters of a `DeviceSettings`."""
        threads = torch.get_num_threads() if self.threads is None else self.threads
        return _table({"device": self.device, "dtype": self.dtype, "threads": threads})

    @property
    def _seed(self) -> int:
        """The seed of a run; drawn anew where `random_state` is no integer."""
        seed = self.random_state
        return int(seed if isinstance(seed, int | np.integer) else check_random_state(seed).randint(2**31 - 1))

    def _run_table(
        self, run: str, kind: str, overrides: Mapping[str, Any], tuning: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return a table of `FinetuneSettings` with the parameters that every estimator has."""
        return _table({name: getattr(self, name) for name in BOUND[FinetuneSettings]}) | {
            "run": run,
            "model": str(self.model),
            "seed": self._seed,
            "task": {"task": kind, "overrides": _table(overrides)},
            "tuning": _table(tuning),
            "optimizer": _table({"learning_rate": self.learning_rate}),
            "device": self._device,
        }

    def _train(self, examples: Sequence[Any], make_table: Callable[[str], dict[str, Any]]) -> Bert:
        """Fine-tune on examples; `make_table`: from a temporary folder for the run to a table of `FinetuneSettings`."""
        with TemporaryDirectory(prefix="bertwright-") as folder:
            settings = from_table(FinetuneSettings, make_table(folder), type(self).__name__)
            try:
                reporter = terminal_reporter() if self.verbose else SILENT
                return load(finetune(settings, reporter, {"train": examples}, temporary=True), "cpu")
            except KeyboardInterrupt:  # its message advises to resume a folder that is deleted here
                raise KeyboardInterrupt(f"{type(self).__name__}: fit was interrupted; nothing was saved") from None

    def _on_device(self) -> Bert:
        """Return the fitted model on the device of the parameters. Raises NotFittedError before `fit`."""
        check_is_fitted(self, "model_")
        settings = from_table(DeviceSettings, self._device, type(self).__name__)
        self.model_.model.to(select_device(settings))
        self.model_.model.encoder.compute_dtype = getattr(torch, select_dtype(settings))
        return self.model_


class BertEstimator(BertOnDevice):
    """The base of the estimators that fine-tune: their parameters, and the call of `finetune`.

    After `fit`, `model_` is the fine-tuned `Bert`. It computes with the present `device` and `dtype`, and with torch's
    number of threads; an estimator may predict in several threads at once.
    """

    kind: ClassVar[str]
    """The task type."""
    multi_label_kind: ClassVar[str] = ""
    """The task type if an example has several labels; empty: none."""

    def __init__(
        self,
        model: str | Path,
        *,
        epochs: float = FinetuneSettings.epochs,
        batch_size: int = FinetuneSettings.batch_size,
        learning_rate: float | None = None,
        max_length: int | None = None,
        pooling: str | None = TuningSettings.pooling,
        head_init: str | None = TuningSettings.head_init,
        class_weight: str | Mapping[Any, float] | None = None,
        dropout: float | None = TuningSettings.dropout,
        freeze_layers: int | None = TuningSettings.freeze_layers,
        layerwise_lr_decay: float = TuningSettings.layerwise_lr_decay,
        validation_fraction: float = TuningSettings.validation_fraction,
        random_state: int | np.random.RandomState | None = FinetuneSettings.seed,
        device: str = DeviceSettings.device,
        dtype: str = DeviceSettings.dtype,
        threads: int | None = None,
        verbose: bool = False,
    ) -> None:
        """Store the parameters; `fit` checks them.

        - `model`: the pre-trained BERT to start from: a model folder, a run's folder, or a hub name.
        - `max_length`: maximum tokens per sequence; by default 128, or the model's positions if they are fewer.
        - `random_state`: as in scikit-learn; an integer is the seed of `bertwright finetune`.
        - `threads`: threads of `fit`; by default torch's number, which joblib limits to its share of the cores.
        - `verbose`: print what `bertwright finetune` prints.
        - `learning_rate`: None chooses it by the hidden size of the model, as `bertwright finetune` does.
        - `class_weight` (`BertClassifier`, `BertTagger`): None, "balanced", or a dictionary from labels to numbers.
        """
        self._store(locals())

    @classmethod
    def from_folder(cls, folder: str | Path, **parameters: Any) -> Self:
        """Load a fitted estimator from a folder of `save` or `bertwright finetune`, or from a hub name.

        `parameters`: the constructor's, except `model`, which is the folder; another `fit` starts from it. Raises
        ValueError for a model of another task type, and for a folder that `load` rejects.
        """
        estimator = cls(folder, **parameters)
        estimator.model_ = load(folder, "cpu")
        kind = estimator.model_.task.kind if estimator.model_.task else "no task"
        if kind not in (cls.kind, cls.multi_label_kind):
            raise ValueError(f"{folder}: {cls.__name__} needs a model for {cls.kind}, got one for {kind}")
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def _finetune(self, examples: Sequence[Any], kind: str | None = None) -> Bert:
        """Fine-tune the model on examples, whose locations for messages are indices into X; `kind`: the task type."""
        pairs = isinstance(examples[0], TextExample) and examples[0].text_pair is not None
        return self._train(examples, lambda folder: self._settings(folder, pairs, kind or self.kind))

    def _settings(self, run: str, pairs: bool, kind: str) -> dict[str, Any]:
        """Return the parameters as a table of `FinetuneSettings`."""
        overrides = {"max_length": self.max_length, "text_pair": "pair" if pairs else None}
        tuning = {name: getattr(self, name) for name in BOUND[TuningSettings]}
        return self._run_table(run, kind, overrides, tuning | {"class_weights": self._class_weights(run)})

    def _class_weights(self, folder: str) -> Any:
        """Return `class_weight` as a setting; a dictionary is written into the folder."""
        if not isinstance(self.class_weight, Mapping):
            return self.class_weight
        names = _class_names(np.array(list(self.class_weight), dtype=object))
        path = Path(folder) / "class_weight.json"
        write_json(path, _table(dict(zip(names, self.class_weight.values(), strict=True))))
        return str(path)


# `help` shows the text of the constructor for every estimator.
BertEstimator.__init__.__doc__ = f"{BertEstimator.__init__.__doc__}" + "".join(
    f"- `{name}`: {docs[name]}\n        "
    for settings, names in (BOUND | {DeviceSettings: ("device", "dtype")}).items()
    for docs in [field_docs(settings)]
    for name in names
)


class BertClassifier(ClassifierMixin, BertEstimator):  # type: ignore[misc]
    """Classification of texts or pairs of texts.

    X: N texts in a list, an array or a column of a data frame; pairs in a list of tuples, or N × 2. y: N labels:
    strings, integers or booleans; predictions have the same type. After `fit`, `classes_` has all labels, sorted.
    Section 4.1.

    Multi-label classification: y is a matrix of 0 and 1 with a column per label, or a list of lists of labels;
    predictions have the same form (tuples of labels for lists). Without dev examples, the threshold is 0.5.
    """

    kind = "classification"
    multi_label_kind = "multi-label"
    classes_: npt.NDArray[Any]

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune `model` on texts and their labels. Raises ValueError for invalid parameters, X or y."""
        examples = _check_texts(X)
        labels: list[Any]
        y = _check_y(y, examples)
        if (several := _label_sets(y)) is not None:
            classes, kind, form = several.classes, self.multi_label_kind, {"form": several.form}
            names = _class_names(classes)
            labels = [tuple(names[n] for n in np.flatnonzero(row)) for row in several.indicators]
        else:
            classes, indices = np.unique(_check_labels(y), return_inverse=True)
            if len(classes) < 2:
                raise ValueError(f"y: expected at least two classes, got one, {abbreviate(classes.tolist()[0])}")
            kind, form, names = self.kind, dict[str, str](), _class_names(classes)
            labels = [names[index] for index in indices]
        pairs = zip(examples, labels, strict=True)
        model = self._finetune([example._replace(label=label) for example, label in pairs], kind)
        assert model.task_model is not None
        saved = {"classes": classes.tolist(), "dtype": classes.dtype.char} | form
        model.task_model = model.task_model._replace(classes=saved)
        self.model_, self.classes_ = model, classes
        return self

    @property
    def _form(self) -> str | None:
        """The form of y: "matrix" or "lists" in multi-label classification, else None."""
        assert self.model_.task_model is not None
        assert self.model_.task is not None
        if self.model_.task.kind != self.multi_label_kind:
            return None
        return str((self.model_.task_model.classes or {}).get("form", "lists"))

    def predict(self, X: Any) -> Any:
        """Predict the most probable label of each text: N labels. Raises ValueError for an invalid X.

        Multi-label classification: N × C of 0 and 1, or N tuples of labels, whichever form y had in `fit`.
        """
        probabilities = self.predict_proba(X)
        if self._form is None:
            return self.classes_[probabilities.argmax(1)]
        chosen = probabilities > self.model_.task.threshold  # type: ignore[union-attr]
        return chosen.astype(np.int64) if self._form == "matrix" else _to_tuples(self.classes_, chosen)

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Predict the probability of each label, N × C, in the order of `classes_`.

        Each text's sum is 1; in multi-label classification labels are independent.
        """
        bert = self._on_device()
        names, texts = _class_names(self.classes_), _to_texts(X)
        probabilities = np.empty((len(texts), len(names)))
        for index, prediction in enumerate(bert.iter_classify(texts)):
            probabilities[index] = [prediction.probabilities.get(name, 0.0) for name in names]
        return probabilities

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute the accuracy; in multi-label classification, the share of texts with exactly the true labels."""
        several = _label_sets(y := _check_y(y, _check_texts(X)))
        if several is None or self._form == "matrix":
            return float(super().score(X, y, sample_weight))
        true = [{*labels} for labels in _to_tuples(several.classes, several.indicators)]
        hits = [labels == {*guess} for labels, guess in zip(true, self.predict(X), strict=True)]
        return float(np.average(hits, weights=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    @classmethod
    def from_folder(cls, folder: str | Path, **parameters: Any) -> Self:
        """Load a fitted estimator as `BertEstimator.from_folder` does, with the types of its labels."""
        estimator = super().from_folder(folder, **parameters)
        trained = estimator.model_.task_model
        assert trained is not None
        estimator.classes_ = _read_classes(trained.classes, trained.task.label_names, model_folder(folder) / CLASSES)
        return estimator


class BertRegressor(RegressorMixin, BertEstimator):  # type: ignore[misc]
    """Regression on texts or pairs of texts.

    X: as for `BertClassifier`. y: N numbers of any magnitude; training standardizes them.
    """

    kind = "regression"

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune `model` on texts and their numbers. Raises ValueError for invalid parameters, X or y."""
        examples = _check_texts(X)
        pairs = zip(examples, _check_numeric_y(_check_y(y, examples)).tolist(), strict=True)
        self.model_ = self._finetune([example._replace(label=number) for example, number in pairs])
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Predict the number of each text: N float64. Raises ValueError for an invalid X."""
        return np.array(self._on_device().classify(_to_texts(X)), dtype=np.float64)


class BertTagger(BertEstimator):
    """Tagging of words: named entities, chunks, parts of speech.

    X: N lists of words. y: N lists of tags, one per word. The tag scheme is detected. A model trained on IOB1 predicts
    IOB2, one trained on BILOU predicts BIOES. Section 5.3.
    """

    kind = "tagging"

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune `model` on words and their tags. Raises ValueError for invalid parameters, X or y."""
        self.model_ = self._finetune(_check_sentences(X, y))
        return self

    def predict(self, X: Any) -> list[list[str]]:
        """Predict the tag of each word: N lists of tags. Raises ValueError for an invalid X."""
        bert = self._on_device()
        return [list(prediction.tags) for prediction in bert.tag(_check_word_lists(X, "X", "words"))]

    def score(self, X: Any, y: Any) -> float:
        """Compute the F1 of spans as conlleval does; if tags are plain classes, the accuracy over words."""
        examples = _check_sentences(X, y)
        bert = self._on_device()
        assert bert.task is not None
        return bert.task.score(examples, bert.tag([example.words for example in examples]))[bert.task.metric]


class BertReranker(BertEstimator):
    """Re-ranking: the relevance of texts for a query.

    X: N pairs of a query and a text, as for `BertClassifier`. y: N grades 0, 1, 2 …, where 0 is not relevant. Pairs of
    one query are one list, in any order.
    """

    kind = "reranking"

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune `model` on pairs and their grades. Raises ValueError for invalid parameters, X or y."""
        self.model_ = self._finetune(_check_queries(X, y))
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Compute the score of each pair: N float64, higher for relevant texts. Raises ValueError for an invalid X."""
        bert = self._on_device()
        examples, places = _check_pairs(X), dict[str, list[int]]()
        for place, example in enumerate(examples):
            places.setdefault(example.text, []).append(place)
        scores = np.empty(len(examples))
        for query, own in places.items():
            ranked = bert.rank(query, [str(examples[place].text_pair) for place in own], top_k=len(own))
            scores[[own[one.position] for one in ranked]] = [one.score for one in ranked]
        return scores

    def rank(self, query: str, texts: Sequence[str], top_k: int = 10) -> list[RankedText]:
        """Return the first `top_k` texts with position, score and text, as `Bert.rank`."""
        return self._on_device().rank(query, texts, top_k)

    def score(self, X: Any, y: Any) -> float:
        """Compute nDCG@10, the mean over the queries that have a relevant text."""
        task = self._on_device().task
        assert task is not None
        examples = _check_queries(X, y)
        pairs = [(example.query, text) for example in examples for text in example.texts]
        counts = np.cumsum([len(example.texts) for example in examples])[:-1]
        return task.score(examples, np.split(self.predict(pairs), counts))[task.metric]


class BertEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BertOnDevice):  # type: ignore[misc]
    """Transformer of texts to vectors, as `Bert.embed` computes them: the features of any classifier.

    X: N texts in a list, an array or a column of a data frame. On texts, `fit` loads the model and learns nothing; on
    tuples of texts that belong together it trains the vectors, as `bertwright finetune --task embedding`.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        max_length: int | None = None,
        prompt_name: str | None = None,
        epochs: float | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        random_state: int | np.random.RandomState | None = FinetuneSettings.seed,
        device: str = DeviceSettings.device,
        dtype: str = DeviceSettings.dtype,
        threads: int | None = None,
        verbose: bool = False,
    ) -> None:
        """Store the parameters; `fit` checks them.

        - `pooling`, `normalize`, `max_length`, `prompt_name`: as for `Bert.embed`.
        - `epochs`, `batch_size`, `learning_rate`: of training; None chooses them by the rows and the model's size.
        - `model`, `random_state`, `device`, `dtype`, `threads`, `verbose`: as for `BertClassifier`.
        """
        self._store(locals())

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Load the model and, if X has tuples of texts, train its vectors.

        A tuple has an anchor, a text that belongs to it, and texts that do not. With y, N numbers, X has pairs and y
        says how similar they are. y is not read if X has texts. Raises ValueError for a folder that `load` rejects,
        and for invalid parameters, X or y.
        """
        rows = _check_rows(X, y)
        self.model_ = (
            self._train(rows, lambda folder: self._settings(folder, rows)) if rows else load(self.model, "cpu")
        )
        return self

    def _settings(self, run: str, rows: Sequence[TextRow]) -> dict[str, Any]:
        """Return the parameters as a table of `FinetuneSettings`."""
        default = schedule_for(default_schedule(None, rows), hidden_size_of(read_model_config(str(self.model))))
        overrides, tuning = {"max_length": self.max_length}, {"pooling": self.pooling}
        return merge(default, self._run_table(run, Embedding.kind, overrides, tuning))

    def transform(self, X: Any) -> npt.NDArray[np.float32]:
        """Compute the vector of each text, N × H. Raises ValueError for an invalid X or parameter."""
        bert = self._on_device()
        texts = _to_list(X, "X")
        return bert.embed(texts, self.pooling, self.normalize, max_length=self.max_length, prompt_name=self.prompt_name)

    @property
    def _n_features_out(self) -> int:
        """Numbers per vector: scikit-learn names the columns by it."""
        return self.model_.vector_size(self.pooling)


def _table(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert parameters to a table as in TOML: unset ones are absent, and NumPy's numbers (of grids) are Python's."""
    return {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in values.items()
        if value is not None
    }


# --- Checks of X and y


def _to_list(values: Any, name: str) -> list[Any]:
    """Convert a list, an array or a data frame to a list. Raises ValueError for anything else, and if it is empty."""
    converted = to_list(np.asarray(values).tolist() if hasattr(values, "__array__") else values, name)
    if not converted:
        raise ValueError(f"{name}: expected at least one example, got none")
    return converted


def _check_y(y: Any, X: Sequence[Any]) -> Any:
    """Return y; a column is a list, with scikit-learn's warning. Raises ValueError for none, and for another length."""
    if y is None:
        raise ValueError("y cannot be None; give a target for each example of X")  # scikit-learn's words
    check_consistent_length(X, y)
    is_column = np.shape(y)[1:] == (1,) if hasattr(y, "__array__") else False
    return column_or_1d(np.asarray(y), warn=True) if is_column else y


def _check_texts(X: Any) -> list[TextExample[Any]]:
    """Return examples of texts, or of pairs. Raises ValueError, naming the index, for anything else or a mixture."""
    examples = [text_example(value, f"X[{index}]") for index, value in enumerate(_to_list(X, "X"))]
    expected = "a text" if examples[0].text_pair is None else "a pair of texts"
    for example in examples:
        if (example.text_pair is None) != (examples[0].text_pair is None):
            got = "a pair of texts" if example.text_pair is not None else "a text"
            raise ValueError(f"{example.location}: expected {expected} as in X[0], got {got}")
    return examples


def _to_texts(X: Any) -> list[Text]:
    """Convert X to a list of texts, or of pairs. Raises ValueError as `_check_texts` does."""
    return [
        example.text if example.text_pair is None else (example.text, example.text_pair) for example in _check_texts(X)
    ]


def _check_pairs(X: Any) -> list[TextExample[Any]]:
    """Return examples of pairs. Raises ValueError for single texts, and as `_check_texts` does."""
    examples = _check_texts(X)
    if examples[0].text_pair is None:
        raise ValueError("X[0]: expected a pair of a query and a text, got one text")
    return examples


def _check_queries(X: Any, y: Any) -> list[RankingExample]:
    """Return the queries of pairs with their texts and grades. Raises ValueError for grades that are none."""
    examples = _check_pairs(X)
    grades = _check_numeric_y(_check_y(y, examples)).tolist()
    return group_queries(
        [
            TextRow(example.text, f"y[{index}]", (str(example.text_pair),), score=grade)
            for index, (example, grade) in enumerate(zip(examples, grades, strict=True))
        ]
    )


def _check_rows(X: Any, y: Any) -> list[TextRow]:
    """Return rows of texts that belong together; none if X has single texts, or is None."""
    values = [] if X is None else _to_list(X, "X")
    if not values or not isinstance(values[0], tuple | list):
        return []
    scores: list[float | None] = [None] * len(values)
    if y is not None:
        scores = _check_numeric_y(_check_y(y, values)).tolist()
    rows = []
    for index, (value, score) in enumerate(zip(values, scores, strict=True)):
        place = f"X[{index}]"
        anchor, *others = texts = check_words(value, place, "texts (str, not empty)")
        if len(texts) < 2 or (score is not None and len(texts) > 2):
            expected = "two texts or more" if score is None else "two texts, which y rates"
            raise ValueError(f"{place}: expected {expected}, got {len(texts)}")
        rows.append(TextRow(anchor, place, (others[0],), tuple(others[1:]), score))
    return rows


def _check_labels(y: Any) -> npt.NDArray[Any]:
    """Return N labels of one type. Raises ValueError for missing labels, mixed types, and fractional numbers."""
    values = _to_list(y, "y")
    for index, value in enumerate(values):
        if value is None:
            raise ValueError(f"y[{index}]: expected a label, got None")
        for kind in (str, (bool, np.bool_)):  # NumPy would convert mixed types to strings or numbers
            if isinstance(value, kind) != isinstance(values[0], kind):
                raise ValueError(
                    f"y[{index}]: expected a label of the same type as y[0], {abbreviate(values[0])}, got "
                    f"{abbreviate(value)}"
                )
        if isinstance(value, str):
            check_text(value, f"y[{index}]")
    labels: npt.NDArray[Any] = column_or_1d(np.asarray(y if hasattr(y, "__array__") else values), warn=True)
    assert_all_finite(labels, input_name="y")
    check_classification_targets(labels)
    return labels


def _check_numeric_y(y: Any) -> npt.NDArray[np.float64]:
    """Return N finite numbers. Raises ValueError for anything else."""
    values = np.asarray(y if hasattr(y, "__array__") else _to_list(y, "y"))
    if values.dtype.kind not in "biufO":  # NumPy would convert dates to a number of days
        raise ValueError(f"y: expected numbers, got {abbreviate(values.flat[0])}")
    try:
        finite = check_array(values, ensure_2d=False, dtype=np.float64, input_name="y")
    except (TypeError, OverflowError) as error:  # objects that are no numbers; an int beyond the largest float
        raise ValueError(f"y: expected numbers ({error})") from None
    numbers: npt.NDArray[np.float64] = column_or_1d(finite, warn=True)
    if (numbers == numbers[0]).all():
        raise ValueError(f"y: expected at least two different numbers, got {numbers[0]:g} only")
    return numbers


def _check_word_lists(values: Any, name: str, kind: str) -> list[tuple[str, ...]]:
    """Return lists of words or of tags as tuples. Raises ValueError, naming the index, for anything else."""
    listed = enumerate(_to_list(values, name))
    return [check_words(value, f"{name}[{index}]", f"a list of {kind} (str, not empty)") for index, value in listed]


def _check_sentences(X: Any, y: Any) -> list[TagExample]:
    """Return tagged sentences. Raises ValueError if X or y is invalid, or if a sentence has more or fewer tags."""
    words = _check_word_lists(X, "X", "words")
    tags = _check_word_lists(_check_y(y, words), "y", "tags")
    pairs = enumerate(zip(words, tags, strict=True))
    return [TagExample(sentence, labels, source=f"X[{index}]") for index, (sentence, labels) in pairs]


class LabelSets(NamedTuple):
    """The labels of N texts, of C in all."""

    form: str
    """matrix or lists."""
    classes: npt.NDArray[Any]
    """C labels; of a matrix, the names or the numbers of its columns."""
    indicators: npt.NDArray[np.bool_]
    """N × C, True for a label that the text has."""


def _label_sets(y: Any) -> LabelSets | None:
    """Return the labels of each text if y is a matrix of 0 and 1 or a list of lists of labels; None if it is neither.

    Raises ValueError for other numbers in a matrix and for labels of different types.
    """
    if hasattr(y, "toarray"):  # a sparse matrix
        y = y.toarray()
    shape: tuple[int, ...] = getattr(y, "shape", ())
    if len(shape) == 2 and shape[1] > 1:
        matrix = np.asarray(y)
        if not np.isin(matrix, (0, 1)).all():
            raise ValueError("y: expected one label per text, or a matrix of 0 and 1 with a column per label")
        return LabelSets("matrix", np.array(getattr(y, "columns", range(shape[1]))), matrix.astype(bool))
    values = _to_list(y, "y")
    if not all(isinstance(value, list | tuple | set | frozenset | np.ndarray) for value in values):
        return None
    rows = [[*value] for value in values]
    flat = [label for row in rows for label in row]
    if len({len(row) for row in rows}) == 1 < len(rows[0]) and all(
        type(label) is int and label in (0, 1) for label in flat
    ):
        return _label_sets(np.array(rows))  # as scikit-learn reads nested lists of 0 and 1
    if not flat:
        raise ValueError("y: expected at least one label, got empty lists only")
    classes = np.unique(_check_labels(flat))
    return LabelSets("lists", classes, np.array([np.isin(classes, row) if row else classes != classes for row in rows]))


def _to_tuples(classes: npt.NDArray[Any], indicators: npt.NDArray[np.bool_]) -> list[tuple[Any, ...]]:
    return [tuple(classes[row].tolist()) for row in indicators]


def _class_names(classes: npt.NDArray[Any]) -> list[str]:
    values = (value.item() if isinstance(value, np.generic) else value for value in classes.tolist())
    return [format_label(value, "y", f"class {value!r}") for value in values]


def _read_classes(saved: Any, names: Sequence[str], path: Path) -> npt.NDArray[Any]:
    """Return the classes of a model from the content of `classes.json` at `path`; without it (None), the label names.

    Raises ValueError if they are not the model's labels.
    """
    if saved is None:
        return np.unique(names)
    try:
        classes: npt.NDArray[Any] = np.array(saved["classes"], dtype=saved["dtype"])
        known = set(_class_names(classes))
        if known == set(names) or ("form" in saved and known > set(names)):  # a column of zeros has no output
            return classes
    except (KeyError, TypeError, ValueError):
        pass
    raise ValueError(f"{path}: expected the labels of the model; restore the file, or delete it to get labels as text")


# Pickles name the classes by the package, not by this file, so that the file may move.
for _estimator in (BertClassifier, BertRegressor, BertTagger, BertReranker, BertEmbedder):
    _estimator.__module__ = "bertwright"
