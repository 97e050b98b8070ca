"""Models in int8: the same answers in any batch, the gate before they are written, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import bertwright
from bertwright.inference.attention_weights import pack_segments
from bertwright.inference.bert import Bert
from bertwright.inference.int8_gate import DevData, Measured, Verdict, read_dev
from bertwright.inference.int8_model import (
    RECORD,
    LayerCost,
    LayerProbe,
    check_int8,
    linear_layers,
    quantize_layers,
)
from bertwright.inference.quantize import GateError, QuantizeSettings, probe_layers, quantize
from bertwright.kernels import int8_linear
from bertwright.models.encoder import EncoderModel, TextEncoder
from bertwright.models.linear import Linear
from bertwright.models.packing import pack
from bertwright.systems.albert.albert import AlbertConfig, AlbertEncoder
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.other_embeddings import ProjectedConfig
from bertwright.systems.distilbert.distilbert import DistilBertConfig, DistilBertEncoder
from bertwright.systems.electra.electra import ElectraConfig, ElectraEncoder
from bertwright.systems.gpt.gpt import GptEncoder
from bertwright.systems.mpnet.mpnet import MpnetConfig, MpnetEncoder
from bertwright.systems.roberta.roberta import RobertaConfig, RobertaEncoder
from bertwright.tasks.classification import Classification
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_types import TaskOptions

TEXTS = ["the good film", "bad", "the film is good and the other film is bad", "film " * 30]

MakeModel = Callable[[AnyTask], Bert]


@pytest.fixture
def folder(make_task_model: MakeModel, tmp_path: Path) -> Path:
    """A classifier with random weights and a dev file of its own predictions, so that it is always right."""
    model = make_task_model(Classification(labels=("a", "b")))
    model.save(tmp_path / "model")
    labels = [prediction.label for prediction in model.classify(TEXTS)]
    rows = "".join(f"{label}\t{text}\n" for label, text in zip(labels, TEXTS, strict=True))
    (tmp_path / "dev.tsv").write_text(f"label\ttext\n{rows}", encoding="utf-8")
    return tmp_path


def settings(folder: Path) -> QuantizeSettings:
    return QuantizeSettings(str(folder / "model"), folder / "int8", dev=(str(folder / "dev.tsv"),), threads=1)


def test_quantized_folder_loads_without_a_notice(folder: Path, recwarn: pytest.WarningsRecorder) -> None:
    verdict = quantize(settings(folder))
    assert verdict.passed
    model = bertwright.load(folder / "int8", "cpu", dtype="int8")
    assert not [warning for warning in recwarn if "gate" in str(warning.message)]
    record = json.loads((folder / "int8" / RECORD).read_text(encoding="utf-8"))
    assert record["gate"]["metric"] == "accuracy"
    float32 = bertwright.load(folder / "model", "cpu")
    for one, other in zip(model.classify(TEXTS), float32.classify(TEXTS), strict=True):
        assert one.label == other.label
        assert one.probabilities["a"] == pytest.approx(other.probabilities["a"], abs=0.05)
    with pytest.raises(ValueError, match="in int8"):
        model.save(folder / "again")


def test_gate_that_is_missed_twice_writes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_linear, "WEIGHT_LEVELS", 0.5)  # almost nothing is left of the weights
    (folder / "dev.tsv").write_text("label\ttext\na\tthe good film\nb\tbad\n", encoding="utf-8")
    monkeypatch.setattr("bertwright.inference.int8_gate.MIN_AGREEMENT", 1.5)
    with pytest.raises(GateError, match="nothing is written"):
        quantize(settings(folder))
    assert not (folder / "int8").exists()


def test_layers_go_back_in_the_order_of_their_errors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs, back = list[LayerCost](), list[str]()

    def probe(bert: Bert, dev: DevData) -> tuple[Measured, list[LayerCost]]:
        costs[:] = [LayerCost(name, 1.0) for name in reversed(linear_layers(bert.model.encoder))]
        return Measured("accuracy", 1.0, ()), costs

    def replace(_: TextEncoder, name: str, layer: torch.nn.Module) -> None:
        back.extend([name] * isinstance(layer, Linear))

    monkeypatch.setattr("bertwright.inference.quantize.probe_layers", probe)
    monkeypatch.setattr("bertwright.inference.int8_gate.judge", lambda *_: Verdict("accuracy", 1.0, 0.0, 0.5))
    monkeypatch.setattr("bertwright.inference.int8_model.replace_layer", replace)
    with pytest.raises(GateError):
        quantize(settings(folder))
    assert back == [cost.layer for cost in costs[: len(back)]] != []


def test_a_layer_whose_error_is_no_number_comes_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([0.5, float("nan")])
    monkeypatch.setattr(LayerProbe, "relative_error", property(lambda _: next(errors, 0.25)))
    model = bertwright.load(folder / "model", "cpu")
    _, costs = probe_layers(model, read_dev(model, [str(folder / "dev.tsv")], TaskOptions()))
    assert np.isnan(costs[0].error)
    assert costs[1].error == 0.5


def test_folder_without_a_gate_is_loaded_with_a_notice(folder: Path) -> None:
    with pytest.warns(UserWarning, match="bertwright quantize"):
        bertwright.load(folder / "model", "cpu", dtype="int8")


def test_record_of_other_weights_is_refused(folder: Path) -> None:
    quantize(settings(folder))
    path = folder / "int8" / RECORD
    (folder / "int8" / "checksums.json").unlink()
    for changed in ({"weights": "00000000"}, {"float32_layers": ["../x"]}, {"float32_layers": 3}):
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changed), encoding="utf-8")
        with pytest.raises(ValueError, match=RECORD):
            bertwright.load(folder / "int8", "cpu", dtype="int8")


@pytest.mark.filterwarnings("ignore:.*int8 without a gate")
def test_text_alone_and_in_a_batch_has_the_same_bytes(folder: Path) -> None:
    model = bertwright.load(folder / "model", "cpu", dtype="int8")
    model = Bert(EncoderModel(model.model.encoder), model.tokenizer)
    together = model.embed(TEXTS)
    assert np.array_equal(np.stack([model.embed(text) for text in TEXTS]), together)


def test_native_call_equals_layer_by_layer(make_task_model: MakeModel) -> None:
    model = make_task_model(Classification(labels=("a", "b")))
    encoder = model.model.encoder
    quantize_layers(encoder)
    batch, norm = pack_segments([TEXTS[2]], model.tokenizer), encoder.layers[-1].output_norm
    for _ in range(2):
        with torch.inference_mode():
            one_call, layers = encoder(batch), encoder.hidden_states(batch, [encoder.config.num_layers])[0]
        torch.testing.assert_close(one_call, layers, rtol=1e-3, atol=1e-3)
        norm.weight = torch.nn.Parameter(3 * norm.weight.detach())  # the addresses that the call keeps are old now


def test_unknown_dtype_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="dtype"):
        bertwright.load(folder / "model", "cpu", dtype="int4")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("encoder_type", "config_type"),
    [
        (RobertaEncoder, RobertaConfig), (DistilBertEncoder, DistilBertConfig), (ElectraEncoder, ElectraConfig),
        (AlbertEncoder, AlbertConfig), (MpnetEncoder, MpnetConfig),
    ],
)  # fmt: skip
def test_each_family_is_near_float32(encoder_type: type[BertEncoder], config_type: type[BertConfig]) -> None:
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48, "max_positions": 40}
    embedding = {"embedding_size": 16} if issubclass(config_type, ProjectedConfig) else {}
    encoder = encoder_type(config_type(vocab_size=50, initializer_range=0.2, **sizes, **embedding), seed=1).eval()
    batch = pack([np.arange(5, 20), np.arange(7, 10)])
    with torch.inference_mode():
        float32 = encoder(batch)
        quantize_layers(encoder)
        assert (encoder(batch) - float32).norm() / float32.norm() < 0.05
        positions = torch.tensor([0, 16])
        torch.testing.assert_close(encoder(batch, positions), encoder(batch)[positions])


def test_another_family_is_refused_by_name() -> None:
    config = BertConfig(vocab_size=50, hidden_size=32, num_layers=1, num_heads=4, intermediate_size=48)
    with pytest.raises(ValueError, match=r"MODEL: .*openai-gpt"):
        check_int8(GptEncoder(config), torch.device("cpu"), "MODEL")
    with pytest.raises(ValueError, match="cuda"):
        check_int8(BertEncoder(config), torch.device("cuda"), "MODEL")
