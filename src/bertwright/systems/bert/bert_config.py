"""BertConfig, with its counts of parameters and of floating-point operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from bertwright.base.settings import check_choice, check_limit, check_minimum
from bertwright.models.shapes import format_shape
from bertwright.systems.bert.defaults import SIZES

Activation = Literal["gelu", "gelu_tanh", "relu"]


@dataclass(frozen=True)
class BertConfig:
    """Sizes and constants of a BERT, checked on construction."""

    SIZES: ClassVar[Mapping[str, Mapping[str, Any]]] = SIZES
    """Sizes by name."""
    RATIO: ClassVar[float] = 4
    """The feed-forward size of a new model as a multiple of its hidden size."""
    FEED_FORWARD_MATRICES: ClassVar[int] = 2

    vocab_size: int
    """Number of tokens in the vocabulary, V (paper: 30,000; released: 30,522 uncased, 28,996 cased)."""
    hidden_size: int = 768
    """Size H of every token's state (paper, section 3: BASE 768, LARGE 1024)."""
    num_layers: int = 12
    """Transformer layers L (BASE 12, LARGE 24)."""
    num_heads: int = 12
    """Attention heads A; each has H / A dimensions (BASE 12, LARGE 16)."""
    intermediate_size: int = 3072
    """Size F of the feed-forward layer (paper, section 3: 4 H)."""
    max_positions: int = 512
    """Number of learned positions: the longest sequence in tokens, [CLS] and [SEP] included (paper: 512)."""
    type_vocab_size: int = 2
    """Number of segment embeddings: segments A and B (paper, section 3)."""
    hidden_dropout: float = 0.1
    """Dropout after the embeddings and after both sublayers of a layer (paper, appendix A.2: 0.1)."""
    attention_dropout: float = 0.1
    """Dropout of attention probabilities (paper, appendix A.2: 0.1 on all layers)."""
    activation: Activation = "gelu"
    """gelu: x·Φ(x), exact. gelu_tanh: the tanh approximation, which Google's code has used since 2019; the two differ
    by up to 5e-4. relu: the activation of Vaswani et al. 2017, which the paper replaces (appendix A.2)."""
    sinusoidal_positions: bool = False
    """True for the fixed position encodings of Vaswani et al. 2017 (section 3.5), False for learned ones (BERT)."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in LayerNorm (Google's code)."""
    initializer_range: float = 0.02
    """σ of the truncated normal distribution of the initial weights (Google's code)."""
    pad_token_id: int | None = 0
    """Written into config.json for other software; bertwright never pads. None: not known."""
    is_causal: bool = False
    """True if tokens attend to themselves and earlier tokens only (paper, section 5.1: the LTR ablation)."""
    is_reversed: bool = False
    """True if a causal model reads each sequence from its last token to its first (paper, section 5.1: RTL)."""

    def __post_init__(self) -> None:
        for name in ("hidden_dropout", "attention_dropout", "layer_norm_eps", "initializer_range"):
            object.__setattr__(self, name, float(getattr(self, name)))  # kernels take C doubles
        sizes = ("vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions")
        check_minimum(self, 1, *sizes, "type_vocab_size")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size = {self.hidden_size}: expected a multiple of num_heads = {self.num_heads}; heads have "
                "hidden_size / num_heads dimensions"
            )
        check_limit(self, "from 0 to below 1", "hidden_dropout", "attention_dropout")
        check_limit(self, "above 0", "layer_norm_eps", "initializer_range")
        check_choice(self, "activation")
        if self.is_reversed and not self.is_causal:
            raise ValueError("is_reversed = True: expected is_causal = True; other models read in both directions")
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"pad_token_id = {self.pad_token_id}: expected an id below vocab_size = {self.vocab_size}")

    def __str__(self) -> str:
        return format_shape(self.num_layers, self.hidden_size, self.num_heads)

    @classmethod
    def from_size(cls, size: str, vocab_size: int, **changes: Any) -> Self:
        """Return one of `SIZES`, with any other field changed by name.

        >>> str(BertConfig.from_size("mini", vocab_size=30_522, max_positions=128))
        'L4 H256 A4'
        """
        if size not in cls.SIZES:
            raise ValueError(f"model size {size!r}: expected one of {', '.join(cls.SIZES)}")
        return cls(vocab_size=vocab_size, **{**cls.SIZES[size], **changes})

    def with_dropout(self, rate: float) -> Self:
        return replace(self, hidden_dropout=rate, attention_dropout=rate)

    @property
    def direction(self) -> str:
        """Tokens that a state depends on: "bidirectional", "left-to-right" or "right-to-left"."""
        if not self.is_causal:
            return "bidirectional"
        return "right-to-left" if self.is_reversed else "left-to-right"

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def embedding_size(self) -> int:
        """Size E of the embeddings; systems with other embeddings project them to the hidden size."""
        return self.hidden_size

    @property
    def num_encoder_parameters(self) -> int:
        """Number of parameters of embeddings and layers.

        >>> BertConfig.from_size("base", vocab_size=30_522).num_encoder_parameters
        108891648
        """
        return self.num_embedding_parameters + self.num_layer_parameters

    @property
    def num_embedding_parameters(self) -> int:
        return (self.vocab_size + self.max_positions + self.type_vocab_size + 2) * self.embedding_size

    @property
    def num_layer_parameters(self) -> int:
        """Number of parameters of the layers, which does not depend on the vocabulary.

        >>> BertConfig.from_size("base", vocab_size=30_522).num_layer_parameters
        85054464
        """
        hidden, intermediate = self.hidden_size, self.intermediate_size
        attention = 4 * hidden * (hidden + 1) + 2 * hidden
        feed_forward = hidden * intermediate + intermediate + intermediate * hidden + hidden + 2 * hidden
        return self.num_layers * (attention + feed_forward)

    @property
    def num_pooler_parameters(self) -> int:
        return self.hidden_size * (self.hidden_size + 1)

    @property
    def num_masked_lm_parameters(self) -> int:
        """Number of parameters of the masked-LM head; its decoder is tied and adds only its bias."""
        return (self.hidden_size + 3) * self.embedding_size + self.vocab_size

    @property
    def num_parameters(self) -> int:
        """Number of parameters of a `BertForPretraining`, tied ones counted once.

        >>> BertConfig.from_size("base", vocab_size=30_522).num_parameters
        110106428
        """
        next_sentence = 2 * (self.hidden_size + 1)
        return self.num_encoder_parameters + self.num_pooler_parameters + self.num_masked_lm_parameters + next_sentence

    def count_forward_flops(
        self,
        lengths: Sequence[int] | npt.NDArray[np.integer],
        num_predictions: int,
        pooled: bool,
        num_states: int | None = None,
    ) -> int:
        """Count the floating-point operations of one forward pass over packed sequences of these lengths.

        Only matrix products count; a multiplication and an addition are two operations, by the usual convention.
        Counted are the linear layers at every token, attention between the tokens of a sequence, the masked-LM head at
        `num_predictions` positions and, if `pooled`, pooler and next-sentence head once per sequence. `num_states`
        states of the last layer are read (None: all).

        >>> BertConfig.from_size("base", vocab_size=30_522).count_forward_flops([128], 0, pooled=False) // 128
        174587904
        """
        hidden, tokens = self.hidden_size, np.asarray(lengths, dtype=np.int64)
        total = int(tokens.sum())
        attention = self.num_layers * total * 2 * 3 * hidden * hidden + self.count_pairs(tokens) * 2 * 2 * hidden
        states_computed = (self.num_layers - 1) * total + (total if num_states is None else num_states)
        # attention output and feed-forward
        feed_forward = self.FEED_FORWARD_MATRICES * hidden * self.intermediate_size
        per_token = states_computed * 2 * (hidden * hidden + feed_forward)
        masked_lm = num_predictions * 2 * self.embedding_size * (hidden + self.vocab_size)
        next_sentence = tokens.size * 2 * (hidden * hidden + 2 * hidden) if pooled else 0
        return attention + per_token + masked_lm + next_sentence

    def count_pairs(self, tokens: npt.NDArray[np.int64]) -> int:
        """Count the pairs of a query and a key of which the layers need the products; `tokens`: of each sequence."""
        pairs = tokens * (tokens + 1) // 2 if self.is_causal else tokens**2
        return self.num_layers * int(pairs.sum())

    def count_training_flops(
        self, lengths: Sequence[int] | npt.NDArray[np.integer], num_predictions: int, pooled: bool
    ) -> int:
        """Count the operations of a forward and a backward pass of pre-training; the backward pass costs twice as much.

        Of the last layer only the states that are read count: at the predictions and, if `pooled`, at [CLS]. BASE at
        length 128 with 15 % of the tokens predicted costs 0.519 GFLOP per token (0.545 with the whole last layer):

        >>> base = BertConfig.from_size("base", vocab_size=30_522)
        >>> round(base.count_training_flops([128] * 100, num_predictions=1920, pooled=True) / 12_800 / 1e9, 3)
        0.519
        """
        num_states = num_predictions + (len(lengths) if pooled else 0)
        return 3 * self.count_forward_flops(lengths, num_predictions, pooled, num_states)
