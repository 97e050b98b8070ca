"""Int8 graphs by nncf: weights and the inputs of products of some layers; the head, pooling and norms stay float32."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bertwright.base.optional import needs
from bertwright.exporting.export_graph import quiet
from bertwright.inference.exported_folder import disable_reports
from bertwright.kernels.cpu import read_cpuinfo

CALIBRATION = 300  # sequences from which the ranges of activations are measured
PRODUCT = r"encoder\.(layers\.\d+\.\w+|words|segments|projection)/(MatMul|Gather)_\d+"  # not the attention's
HALF, FULL = "7 bits, for processors without VNNI", "8 bits"

Arrays = Mapping[str, npt.NDArray[np.int64]]


def has_vnni() -> bool:
    """Return whether this processor adds products of 8-bit numbers without saturation: VNNI, AMX, or ARM's."""
    flags = set(read_cpuinfo("flags", "Features").split())
    return not flags or bool(flags & {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp"})


def layer_names(path: Path) -> list[str]:
    """Return the layers of a graph of ONNX that can be int8: the embeddings, then each layer of the encoder."""
    import onnx

    nodes = [node.name for node in onnx.load(str(path), load_external_data=False).graph.node]
    names = (layer_of(name) for name in nodes if re.fullmatch(PRODUCT, name))
    return list(dict.fromkeys(names))


def layer_of(node: str) -> str:
    """Return the layer of a product by its name.

    >>> layer_of("encoder.layers.3.query/MatMul_5"), layer_of("encoder.words/Gather_0")
    ('layer 3', 'embeddings')
    """
    found = re.match(r"encoder\.layers\.(\d+)", node)
    return f"layer {found[1]}" if found else "embeddings"


def quantize_graph(
    source: Path, target: Path, calibration: Sequence[Arrays], layers: Sequence[str], half_range: bool
) -> None:
    """Write a graph of ONNX with some of its layers in int8, as ONNX or, by the target's suffix, for OpenVINO."""
    with needs("export", "--int8"), quiet():
        disable_reports()
        import nncf
        import onnx
        from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, OverflowFix

        graph = onnx.load(str(source), load_external_data=False)
        nodes = [node.name for node in graph.graph.node]
        left_out = [name for name in nodes if not (re.fullmatch(PRODUCT, name) and layer_of(name) in layers)]
        model: Any = graph if target.suffix == ".onnx" else _convert(source)
        quantized = nncf.quantize(
            model,
            nncf.Dataset(list(calibration)),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(calibration),
            ignored_scope=nncf.IgnoredScope(names=left_out, validate=False),
            advanced_parameters=AdvancedQuantizationParameters(
                overflow_fix=OverflowFix.ENABLE if half_range else OverflowFix.DISABLE
            ),
        )
        _save(quantized, target)


def convert_graph(source: Path, target: Path) -> None:
    """Write a graph of ONNX in float32, as ONNX or, by the target's suffix, for OpenVINO."""
    import onnx

    with needs("export", "--to openvino"), quiet():
        _save(onnx.load(str(source)) if target.suffix == ".onnx" else _convert(source), target)


def _convert(source: Path) -> Any:
    disable_reports()
    import openvino

    return openvino.convert_model(str(source))


def _save(model: Any, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".onnx":
        import onnx

        onnx.save(model, str(target))
    else:
        import openvino

        openvino.save_model(model, str(target), compress_to_fp16=False)
