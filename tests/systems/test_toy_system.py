"""A system in one file and one line: a bag of words that predicts the next token, through all commands."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import bertwright
from bertwright.cli.main import run
from bertwright.interop.model_format import Architecture
from bertwright.kernels.linear_cross_entropy import linear_cross_entropy
from bertwright.models.encoder import EncoderModel, TextEncoder
from bertwright.models.initialization import initialize, truncated_normal
from bertwright.models.packing import TokenBatch
from bertwright.objectives.language_model_objective import (
    LanguageModelBatch,
    LanguageModelObjective,
    language_model_columns,
)
from bertwright.systems.registry import SYSTEMS, System
from bertwright.training.loop import LossOutput
from bertwright.training.metrics_log import read_metrics


@dataclass(frozen=True)
class BagConfig:
    vocab_size: int
    hidden_size: int = 16
    num_layers: int = 1
    max_positions: int = 64
    type_vocab_size: int = 2
    is_causal: bool = True
    hidden_dropout: float = 0.0
    initializer_range: float = 0.3

    def __str__(self) -> str:
        return f"bag H{self.hidden_size}"

    @property
    def num_parameters(self) -> int:
        return self.vocab_size * self.hidden_size + self.hidden_size**2

    def with_dropout(self, rate: float) -> BagConfig:
        return replace(self, hidden_dropout=rate)


class BagEncoder(TextEncoder):
    """A token's state is a linear function of the mean of its embedding and those before it."""

    model_type: ClassVar[str] = "toy-bag"
    config: BagConfig

    def __init__(self, config: BagConfig, seed: int = 0) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([nn.Linear(config.hidden_size, config.hidden_size, bias=False)])
        initialize(self, truncated_normal(config.initializer_range), seed)

    def forward(self, batch: TokenBatch, positions: Tensor | None = None) -> Tensor:
        return self.hidden_states(batch, (1,), positions)[0]

    def hidden_states(
        self, batch: TokenBatch, layers: Sequence[int] | None = None, positions: Tensor | None = None
    ) -> list[Tensor]:
        embedded = self.embeddings(batch.input_ids)
        means = [
            part.cumsum(0) / torch.arange(1, len(part) + 1)[:, None]
            for part in torch.split(embedded, batch.packing.lengths.tolist())
        ]
        states = [embedded, self.layers[0](torch.cat(means))]
        return [states[n] if positions is None else states[n][positions] for n in (layers or range(2))]


class BagLanguageModel(EncoderModel):
    encoder: BagEncoder

    def __init__(self, config: BagConfig, seed: int = 0) -> None:
        super().__init__(BagEncoder(config, seed))


class BagObjective(LanguageModelObjective[BagLanguageModel]):
    name: ClassVar[str] = "next"
    summary: ClassVar[str] = "every next token"
    model_options = ("hidden_size",)
    defaults: ClassVar[Mapping[str, Any]] = {"long": {"long_ratio": 0.0}, "data": {"max_length": 32}}
    columns = language_model_columns("bag LM")
    direction: ClassVar[str] = "left-to-right"
    model_name: ClassVar[str] = "a bag"

    @property
    def model_class(self) -> type[BagLanguageModel]:
        return BagLanguageModel

    def new_model(self, settings: Any, vocab_size: int, seed: int) -> BagLanguageModel:
        return BagLanguageModel(BagConfig(vocab_size, settings.hidden_size or 16), seed)

    def loss(self, model: BagLanguageModel, batch: LanguageModelBatch) -> LossOutput:
        states, words = model.encoder(batch.input, batch.mlm_positions), model.encoder.embeddings.weight
        bias = torch.zeros(len(words))
        loss, correct = linear_cross_entropy(states, words, bias, batch.mlm_labels, scale=1 / batch.lm_count)
        counts = {"lm_count": batch.num_predictions, "tokens": int(batch.packing.num_tokens), "flops": 0}
        return LossOutput.of(loss, {"lm_sum": loss.detach() * batch.lm_count, "lm_correct": correct}, counts)


FOLDER = Architecture(BagEncoder, BagConfig, "ToyBag", BagLanguageModel)
BAG = System(
    "bag", "a bag of words", folders={"toy-bag": f"{__name__}:FOLDER"}, objectives={"next": f"{__name__}:BagObjective"}
)


def test_a_new_system_goes_through_all_commands(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SYSTEMS, "bag", f"{__name__}:BAG")
    monkeypatch.chdir(tmp_path)
    rows = [f"the {animal} sees the river .\t{label}\n" for animal, label in (("bear", "good"), ("lynx", "bad"))] * 16
    Path("rows.tsv").write_text("text\tlabel\n" + "".join(rows))
    device = "--device cpu --threads 1"
    for command in (
        f"pretrain --architecture bag --store {store} --run lm --steps 30 --batch-size 16 --learning-rate 0.01 "
        f"{device}",
        f"finetune --task classification --train rows.tsv --dev rows.tsv --model lm --run tuned --epochs 20 "
        f"--learning-rate 0.03 {device}",
        f"evaluate tuned rows.tsv --output scores.json {device}",
        "info lm",
    ):
        assert run(command.split()) == 0, command
    assert "bag H16" in capsys.readouterr().out
    losses = [record["loss"] for record in read_metrics(Path("lm")) if record["kind"] == "held_out"]
    assert losses[-1] < losses[0]
    assert json.loads(Path("scores.json").read_text())["accuracy"] > 0.9
    model = bertwright.load("tuned")
    model.save("copy")
    assert bertwright.load("copy").classify("the bear sees the river .") == model.classify("the bear sees the river .")
    assert run(["pretrain", "--help"]) == 0
    assert "next: every next token" in " ".join(capsys.readouterr().out.split())
