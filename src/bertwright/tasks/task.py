"""The interface of every task type, with defaults: encode examples as sequences, decode the head's outputs.

N examples; S sequences with T tokens that encode them; R positions whose states the head reads; C outputs per position;
K labels. An item is what a batch counts: one sequence, or all sequences that are scored against each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import numpy as np

from bertwright.base.ragged import offsets_from_lengths
from bertwright.base.settings import did_you_mean
from bertwright.metrics.example_scores import ExampleScores
from bertwright.models.head_spec import HeadSpec
from bertwright.models.pooling import describe_pooling
from bertwright.tables.schema import TableSchema
from bertwright.tasks.collation import step_items
from bertwright.tasks.encoded import Encoded, Floats, Ints, Outputs
from bertwright.tasks.score_formats import DisplayTable
from bertwright.vocabulary.tokenizer import TextTokenizer

if TYPE_CHECKING:  # torch takes a second to import, and the options of tasks are shown by --help
    from torch import Tensor

    from bertwright.interop.head_config import HeadRecord
    from bertwright.models.encoder import TextEncoder
    from bertwright.models.heads import TaskBatch, TaskHead
    from bertwright.models.task_model import EncoderForTask
    from bertwright.training.loop import LossOutput

E = TypeVar("E")  # an example
P = TypeVar("P")  # a prediction

LEARNED = {"option": False}  # metadata of fields that training or a preset sets: they are no options of the user


class Task(ABC, Generic[E, P]):
    """A task type: read, encode, loss, decode, score, show, write.

    Each one is a frozen dataclass in a file of its own. Its fields are the user's options and what training sets
    (labels, a threshold). All are saved in the model folder as `task.json`.
    """

    kind: ClassVar[str]
    """Name on the command line and in `task.json`."""
    inference_call: ClassVar[str]
    """The method of `bertwright.load(folder)` for this type, with its arguments, for messages."""
    dialect_parts: ClassVar[tuple[str, ...]] = ()
    """What may be recognized in its files: parts of the table of dialects."""
    native_suffix: ClassVar[str] = ""
    """Suffix of the type's own file format, which `format_native` writes; empty: none."""
    is_regression: ClassVar[bool] = False
    """True if the head predicts a number, so that there are no labels to smooth."""
    is_multi_label: ClassVar[bool] = False
    """True if the outputs are labels that do not exclude each other."""
    examples_name: ClassVar[str] = "examples"
    """What an example is called in messages."""
    example_command: ClassVar[str] = "predict {} --inputs FILE --output FILE"
    """What the trained model does, as a command after `bertwright`, with {} for its folder."""
    scores_before_training: ClassVar[bool] = False
    """True if the model is also scored before the first step, because it is of use without training."""
    reads_pooler: ClassVar[bool] = True
    """True if the pooling "cls" is the pooler's output, False if it is the state itself."""
    base_learning_rate: ClassVar[float | None] = None
    """Peak learning rate of BASE in fine-tuning; None: the paper's."""
    truncation_option: ClassVar[str] = "max_length"
    """Name of the option that limits the tokens of an example."""
    metric: str
    """The score that selects checkpoints and settings; higher is better."""
    max_length: int
    """Longest sequence in tokens, [CLS] and [SEP] included."""
    labels: tuple[str, ...] = ()
    """All labels, in the order of the head's outputs; a field of the types that learn them from the training data."""
    class_weights: tuple[float, ...] = ()
    """Factor in the loss of training of each label; empty: 1. A field of the types whose labels are classes."""
    pooling: tuple[str, ...] | None = None
    """Modes in which the head pools the states of all tokens; empty: it reads the pooler's output. None: its states are
    not pooled; a field of the other types."""
    both_orders: bool = False
    """Whether the head reads each pair of texts in both orders; a field of the types that can."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """Name of each output of the head, for `config.json`; empty if outputs have no names.

        Names that depend on the training data are in a field `labels`.
        """
        return self.labels

    @property
    def head_scale(self) -> float:
        """Factor of the head's weights in files: a power of two, so that writing and reading change no bit."""
        return 1.0

    @property
    def activation(self) -> str:
        """The function that turns a re-ranker's output into its score, sigmoid or identity; empty for other types."""
        return ""

    @property
    def default_dropout(self) -> float | None:
        """Dropout that the training needs, unless the user names another; None: the model's own."""
        return None

    # Where a task comes from

    @classmethod
    def from_head(cls, record: HeadRecord, max_positions: int) -> Self | None:
        """Infer the task, with the maximum length, from a head of `transformers`; None if its type is another."""
        return None

    def check_learned(self) -> None:
        """Raise ValueError if `task.json` lacks what training has set: by default, the labels, if they are a field."""
        if "labels" in {field.name for field in fields(self)}:  # type: ignore[arg-type]
            check_restored("labels", self.labels)

    def limited_to(self, max_positions: int) -> Self:
        """Return the task with lengths that a model with this number of positions can read."""
        return replace(self, max_length=min(self.max_length, max_positions))  # type: ignore[type-var]

    def with_model(self, folder: Path) -> Self:
        """Return the task with what the folder of the model decides that it starts from."""
        return self

    def with_threshold(self, threshold: float) -> Self:
        """Return the task with another decision threshold. Raises ValueError if it has none."""
        raise ValueError(f"--threshold {threshold:g}: this model never predicts that there is no answer; omit it")

    def merge(self, others: Sequence[Self]) -> Self:
        """Return the task of an ensemble; the `others` have the same labels and options."""
        return self

    def merge_notes(self) -> list[str]:
        """Describe choices in the task of an ensemble that a user should know, one sentence each."""
        return []

    # Examples

    @property
    def reads_single_texts(self) -> bool:
        """True if an example is one text, so that a line of standard input can be one."""
        return False

    @abstractmethod
    def read(self, path: str, labeled: bool = True) -> Iterator[E]:
        """Read the examples of a file in order; with `labeled`, each must have its label.

        Raises ValueError with file, line, value and hint for invalid input.
        """

    @abstractmethod
    def examples_from_texts(self, texts: Sequence[str], location: str) -> list[E]:
        """Convert texts to unlabeled examples: one per text, or one in all if an example has several texts.

        `location`: their source, for messages. Raises ValueError for a wrong number of texts.
        """

    @abstractmethod
    def with_labels_of(self, examples: Sequence[E]) -> Self:
        """Set the fields that depend on training examples, such as labels. Raises ValueError for a single label."""

    def prepare_splits(self, splits: Mapping[str, Sequence[E]]) -> tuple[Self, dict[str, Sequence[E]]]:
        """Return the task with the choices that depend on all examples, and the examples to train and score on."""
        return self, {**splits}

    @abstractmethod
    def check(self, examples: Sequence[E]) -> None:
        """Raise ValueError with the location of an example that cannot be scored, such as for an unknown label."""

    def warnings(self, examples: Sequence[E], paths: Sequence[str] = ()) -> list[str]:
        """Describe oddities of labeled examples, one sentence each; `paths`: their files."""
        return []

    def vocabulary_warnings(self, examples: Sequence[E], tokenizer: TextTokenizer) -> list[str]:
        """Describe problems of the vocabulary with the training examples, one sentence each."""
        return []

    def encoding_warnings(self, encoded: Encoded) -> list[str]:
        """Describe oddities of encoded labeled examples, one sentence each."""
        return []

    def step_warnings(self, examples: Sequence[E], batch_size: int) -> list[str]:
        """Describe what a step makes of this batch size, one sentence each. Raises ValueError for an unusable size."""
        return []

    def single_examples(self, examples: Sequence[E]) -> Sequence[E]:
        """Return the examples whose copies in training and scoring are counted; by default, the examples themselves."""
        return examples

    def truncation_warnings(self, examples: int, truncated: int, max_positions: int) -> list[str]:
        """Warn about truncated examples, if any. `max_positions`: of the model."""
        if not truncated:
            return []
        length = getattr(self, self.truncation_option)
        whole = f"raise {self.truncation_option} to keep them whole"
        hint = "the model has no more positions" if length == max_positions else whole
        share = f"{truncated:,} of {examples:,} {self.examples_name} ({truncated / examples:.1%})"
        return [f"{share} lose tokens: {self.truncation_option} is {length}; {hint}"]

    def passthrough_schema(self, columns: Sequence[str], hint: str) -> TableSchema | None:
        """Return the schema that reads other columns of the task's tables; None if its files are no tables."""
        return None

    @abstractmethod
    def group_keys(self, examples: Sequence[E]) -> Sequence[Hashable]:
        """Return a key per example; examples with equal keys stay in the same split."""

    reads_words: ClassVar[bool] = False
    """True if the texts of an example are its words, which stay whole in a vocabulary of words."""

    @property
    def num_segments(self) -> int:
        """Texts per sequence: 2 for pairs."""
        return 1

    def texts(self, examples: Sequence[E]) -> Iterator[str]:
        """Yield all texts of examples, from which a vocabulary of words is made."""
        raise ValueError(
            f"--architecture: expected a task on words, sentences or pairs, got {self.kind}; name a --model instead"
        )

    @abstractmethod
    def encode(self, examples: Sequence[E], tokenizer: TextTokenizer, labeled: bool = True) -> Encoded:
        """Encode examples as sequences; with `labeled`, with labels.

        Then examples that cannot be trained on, such as an answer that does not occur in its context, are left out.
        Raises ValueError for labels that `check` rejects.
        """

    def balanced_weights(self, examples: Sequence[E]) -> Floats:
        """Compute the weight in the loss of each label that makes up for its frequency in training examples.

        Raises ValueError for a task type without classes.
        """
        raise ValueError(f"class_weights: expected a task type with classes, got {self.kind}; omit it")

    # The head

    @property
    @abstractmethod
    def head(self) -> HeadSpec:
        """The head on the encoder. Raises ValueError if it depends on labels that are not known yet."""

    @property
    def scores_paths(self) -> bool:
        """True if the head scores all labels of a sequence together, so that no label has a loss of its own."""
        return False

    @property
    def head_builder(self) -> Callable[[TextEncoder], TaskHead] | None:
        """A function that builds the head on an encoder; None for the paper's linear layer with its pooler."""
        if not self.pooling or self.head.kind == "vector":  # the head of a vector follows from the model's folder
            return None
        from bertwright.models.heads import PooledHead

        return partial(PooledHead, self.head, self.pooling)

    def head_for(self, folder: Path) -> Callable[[TextEncoder], TaskHead] | None:
        """Return `head_builder`, for the model in a folder."""
        return self.head_builder

    def initialize_head(self, head: TaskHead) -> None:
        """Set initial weights of the head that depend on the training examples; by default none."""
        return

    def prepare_training(self, model: EncoderForTask, seed: int, folder: Path | None) -> None:
        """Add what training alone uses to a model; `folder`: from which a run goes on. By default nothing."""

    def item_order(self, encoded: Encoded, examples: Sequence[E], batch_size: int, seed: int) -> Callable[[int], Ints]:
        """Return a function of a step, from 0, that returns the step's items; called once per run."""
        return partial(step_items, encoded.num_items, batch_size, seed=seed)

    def step_input(self, encoded: Encoded, items: Ints, step: int, seed: int) -> tuple[Encoded, Ints]:
        """Return what a step reads: items of encoded examples, by default as they were encoded."""
        return encoded, items

    def whole_batch_loss(self, examples: Sequence[E]) -> Callable[[Tensor, Tensor], LossOutput] | None:
        """Return the `loss` of a `WholeBatchLoss` for a run on these examples; None for a loss of single items.

        Its vectors are the head's output, its rows the batch's labels.
        """
        return None

    @abstractmethod
    def loss(self, output: Any, /, batch: TaskBatch, smoothing: float = 0.0) -> Tensor:
        """Compute the sum of the losses of all labels in a batch from the head's output.

        The output of a `LinearHead` is logits, R × C float32, or float64 in the fit of a head;
        `batch.position_counts` divides their rows into sequences. `smoothing`: `label_smoothing` of
        `torch.nn.functional.cross_entropy`.
        """

    @abstractmethod
    def decode(self, examples: Sequence[E], encoded: Encoded, outputs: Outputs) -> list[P]:
        """Convert the head's scores at all positions, R × C float32, to one prediction per example, in order.

        `encoded.position_counts` divides the rows of `outputs` into sequences.
        """

    @property
    def has_frequent_answer(self) -> bool:
        """True if one answer to all examples is possible: the floor of the scores (`frequent_outputs`)."""
        return type(self).frequent_outputs is not Task.frequent_outputs

    def frequent_outputs(self, train: Encoded, encoded: Encoded) -> Outputs:
        """Return outputs for `encoded`, R × C, that give every example the most frequent answer of `train`.

        Raises ValueError for a type without such an answer.
        """
        raise ValueError(f"{self.kind}: answers are texts of the examples, so that none is the most frequent one")

    def frequent_predictions(self, train: Encoded, examples: Sequence[E], encoded: Encoded) -> list[P]:
        """Return the most frequent answer of `train` as the prediction for each example."""
        return self.decode(examples, encoded, self.frequent_outputs(train, encoded))

    def merge_outputs(self, tasks: Sequence[Self], outputs: Sequence[Outputs], encoded: Encoded) -> Outputs:
        """Merge the outputs of several models into outputs R × C; decoding gives the mean of their predictions.

        By default, the logarithms of the mean probabilities. `tasks`: the models' own tasks.
        """
        logarithms = [self.log_probabilities(logits.astype(np.float64), encoded) for logits in outputs]
        mean: Outputs = (np.logaddexp.reduce(logarithms, axis=0) - np.log(len(outputs))).astype(np.float32)
        return mean

    def log_probabilities(self, outputs: Floats, encoded: Encoded) -> Floats:
        """Compute log-probabilities, R × C, among the outputs that compete: by default, in a row."""
        from scipy.special import log_softmax

        logarithms: Floats = log_softmax(outputs, axis=1)
        return logarithms

    # Scores

    @abstractmethod
    def score(self, examples: Sequence[E], predictions: Sequence[P]) -> dict[str, float]:
        """Compute the official scores by name: shares from 0 to 1, correlations from -1 to 1; one is `metric`."""

    def example_scores(self, examples: Sequence[E], predictions: Sequence[P]) -> ExampleScores | None:
        """Return statistics per example that give the metric of any sample; None if there are none (macro F1)."""
        return None

    def score_tables(self, examples: Sequence[E], predictions: Sequence[P]) -> list[DisplayTable]:
        """Format scores per label or type as tables for people."""
        return []

    def score_details(self, examples: Sequence[E], predictions: Sequence[P]) -> dict[str, Any]:
        """Return scores per label and the like as plain values, for the file of `evaluate`."""
        return {}

    def is_right(self, example: E, prediction: P) -> bool:
        """Return whether a prediction is the gold answer.

        Raises ValueError for a task type whose predictions are not right or wrong.
        """
        raise ValueError(f"--errors: predictions of {self.kind} are not right or wrong; omit it")

    def score_notes(self, examples: Sequence[E], predictions: Sequence[P]) -> list[str]:
        """Describe further evidence of labeled examples on the task's settings, one sentence each."""
        return []

    def predicted_classes(self, predictions: Sequence[P]) -> set[str]:
        """Return the classes that are predicted; empty if predictions are not classes."""
        return set()

    def single_class_warnings(self, predictions: Sequence[P]) -> list[str]:
        """Warn if all predictions are of one class, although the task has several."""
        classes = self.predicted_classes(predictions)
        if len(classes) == 1 < len(self.label_names) and len(predictions) > 1:
            return [f"all predictions are {classes.pop()!r}: the model does not distinguish the classes"]
        return []

    def with_threshold_from(self, examples: Sequence[E], predictions: Sequence[P]) -> Self:
        """Set the decision threshold to the best one on dev examples; most task types have none."""
        return self

    # Reports and files

    @abstractmethod
    def gold_columns(self, example: E) -> dict[str, Any]:
        """Return location, input and gold answer of an example as plain values by name; None for an unknown answer."""

    def show(self, example: E) -> dict[str, str]:
        """Return what was read of an example for people, by name: by default, its columns that have a value."""
        return {name: str(value) for name, value in self.gold_columns(example).items() if value is not None}

    def count_gold(self, examples: Sequence[E]) -> Mapping[str, int]:
        """Count the examples, or their parts, with each gold answer; empty if gold answers are no classes."""
        return {}

    def describe(self) -> dict[str, str]:
        """Return properties of the task for the summary of a model, by name."""
        return {"head reads": describe_pooling(self.pooling)} if self.pooling else {}

    def describe_training(self, examples: Sequence[E]) -> dict[str, str]:
        """Return what the training examples decide, for the summary of a run, by name."""
        return {}

    def report_fields(self, examples: Sequence[E]) -> dict[str, Any]:
        """Return plain values about the training examples for `report.json`."""
        return {}

    def google_flags(self) -> list[str]:
        """Return flags of Google's scripts for values that its model files do not contain."""
        return []

    def to_record(self, example: E, prediction: P) -> dict[str, Any]:
        """Convert a prediction to plain values by column name, the same columns for every example of a file."""
        return {"prediction": prediction}

    def display(self, predicted: Sequence[tuple[E, P]]) -> list[DisplayTable]:
        """Format examples and predictions as tables for people; by default, the records as one table."""
        records = [self.to_record(example, prediction) for example, prediction in predicted]
        columns = tuple(records[0]) if records else ()
        return [DisplayTable(columns, [tuple(map(str, record.values())) for record in records])]

    def check_writable(self, examples: Iterable[E], suffix: str) -> Iterator[E]:
        """Yield the examples. Raises ValueError with the location of one that a file with this suffix cannot hold."""
        return iter(examples)

    def format_native(self, predicted: Iterable[tuple[E, P]]) -> Iterator[str]:
        """Format predictions in the task type's own file format, chunk by chunk."""
        raise TypeError(f"no file format of its own for {self.kind}")


AnyTask = Task[Any, Any]


def options_of(cls: type[AnyTask]) -> list[Field[Any]]:
    """Return the fields of a task type that a user sets; fields of all tables come last."""
    options = [field for field in fields(cls) if field.metadata.get("option", True)]  # type: ignore[arg-type]
    return sorted(options, key=lambda field: bool(field.kw_only))


def sum_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float, weights: Sequence[float] = ()) -> Tensor:
    """Compute the sum of the cross entropies of N × C logits and N labels, each times the weight of its label."""
    import torch.nn.functional as F

    weight = logits.new_tensor(weights) if weights else None
    return F.cross_entropy(logits, labels, weight, reduction="sum", label_smoothing=smoothing)


def balance(counts: Ints) -> Floats:
    """Compute a weight per label from its number of occurrences: N / (C · count), as scikit-learn does.

    >>> balance(np.array([30, 10])).tolist()
    [0.6666666666666666, 2.0]
    """
    weights: Floats = counts.sum() / (len(counts) * np.maximum(counts, 1))
    return weights


def count_labels(labels: Sequence[str]) -> int:
    """Return the number of labels. Raises ValueError if they are not known yet."""
    if not labels:
        raise ValueError("the labels are not known yet: call with_labels_of(training examples) first")
    return len(labels)


def check_metric(metric: str, known: Sequence[str]) -> None:
    """Raise ValueError for a metric that a task type does not have, or that cannot select checkpoints."""
    if metric not in known:
        raise ValueError(f"metric = {metric!r}: {did_you_mean(metric, known)}")


def score_each(task: Task[E, P], examples: Sequence[E], predictions: Sequence[P]) -> ExampleScores:
    """Score the examples one by one, for a metric that is the mean of its values for single examples."""
    pairs = zip(examples, predictions, strict=True)
    values = [task.score([example], [prediction])[task.metric] for example, prediction in pairs]
    return ExampleScores("mean", np.array(values, dtype=float)[:, None])


def log_softmax_of_groups(outputs: Floats, counts: Ints) -> Floats:
    """Compute log-probabilities, R × C, in each column among groups of `counts` consecutive rows."""
    starts = offsets_from_lengths(counts)[:-1]
    shifted = outputs - np.repeat(np.maximum.reduceat(outputs, starts), counts, axis=0)
    totals = np.log(np.add.reduceat(np.exp(shifted), starts))
    logarithms: Floats = shifted - np.repeat(totals, counts, axis=0)
    return logarithms


def check_restored(name: str, value: Any) -> None:
    """Raise ValueError if a field of `task.json` that training sets is empty."""
    if not value:
        raise ValueError(f"{name} is empty; restore task.json from the training run")


def softmax(outputs: Outputs) -> Floats:
    """Convert logits N × C to probabilities N × C in double precision."""
    import torch

    probabilities: Floats = torch.from_numpy(outputs).double().softmax(1).numpy()
    return probabilities
