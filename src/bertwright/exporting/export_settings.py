"""Settings of `bertwright export`; this module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from bertwright.base.files import check_absent
from bertwright.base.settings import Positional, check_choice, check_limit
from bertwright.interop.model_files import check_model
from bertwright.tasks.task_types import TaskOptions
from bertwright.text.sources import check_exist


@dataclass(frozen=True)
class ExportSettings:
    """Write a model with attention as a graph for other programs: head, pooling and normalization are inside."""

    model: Positional[str]
    """Model folder, run folder or hub name: text vectors, a task, a re-ranker, or a masked LM."""
    output: Positional[Path]
    """New folder: the graph, the tokenizer, run.py, which needs no torch, and report.json. bertwright.load opens it."""
    to: Literal["onnx", "openvino"] = "onnx"
    """onnx: for ONNX Runtime; openvino: OpenVINO's own format."""
    int8: bool = False
    """Multiply in 8 bits. The folder is only written if the answers on the --dev file stay right."""
    calibrate: str | None = None
    """File with texts as the application has them, from which --int8 measures the ranges of numbers; labels are not
    read. Unset: the --dev file."""
    dev: str | None = None
    """Labeled file in the format of training, on which --int8 is compared with the model."""
    max_drop: float | None = None
    """Points of the metric that --int8 may lose. Unset: 0.5; of text vectors 0.3. At least 99 % of the labels must be
    equal, and 99 % of the vectors have a cosine of 0.99 with the model's."""
    half_range: bool | None = None
    """Weights in 7 bits: on processors without VNNI, sums of 8-bit products overflow. Unset: as this processor needs
    it."""
    overrides: TaskOptions = field(default_factory=TaskOptions)

    def __post_init__(self) -> None:
        check_choice(self, "to")
        check_limit(self, "from 0", "max_drop")
        if self.int8 and self.dev is None:
            raise ValueError("--int8: expected --dev FILE, labeled, on which it is compared with the model; name one")
        given = {"calibrate": self.calibrate, "dev": self.dev, "max-drop": self.max_drop, "half-range": self.half_range}
        if not self.int8 and (odd := [name for name, value in given.items() if value is not None]):
            raise ValueError(f"--{odd[0]}: an option of --int8; add --int8 or omit it")


def check_inputs(settings: ExportSettings) -> None:
    """Check files and folders without torch."""
    check_absent(settings.output)
    check_model(settings.model)
    check_exist([path for path in (settings.dev, settings.calibrate) if path is not None])
