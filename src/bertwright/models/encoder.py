"""The interface between text encoders and the code that uses them: task heads, probes, training, inference.

T tokens of the batch, B sequences, R positions whose states are read, L layers, H hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from bertwright.models.head_spec import HeadSpec
from bertwright.models.initialization import Weight, initialize, truncated_normal
from bertwright.models.packing import Packing

if TYPE_CHECKING:
    from bertwright.models.heads import TaskBatch, TaskHead


class EncoderConfig(Protocol):
    """Sizes and constants of an encoder; a frozen dataclass whose fields `config.json` records."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def max_positions(self) -> int:
        """Length of the longest sequence in tokens."""

    @property
    def type_vocab_size(self) -> int:
        """Number of segments that a sequence may have."""

    @property
    def is_causal(self) -> bool:
        """True if tokens attend to themselves and earlier tokens only."""

    @property
    def hidden_dropout(self) -> float:
        """Dropout rate of states, also in task heads."""

    @property
    def initializer_range(self) -> float:
        """Standard deviation of the initial weights of new heads."""

    @property
    def num_parameters(self) -> int: ...

    def with_dropout(self, rate: float) -> Self:
        """Return a copy with all dropout rates set to `rate`."""


def count_parameters(build: Callable[[], nn.Module]) -> int:
    """Count the parameters of the module that a function builds, without memory for them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build().parameters())


class PaddedEncoder(nn.Module, ABC):
    """An encoder over B sequences that are padded to N tokens, in operations that `torch.export` can trace.

    It gives the packed encoder's states up to rounding; states of padding have no meaning.
    """

    reads_segments: bool
    """True if `token_type_ids` make a difference."""

    @abstractmethod
    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Compute states, B × N × H, from ids, a mask (1 for tokens, then 0) and segments, each B × N int64."""


class TextEncoder(nn.Module, ABC):
    """A model of any architecture that maps token ids to one vector per token.

    Usually the module `embeddings` is below all layers, and `layers` is a list of modules, lowest first; an encoder of
    other modules overrides `depth_of`. Dropout acts in training mode only; its masks are functions of the batch
    (`Packing.dropout_seed`) and of a site number, from 0 to `num_dropout_sites` - 1.
    """

    model_type: ClassVar[str]
    """The architecture's name in `config.json`."""
    fits_new_heads: ClassVar[bool] = False
    """Whether a new linear head for few examples starts at the fit to the states, by default (decision 26)."""
    has_int8_layers: ClassVar[bool] = False
    """True if its layers can be computed in int8."""
    has_pooler: ClassVar[bool] = False
    """True if pre-training trains a pooler, which sequence-level heads then reuse; otherwise these heads read the state
    of [CLS] directly."""

    def __init__(self, config: EncoderConfig, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        self._compute_dtype = compute_dtype
        self.sparse_gradients = False
        """True to let embedding tables have sparse gradients, for bertwright's optimizer; encoders may ignore it."""
        self.learning_rates: dict[str, float] = {}
        """Peak learning rates by module name, for modules that do not follow the rate of fine-tuning."""

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of states and matrix products; parameters, LayerNorm, softmax and losses stay float32.

        An encoder within this one has the same.
        """
        return self._compute_dtype

    @compute_dtype.setter
    def compute_dtype(self, dtype: torch.dtype) -> None:
        for module in self.modules():
            if isinstance(module, TextEncoder):
                module._compute_dtype = dtype

    @property
    def num_dropout_sites(self) -> int:
        """Number of the encoder's dropout sites; the head's sites follow."""
        return 0

    def forward(self, batch: Any, positions: Tensor | None = None) -> Tensor:
        """Compute the last layer's states, T × H; with `positions` (R distinct int64), compute these R states only.

        `batch`: the `PackedInput` of this architecture: tokens, or characters of words.
        """
        return self.hidden_states(batch, [self.config.num_layers], positions)[0]

    @abstractmethod
    def hidden_states(
        self, batch: Any, layers: Sequence[int] | None = None, positions: Tensor | None = None
    ) -> list[Tensor]:
        """Compute the states after each of `layers` (ascending; None: all), T × H or, with `positions`, R × H.

        Layer 0 is the embeddings' output, layer L the last one.
        """

    def initialize(self, seed: int) -> None:
        """Draw random weights: each parameter's numbers are a function of (seed, name)."""
        initialize(self, self.draw, seed, prefix="encoder.")

    def draw(self, weight: Weight) -> None:
        """Give a parameter its first numbers; by default as Google's code for BERT does."""
        truncated_normal(self.config.initializer_range)(weight)

    def own_head(self, spec: HeadSpec) -> TaskHead | None:
        """Return this architecture's own head for a task; None for the linear layer of the paper."""
        return None

    def language_model_loss(self, batch: Any, states: Tensor) -> Tensor:
        """Compute the sum of the next tokens' cross entropies in nats, from the states T × H of a batch.

        Raises ValueError for an encoder whose language model fine-tuning does not keep.
        """
        raise ValueError(
            f"auxiliary_lm: expected a model that predicts the next token, such as a GPT, got a {self.model_type}; "
            "omit it"
        )

    @property
    def has_penalty(self) -> bool:
        """True if the encoder's paper adds a penalty to the loss of a task."""
        return False

    def penalty(self, batch: TaskBatch, states: Tensor) -> Tensor:
        """Compute a micro-batch's share of the step's penalty, from the last layer's states T × H."""
        raise NotImplementedError

    @property
    def head_depth(self) -> int:
        return self.config.num_layers + 1

    def depth_of(self, parameter: str) -> int:
        """Return the depth of a parameter by its name: 0 in the embeddings, from 1 in the layers, L + 1 above them.

        Training freezes layers and scales their learning rates by it.
        """
        module, _, rest = parameter.partition(".")
        if module == "embeddings":
            return 0
        return int(rest.partition(".")[0]) + 1 if module == "layers" else self.head_depth

    @property
    def ends_in_last_token(self) -> bool:
        """Whether only the last token has seen the whole sequence, as in an encoder that reads from left to right."""
        return self.config.is_causal and not getattr(self.config, "is_reversed", False)

    def pooled_positions(self, packing: Packing) -> Tensor:
        """Return the position of the state that represents each sequence, B int64: [CLS], or the last token.

        The first token of an encoder that reads from left to right attends only to itself, so its state is the same for
        every text.
        """
        return packing.last_positions if self.ends_in_last_token else packing.first_positions

    def padded(self) -> PaddedEncoder:
        """Return the same encoder over padded sequences, for a graph that other programs run.

        Raises ValueError for an architecture without one.
        """
        raise ValueError(
            f"export: expected an encoder with attention in both directions, such as a BERT, got a {self.model_type}; "
            "no graph of it can be written"
        )

    def check_length(self, packing: Packing) -> None:
        """Raise ValueError for a sequence that is longer than the encoder's positions."""
        if packing.max_seqlen > self.config.max_positions:
            raise ValueError(
                f"expected at most {self.config.max_positions} tokens per sequence (max_positions), got "
                f"{packing.max_seqlen}; split the text"
            )


class EncoderModel(nn.Module):
    """A text encoder by itself; subclasses add heads."""

    reads_marks: ClassVar[bool] = True
    """True if its language model reads texts between the marks of the tokenizer's layout, False if without."""
    not_computed: tuple[str, ...] = ()
    """Parameters of its folder that belong to layers which this model does not have."""

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    @property
    def config(self) -> EncoderConfig:
        return self.encoder.config

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def score_tokens(self, batch: Any) -> Tensor:
        """Compute log p of each token by the tokens before it, T float32; 0 for the first one of each sequence.

        Raises ValueError for a model that is no left-to-right language model.
        """
        raise ValueError(
            f"score: expected a left-to-right language model, such as a GPT, got a {self.encoder.model_type}; choose "
            "one of bertwright pretrain --architecture gpt"
        )

    def cross_entropy(self, states: Tensor, labels: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Compute `scale` × the summed cross entropy of the tokens that M × H states predict, and the number correct.

        Only the models of pre-training have it. `labels`: M int64, ids of the tokens.
        """
        raise NotImplementedError

    def depth_of(self, parameter: str) -> int:
        """Return the depth of a parameter by its name, as `TextEncoder.depth_of` does; a head is above all layers."""
        inside = parameter.removeprefix("encoder.")
        return self.encoder.depth_of(inside) if inside != parameter else self.encoder.head_depth


class TokenPredictor(EncoderModel, ABC):
    """A model that predicts the tokens at positions of a batch: a masked LM."""

    @abstractmethod
    def token_logits(self, batch: Any, positions: Tensor) -> Tensor:
        """Compute the M × V float32 logits of the tokens at `positions` (M distinct int64 into T)."""
