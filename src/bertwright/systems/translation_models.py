"""Translation models of all systems: their interface, their loss, and their folders."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertwright.base.description import Description
from bertwright.base.files import read_json
from bertwright.interop.checksums import check_weights, describe_check
from bertwright.interop.meta_model import build_on_meta
from bertwright.interop.model_files import CONFIG, locate_config
from bertwright.interop.weights import check_shapes, concatenate, raise_if_any, read_weights
from bertwright.kernels.linear_cross_entropy import linear_cross_entropy
from bertwright.models.beam_search import StepDecoder
from bertwright.models.packing import PairBatch, TokenBatch
from bertwright.systems.registry import translation_records
from bertwright.vocabulary.tokenizer import TextTokenizer

T = TypeVar("T", bound=nn.Module)
ADVICE = "name a model that `bertwright train-translation` wrote"


class TranslationModel(nn.Module, ABC):
    """A model that reads a source and predicts its translation token by token."""

    architecture: ClassVar[str]
    """Value of `train-translation --architecture`."""
    config: Any
    """Its sizes, with `vocab_size` of the targets and `dropout`."""
    compute_dtype: torch.dtype
    """Dtype of states and matrix products; parameters, softmax and losses stay float32."""

    @abstractmethod
    def forward(self, batch: PairBatch) -> Tensor:
        """Compute the last states of the targets, T × H; each depends on its source and on earlier tokens only."""

    @abstractmethod
    def softmax_weights(self) -> tuple[Tensor, Tensor]:
        """Return the matrix and the biases of the next token's logits, V × H and V."""

    @abstractmethod
    def start_decoding(self, source: TokenBatch) -> StepDecoder:
        """Encode sources; return the decoder that continues their hypotheses."""

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def reads_words(self) -> bool:
        """Whether sources are whole words, without special tokens."""
        return translation_records()[self.architecture].reads_words


class TranslationSystem(NamedTuple):
    """A translation model and the tokenizers of both sides, which may be one."""

    model: TranslationModel
    source: TextTokenizer
    target: TextTokenizer


def is_translation_model(folder: Path) -> bool:
    """Return whether the config.json of a folder is a translation model's."""
    try:
        values = read_json(folder / CONFIG)
    except (ValueError, OSError):  # reported when the model is loaded
        return False
    known = {record.model_type for record in translation_records().values()}
    return isinstance(values, dict) and values.get("model_type") in known


class TranslationLoss(NamedTuple):
    """Losses of a micro-batch, each multiplied by `scale`."""

    smoothed: Tensor
    """The loss that is minimized."""
    cross_entropy: Tensor
    """Cross entropy in nats, from which the perplexity follows."""


def smoothed_loss(
    model: TranslationModel, batch: PairBatch, labels: Tensor, smoothing: float, scale: float
) -> TranslationLoss:
    """Compute the cross entropy with smoothed labels: 1 - ε on the label, and ε spread over all tokens.

    Source: Vaswani et al. 2017, section 5.4.
    The loss of logits z with label y is logsumexp(z) - (1 - ε) z_y - ε mean(z) = CE + ε (z_y - mean(z)). The second
    term needs two vectors per token instead of V logits, since z_y - mean(z) = h · (w_y - mean of all w), and the
    same difference of the biases.
    `labels`: T int64, the token after each target token.
    """
    states, (weight, bias) = model(batch), model.softmax_weights()
    cross_entropy, _ = linear_cross_entropy(states, weight, bias, labels, scale)
    if not smoothing:
        return TranslationLoss(cross_entropy, cross_entropy.detach())
    centered = F.embedding(labels, weight) - weight.mean(0)  # T H
    excess = (states.float() * centered).sum() + (bias[labels] - bias.mean()).sum()
    return TranslationLoss(cross_entropy + smoothing * scale * excess, cross_entropy.detach())


def write_translation_system(folder: Path, system: TranslationSystem) -> None:
    """Write a model's files and their checksums into an existing folder; each file is whole or absent."""
    resolve_name(translation_records()[system.model.architecture].write)(folder, system)


def load_translation_system(folder: Path) -> TranslationSystem:
    """Read a folder that `write_translation_system` wrote, in float32, ready for inference (dropout off).

    Raises ValueError, naming the file, for another kind of model and for damaged, missing or unexpected weights.
    """
    path = locate_config(folder)
    values, records = read_json(path), translation_records()
    model_type = values.get("model_type") if isinstance(values, dict) else None
    by_type = {record.model_type: record for record in records.values()}
    if model_type not in by_type:
        raise ValueError(f"{path}: model_type: expected {' or '.join(by_type)}, got {model_type!r}; {ADVICE}")
    system: TranslationSystem = resolve_name(by_type[model_type].load)(folder)
    return system


def build_with_weights(build: Callable[[], T], folder: Path, file_names: Callable[[str], tuple[str, ...]]) -> T:
    """Build a model with the weights of a folder, ready for inference (dropout off).

    `file_names`: from one of our parameters to its names in the file; several are concatenated. Raises ValueError,
    naming the file, for weights that are damaged, missing, unexpected or of another shape.
    """
    check_weights(folder)
    path, tensors = read_weights(folder)
    model = build_on_meta(build, len(tensors), path)
    parameters = {name: (parameter, file_names(name)) for name, parameter in model.named_parameters()}
    known = {each for _, names in parameters.values() for each in names}
    raise_if_any(path, "missing", sorted(known - tensors.keys()))
    raise_if_any(path, "unexpected", sorted(tensors.keys() - known))
    check_shapes({each: (tensors[each], own, len(names)) for own, names in parameters.values() for each in names}, path)
    state = {name: concatenate([tensors[each] for each in names]) for name, (_, names) in parameters.items()}
    model.load_state_dict(state, assign=True)
    return model.eval()


def describe(folder: Path, verify: bool) -> Description | None:
    """Load and describe a translation model; None for another folder. Loading compares all files with checksums."""
    if not is_translation_model(folder):
        return None
    system, checked = load_translation_system(folder), describe_check(folder)
    fields = {"shape": str(system.model.config), "parameters": f"{system.model.num_parameters:,}"}
    if system.source is not system.target:
        fields["words of the source"] = f"{system.source.vocab_size:,}"
    fields["vocabulary"] = f"{system.target.vocab_size:,} tokens"
    return Description("translation model", fields | {"checked": checked.text}, checked.by_checksums)
