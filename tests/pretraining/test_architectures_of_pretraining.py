"""The option --architecture: its objective and default settings, and what does not fit it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from bertwright.base.settings import from_table
from bertwright.pretraining.settings import PretrainSettings
from bertwright.systems.bert.bert_objective import LeftToRightLM
from bertwright.systems.registry import SYSTEMS, System


class ToyLM(LeftToRightLM):
    name = "toy-lm"
    model_options = ("hidden_size",)
    defaults: ClassVar[dict[str, Any]] = {"optimizer": {"learning_rate": 0.5}, "data": {"max_length": 64}}


TOY = System("toy", "a toy", objectives={"toy-lm": f"{__name__}:ToyLM"})


@pytest.fixture(autouse=True)
def register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SYSTEMS, "toy", f"{__name__}:TOY")


def read(**tables: Any) -> PretrainSettings:
    return from_table(PretrainSettings, {"run": "run", "store": "store"} | tables, "")


@pytest.mark.parametrize("tables", [{"model": {"architecture": "toy"}}, {"data": {"objective": "toy-lm"}}])
def test_architecture_and_objective_imply_each_other_and_their_settings(tables: dict[str, Any]) -> None:
    settings = read(**tables)
    assert (settings.model.architecture, settings.data.objective) == ("toy", "toy-lm")
    assert (settings.optimizer.learning_rate, settings.data.max_length) == (0.5, 64)
    assert read(**tables | {"optimizer": {"learning_rate": 0.25}}).optimizer.learning_rate == 0.25


def test_bert_is_the_default_and_keeps_its_settings() -> None:
    assert read() == PretrainSettings(Path("run"), Path("store"))
    assert read(model={"architecture": "bert"}) == read()
    assert read(data={"objective": "ltr"}).model.architecture == "bert"


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"model": {"architecture": "lstmm"}}, ("architecture", "'lstmm'", "bert", "toy")),
        ({"model": {"architecture": "toy"}, "data": {"objective": "mlm"}}, ("objective", "'mlm'", "toy-lm", "toy")),
        ({"model": {"architecture": "toy", "num_heads": 4, "size": "tiny"}}, ("size, num_heads", "toy")),
        ({"model": {"architecture": "elmo", "hidden_size": 64, "num_layers": 1}}, ("hidden_size:", "elmo")),
    ],
)
def test_what_does_not_fit_the_architecture_is_named(tables: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected|omit") as error:
        read(**tables)
    assert all(word in str(error.value) for word in words)
