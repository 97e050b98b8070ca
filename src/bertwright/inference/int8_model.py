"""Models in int8: rounding an encoder's linear layers, and `int8.json`, what a folder records of its gate."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bertwright.base.files import read_json, write_json
from bertwright.inference.int8_gate import Verdict
from bertwright.interop.checksums import compute_checksum
from bertwright.interop.model_files import WEIGHTS
from bertwright.kernels.int8_linear import LINEAR_NAMES
from bertwright.models.encoder import TextEncoder
from bertwright.models.linear import Int8Linear, Linear

RECORD = "int8.json"
MAX_RECORD = 1 << 20  # bytes
FAMILIES = "BERT, RoBERTa, DistilBERT, ELECTRA, ALBERT, MPNet"


class LayerCost(NamedTuple):
    """How much a linear layer loses in int8."""

    layer: str
    error: float
    """Length of the difference of its outputs in int8 and float32, as a share of their length in float32."""


def linear_layers(encoder: TextEncoder) -> dict[str, Linear]:
    """Return the float32 linear layers of an encoder that int8 can replace, by name."""
    layers: Any = encoder.layers
    found = {f"{number}.{name}": getattr(layer, name) for number, layer in enumerate(layers) for name in LINEAR_NAMES}
    return {name: layer for name, layer in found.items() if isinstance(layer, Linear)}


def replace_layer(encoder: TextEncoder, name: str, module: nn.Module) -> None:
    """Put a module in the place of a linear layer, by the name that `linear_layers` gives it."""
    number, _, attribute = name.partition(".")
    layers: Any = encoder.layers
    setattr(layers[int(number)], attribute, module)


def check_int8(encoder: TextEncoder, device: torch.device, source: object) -> None:
    """Raise ValueError unless the encoder, of a folder `source`, can be computed in int8 on this device."""
    if not encoder.has_int8_layers:
        raise ValueError(
            f"{source}: expected one of {FAMILIES} for dtype int8, got a model of type {encoder.model_type}; use "
            "float32 or bfloat16"
        )
    if device.type != "cpu":
        raise ValueError(f"dtype int8: expected a CPU, got {device}; choose device cpu, or bfloat16 on a GPU")


def quantize_layers(encoder: TextEncoder, in_float32: Collection[str] = ()) -> None:
    """Replace linear layers of an encoder by int8 ones, except the named ones."""
    for name, layer in linear_layers(encoder).items():
        if name not in in_float32:
            replace_layer(encoder, name, Int8Linear(layer))


def use_int8(encoder: TextEncoder, device: torch.device, folder: Path) -> None:
    """Turn the encoder of a folder to int8, as its record says; warn if it has none.

    Raises ValueError for an encoder or device without int8, and for a record that does not belong to the weights.
    """
    check_int8(encoder, device, folder)
    if (folder / RECORD).is_file():
        quantize_layers(encoder, read_record(folder, set(linear_layers(encoder))))
        return
    warnings.warn(
        f"{folder}: int8 without a gate: how much it costs on your data is not known; bertwright quantize {folder} OUT "
        "--dev FILE measures it",
        stacklevel=4,
    )
    quantize_layers(encoder)


def write_record(
    folder: Path, verdict: Verdict, dev: Sequence[str], costs: Sequence[LayerCost], back: Sequence[str]
) -> None:
    """Write what the gate has found, the layers that stay in float32, and the checksum of the weights it holds for."""
    content = {
        "weights": compute_checksum(folder / WEIGHTS),
        "gate": verdict.to_record(),
        "dev": list(dev),
        "float32_layers": sorted(back),
        "errors": {cost.layer: round(cost.error, 6) for cost in costs},
    }
    write_json(folder / RECORD, content)


def read_record(folder: Path, known: Collection[str]) -> list[str]:
    """Return the layers that stay in float32. Raises ValueError for a damaged record, or one of other weights."""
    path = folder / RECORD
    if path.stat().st_size > MAX_RECORD:
        raise ValueError(f"{path}: expected at most {MAX_RECORD:,} bytes, got {path.stat().st_size:,}; delete it")
    content = read_json(path)
    layers = content.get("float32_layers") if isinstance(content, dict) else None
    if not isinstance(layers, list) or not all(isinstance(name, str) and name in known for name in layers):
        raise ValueError(f"{path}: expected float32_layers, a list of linear layers; run bertwright quantize again")
    if content.get("weights") != compute_checksum(folder / WEIGHTS):
        raise ValueError(
            f"{path}: expected the record of the {WEIGHTS} beside it, got a record of other weights; run bertwright "
            "quantize again, or delete it"
        )
    return layers


class LayerProbe(nn.Module):
    """A linear layer in float32 that also measures what int8 would change of its outputs."""

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.layer, self.int8, self.bias = layer, Int8Linear(layer), layer.bias
        self.error = self.size = 0.0
        self.eval()

    def matmul(self, x: Tensor) -> Tensor:
        y = self.layer.matmul(x)
        self.error += float((self.int8.matmul(x) - y).double().square().sum())
        self.size += float(y.double().square().sum())
        return y

    def forward(self, x: Tensor) -> Tensor:
        return self.matmul(x) + self.bias

    @property
    def relative_error(self) -> float:
        return (self.error / self.size) ** 0.5 if self.size else 0.0
