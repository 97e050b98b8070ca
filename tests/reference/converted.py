"""The weights of a model of `transformers`, as our models are built from them."""

from pathlib import Path
from typing import Any

from bertwright.interop.architectures import BERT
from bertwright.interop.huggingface import ModelSource


def weights_of(reference: Any) -> ModelSource:
    """Return a copy of a model's configuration and weights."""
    values, path = reference.config.to_dict(), Path("reference")
    tensors = {name: tensor.detach().clone() for name, tensor in reference.state_dict().items()}
    return ModelSource(BERT, BERT.parse_config(values, path), BERT.normalize(tensors, values, path), path)
