"""The settings of a pre-training run; `runs.pretrain` carries them out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bertwright.models.config import BertConfig
from bertwright.pretraining.settings import DataSettings
from bertwright.training.settings import DeviceSettings, OptimizerSettings

if TYPE_CHECKING:
    from bertwright.models.heads import BertForPretraining

# What a new model is made by; that of --init has its own.
NEW_MODEL = (
    "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions", "activation", "initializer_range",
)  # fmt: skip
PAPER_WIDTH = 768  # BASE's; narrower models are not the paper's, and start as suits them (decisions 10 and 11)


@dataclass(frozen=True)
class ModelSettings:
    """What is trained."""

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] | None = None
    """Named size; unset: base (paper: base and large; the smaller ones: Turc et al. 2019)."""
    init: str | None = None
    """Model folder or hub name whose weights to start from, in place of random ones. It decides the shape, the
    activation and, unless they are given, the dropouts; the store must have been prepared with its vocabulary."""
    hidden_size: int | None = None
    """Width, in place of the named size's."""
    num_layers: int | None = None
    """Number of layers, in place of the named size's."""
    num_heads: int | None = None
    """Attention heads, in place of the named size's."""
    intermediate_size: int | None = None
    """Feed-forward width, in place of four times the width."""
    max_positions: int | None = None
    """Longest sequence that the model will ever read; unset: 512 (paper)."""
    hidden_dropout: float | None = None
    """Dropout of embeddings and sub-layer outputs; unset: 0.1 (paper, A.2), or that of --init."""
    attention_dropout: float | None = None
    """Dropout of attention weights; unset: 0.1 (paper, A.2), or that of --init."""
    activation: Literal["gelu", "gelu_tanh"] | None = None
    """gelu: the erf form; gelu_tanh: the approximation in Google's first release. Unset: gelu."""
    initializer_range: float | None = None
    """Standard deviation of the first weights; unset: 0.02 (Google's code), and 0.02·√(768 / width) below a width of
    768, so that products with a state spread at every width as they do in BASE."""
    init_scheme: Literal["neighbours", "random"] | None = None
    """neighbours: every head starts out looking at the tokens around its own, which saves most of the steps in which a
    new model knows nothing but frequencies; random: all weights are independent draws (Google's code). Unset:
    neighbours below a width of 768, where both sides are seen; else random."""

    def __post_init__(self) -> None:
        if self.init is not None and (given := self._given("size", "init_scheme", *NEW_MODEL)):
            told = ", ".join(f"{name} = {value!r}" for name, value in given.items())
            raise ValueError(f"{told}: the model to start from, {self.init}, has its own; leave that out")

    def config(self, vocab_size: int, causal: bool) -> BertConfig:
        """A new model's configuration. Raises ValueError for a shape that does not work."""
        width = {} if self.hidden_size is None else {"intermediate_size": 4 * self.hidden_size}
        given = width | self._given(*NEW_MODEL) | self.dropouts
        config = BertConfig.from_size(self.size or "base", vocab_size, is_causal=causal, **given)
        if self.initializer_range is not None:
            return config
        return replace(config, initializer_range=0.02 * max(1.0, PAPER_WIDTH / config.hidden_size) ** 0.5)

    def new_model(self, config: BertConfig, seed: int) -> BertForPretraining:
        """A model of this shape with its first weights, which are a function of the seed."""
        from bertwright.models.heads import BertForPretraining  # torch, which --help need not wait for
        from bertwright.models.mimetic_init import mimetic_init_

        model = BertForPretraining(config, seed)
        unset = "neighbours" if config.hidden_size < PAPER_WIDTH and not config.is_causal else "random"
        if (self.init_scheme or unset) == "neighbours":
            mimetic_init_(model.encoder)
        return model

    @property
    def dropouts(self) -> dict[str, float]:
        """Those that are given, by the names that a configuration has for them."""
        return self._given("hidden_dropout", "attention_dropout")

    def _given(self, *names: str) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class LongPhase:
    """The last steps, on longer sequences (paper, A.2: 90 % of the steps at length 128, the rest at 512)."""

    long_ratio: float = 0.1
    """Share of all steps that the long phase has; 0 turns it off."""
    long_length: int = 512
    """Its max-length, in tokens; its max-predictions is the default at that length."""
    long_batch_size: int | None = None
    """Its sequences a step; unset: the same number as before (paper)."""

    def __post_init__(self) -> None:
        if not 0 <= self.long_ratio <= 1:
            raise ValueError(f"long_ratio is a share of all steps, from 0 to 1, not {self.long_ratio}")


@dataclass(frozen=True)
class PretrainSettings:
    """Pre-train a BERT on a token store; with --resume, go on where a run stopped."""

    run: Path
    """Run folder, to be made; with --resume, one that exists."""
    store: Path | None = None
    """Token store that `bertwright prepare` wrote. Needed unless --resume finds it in the run's settings."""
    resume: bool = False
    """Go on from the run's newest checkpoint with the settings that stand in the run folder: to the bit on a CPU with
    the same threads and micro-batch."""
    steps: int = 1_000_000
    """Optimizer steps in all (paper: 1,000,000)."""
    micro_batch_size: int | None = None
    """Sequences a forward pass: bounds memory, and changes rounding alone (on a GPU, also which attention weights are
    dropped). Unset: about 4,096 tokens; on a GPU, up to 65,536 as its memory holds them."""
    save_every: int = 1_000
    """Steps between checkpoints."""
    keep_last: int = 2
    """Checkpoints kept; older ones are deleted."""
    log_every: int = 20
    """Steps that one line of metrics.jsonl sums up, or fewer: a line ends at every checkpoint."""
    eval_every: int = 1_000
    """Steps between evaluations on the held-out part of the store."""
    eval_sequences: int = 1_024
    """Held-out sequences an evaluation scores."""
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    long: LongPhase = field(default_factory=LongPhase)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        for name in ("steps", "save_every", "keep_last", "log_every", "eval_every", "eval_sequences"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.micro_batch_size is not None and self.micro_batch_size < 1:
            raise ValueError(f"micro_batch_size must be at least 1, not {self.micro_batch_size}")

    @property
    def warmup_steps(self) -> int:
        return round(self.optimizer.warmup_ratio * self.steps)

    @property
    def phases(self) -> list[Phase]:
        """The run's one or two phases in order; together they cover every step."""
        first_long = self.steps - round(self.long.long_ratio * self.steps)
        long_data = replace(
            self.data,
            max_length=self.long.long_length,
            batch_size=self.data.batch_size if self.long.long_batch_size is None else self.long.long_batch_size,
            max_predictions_per_seq=None,
        )
        phases = [Phase(0, first_long, self.data), Phase(first_long, self.steps, long_data)]
        return [phase for phase in phases if phase.first < phase.end]


@dataclass(frozen=True)
class Phase:
    """Steps `first` … `end`-1 of a run read their batches by these settings."""

    first: int
    end: int
    data: DataSettings


# May differ between a run and its resumption: they say where and how often, not what is computed.
# A store may have been moved: what it holds is compared by digest.
RESUME_OVERRIDES = (
    "run",
    "store",
    "resume",
    "micro_batch_size",
    "save_every",
    "keep_last",
    "log_every",
    "eval_every",
    "eval_sequences",
    "device",
)
