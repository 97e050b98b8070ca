"""Folders of task models written for and read from `transformers`, and task models built from a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

from bertwright.interop.head_config import HEAD_CLASSES, HeadRecord, format_head, parse_head
from bertwright.interop.huggingface import (
    load_head,
    load_model,
    load_task_model,
    random_task_model,
    save_model,
    start_task_model,
    write_task_model,
)
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import pack
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.vocabulary.wordpiece_tokenizer import SPECIAL_TOKENS, Tokenizer
from harness import edit_config, randomize, same_parameters

TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz"], lowercase=True)
CONFIG = BertConfig(
    TOKENIZER.vocab_size, hidden_size=24, num_layers=2, num_heads=3, intermediate_size=40, max_positions=32
)
IDS = [np.arange(2, 13), np.arange(20, 27), np.arange(5, 9), np.arange(9, 20)]
BATCH = pack(IDS)
REAL = np.arange(11) < np.array([len(ids) for ids in IDS])[:, None]
PADDED = {"input_ids": torch.zeros(4, 11, dtype=torch.int64), "attention_mask": torch.from_numpy(REAL).long()}
PADDED["input_ids"][torch.from_numpy(REAL)] = BATCH.input_ids

RECORDS = {
    "sequence": HeadRecord(HeadSpec("sequence", 3), ("bad", "so-so", "gut"), regression=False),
    "regression": HeadRecord(HeadSpec("sequence", 1), (), regression=True),
    "multi-label": HeadRecord(HeadSpec("sequence", 3), ("bad", "so-so", "gut"), regression=False, multi_label=True),
    "choice": HeadRecord(HeadSpec("choice", 1), (), regression=False),
    "token": HeadRecord(HeadSpec("token", 5), ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"), regression=False),
    "span": HeadRecord(HeadSpec("span", 2), (), regression=False),
}
AUTO = {
    "sequence": transformers.AutoModelForSequenceClassification,
    "choice": transformers.AutoModelForMultipleChoice,
    "token": transformers.AutoModelForTokenClassification,
    "span": transformers.AutoModelForQuestionAnswering,
}


def write(folder: Path, record: HeadRecord, config: BertConfig = CONFIG) -> EncoderForTask:
    folder.mkdir(exist_ok=True)
    model = randomize(EncoderForTask(BertEncoder(config), record.head))
    write_task_model(folder, model, TOKENIZER, record)
    return model


@torch.no_grad()
def ours(model: EncoderForTask) -> torch.Tensor:
    packing = BATCH.packing
    reads_sequence = model.head.spec.reads_sequence_state
    return model(TaskBatch(BATCH, packing.first_positions if reads_sequence else torch.arange(packing.num_tokens)))


@torch.no_grad()
def theirs(model: nn.Module, head: HeadSpec) -> torch.Tensor:
    if head.kind == "choice":  # two questions of two endings
        return model(**{name: tensor.view(2, 2, 11) for name, tensor in PADDED.items()}).logits.view(4, 1)
    output = model(**PADDED)
    logits = torch.stack([output.start_logits, output.end_logits], -1) if head.kind == "span" else output.logits
    return logits if head.reads_sequence_state else logits[torch.from_numpy(REAL)]


# ---- Write and read


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_transformers_loads_our_folder_completely_and_computes_the_same(tmp_path, record):
    model = write(tmp_path / "m", record)
    reference, report = AUTO[record.head.kind].from_pretrained(tmp_path / "m", output_loading_info=True)
    assert type(reference).__name__ == "Bert" + HEAD_CLASSES[record.head.kind].suffix
    assert not any(report.values()), report
    torch.testing.assert_close(ours(model), theirs(reference.eval(), record.head), rtol=1e-5, atol=1e-5)
    if record.labels:
        assert tuple(reference.config.id2label[number] for number in range(record.head.outputs)) == record.labels
        assert [reference.config.label2id[label] for label in record.labels] == list(range(record.head.outputs))


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_transformers_rejects_a_left_to_right_folder_that_it_would_compute_wrongly(tmp_path, record):
    """Sequence-level heads of `transformers` read [CLS], which sees only itself: one output for all texts."""
    model = write(tmp_path / "m", record, replace(CONFIG, is_causal=True))
    assert torch.equal(ours(load_task_model(tmp_path / "m")), ours(model))
    if record.head.reads_sequence_state:
        with pytest.raises(ValueError, match="bert-ltr"):
            AUTO[record.head.kind].from_pretrained(tmp_path / "m")
        edit_config(tmp_path / "m", model_type="bert")  # so that `transformers` reads [CLS], as it did in training
        with pytest.raises(ValueError, match=r"config\.json: is_decoder: .*only itself"):
            load_task_model(tmp_path / "m")
    else:
        reference = AUTO[record.head.kind].from_pretrained(tmp_path / "m").eval()
        torch.testing.assert_close(ours(model), theirs(reference, record.head), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, is_causal=True)], ids=lambda config: config.direction)
@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_written_model_loads_bit_equal(tmp_path, record, config):
    model = write(tmp_path / "m", record, config)
    again = load_task_model(tmp_path / "m")
    assert same_parameters(model, again)
    assert (again.head.spec, again.config, again.training) == (record.head, config, False)
    assert load_head(tmp_path / "m") == record


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_folder_of_transformers_loads(tmp_path, record):
    write(tmp_path / "m", record)
    reference = randomize(AUTO[record.head.kind].from_pretrained(tmp_path / "m"))
    reference.save_pretrained(tmp_path / "theirs")
    assert load_head(tmp_path / "theirs") == record
    logits = ours(load_task_model(tmp_path / "theirs"))
    torch.testing.assert_close(logits, theirs(reference, record.head), rtol=1e-5, atol=1e-5)


def test_defaults_that_transformers_does_not_write_are_assumed(tmp_path):
    """Two labels without names; a regression if there is one output."""
    sizes = {"vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}
    for changes, expected in (
        ({}, HeadRecord(HeadSpec("sequence", 2), ("LABEL_0", "LABEL_1"), False)),
        ({"num_labels": 1}, RECORDS["regression"]),
    ):
        config = transformers.BertConfig(**sizes, **changes)
        transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "theirs")
        assert load_head(tmp_path / "theirs") == expected
        assert load_task_model(tmp_path / "theirs").head.spec == expected.head
    assert parse_head({"architectures": ["BertForTokenClassification"], "num_labels": 3}, Path("x")) == HeadRecord(
        HeadSpec("token", 3), ("LABEL_0", "LABEL_1", "LABEL_2"), False
    )


def test_pre_training_loads_a_task_model_without_its_head(tmp_path):
    model = write(tmp_path / "m", RECORDS["sequence"])
    loaded = load_model(tmp_path / "m", heads="optional")
    assert loaded.unexpected_keys == ("classifier.bias", "classifier.weight")
    assert loaded.missing_heads == ("masked_token", "next_sentence")
    assert same_parameters(loaded.model.encoder, model.encoder)
    assert same_parameters(loaded.model.pooler, model.head.pooler)


# ---- The start of fine-tuning


def save_pretrained(folder: Path) -> nn.Module:
    model = randomize(BertForPretraining(CONFIG))
    save_model(folder, model, TOKENIZER)
    return model


@pytest.mark.parametrize("name", ["BertForPreTraining", "BertModel", "BertForMaskedLM", "BertForQuestionAnswering"])
@pytest.mark.parametrize("record", [RECORDS["sequence"], RECORDS["span"]], ids=["sequence", "span"])
def test_start_takes_the_encoder_and_the_pooler_if_there_is_one(tmp_path, name, record):
    source = save_pretrained(tmp_path / "ours")
    getattr(transformers, name).from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    started = start_task_model(tmp_path / "theirs", record.head, seed=7)
    initial = EncoderForTask(BertEncoder(CONFIG), record.head, seed=7)
    assert same_parameters(started.model.encoder, source.encoder)
    assert same_parameters(started.model.head.classifier, initial.head.classifier)
    if record.head.reads_sequence_state:
        has_pooler = name in ("BertForPreTraining", "BertModel")
        assert same_parameters(started.model.head.pooler, source.pooler if has_pooler else initial.head.pooler)
        assert started.missing_heads == (("classifier",) if has_pooler else ("pooler", "classifier"))
    else:
        assert started.model.head.pooler is None
        assert started.missing_heads == ("classifier",)


def test_start_has_a_new_classifier_even_if_the_folder_s_would_fit(tmp_path):
    write(tmp_path / "m", RECORDS["sequence"])
    started, other = (start_task_model(tmp_path / "m", HeadSpec("sequence", 3), seed) for seed in (1, 2))
    assert started.missing_heads == ("classifier",)
    assert same_parameters(
        started.model.head.classifier,
        EncoderForTask(BertEncoder(CONFIG), HeadSpec("sequence", 3), seed=1).head.classifier,
    )
    assert not same_parameters(started.model.head.classifier, other.model.head.classifier)
    assert same_parameters(started.model.encoder, other.model.encoder)
    assert torch.equal(started.model.head.classifier.bias, torch.zeros(3))


def test_start_changes_the_dropout(tmp_path):
    save_pretrained(tmp_path / "m")
    model = start_task_model(tmp_path / "m", HeadSpec("token", 2), 0, dropout=0.25).model
    assert (model.config.hidden_dropout, model.config.attention_dropout) == (0.25, 0.25)
    (tmp_path / "new").mkdir()
    write_task_model(tmp_path / "new", model, TOKENIZER, HeadRecord(model.head.spec, ("a", "b"), False))
    theirs = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "new")
    assert theirs.dropout.p == theirs.bert.embeddings.dropout.p == 0.25


# ---- Misuse


def test_folder_without_a_task_is_rejected(tmp_path):
    save_pretrained(tmp_path / "m")
    assert load_head(tmp_path / "m") is None
    with pytest.raises(
        ValueError,
        match=r"config\.json: architectures: .*BertForSeq.*got \[\'BertForPreTraining\'\].*bertwright finetune",
    ):
        load_task_model(tmp_path / "m")


@pytest.mark.parametrize(
    ("record", "changes", "message"),
    [
        (
            "token",
            {"id2label": {"0": "O", "1": "X"}},
            r"config\.json: id2label: expected 5.*model\.safetensors, got 2",
        ),
        ("token", {"id2label": {"1": "O", "2": "X"}}, "id2label: expected a different name"),
        ("token", {"id2label": {"0": "O", "1": "O"}}, "id2label: expected a different name"),
        ("token", {"id2label": {"0": 5, "1": 6}}, r"config\.json: id2label: expected 5.*got 2"),  # a name, too
        ("token", {"id2label": {"0": None}}, "id2label: expected a different name"),
        ("token", {"id2label": []}, "id2label: expected a different name"),
        ("token", {"id2label": None, "num_labels": 10**12}, "num_labels: .*1 to 1,000,000, got 1000000000000"),
        ("token", {"id2label": None, "num_labels": 0}, "num_labels: .*got 0"),
        ("token", {"architectures": 5}, r"config\.json: architectures: .* got 5"),
        ("token", {"architectures": [None]}, r"config\.json: architectures: .* got \[None\]"),
        ("token", {"num_hidden_layers": 10**9}, "num_hidden_layers: expected 1000000000.*got 2"),
        ("token", {"architectures": ["BertForQuestionAnswering"]}, r"2 parameters are missing: qa_outputs\.weight"),
        ("token", {"architectures": ["BertForSequenceClassification"]}, r"missing: bert\.pooler\.dense\.weight"),
        ("token", {"problem_type": "multi_label_classification"}, "'multi_label_classification' with 5 outputs"),
        ("sequence", {"problem_type": "regression"}, "problem_type = 'regression' with 3 outputs"),
        ("regression", {"problem_type": "single_label_classification"}, "problem_type = .* with 1 outputs"),
    ],
)
def test_config_that_does_not_describe_the_weights_is_rejected(tmp_path, record, changes, message):
    write(tmp_path / "m", RECORDS[record])
    edit_config(tmp_path / "m", **changes)
    with pytest.raises(ValueError, match=message) as caught:
        load_task_model(tmp_path / "m")
    assert str(caught.value).startswith(str(tmp_path / "m"))
    assert "\n" not in str(caught.value)


def test_missing_and_unexpected_parameters_are_named(tmp_path):
    write(tmp_path / "m", RECORDS["span"])
    path = tmp_path / "m/model.safetensors"
    tensors = load_file(path)
    for name in ("qa_outputs.bias", "bert.encoder.layer.1.output.dense.weight"):
        save_file({other: tensor for other, tensor in tensors.items() if other != name}, path)
        with pytest.raises(ValueError, match=rf"model\.safetensors: 1 parameter is missing: {name}"):
            load_task_model(tmp_path / "m")
    save_file(tensors | {"bert.extra": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match=r"unexpected: bert\.extra"):
        start_task_model(tmp_path / "m", HeadSpec("token", 2), 0)


@pytest.mark.parametrize(
    "record",
    [
        HeadRecord(HeadSpec("sequence", 3), ("a", "b"), False),
        HeadRecord(HeadSpec("token", 2), ("a", "a"), False),
        HeadRecord(HeadSpec("token", 2), (), False),
        HeadRecord(HeadSpec("sequence", 2), (), True),
    ],
)
def test_labels_that_do_not_name_the_outputs_are_not_written(tmp_path, record):
    with pytest.raises(ValueError, match=f"labels: expected {record.head.outputs} different names"):
        format_head(record, tmp_path)
    with pytest.raises(ValueError, match="labels: expected"):
        write_task_model(tmp_path, EncoderForTask(BertEncoder(CONFIG), record.head), TOKENIZER, record)
    assert not list(tmp_path.iterdir())


def test_random_model_keeps_fixed_positions(tmp_path):
    config = replace(CONFIG, sinusoidal_positions=True)
    model = BertForPretraining(config, seed=0)
    save_model(tmp_path / "m", model, TOKENIZER)
    built = random_task_model(tmp_path / "m", HeadSpec("sequence", 3), seed=7)
    positions = built.encoder.embeddings.position.weight
    assert not positions.requires_grad
    assert torch.equal(positions, model.encoder.embeddings.position.weight)
    assert not torch.equal(built.encoder.embeddings.word.weight, model.encoder.embeddings.word.weight)


def test_random_model_is_built_without_reading_the_weights(tmp_path):
    save_pretrained(tmp_path / "m")
    (tmp_path / "m/model.safetensors").unlink()
    (tmp_path / "m/checksums.json").unlink()
    head = HeadSpec("sequence", 3)
    model = random_task_model(tmp_path / "m", head, seed=7, dropout=0.2)
    assert model.config == CONFIG.with_dropout(0.2)
    assert same_parameters(model, EncoderForTask(BertEncoder(CONFIG, seed=7), head, seed=7))
