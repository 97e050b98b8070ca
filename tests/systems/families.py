"""Parity of the systems with BERT's layers with `transformers`, from random weights: what their tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from torch import Tensor, nn

from bertwright.base.settings import from_table
from bertwright.interop.huggingface import file_names, load_model, load_task_model
from bertwright.models.encoder import EncoderModel
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import pack
from bertwright.models.task_model import EncoderForTask
from bertwright.pretraining.settings import PretrainSettings
from bertwright.systems.bert.bert_for_pretraining import MaskedLanguageModel

SEQUENCES = [np.array([2, 7, 9, 11, 3]), np.array([2, 8, 12, 3]), np.array([2, 20, 6, 5, 9, 13, 3, 14, 15, 3])]
TYPES = [np.zeros(5, dtype=np.int64), np.zeros(4, dtype=np.int64), np.repeat([0, 1], [7, 3])]
HEADS = ("SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")


class Family(NamedTuple):
    """A system, and a tiny configuration for `transformers`."""

    prefix: str
    """Of its classes."""
    values: dict[str, Any]
    reads_segments: bool = True
    encoder: str = ""
    """Attribute of a class with a head that has the encoder; empty: the prefix in lower case."""
    masked_lm: str = "ForMaskedLM"

    def build(self, suffix: str, seed: int = 0, **changes: Any) -> nn.Module:
        """Return a model of `transformers` without dropout, whose biases and norms are random, too."""
        torch.manual_seed(seed)
        config = getattr(transformers, f"{self.prefix}Config")(**(self.values | changes))
        model: nn.Module = getattr(transformers, self.prefix + suffix)(config)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
        return model.eval()

    def inputs(self, index: int) -> dict[str, Tensor]:
        """Return one sequence as their model reads it."""
        ids = torch.from_numpy(SEQUENCES[index])[None]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return inputs | ({"token_type_ids": torch.from_numpy(TYPES[index])[None]} if self.reads_segments else {})


SIZES = {
    "vocab_size": 30,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
}
MODERNBERT = SIZES | {"num_hidden_layers": 4, "local_attention": 4, "pad_token_id": 0}
FAMILIES = {
    "distilbert": Family(
        "DistilBert",
        {"vocab_size": 30, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 24},
        reads_segments=False,
    ),
    "electra": Family("Electra", SIZES | {"embedding_size": 16}),
    "electra, embeddings of the hidden size": Family("Electra", SIZES | {"embedding_size": 32}),
    "mpnet": Family("MPNet", SIZES | {"max_position_embeddings": 26}, reads_segments=False),
    "modernbert": Family("ModernBert", MODERNBERT, reads_segments=False),
    "modernbert, means and other windows": Family(
        "ModernBert",
        MODERNBERT
        | {"global_attn_every_n_layers": 2, "local_attention": 7, "classifier_pooling": "mean"}
        | {"hidden_activation": "gelu_pytorch_tanh", "pad_token_id": None},
        reads_segments=False,
    ),
    "albert": Family("Albert", SIZES | {"embedding_size": 16, "num_hidden_layers": 4, "num_hidden_groups": 2}),
}


def make_settings(run: Path, store: Path, model: dict[str, Any], **changes: Any) -> PretrainSettings:
    """Return the settings of a short pre-training of a small model."""
    table: dict[str, Any] = {
        "run": str(run), "store": str(store), "steps": 30, "save_every": 10, "eval_every": 30, "log_every": 10,
        "model": model, "data": {"max_length": 24, "batch_size": 8},
        "long": {"long_ratio": 0.0}, "optimizer": {"learning_rate": 1e-2, "warmup_ratio": 0.1},
        "device": {"device": "cpu", "dtype": "float32", "threads": 1},
    }  # fmt: skip
    return from_table(PretrainSettings, table | changes, "test")


def save(model: nn.Module, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def task_batch(model: EncoderForTask) -> TaskBatch:
    """Return the batch of all sequences; each task reads the states that its head needs."""
    batch = pack(SEQUENCES, TYPES)
    one_each = model.head.spec.reads_sequence_state
    positions = batch.packing.first_positions if one_each else torch.arange(batch.packing.num_tokens)
    counts = np.ones(len(SEQUENCES), dtype=np.int64) if one_each else batch.packing.lengths
    return TaskBatch(batch, positions, counts)


def their_logits(family: Family, model: Any, suffix: str) -> Tensor:
    """Return the logits of all sequences as our head has them: R × C."""
    rows = []
    for index in range(len(SEQUENCES)):
        inputs = family.inputs(index)
        if suffix == "MultipleChoice":
            rows.append(model(**{name: ids[:, None] for name, ids in inputs.items()}).logits.view(1, 1))
        elif suffix == "QuestionAnswering":
            output = model(**inputs)
            rows.append(torch.stack([output.start_logits[0], output.end_logits[0]], dim=1))
        else:
            rows.append(model(**inputs).logits[0] if suffix == "TokenClassification" else model(**inputs).logits)
    return torch.cat(rows)


def check_states(family: Family, folder: Path, seed: int = 1) -> None:
    """Check that the states of every layer and the logits of masked tokens equal theirs."""
    theirs: Any = family.build(family.masked_lm, seed)
    ours = load_model(save(theirs, folder), heads="optional").model
    assert isinstance(ours, MaskedLanguageModel)
    check_equal_states(family, ours, theirs)


def check_equal_states(family: Family, ours: MaskedLanguageModel, theirs: Any) -> None:
    batch = pack(SEQUENCES, TYPES)
    outputs = [theirs(**family.inputs(n), output_hidden_states=True) for n in range(len(SEQUENCES))]
    states = ours.encoder.hidden_states(batch)
    assert len(states) == len(outputs[0].hidden_states)
    for number, found in enumerate(states):
        expected = torch.cat([output.hidden_states[number][0] for output in outputs])
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.encoder(batch), states[-1])
    expected = torch.cat([output.logits[0] for output in outputs])
    atol = 1e-5 * max(1.0, expected.abs().max().item())  # a logit near 0 is a sum of numbers that are not
    torch.testing.assert_close(ours.token_logits(batch, torch.arange(19)), expected, atol=atol, rtol=1e-5)


def check_head(family: Family, suffix: str, folder: Path) -> None:
    """The logits of a task's class, the loss' gradients, and the folder that we write equal theirs."""
    labels = {} if suffix in ("QuestionAnswering", "MultipleChoice") else {"num_labels": 3}
    theirs = family.build(f"For{suffix}", seed=2, **labels)
    ours = load_task_model(save(theirs, folder))
    batch = task_batch(ours)
    found, expected = ours(batch), their_logits(family, theirs, suffix)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    weights = torch.linspace(-1, 2, found.numel()).view_as(found)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    check_gradients(ours, theirs)


def check_gradients(ours: EncoderModel, theirs: nn.Module) -> None:
    """Every parameter's gradient equals theirs to 1e-4 of its norm."""
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters(remove_duplicate=False)}
    named = file_names(ours)
    compared = 0
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None, name
        expected = torch.cat([gradients[each] for each in named[name]])
        difference = (parameter.grad - expected).norm() / (expected.norm() + 1e-6)
        assert difference < 1e-4, (name, float(difference))
        compared += 1
    assert compared > 10
