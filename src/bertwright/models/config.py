"""What decides a BERT's shape, and what follows from it: number of parameters, number of operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

# name: layers L, hidden size H, heads A; the feed-forward size is 4 H.
# base and large: Devlin et al. 2018, section 3. The smaller ones: Turc et al. 2019 (arXiv 1908.08962), table 1.
SIZES: dict[str, tuple[int, int, int]] = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}

Activation = Literal["gelu", "gelu_tanh"]


@dataclass(frozen=True)
class BertConfig:
    """Shape and constants of one BERT; checked once, here."""

    vocab_size: int
    """Number of tokens V (paper: 30,000; released: 30,522 uncased, 28,996 cased)."""
    hidden_size: int = 768
    """Width H of every token's state (paper, section 3: BASE 768, LARGE 1024)."""
    num_layers: int = 12
    """Transformer layers L (BASE 12, LARGE 24)."""
    num_heads: int = 12
    """Attention heads A; each has H / A dimensions (BASE 12, LARGE 16)."""
    intermediate_size: int = 3072
    """Width F of the feed-forward layer (paper, section 3: 4 H)."""
    max_positions: int = 512
    """Learned positions: the longest sequence in tokens, [CLS] and [SEP] included (paper: 512)."""
    type_vocab_size: int = 2
    """Segment embeddings: A and B (paper, section 3)."""
    hidden_dropout: float = 0.1
    """Dropout after the embeddings and after both sublayers of a layer (paper, appendix A.2: 0.1)."""
    attention_dropout: float = 0.1
    """Dropout of attention probabilities (paper, appendix A.2: 0.1 on all layers)."""
    activation: Activation = "gelu"
    """The exact x·Φ(x), or its tanh form, as in Google's code; the two are up to 5e-4 apart."""
    layer_norm_eps: float = 1e-12
    """Added to the variance in LayerNorm (Google's code)."""
    initializer_range: float = 0.02
    """σ of the truncated normal that weights start from (Google's code)."""
    pad_token_id: int = 0
    """Written into config.json for other software; no padding is ever computed here."""
    causal: bool = False
    """A token sees only itself and what stands to its left (paper, section 5.1: the LTR ablation)."""

    def __post_init__(self) -> None:
        for name in ("hidden_dropout", "attention_dropout", "layer_norm_eps", "initializer_range"):
            object.__setattr__(self, name, float(getattr(self, name)))  # a whole number crosses into C as another type
        for name in (
            "vocab_size", "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions",
            "type_vocab_size",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: at least 1 is needed")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}: "
                "every head gets hidden_size / num_heads dimensions"
            )
        for name in ("hidden_dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} = {getattr(self, name)}: a share from 0 up to, not including, 1 is needed")
        for name in ("layer_norm_eps", "initializer_range"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} = {getattr(self, name)}: a positive number is needed")
        if self.activation not in ("gelu", "gelu_tanh"):
            raise ValueError(f"activation = {self.activation!r}: 'gelu' or 'gelu_tanh' is needed")
        if not 0 <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"pad_token_id = {self.pad_token_id}: outside the vocabulary of {self.vocab_size} tokens")

    @classmethod
    def from_size(cls, size: str, vocab_size: int, **changes: Any) -> BertConfig:
        """One of `SIZES`, with any other field changed by name.

        >>> BertConfig.from_size("mini", vocab_size=30_522, max_positions=128).hidden_size
        256
        """
        if size not in SIZES:
            raise ValueError(f"model size {size!r} is unknown; known are {', '.join(SIZES)}")
        layers, hidden, heads = SIZES[size]
        shape = {"hidden_size": hidden, "num_layers": layers, "num_heads": heads, "intermediate_size": 4 * hidden}
        return cls(vocab_size=vocab_size, **(shape | changes))

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def encoder_parameters(self) -> int:
        """Numbers learned in embeddings and layers.

        >>> BertConfig.from_size("base", vocab_size=30_522).encoder_parameters
        108891648
        """
        width, inner = self.hidden_size, self.intermediate_size
        embeddings = (self.vocab_size + self.max_positions + self.type_vocab_size) * width + 2 * width
        attention = 4 * width * (width + 1) + 2 * width
        feed_forward = width * inner + inner + inner * width + width + 2 * width
        return embeddings + self.num_layers * (attention + feed_forward)

    @property
    def pooler_parameters(self) -> int:
        return self.hidden_size * (self.hidden_size + 1)

    @property
    def head_parameters(self) -> int:
        """Masked-LM head (its decoder is the word embedding, so only the output bias counts) and next-sentence head."""
        width = self.hidden_size
        return width * (width + 1) + 2 * width + self.vocab_size + 2 * (width + 1)

    @property
    def num_parameters(self) -> int:
        """Numbers learned in the whole `BertForPretraining`, tied ones once.

        >>> BertConfig.from_size("base", vocab_size=30_522).num_parameters
        110106428
        """
        return self.encoder_parameters + self.pooler_parameters + self.head_parameters

    def forward_flops(
        self,
        lengths: Sequence[int] | npt.NDArray[np.integer],
        predictions: int,
        pooled: bool,
        states: int | None = None,
    ) -> int:
        """Floating-point operations of one forward pass over sequences of these lengths, laid end to end.

        Matrix products only (a multiplication and an addition are two operations), as utilisation is usually counted:
        linear layers at every token, attention between the tokens of a sequence, the masked-LM head at `predictions`
        positions, and, if `pooled`, pooler and next-sentence head once a sequence. `states`: how many of the last
        layer's states are asked for (None: all).

        >>> BertConfig.from_size("base", vocab_size=30_522).forward_flops([128], predictions=0, pooled=False) // 128
        174587904
        """
        width, inner = self.hidden_size, self.intermediate_size
        tokens = np.asarray(lengths, dtype=np.int64)
        total = int(tokens.sum())
        pairs = tokens * (tokens + 1) // 2 if self.causal else tokens * tokens  # (query, key) products really needed
        mixing = self.num_layers * (total * 2 * 3 * width * width + int(pairs.sum()) * 2 * 2 * width)
        rows = (self.num_layers - 1) * total + (total if states is None else states)
        on_its_own = rows * 2 * (width * width + 2 * width * inner)  # attention output and feed-forward
        masked_lm = predictions * 2 * (width * width + width * self.vocab_size)
        next_sentence = tokens.size * 2 * (width * width + 2 * width) if pooled else 0
        return mixing + on_its_own + masked_lm + next_sentence

    def training_flops(self, lengths: Sequence[int] | npt.NDArray[np.integer], predictions: int, pooled: bool) -> int:
        """Operations of a forward and a backward pass of pre-training: each product has two more in the backward pass.

        The last layer's states count where they are read, at the predictions and, if `pooled`, at [CLS]. BASE at length
        128 with 15 % of the tokens predicted costs 0.519 GFLOP a token (0.545 with all of the last layer):

        >>> base = BertConfig.from_size("base", vocab_size=30_522)
        >>> round(base.training_flops([128] * 100, predictions=1920, pooled=True) / 12_800 / 1e9, 3)
        0.519
        """
        states = predictions + (len(lengths) if pooled else 0)
        return 3 * self.forward_flops(lengths, predictions, pooled, states)
