"""The paper's tasks as a careful user of `transformers` fine-tunes them: its tokenizer, its models, a plain loop.

The other side of `finetuning_scores.py`. From bertwright come only what both sides must have in
common (the settings of a run, the examples as they are in the files, the rate as a function of the step) and SQuAD's
scorer, which is proven on published predictions. Everything in between is `transformers`: encoding, alignment of words
and tokens, windows, padding, loss, reading answers off the logits.
"""

from __future__ import annotations

import ctypes
import math
import platform
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import transformers
from scipy.stats import pearsonr, spearmanr
from seqeval.metrics import accuracy_score as tag_accuracy
from seqeval.metrics import f1_score as span_f1
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertwright.finetuning.settings import FinetuneSettings
from bertwright.interop.model_files import model_folder
from bertwright.metrics.answer_scores import scores
from bertwright.tasks.classification import Classification
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_data import read_examples
from bertwright.training.optimizer_settings import linear_warmup_decay
from environment import adamw, train_step

AT_ONCE = 32  # sequences per batch in prediction, sorted by length
IGNORED = -100  # label that the loss ignores
NONE_OF_IT = (0, 0)  # offsets of tokens outside the context
TRIMMED_EVERY = 20  # steps

Array = np.ndarray[Any, Any]
Scores = dict[str, float]

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class Item(NamedTuple):
    """The input of one batch row (in multiple choice, of one row per ending)."""

    input_ids: list[list[int]]
    """One list of token ids per row."""
    token_type_ids: list[list[int]]
    target: Any
    """The target, in the form that the model's class expects."""
    example: int
    """Index of the example that it encodes, entirely or partly."""
    offsets: Sequence[tuple[int, int]] = ()
    """Question answering: characters of each context token."""

    @property
    def length(self) -> int:
        return max(map(len, self.input_ids))

    @property
    def tagged(self) -> Array:
        """Tagging: positions of the tokens that have a target."""
        return np.flatnonzero(np.array(self.target) != IGNORED)


class Peer(ABC):
    """Type of task, trained and scored with `transformers`."""

    model_class: ClassVar[Any]

    def __init__(self, folder: str, task: AnyTask, train: Sequence[Any]) -> None:
        """Take lengths and metric from `task`, and the labels from the examples in `train`."""
        self.folder = str(model_folder(folder))
        self.task: Any = task
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
        self.labels = self.labels_of(train)

    def labels_of(self, train: Sequence[Any]) -> list[str]:
        """List all labels in order; empty if the outputs have no names."""
        return []

    def head(self) -> dict[str, Any]:
        """Return the head's fields of the configuration."""
        return {}

    def model(self, dropout: float) -> Any:
        """Load the pre-trained encoder with a new head."""
        return self.model_class.from_pretrained(
            self.folder, dtype=torch.float32, attn_implementation="sdpa", hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout, **self.head(),
        )  # fmt: skip

    @abstractmethod
    def items(self, examples: Sequence[Any]) -> list[Item]:
        """Encode examples as the model reads them."""

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Make the targets by the argument names of `forward`."""
        return {"labels": torch.tensor([item.target for item in items])}

    @abstractmethod
    def scores(self, examples: Sequence[Any], items: Sequence[Item], outputs: Sequence[Array]) -> Scores:
        """Score the logits of all items."""

    def inputs(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Make a batch, padded to its longest sequence."""
        ids = [row for item in items for row in item.input_ids]
        types = [row for item in items for row in item.token_type_ids]
        mask = [[1] * len(row) for row in ids]
        return {
            "input_ids": pad(ids, self.tokenizer.pad_token_id),
            "token_type_ids": pad(types, 0),
            "attention_mask": pad(mask, 0),
        }

    def batch(self, items: Sequence[Item]) -> dict[str, Tensor]:
        """Make a batch with targets, for training."""
        return self.inputs(items) | self.targets(items)

    def logits(self, found: Any) -> Tensor:
        """Extract the logits from the model's output."""
        return found.logits

    @torch.inference_mode()
    def outputs(self, model: Any, items: Sequence[Item], dtype: str = "float32") -> list[Array]:
        """Compute the logits of each item, in order; without dropout, with sequences of similar length together."""
        model.eval()
        found: dict[int, Array] = {}
        order = sorted(range(len(items)), key=lambda number: -items[number].length)
        for begin in range(0, len(order), AT_ONCE):
            numbers = order[begin : begin + AT_ONCE]
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
                logits = self.logits(model(**self.inputs([items[number] for number in numbers])))
            found |= zip(numbers, logits.float().numpy(), strict=True)
        model.train()
        return [found[number] for number in range(len(items))]


class SequencePeer(Peer):
    """Classification and regression of a text or a pair."""

    model_class = transformers.BertForSequenceClassification

    @property
    def regression(self) -> bool:
        return isinstance(self.task, Regression)

    def labels_of(self, train: Sequence[Any]) -> list[str]:
        return [] if self.regression else sorted({example.label for example in train})

    def head(self) -> dict[str, Any]:
        return {"num_labels": 1} if self.regression else {"num_labels": len(self.labels)}

    def items(self, examples: Sequence[Any]) -> list[Item]:
        pairs = [example.text_pair for example in examples]
        texts = [example.text for example in examples], None if pairs[0] is None else pairs
        encoded = self.tokenizer(*texts, truncation=True, max_length=self.task.max_length)
        rows = zip(encoded["input_ids"], encoded["token_type_ids"], examples, strict=True)
        return [Item([ids], [types], self._target(one), number) for number, (ids, types, one) in enumerate(rows)]

    def _target(self, example: Any) -> float | int:
        return float(example.label) if self.regression else self.labels.index(example.label)

    def scores(self, examples: Sequence[Any], items: Sequence[Item], outputs: Sequence[Array]) -> Scores:
        right = [item.target for item in items]
        if self.regression:
            said = [float(row[0]) for row in outputs]
            return {"spearman": spearmanr(right, said).statistic, "pearson": pearsonr(right, said).statistic}
        guessed = [int(row.argmax()) for row in outputs]
        found = {"accuracy": accuracy_score(right, guessed), "matthews": matthews_corrcoef(right, guessed)}
        if self.task.metric == "f1":
            found["f1"] = f1_score(right, guessed, pos_label=self.labels.index(self.task.pos_label or self.labels[-1]))
        return found


class ChoicePeer(Peer):
    """Multiple choice: prompt and ending as a pair, one score each."""

    model_class = transformers.BertForMultipleChoice

    def items(self, examples: Sequence[Any]) -> list[Item]:
        made = []
        for number, example in enumerate(examples):
            prompts = [example.prompt] * len(example.endings)
            encoded = self.tokenizer(prompts, list(example.endings), truncation=True, max_length=self.task.max_length)
            made.append(Item(encoded["input_ids"], encoded["token_type_ids"], example.label, number))
        return made

    def inputs(self, items: Sequence[Item]) -> dict[str, Tensor]:
        flat = super().inputs(items)
        return {name: rows.unflatten(0, (len(items), -1)) for name, rows in flat.items()}

    def scores(self, examples: Sequence[Any], items: Sequence[Item], outputs: Sequence[Array]) -> Scores:
        guessed = [int(row.argmax()) for row in outputs]
        return {"accuracy": accuracy_score([item.target for item in items], guessed)}


class TaggingPeer(Peer):
    """A label for each word, read at its first sub-token; with `task.context`, sentences around fill the window."""

    model_class = transformers.BertForTokenClassification

    def labels_of(self, train: Sequence[Any]) -> list[str]:
        return sorted({tag for example in train for tag in example.tags})

    def head(self) -> dict[str, Any]:
        return {"num_labels": len(self.labels)}

    def items(self, examples: Sequence[Any]) -> list[Item]:
        return [self._item(number, example) for number, example in enumerate(examples)]

    def _item(self, number: int, example: Any) -> Item:
        capacity = self.task.max_length - 2
        own, word_of = self._tokens([*example.words])
        own, word_of = own[:capacity], word_of[:capacity]
        before, after = [], []
        if self.task.context:
            before = self._tokens([word for sentence in example.before for word in sentence])[0]
            after = self._tokens([word for sentence in example.after for word in sentence])[0]
        left, right = shares(capacity - len(own), len(before), len(after))
        before, after = before[len(before) - left :], after[:right]
        first = [word if word != last else None for word, last in zip(word_of, [None, *word_of], strict=False)]
        target = [IGNORED if word is None else self.labels.index(example.tags[word]) for word in first]
        ids = [self.tokenizer.cls_token_id, *before, *own, *after, self.tokenizer.sep_token_id]
        target = [IGNORED] * (1 + left) + target + [IGNORED] * (right + 1)
        return Item([ids], [[0] * len(ids)], target, number)

    def _tokens(self, words: list[str]) -> tuple[list[int], list[int | None]]:
        """Tokenize words; also return the index of each token's word."""
        if not words:
            return [], []
        encoded = self.tokenizer(words, is_split_into_words=True, add_special_tokens=False)
        return encoded["input_ids"], encoded.word_ids()

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        return {"labels": pad([item.target for item in items], IGNORED)}

    def scores(self, examples: Sequence[Any], items: Sequence[Item], outputs: Sequence[Array]) -> Scores:
        right, guessed = [list(example.tags) for example in examples], []
        for example, item, logits in zip(examples, items, outputs, strict=True):
            tags = [self.labels[label] for label in logits[item.tagged].argmax(-1)]
            guessed.append(tags + ["O"] * (len(example.words) - len(tags)))  # words beyond max_length, if there are
        found = {"accuracy": tag_accuracy(right, guessed)}
        return found if self.task.metric == "accuracy" else found | {"f1": span_f1(right, guessed)}


class AnswerPeer(Peer):
    """Question answering in overlapping windows, as in the example script run_qa.

    The loss of `BertForQuestionAnswering` is a softmax over all places of the padded batch, padding included.
    """

    model_class = transformers.BertForQuestionAnswering

    def items(self, examples: Sequence[Any]) -> list[Item]:
        encoded = self.tokenizer(
            [example.question.lstrip() for example in examples], [example.context for example in examples],
            truncation="only_second", max_length=self.task.max_length, stride=self.task.doc_stride,
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        made = []
        for window, number in enumerate(encoded["overflow_to_sample_mapping"]):
            sides = encoded.sequence_ids(window)
            spans = [
                span if side == 1 else NONE_OF_IT
                for span, side in zip(encoded["offset_mapping"][window], sides, strict=True)
            ]
            ids, types = encoded["input_ids"][window], encoded["token_type_ids"][window]
            made.append(Item([ids], [types], self._target(examples[number], spans), number, spans))
        return made

    def _target(self, example: Any, spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return the answer's first and last token; [CLS] twice if the window does not contain all of it."""
        answer = example.target
        if answer is None:
            return 0, 0
        begin, end = answer.start, answer.start + len(answer.text)
        inside = [index for index, (first, last) in enumerate(spans) if first < end and begin < last]
        whole = inside and spans[inside[0]][0] <= begin and end <= spans[inside[-1]][1]
        return (inside[0], inside[-1]) if whole else (0, 0)

    def targets(self, items: Sequence[Item]) -> dict[str, Tensor]:
        first, last = zip(*(item.target for item in items), strict=True)
        return {"start_positions": torch.tensor(first), "end_positions": torch.tensor(last)}

    def logits(self, found: Any) -> Tensor:
        return torch.stack([found.start_logits, found.end_logits], -1)

    def scores(self, examples: Sequence[Any], items: Sequence[Item], outputs: Sequence[Array]) -> Scores:
        best: list[tuple[float, str]] = [(-math.inf, "")] * len(examples)
        for item, logits in zip(items, outputs, strict=True):
            number = item.example
            best[number] = max(best[number], self._best(item, logits, examples[number].context), key=lambda one: one[0])
        answers = [text for _, text in best]
        right = [[answer.text for answer in example.answers] for example in examples]
        return scores(right, answers)

    def _best(self, item: Item, logits: Array, context: str) -> tuple[float, str]:
        """Return score and text of the best span between the `n_best_size` best starts and ends of one window."""
        start, end = logits[: len(item.offsets)].T
        found = (-math.inf, "")
        for first in np.argsort(-start)[: self.task.n_best_size]:
            for last in np.argsort(-end)[: self.task.n_best_size]:
                in_context = item.offsets[first] != NONE_OF_IT and item.offsets[last] != NONE_OF_IT
                if (
                    in_context
                    and first <= last < first + self.task.max_answer_length
                    and start[first] + end[last] > found[0]
                ):
                    text = context[item.offsets[first][0] : item.offsets[last][1]]
                    found = (float(start[first] + end[last]), text)
        return found


PEERS: dict[type[AnyTask], type[Peer]] = {
    Classification: SequencePeer,
    Regression: SequencePeer,
    MultipleChoice: ChoicePeer,
    Tagging: TaggingPeer,
    QuestionAnswering: AnswerPeer,
}


def pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Pad rows of unequal length to one array."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)


def shares(capacity: int, before: int, after: int) -> tuple[int, int]:
    """Split the capacity for context between both sides: half each, or what the other side does not need."""
    left = min(before, max(capacity // 2, capacity - after))
    return left, min(after, capacity - left)


def shuffle_items(items: int, size: int, seed: int) -> Iterator[list[int]]:
    """Yield the items of each step; epochs follow one another without a break, as on our side."""
    drawn = np.random.default_rng(seed)
    waiting: list[int] = []
    while True:
        while len(waiting) < size:
            waiting += drawn.permutation(items).tolist()
        yield waiting[:size]
        waiting = waiting[size:]


def steps(
    peer: Peer, model: Any, items: Sequence[Item], settings: FinetuneSettings, order: Iterable[Sequence[int]]
) -> Iterator[float]:
    """Train on the items of each step and yield its loss."""
    recipe = settings.optimizer
    optimizer = adamw(model, recipe)
    total = max(1, math.ceil(settings.epochs * len(items) / settings.batch_size))
    rate = partial(
        linear_warmup_decay, peak=recipe.learning_rate, warmup=round(recipe.warmup_ratio * total), total=total
    )
    for step, chosen in zip(range(total), order, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        batch = peer.batch([items[number] for number in chosen])
        yield float(train_step(model, lambda: model(**batch).loss, optimizer, settings.device.dtype == "bfloat16"))  # noqa: B023


def finetune(settings: FinetuneSettings) -> dict[str, Scores]:
    """Fine-tune and score dev and test, by the protocol of `bertwright finetune`: best epoch on dev."""
    assert settings.model is not None
    task = settings.task.build_task()
    read = {split: read_examples(task, settings.task, split) for split in ("train", "dev", "test")}
    peer, dtype = PEERS[type(task)](settings.model, task, read["train"]), settings.device.dtype
    if isinstance(task, QuestionAnswering):  # for training: the others have no answer at the given offset
        read["train"] = [example for example in read["train"] if example.learnable]
    items = {split: peer.items(examples) for split, examples in read.items() if examples}
    torch.manual_seed(settings.seed)
    assert settings.tuning.dropout is not None
    model = peer.model(settings.tuning.dropout).train()
    epoch = max(1, math.ceil(len(items["train"]) / settings.batch_size))
    last = max(1, math.ceil(settings.epochs * len(items["train"]) / settings.batch_size))
    best: tuple[float, dict[str, Tensor], Scores] = (-math.inf, {}, {})
    order = shuffle_items(len(items["train"]), settings.batch_size, settings.seed)
    for step, _ in enumerate(steps(peer, model, items["train"], settings, order), 1):
        if step % TRIMMED_EVERY == 0:
            release_free_memory()
        if step % epoch == 0 or step == last:
            found = peer.scores(read["dev"], items["dev"], peer.outputs(model, items["dev"], dtype))
            if found[task.metric] > best[0]:
                best = found[task.metric], {name: w.clone() for name, w in model.state_dict().items()}, found
    results = {"dev": best[2]}
    if "test" in items:
        model.load_state_dict(best[1])
        results["test"] = peer.scores(read["test"], items["test"], peer.outputs(model, items["test"], dtype))
    return {split: {name: float(value) for name, value in found.items()} for split, found in results.items()}


def release_free_memory() -> None:
    """Return free pages to the system: batches of varying lengths leave holes between malloc's blocks."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)
