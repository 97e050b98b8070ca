"""A toy objective with two losses of its own trains through `pretrain`, is killed, and resumes to the bit."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_model, save_model
from torch import nn

from bertwright.base.files import read_json
from bertwright.corpus.documents import CorpusSettings
from bertwright.models.packing import Packing, TokenBatch
from bertwright.objectives.data_settings import DataSettings
from bertwright.objectives.objective import Column
from bertwright.objectives.store_objective import StoreObjective
from bertwright.pretraining.run import pretrain
from bertwright.pretraining.settings import LongPhase, ModelSettings, PretrainSettings
from bertwright.systems.bert.defaults import BERT
from bertwright.tokenstore.build import BuildSettings, build
from bertwright.training.loop import LossOutput
from bertwright.training.metrics_log import read_metrics
from bertwright.training.optimizer_settings import OptimizerSettings
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from harness import run_until_killed
from helpers import CPU, read_output, text_reporter


class AdjacentModel(nn.Module):
    def __init__(self, config, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.config, self.encoder = config, nn.Embedding(config.vocab_size, config.hidden_size)
        self.after, self.before = (nn.Linear(config.hidden_size, config.vocab_size) for _ in range(2))


class AdjacentBatch(NamedTuple):
    input: TokenBatch
    pairs_of_step: int

    @property
    def packing(self) -> Packing:
        return self.input.packing

    def to(self, device):
        return self._replace(input=self.input.to(device))


class AdjacentLM(StoreObjective):
    """Predict the token after and the token before each token."""

    name = "adjacent"
    columns = (
        Column("after_loss", "next token (nats)", "{:.3f}", "next token {:.3f}", "next {:.3f}", is_plotted=True),
        Column("before_loss", "previous token (nats)", "{:.3f}", "previous token {:.3f}", is_plotted=True),
    )

    kill_after: int
    calls: Iterator[int]

    def make_batches(self, step, micro_batches):
        return [AdjacentBatch(step.pack(rows, step.ids)[1], step.num_predictions) for rows in micro_batches]

    def new_model(self, settings, vocab_size, seed):
        return AdjacentModel(settings.config(vocab_size, causal=False), seed)

    def load_model(self, folder, settings, tokenizer, is_checkpoint):
        model = self.new_model(settings, tokenizer.vocab_size, 0)
        load_model(model, folder / "model.safetensors")
        return model, []

    def write_model(self, folder, model, tokenizer, modules=None):
        save_model(model, folder / "model.safetensors")
        tokenizer.save(folder)

    def loss(self, model, batch):
        if next(self.calls) == self.kill_after:
            os.kill(os.getpid(), signal.SIGKILL)
        ids, right = batch.input.input_ids, batch.packing.position_ids.nonzero().squeeze(1)
        after = F.cross_entropy(model.after(model.encoder(ids[right - 1])), ids[right], reduction="sum")
        before = F.cross_entropy(model.before(model.encoder(ids[right])), ids[right - 1], reduction="sum")
        counts = {"pairs": torch.tensor(len(right)), "tokens": torch.tensor(len(ids)), "flops": torch.tensor(1e6)}
        return LossOutput((after + before) / batch.pairs_of_step, {"after": after, "before": before} | counts)

    def compute_scores(self, sums):
        return {f"{side}_loss": sums[side] / sums["pairs"] for side in ("after", "before")}


def pretrain_toy(settings: PretrainSettings, kill_after: int = 0) -> str:
    reporter, AdjacentLM.kill_after, AdjacentLM.calls = text_reporter(), kill_after, itertools.count(1)
    pretrain(settings, reporter)
    return read_output(reporter)


def test_toy_objective_killed_and_resumed_ends_with_the_same_bits(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(BERT.objectives, "adjacent", f"{__name__}:AdjacentLM")
    words = "the sees in forest river bear wolf hare deer seal lynx".split()
    tokenizer = Tokenizer.from_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words], lowercase=True)
    pairs = itertools.product(words[5:], words[5:])
    texts = [f"the {first} sees the {second}\nin the forest\nin the river" for first, second in pairs]
    (tmp_path / "text.txt").write_text("\n\n".join(texts))
    build(tmp_path / "store", CorpusSettings((str(tmp_path / "text.txt"),)), tokenizer, BuildSettings(0.2, workers=1))

    def settings(name: str, resume: bool = False) -> PretrainSettings:
        return PretrainSettings(
            tmp_path / name, tmp_path / "store", resume, steps=40, save_every=5, eval_every=10, log_every=5,
            model=ModelSettings("tiny", max_positions=16), data=DataSettings(16, 8, "adjacent"),
            long=LongPhase(0), optimizer=OptimizerSettings(1e-2), device=CPU,
        )  # fmt: skip

    printed = pretrain_toy(settings("unbroken"))
    for resume, kill_after in ((False, 13), (True, 20)):
        run_until_killed(partial(pretrain_toy, settings("killed", resume)), kill_after)
    pretrain_toy(settings("killed", resume=True))
    unbroken, killed = ((tmp_path / name / "model/model.safetensors").read_bytes() for name in ("unbroken", "killed"))
    assert killed == unbroken
    names = ("step", "after_loss", "before_loss")
    unbroken, killed = (
        [[record[name] for name in names] for record in read_metrics(tmp_path / run)] for run in ("unbroken", "killed")
    )
    assert killed == unbroken
    report = read_json(tmp_path / "unbroken" / "report.json")
    for name in names[1:]:
        assert report["held_out_after"][name] < report["held_out_before"][name] / 2
    assert "previous token (nats)" in printed
