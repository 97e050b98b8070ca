"""The padded encoders that graphs are made of equal the packed ones: each family, each head, each pooling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from families import FAMILIES, HEADS, SIZES, Family, save

from bertwright.exporting.export_graph import TaskGraph, check_head
from bertwright.interop.huggingface import load_model, load_task_model
from bertwright.models.encoder import TextEncoder
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import PooledHead, TaskBatch
from bertwright.models.packing import pack
from bertwright.models.pooling import POOLINGS, pool_padded, pool_states
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.padded_bert import masked_token_logits
from bertwright.systems.gpt.gpt import GptConfig, GptEncoder
from bertwright.tasks.classification import Classification

SEQUENCES = [np.array([2, 7, 9, 11, 3]), np.array([2]), np.array([2, 20, 6, 5, 9, 13, 3, 14, 15, 3])]
TYPES = [np.zeros(5, np.int64), np.zeros(1, np.int64), np.repeat([0, 1], [7, 3])]
ROBERTA = SIZES | {"type_vocab_size": 1}
ALL_FAMILIES = FAMILIES | {
    "bert": Family("Bert", SIZES, masked_lm="ForPreTraining"),
    "roberta": Family("Roberta", ROBERTA, reads_segments=False),
    "xlm-roberta": Family("XLMRoberta", ROBERTA, reads_segments=False),
    "camembert": Family("Camembert", ROBERTA, reads_segments=False),
    "gelu_new": Family("Bert", SIZES | {"hidden_act": "gelu_new"}, masked_lm="ForPreTraining"),
    "relu": Family("Bert", SIZES | {"hidden_act": "relu"}, masked_lm="ForPreTraining"),
}


def pad(types: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return ids, mask and segments of the sequences, padded with token 7 so that a missing mask would be seen."""
    length = max(map(len, SEQUENCES)) + 2
    ids, mask, segments = (torch.full((len(SEQUENCES), length), fill) for fill in (7, 0, 0))
    for row, (sequence, of_row) in enumerate(zip(SEQUENCES, TYPES, strict=True)):
        ids[row, : len(sequence)], mask[row, : len(sequence)] = torch.from_numpy(sequence), 1
        segments[row, : len(sequence)] = torch.from_numpy(of_row) * types
    return ids, mask, segments


def batch_for(family: Family) -> TaskBatch:
    packed = pack(SEQUENCES, TYPES if family.reads_segments else None)
    return TaskBatch(packed, packed.packing.first_positions, np.ones(len(SEQUENCES), np.int64))


@pytest.mark.parametrize("family", ALL_FAMILIES.values(), ids=ALL_FAMILIES)
@torch.no_grad()
def test_states_and_masked_tokens_equal_the_packed_encoder(family: Family, tmp_path: Path) -> None:
    model = load_model(save(family.build(family.masked_lm), tmp_path / "theirs"), heads="optional").model.eval()
    padded = model.encoder.padded()
    ids, mask, segments = pad(family.reads_segments)
    states = padded(ids, mask, segments)[mask.bool()]
    batch = batch_for(family).input
    torch.testing.assert_close(states, model.encoder(batch), atol=1e-5, rtol=1e-5)
    assert padded.reads_segments == family.reads_segments
    logits = masked_token_logits(model.masked_token, states, model.word_embeddings)
    torch.testing.assert_close(logits, model.token_logits(batch, torch.arange(16)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("suffix", HEADS)
@pytest.mark.parametrize("name", ["bert", "roberta", *FAMILIES])
@torch.no_grad()
def test_logits_of_a_task_equal_the_packed_model(name: str, suffix: str, tmp_path: Path) -> None:
    family = ALL_FAMILIES[name]
    labels = {} if suffix in ("QuestionAnswering", "MultipleChoice") else {"num_labels": 3}
    model = load_task_model(save(family.build(f"For{suffix}", **labels), tmp_path / "theirs")).eval()
    graph = TaskGraph(model.encoder.padded(), model.head, Classification(labels=("a", "b", "c"))).eval()
    ids, mask, segments = pad(family.reads_segments)
    logits, _ = graph(*(ids, mask, segments)[: len(graph.inputs)])
    if not model.head.spec.reads_sequence_state:
        logits = logits[mask.bool()]
    batch = batch_for(family)
    positions = batch.positions if model.head.spec.reads_sequence_state else torch.arange(16)
    torch.testing.assert_close(logits, model.predict_batch(TaskBatch(batch.input, positions)), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", POOLINGS)
def test_a_pooling_of_padded_states_equals_the_pooling_of_packed_states(mode: str) -> None:
    packing, (_, mask, _) = pack(SEQUENCES).packing, pad(types=False)
    hidden = torch.randn(*mask.shape, 5, generator=torch.Generator().manual_seed(0)) - 3
    packed = hidden[mask.bool()]
    torch.testing.assert_close(pool_padded(hidden, mask, [mode]), pool_states(packed, packing, [mode]))


def small_encoder(**values: bool) -> BertEncoder:
    return BertEncoder(BertConfig(30, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32, **values))


@torch.no_grad()
def test_a_pooled_head_equals_the_packed_one() -> None:
    encoder = small_encoder()
    head = PooledHead(HeadSpec("sequence", 3), ("cls", "max", "mean"), encoder)
    model = EncoderForTask(encoder, head).eval()
    graph = TaskGraph(encoder.padded(), head, Classification(labels=("a", "b", "c"))).eval()
    logits, shares = graph(*pad(types=True))
    batch = pack(SEQUENCES, TYPES)
    expected = model.predict_batch(TaskBatch(batch, batch.packing.first_positions))
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(shares, expected.softmax(1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "encoder",
    [
        small_encoder(is_causal=True),
        GptEncoder(GptConfig(30, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32)),
    ],
    ids=["left-to-right BERT", "GPT"],
)
def test_a_causal_encoder_is_refused_by_name(encoder: TextEncoder) -> None:
    with pytest.raises(ValueError, match=rf"attention in both directions.*got a {encoder.model_type}"):
        encoder.padded()


def test_a_crf_is_refused_with_the_reason() -> None:
    from bertwright.models.crf import CrfHead

    with pytest.raises(ValueError, match=r"best path of a CRF.*--tag-head linear"):
        check_head(CrfHead(HeadSpec("token", 3), 16, ("O", "B-A", "I-A")))
