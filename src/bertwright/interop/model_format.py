"""What the folders of a `model_type` have: its configuration, classes and file names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_type_hints

from torch import Tensor

from bertwright.base.settings import convert
from bertwright.interop.head_config import HEAD_CLASSES
from bertwright.interop.model_files import OWN_HEAD
from bertwright.models.encoder import EncoderConfig, EncoderModel, TextEncoder
from bertwright.models.head_spec import HeadSpec
from bertwright.systems.registry import DEFAULT_MODEL_TYPE, REFUSED, folder_formats

LOG_VARIANCE = ".log_variance"


@dataclass(frozen=True)
class Architecture:
    """The configuration, classes and file names of one `model_type`.

    The base class serves an encoder with a dataclass as configuration; its weights keep their own names in files.
    """

    encoder: type[TextEncoder]
    config: type[EncoderConfig]
    class_prefix: str
    """As "Bert" in `BertForSequenceClassification`."""
    model: Callable[[Any], EncoderModel] | None = None
    """The model of pre-training; a folder may lack its modules other than the encoder. None: the encoder by itself."""
    in_transformers: bool = False
    """Whether `transformers` has this `model_type`, so that it would misread a head that it lacks."""
    pooled_code: Path | None = None
    """Classes for `transformers` of this encoder with a `PooledHead`; the file is copied beside such a head."""

    def parse_config(self, values: Mapping[str, Any], path: Path) -> EncoderConfig:
        """Read a configuration from the fields of `config.json`. Raises ValueError, naming field and value."""
        types = get_type_hints(self.config)
        names = [field.name for field in fields(self.config) if field.name in values]  # type: ignore[arg-type]
        try:
            return self.config(**{name: convert(values[name], types[name], name) for name in names})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}: {error}") from None

    def format_config(self, config: Any, head: HeadSpec | None = None) -> dict[str, Any]:
        """Return the fields of `config.json` for the encoder of a model with a task's `head`, or without one."""
        return {"model_type": self.encoder.model_type, "dtype": "float32"} | asdict(config)

    def build_model(self, config: Any) -> EncoderModel:
        """Build the model of pre-training, or the encoder by itself."""
        return EncoderModel(self.encoder(config)) if self.model is None else self.model(config)

    def file_names(self, name: str, kind: str = "") -> tuple[str, ...]:
        """Return the names in files of one of our parameters; several are concatenated along the first dimension.

        `kind`: of the task's head (`HeadSpec`), for the parameters of heads.
        """
        return (name.replace("classifier", HEAD_CLASSES[kind].classifier) if name.startswith("classifier.") else name,)

    def is_of_a_head(self, file_name: str) -> bool:
        """Return whether a tensor in a file is a head's, known here or not."""
        return not file_name.startswith("encoder.")

    def normalize(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], path: Path) -> dict[str, Tensor]:
        """Return a file's tensors under the names of `file_names`, whichever program wrote them.

        `values`: the fields of `config.json`. Raises ValueError for tensors that cannot be used, naming `path`.
        Earlier folders have logarithms of the variances of batch normalization.
        """
        logarithms = {name: tensor for name, tensor in tensors.items() if name.endswith(LOG_VARIANCE)}
        variances = {name.replace(LOG_VARIANCE, ".variance"): tensor.exp() for name, tensor in logarithms.items()}
        return {name: tensor for name, tensor in tensors.items() if name not in logarithms} | variances

    def to_file(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return normalized tensors as a file has them, the reverse of `normalize`."""
        return tensors

    def check_sizes(self, tensors: Mapping[str, Tensor], config: Any, path: Path) -> None:
        """Raise ValueError if normalized tensors do not have the sizes of the configuration.

        It is called before a model is built: the configuration's sizes may be too large for that.
        """


def find_architecture(model_type: str) -> Architecture:
    """Return the format of a registered `model_type`; its modules are imported now."""
    architecture: Architecture = resolve_name(folder_formats()[model_type])
    return architecture


def architecture_of(values: Any, path: Path) -> Architecture:
    """Return the architecture that the fields of a `config.json` at `path` name; BERT if they name none."""
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected a JSON object, got {type(values).__name__}")
    name, known = values.get("model_type", DEFAULT_MODEL_TYPE), folder_formats()
    if not isinstance(name, str) or name.removesuffix(OWN_HEAD) not in known:
        reason = f", which is not supported: {REFUSED[name]}" if name in REFUSED else ""
        raise ValueError(f"{path}: model_type: expected {' or '.join(known)}, got {name!r}{reason}")
    return find_architecture(name.removesuffix(OWN_HEAD))
