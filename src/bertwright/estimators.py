"""scikit-learn estimators over raw text: `BertClassifier`, `BertRegressor` and `BertTagger`.

    classifier = BertClassifier("run/model", epochs=2).fit(texts, labels)
    classifier.predict(["A joy from start to end."])

`fit` is `runs.finetune` in a folder that is deleted afterwards; whoever wants its scores, plots and checkpoints calls
that. What it would remark, such as texts that are cut, it warns of. A fitted estimator is pickled as the files of its
Hugging Face folder, never as Python objects of torch.
"""
# ruff: noqa: N803 - X and y are what scikit-learn calls them, and what it passes them as

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from bertwright.commands.finetune.run import finetune
from bertwright.commands.finetune.settings import FinetuneSettings, TuningSettings, paper_optimizer
from bertwright.inference.model import Bert, Text, load
from bertwright.interop.model_files import CLASSES, model_folder, new_folder
from bertwright.io.decoding import SURROGATE
from bertwright.io.tables import label_text
from bertwright.settings import from_table
from bertwright.tasks.classification import TextExample
from bertwright.tasks.conll import TagExample
from bertwright.tasks.task_io import write_task_folder
from bertwright.training.context import execution_context
from bertwright.training.settings import DeviceSettings

SHOWN = 40  # characters of a value in a message


class BertEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What the three share: parameters, fine-tuning in a temporary folder, and travelling as a model folder.

    `model`: the folder of a BERT to start from, a run's folder, or a hub name. `max_length`: longest sequence in
    tokens; None is 128, or the model's positions if they are fewer. `random_state`: as everywhere in scikit-learn;
    a number is the seed of `bertwright finetune`. `threads`: None leaves it to torch, which keeps to joblib's share of
    the cores. `verbose`: print what `bertwright finetune` prints. The others are fields of `FinetuneSettings` and
    `DeviceSettings`, explained there, with the same defaults.

    Fitted: `model_`, the fine-tuned `Bert`. It computes where `device`, `dtype` and `threads` say at the time.
    """

    kind: ClassVar[str]
    """The kind of task."""
    model_: Bert

    def __init__(
        self,
        model: str | Path,
        *,
        epochs: float = FinetuneSettings.epochs,
        batch_size: int = FinetuneSettings.batch_size,
        learning_rate: float = paper_optimizer().learning_rate,
        max_length: int | None = None,
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
        # Stored as they are and checked in `fit`: `clone` and `set_params` rely on it.
        self.model = model
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_length = max_length
        self.dropout = dropout
        self.freeze_layers = freeze_layers
        self.layerwise_lr_decay = layerwise_lr_decay
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.dtype = dtype
        self.threads = threads
        self.verbose = verbose

    @classmethod
    def from_folder(cls, folder: str | Path, **parameters: Any) -> Self:
        """A fitted estimator of what `save`, or `bertwright finetune`, has left; a hub name will do, too.

        `parameters`: those of the constructor but for `model`, which is the folder: another `fit` starts from it.
        Raises ValueError for a model of another kind of task.
        """
        made = cls(folder, **parameters)
        made.model_ = load(folder, "cpu")
        found = made.model_.task.kind if made.model_.task else "no task"
        if found != cls.kind:
            raise ValueError(f"{folder}: a model for {found}; {cls.__name__} needs one for {cls.kind}")
        return made

    def save(self, folder: str | Path) -> None:
        """Write a Hugging Face folder, whole or not at all. Raises ValueError when something is there already."""
        check_is_fitted(self, "model_")
        with new_folder(Path(folder)) as part:
            self._write(part)

    def _write(self, folder: Path) -> None:
        """Write the fitted model into a folder that exists."""
        write_task_folder(folder, self.model_.task_model, self.model_.tokenizer)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if "model_" in state:
            with TemporaryDirectory(prefix="bertwright-") as folder:
                self._write(Path(folder))
                state["model_"] = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "model_" in state:
            with TemporaryDirectory(prefix="bertwright-") as folder:
                for name, content in state["model_"].items():
                    (Path(folder) / name).write_bytes(content)
                state = state | {"model_": load(folder, "cpu")}
        super().__setstate__(state)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.target_tags.required = True
        return tags

    def _tuned(self, examples: Sequence[Any]) -> Bert:
        """The model fine-tuned on examples, whose places, for messages, are those in X."""
        pairs = isinstance(examples[0], TextExample) and examples[0].text_pair is not None
        with TemporaryDirectory(prefix="bertwright-") as folder, _threads_kept():
            settings = from_table(FinetuneSettings, self._settings(folder, pairs), type(self).__name__)
            try:
                console = Console(quiet=not self.verbose)
                return load(finetune(settings, console, {"train": examples}, temporary=True), "cpu")
            except KeyboardInterrupt:  # its advice to resume is about the folder that goes away here
                raise KeyboardInterrupt(f"{type(self).__name__}: fit was interrupted, nothing is kept") from None

    def _settings(self, run: str, pairs: bool) -> dict[str, Any]:
        """The table of a `FinetuneSettings`."""
        seeded = isinstance(self.random_state, int | np.integer)
        given = {name: getattr(self, name) for name in ("epochs", "batch_size")}
        tuning = ("dropout", "freeze_layers", "layerwise_lr_decay", "validation_fraction")
        given["seed"] = self.random_state if seeded else check_random_state(self.random_state).randint(2**31 - 1)
        return _table(given) | {
            "run": run,
            "model": str(self.model),
            "task": {
                "task": self.kind,
                "overrides": _table({"max_length": self.max_length, "text_pair": "pair" if pairs else None}),
            },
            "tuning": _table({name: getattr(self, name) for name in tuning}),
            "optimizer": _table({"learning_rate": self.learning_rate}),
            "device": self._device,
        }

    @property
    def _device(self) -> dict[str, Any]:
        """The table of a `DeviceSettings`."""
        threads = torch.get_num_threads() if self.threads is None else self.threads
        return _table({"device": self.device, "dtype": self.dtype, "threads": threads})

    @contextmanager
    def _placed(self) -> Iterator[Bert]:
        """The fitted model, ready to compute where the parameters say. Raises NotFittedError where there is none."""
        check_is_fitted(self, "model_")
        settings = from_table(DeviceSettings, self._device, type(self).__name__)
        with _threads_kept(), execution_context(settings) as place:
            self.model_.model.to(place.device)
            self.model_.model.encoder.compute_dtype = place.dtype
            yield self.model_


class BertClassifier(ClassifierMixin, BertEstimator):  # type: ignore[misc]
    """Which of some labels does a text, or a pair of texts, have?

    Texts are a list, an array or a column of a data frame; pairs are a list of two-tuples, or N × 2. Labels are
    strings, numbers or truth values, and come back as the type they were. Fitted: `classes_`, all labels, sorted.
    """

    kind = "classification"
    classes_: npt.NDArray[Any]

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune `model` on texts and their labels. Raises ValueError for either that is not as it should be."""
        texts = _texts(X)
        classes, which = np.unique(_labels(_given(y, texts)), return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"y holds one class only, {_shown(classes.tolist()[0])}: two are the least")
        names = _names(classes)
        self.model_ = self._tuned(_examples(texts, [names[number] for number in which]))
        self.model_.classes = {"classes": classes.tolist(), "dtype": classes.dtype.char}
        self.classes_ = classes
        return self

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """N labels, the likeliest one of each text."""
        shares = self.predict_proba(X)
        labels: npt.NDArray[Any] = self.classes_[shares.argmax(1)]
        return labels

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """N × C, the probability of each label, in the order of `classes_`; rows sum to 1."""
        with self._placed() as bert:
            names, texts = _names(self.classes_), _texts(X)
            shares = np.empty((len(texts), len(names)))
            for row, one in zip(shares, bert.iter_classify(texts), strict=True):
                row[:] = [one.probabilities[name] for name in names]
        return shares

    @classmethod
    def from_folder(cls, folder: str | Path, **parameters: Any) -> Self:
        made = super().from_folder(folder, **parameters)
        assert made.model_.task is not None
        made.classes_ = _classes(made.model_.classes, made.model_.task.label_names, model_folder(folder) / CLASSES)
        return made


class BertRegressor(RegressorMixin, BertEstimator):  # type: ignore[misc]
    """Which number belongs to a text, or to a pair of texts? Both are given as to `BertClassifier`.

    Numbers may have any magnitude: training scales them.
    """

    kind = "regression"

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune `model` on texts and their numbers. Raises ValueError for either that is not as it should be."""
        texts = _texts(X)
        numbers = _numbers(_given(y, texts))
        self.model_ = self._tuned(_examples(texts, numbers.tolist()))
        return self

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """N numbers."""
        with self._placed() as bert:
            return np.array(bert.classify(_texts(X)), dtype=np.float64)


class BertTagger(BertEstimator):
    """A tag for each word: X holds lists of words, y lists of as many tags.

    The scheme of the tags is found out. Predicted tags are IOB2 where IOB1 was learned, and BIOES where BILOU was.
    """

    kind = "tagging"

    def fit(self, X: Any, y: Any) -> Self:
        """Fine-tune `model` on words and their tags. Raises ValueError for either that is not as it should be."""
        self.model_ = self._tuned(self._sentences(X, y))
        return self

    def predict(self, X: Any) -> list[list[str]]:
        """A tag for each word of each sentence."""
        with self._placed() as bert:
            return [list(tagged.tags) for tagged in bert.tag(_sequences(X, "X", "words"))]

    def score(self, X: Any, y: Any) -> float:
        """F1 of spans as conlleval counts them; where tags are plain classes, the share of words that are right."""
        examples = self._sentences(X, y)
        with self._placed() as bert:
            assert bert.task is not None
            return bert.task.score(examples, bert.tag([one.words for one in examples]))[bert.task.metric]

    def _sentences(self, X: Any, y: Any) -> list[TagExample]:
        words = _sequences(X, "X", "words")
        pairs = zip(words, _sequences(_given(y, words), "y", "tags"), strict=True)
        return [TagExample(*pair, source=f"X[{place}]") for place, pair in enumerate(pairs)]


@contextmanager
def _threads_kept() -> Iterator[None]:
    """Give torch back the threads it had: a guest in another's process leaves no mark on it."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _table(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as TOML has them: unset ones left out, and NumPy's numbers, which grids are made of, as Python's."""
    given = {name: value for name, value in values.items() if value is not None}
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}


# --- what is given as X and y


def _rows(values: Any, name: str) -> list[Any]:
    """A list, an array or a column of a data frame as a list. Raises ValueError where it is neither, or empty."""
    one = isinstance(values, str | bytes | Mapping | set | frozenset) or getattr(values, "shape", None) == ()
    if one or not isinstance(values, Iterable):  # a set has no order that X and y could share
        raise ValueError(f"{name} is one {type(values).__name__}: a list, an array or a column is expected")
    rows = np.asarray(values).tolist() if hasattr(values, "__array__") else list(values)
    if not rows:
        raise ValueError(f"{name} is empty: one example is the least")
    for place, row in enumerate(rows):
        parts = row if isinstance(row, list | tuple | np.ndarray) else (row,)
        if half := SURROGATE.search("".join(part for part in parts if isinstance(part, str))):
            raise ValueError(f"{name}[{place}]: \\u{ord(half[0]):04x} is half a surrogate pair, which is no text")
    return rows


def _given(y: Any, rows: Sequence[Any]) -> Any:
    """y as it is, once it is there and as long as X."""
    if y is None:
        raise ValueError("y cannot be None: it holds what is to be learned")
    check_consistent_length(rows, y)
    return y


def _texts(X: Any) -> list[Text]:
    """Texts, or pairs of texts. Raises ValueError, naming the place, for anything else, and for a mixture."""
    texts: list[Text] = []
    for place, row in enumerate(_rows(X, "X")):
        text = tuple(row) if isinstance(row, list | tuple | np.ndarray) else row
        parts = text if isinstance(text, tuple) and len(text) == 2 else (text,)
        if not all(isinstance(part, str) for part in parts):
            raise ValueError(f"X[{place}] is {_shown(row)}: a text (str), or a pair of texts, is expected")
        texts.append(text)
        if isinstance(text, str) != isinstance(texts[0], str):
            raise ValueError(f"X[{place}] is {_shown(row)}, but X[0] {_shown(texts[0])}: give texts, or pairs of texts")
    return texts


def _examples(texts: Sequence[Text], labels: Sequence[Any]) -> list[TextExample[Any]]:
    """What the task reads."""
    found = []
    for place, (text, label) in enumerate(zip(texts, labels, strict=True)):
        first, second = (text, None) if isinstance(text, str) else text
        found.append(TextExample(first, second, label, f"X[{place}]"))
    return found


def _labels(y: Any) -> npt.NDArray[Any]:
    """N labels, of one type. Raises ValueError for missing ones, and for numbers that are no classes."""
    values = _rows(y, "y")
    for place, value in enumerate(values):
        if value is None:
            raise ValueError(f"y[{place}] is None: a label is expected")
        for kind in (str, (bool, np.bool_)):  # NumPy would make strings, or numbers, of them all
            if isinstance(value, kind) != isinstance(values[0], kind):
                raise ValueError(f"y[{place}] is {_shown(value)}, but y[0] {_shown(values[0])}: labels are of one type")
    labels: npt.NDArray[Any] = column_or_1d(np.asarray(y if hasattr(y, "__array__") else values), warn=True)
    assert_all_finite(labels, input_name="y")
    check_classification_targets(labels)
    return labels


def _numbers(y: Any) -> npt.NDArray[np.float64]:
    """N numbers. Raises ValueError, naming the place, for what is none, or not finite."""
    given = np.asarray(y if hasattr(y, "__array__") else _rows(y, "y"))
    odd = [] if given.dtype.kind in "biuf" else [(0, given.flat[0])]  # a date, of which NumPy would count the days
    if given.dtype.kind == "O":
        odd = [row for row in enumerate(given.flat) if not isinstance(row[1], Real | Decimal | np.bool_)]
    for place, value in odd[:1]:
        raise ValueError(f"y[{place}] is {_shown(value)}: a number is expected")
    numbers: npt.NDArray[np.float64] = column_or_1d(given.astype(np.float64), warn=True)
    for place in np.flatnonzero(~np.isfinite(numbers))[:1].tolist():
        kind = "NaN" if np.isnan(numbers[place]) else "infinity"
        raise ValueError(f"Input y contains {kind}: y[{place}]")  # as scikit-learn says it
    if (numbers == numbers[0]).all():
        raise ValueError(f"y is {numbers[0]:g} throughout: two different numbers are the least")
    return numbers


def _names(classes: npt.NDArray[Any]) -> list[str]:
    """What the model calls the classes."""
    return [label_text(value, "y", f"class {value!r}") for value in classes.tolist()]


def _classes(written: Any, names: Sequence[str], path: Path) -> npt.NDArray[Any]:
    """The classes that a file, `path`, has for a model's label names; where there is none (None), the names."""
    if written is None:
        return np.unique(names)
    try:
        classes: npt.NDArray[Any] = np.array(written["classes"], dtype=written["dtype"])
        if sorted(_names(classes)) == sorted(names):
            return classes
    except (KeyError, TypeError, ValueError):
        pass
    raise ValueError(f"{path}: not the labels of the model beside it; without this file they are strings")


def _sequences(values: Any, name: str, what: str) -> list[tuple[str, ...]]:
    """Lists of words, or of tags. Raises ValueError, naming the place, for anything else."""
    found = []
    for place, row in enumerate(_rows(values, name)):
        items = tuple(row) if isinstance(row, list | tuple | np.ndarray) else ("",)
        if not all(isinstance(item, str) and item for item in items):
            raise ValueError(f"{name}[{place}] is {_shown(row)}: a list of {what} (str, not empty) is expected")
        found.append(items)
    return found


def _shown(value: Any) -> str:
    shown = repr(value)
    return f"{shown if len(shown) <= SHOWN else f'{shown[:SHOWN]}…'} ({type(value).__name__})"
