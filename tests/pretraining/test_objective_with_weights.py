"""A toy objective of BERT whose loss has weights of its own: it trains, resumes to the bit, and leaves a BERT."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import bertwright
from bertwright.interop.huggingface import load_model
from bertwright.models.initialization import initialize, truncated_normal
from bertwright.models.linear import Linear
from bertwright.objectives.data_settings import DataSettings
from bertwright.objectives.language_model_objective import LanguageModelBatch
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import LongPhase, ModelSettings, PretrainSettings
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.systems.bert.defaults import BERT
from bertwright.systems.bert.masked_lm_objective import MaskedLM
from bertwright.training.loop import LossOutput
from harness import check_interrupted_run, load_weights
from helpers import CPU


class BertWithLengths(BertForPretraining):
    def __init__(self, config: BertConfig, seed: int = 0) -> None:
        super().__init__(config, seed)
        self.length = Linear(config.hidden_size, 1)
        initialize(self, truncated_normal(config.initializer_range), seed, only=("length",))


class MaskedLMWithLengths(MaskedLM):
    """Predict masked tokens, and the length of the sequence from the state of [CLS]."""

    name = "mlm+length"

    @property
    def model_class(self) -> type[BertForPretraining]:
        return BertWithLengths

    def loss(self, model: BertForPretraining, batch: LanguageModelBatch) -> LossOutput:
        output = super().loss(model, batch)
        lengths = torch.as_tensor(batch.packing.lengths, dtype=torch.float32)
        guesses = model.length(model.encoder(batch.input, batch.packing.first_positions))[:, 0]
        return output._replace(loss=output.loss + 1e-3 * F.mse_loss(guesses, lengths))


def test_an_objective_with_weights_of_its_own_resumes_to_the_bit(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BERT.objectives, "mlm+length", f"{__name__}:MaskedLMWithLengths")
    settings = PretrainSettings(
        tmp_path / "run", store, steps=6, save_every=2, eval_every=6, model=ModelSettings("tiny", max_positions=32),
        data=DataSettings(32, 4, "mlm+length"), long=LongPhase(0), device=CPU,
    )  # fmt: skip
    check_interrupted_run(pretrain, settings, 3, monkeypatch)
    folder = tmp_path / "run" / "model"
    weights = load_weights(folder)
    assert weights["length.weight"].abs().sum() > 0
    trained = load_model(folder, model_class=BertWithLengths).model
    torch.testing.assert_close(trained.get_parameter("length.weight"), weights["length.weight"])
    assert len(bertwright.load(folder).fill_mask("the [MASK] sees").masks) == 1  # any other reader finds a BERT
