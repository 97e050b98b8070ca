"""Commands on an encoder that is no BERT: word embeddings and one GRU layer, registered under its own `model_type`.

Also causal encoders of either architecture: sequence-level heads read their last token, not [CLS], which sees nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

import bertwright
from bertwright.finetuning.run import finetune
from bertwright.inference.evaluate import EvaluateSettings, evaluate
from bertwright.inference.info import InfoSettings, info
from bertwright.inference.predict import predict
from bertwright.inference.predict_settings import PredictSettings
from bertwright.interop.huggingface import load_config, load_model, load_task_model, save_model
from bertwright.interop.model_format import Architecture
from bertwright.models.encoder import EncoderModel, TextEncoder
from bertwright.models.head_spec import HeadSpec
from bertwright.models.initialization import initialize, truncated_normal
from bertwright.models.packing import TokenBatch, pack
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.registry import SYSTEMS, System
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.task_types import TaskOptions
from bertwright.training.layer_rates import layerwise_lr_scales
from bertwright.trials.probe import ProbeSettings, probe
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from harness import run_and_capture
from helpers import CPU

TEXTS = ["the bear sees the river", "the lynx sees the river"]


@dataclass(frozen=True)
class GruConfig:
    vocab_size: int
    hidden_size: int = 16
    num_layers: int = 1
    max_positions: int = 64
    type_vocab_size: int = 2
    is_causal: bool = True
    hidden_dropout: float = 0.1
    initializer_range: float = 0.3

    def __str__(self) -> str:
        return f"GRU H{self.hidden_size}"

    @property
    def num_parameters(self) -> int:
        return (self.vocab_size + 6 * self.hidden_size + 6) * self.hidden_size

    def with_dropout(self, rate: float) -> GruConfig:
        return replace(self, hidden_dropout=rate)


class GruEncoder(TextEncoder):
    """Reads from left to right; every token's state has seen the tokens before it."""

    model_type: ClassVar[str] = "test-gru"
    config: GruConfig

    def __init__(self, config: GruConfig, seed: int = 0) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([nn.GRU(config.hidden_size, config.hidden_size)])
        initialize(self, truncated_normal(config.initializer_range), seed)

    def forward(self, batch: TokenBatch, positions: Tensor | None = None) -> Tensor:
        return self.hidden_states(batch, (1,), positions)[0]

    def hidden_states(
        self, batch: TokenBatch, layers: Sequence[int] | None = None, positions: Tensor | None = None
    ) -> list[Tensor]:
        self.check_length(batch.packing)
        embedded = self.embeddings(batch.input_ids)
        packed = pack_sequence([*torch.split(embedded, batch.packing.lengths.tolist())], enforce_sorted=False)
        states = [embedded, torch.cat(unpack_sequence(self.layers[0](packed)[0]))]
        wanted = range(2) if layers is None else layers
        return [states[number] if positions is None else states[number][positions] for number in wanted]


TEST_GRU = Architecture(GruEncoder, GruConfig, "TestGru")
GRU = System("gru", "a toy", folders={"test-gru": f"{__name__}:TEST_GRU"})


@pytest.fixture(autouse=True)
def register_gru(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SYSTEMS, "gru", f"{__name__}:GRU")


@pytest.fixture(params=["test-gru", "bert"])
def causal_folder(request: pytest.FixtureRequest, tmp_path: Path, vocabulary_folder: Path) -> Path:
    """Write a causal encoder with random weights; return its folder."""
    tokenizer, folder = Tokenizer.load(vocabulary_folder), tmp_path / "start"
    model: EncoderModel = EncoderModel(GruEncoder(GruConfig(tokenizer.vocab_size)))
    if request.param == "bert":
        sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "intermediate_size": 32, "max_positions": 64}
        config = BertConfig(tokenizer.vocab_size, **sizes, initializer_range=0.2, is_causal=True)
        model = BertForPretraining(config, seed=3)
        torch.nn.init.constant_(model.pooler.dense.bias, 1e-3)  # as if it was trained
    save_model(folder, model, tokenizer)
    return folder


def test_folder_of_another_architecture_round_trips(tmp_path: Path, vocabulary_folder: Path) -> None:
    tokenizer = Tokenizer.load(vocabulary_folder)
    model = EncoderModel(GruEncoder(GruConfig(tokenizer.vocab_size, hidden_size=12), seed=5))
    save_model(tmp_path / "m", model, tokenizer)
    loaded = load_model(tmp_path / "m")
    assert loaded.missing_heads == loaded.unexpected_keys == ()
    assert loaded.model.config == load_config(tmp_path / "m") == model.config
    for (name, found), expected in zip(loaded.model.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(found, expected), name
    (tmp_path / "m/checksums.json").unlink()
    values = json.loads((tmp_path / "m/config.json").read_text())
    (tmp_path / "m/config.json").write_text(json.dumps(values | {"hidden_size": 13}))
    with pytest.raises(ValueError, match=r"model\.safetensors: .*configuration's shape: encoder\."):
        load_model(tmp_path / "m")
    (tmp_path / "m/config.json").write_text(json.dumps(values | {"model_type": "lstm"}))
    with pytest.raises(ValueError, match=r"config\.json: model_type: .*test-gru.*'lstm'"):
        load_model(tmp_path / "m")


def test_layers_of_another_architecture_can_be_frozen() -> None:
    model = EncoderForTask(GruEncoder(GruConfig(30)), HeadSpec("sequence", 2))
    names = ("encoder.embeddings.weight", "encoder.layers.0.weight_ih_l0", "head.classifier.weight")
    assert [layerwise_lr_scales(model, None, 0.5)[name] for name in names] == [0.25, 0.5, 1]
    assert [layerwise_lr_scales(model, 1, 0.5)[name] for name in names] == [0, 0, 1]


def test_causal_encoder_is_fine_tuned_scored_and_used(make_tuning: Any, causal_folder: Path, tmp_path: Path) -> None:
    """A head on [CLS] would give every text the same answer and could not pass the majority class."""
    settings = make_tuning(tmp_path / "run", model=str(causal_folder), epochs=12.0)
    run_and_capture(finetune, settings)
    assert json.loads((tmp_path / "run/report.json").read_text())["scores"]["dev"]["accuracy"] > 0.9
    model = bertwright.load(tmp_path / "run/model")
    assert [answer.label for answer in model.classify(TEXTS)] == ["bad", "good"]
    before, after = load_model(causal_folder).model.encoder, load_task_model(tmp_path / "run/model").encoder
    assert type(before) is type(after)
    (tmp_path / "texts.txt").write_text("\n".join(["text", *TEXTS]))
    output = tmp_path / "predictions.jsonl"
    run_and_capture(
        predict,
        PredictSettings(str(tmp_path / "run"), inputs=(str(tmp_path / "texts.txt"),), output=output, device=CPU),
    )
    assert [json.loads(line)["label"] for line in output.read_text().splitlines()] == ["bad", "good"]
    dev = settings.task.dev[0]
    scores = evaluate(EvaluateSettings(str(tmp_path / "run"), (dev,), device=CPU))
    assert scores["accuracy"] > 0.9
    assert "classification" in run_and_capture(info, InfoSettings(tmp_path / "run"))


def convert_reviews(source: Path, folder: Path, convert: Callable[[str, str], str]) -> dict[str, tuple[str, ...]]:
    """Convert the texts and labels of the reviews to rows of other tables; return the files by split."""
    files = {}
    for split in ("train", "dev"):
        rows = [line.split("\t") for line in (source / f"{split}.tsv").read_text().splitlines()[1:]]
        (folder / f"{split}.tsv").write_text("".join(f"{convert(text, label)}\n" for text, label in rows))
        files[split] = (str(folder / f"{split}.tsv"),)
    return files


def test_causal_encoder_is_fine_tuned_on_a_choice(
    make_tuning: Any, causal_folder: Path, review_files: Path, tmp_path: Path
) -> None:
    """The right ending is "lynx", which is the second one after a good review."""
    files = convert_reviews(
        review_files,
        tmp_path,
        lambda text, label: "\t".join([text, *(("bear", "lynx", "1") if label == "good" else ("lynx", "bear", "0"))]),
    )
    options = TaskOptions(prompt="1", endings=("2", "3"), label="4", header=False)
    task = TaskSettings("multiple-choice", **files, overrides=options)
    run_and_capture(finetune, make_tuning(tmp_path / "run", model=str(causal_folder), task=task, epochs=4.0))
    assert json.loads((tmp_path / "run/report.json").read_text())["scores"]["dev"]["accuracy"] > 0.9
    model = bertwright.load(tmp_path / "run/model")
    assert [model.choose(TEXTS[0], endings).choice for endings in (["bear", "lynx"], ["lynx", "bear"])] == [1, 0]


def test_causal_encoder_embeds_different_texts_differently(causal_folder: Path) -> None:
    model = bertwright.load(causal_folder)
    for pooling in ("cls", "mean", "max"):
        first, second = model.embed(TEXTS, pooling=pooling)
        assert abs(float(first @ second)) < 0.9999, pooling
    with torch.no_grad():
        ids = torch.tensor(model.tokenizer.encode(TEXTS[0]).ids.astype(np.int64))
        states = model.model.encoder.hidden_states(pack([ids.numpy()]))[-1]
    np.testing.assert_allclose(model.embed(TEXTS[0], pooling="cls", normalize=False), states[-1], rtol=1e-5, atol=1e-6)
    assert [vectors.shape[1] for vectors in model.features(TEXTS, layers=(0, 1))] == [2, 2]
    with pytest.raises(ValueError, match="fill_mask"):
        model.fill_mask("the [MASK]")


def test_probe_of_a_causal_encoder_reads_different_states(
    causal_folder: Path, tmp_path: Path, review_files: Path
) -> None:
    files = {split: (str(review_files / f"{split}.tsv"),) for split in ("train", "dev")}
    settings = ProbeSettings(
        tmp_path / "probe", TaskSettings("classification", **files), str(causal_folder), representations=("last",),
        seeds=(0,), learning_rates=(3e-2,), device=CPU,
    )  # fmt: skip
    table = probe(settings)
    assert table is not None
    assert table.cells["last", "dev"].summary.mean > 0.55
    (states,) = (np.load(path) for path in (tmp_path / "probe/features/dev").glob("layer-*.npy"))
    assert (np.ptp(states, axis=0) > 0.01).all()  # [CLS] alone would be the same row for every text
