"""Settings of a pre-training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from bertwright.base.settings import check_limit, check_minimum, merge, written_docs
from bertwright.interop.model_files import check_model, system_of_model
from bertwright.objectives.data_settings import DataSettings
from bertwright.objectives.objective import AnyObjective
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.registry import DEFAULT, architecture_of_objective, find_objective, objectives_of, pretrained
from bertwright.tokenstore.store import read_header
from bertwright.training.device_settings import DeviceSettings
from bertwright.training.optimizer_settings import OptimizerSettings
from bertwright.training.run_folder import check_run_directory
from bertwright.training.tracking import TrackerName, check_tracker

# Settings that only a new model has; a model that --init names has its own values.
NEW_MODEL = (
    "hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions", "activation", "initializer_range",
    "sinusoidal_positions",
)  # fmt: skip
C = TypeVar("C", bound=BertConfig)
MIN_FOR_EARLY = 100  # steps between evaluations from which there is an early one
PAPER_HIDDEN_SIZE = 768  # of BASE; smaller models, which are not in the paper, have other defaults (decisions 10, 11)

# Settings that may change on resume: they decide where to compute, and how often to save and report. They change
# results by rounding at most. The store may have another path, because its content is compared by digest.
RESUME_OVERRIDES = (
    "run", "store", "resume", "dry_run", "micro_batch_size", "pad_batches", "shard", "save_every", "keep_last",
    "keep_every", "log_every", "eval_every", "eval_sequences", "show_examples", "device", "track",
)  # fmt: skip


@dataclass(frozen=True)
class ModelSettings:
    """Shape and initialization of the model."""

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] | None = None
    """Named size; unset: base (paper: base and large; the smaller ones: Turc et al. 2019)."""
    init: str | None = None
    """Model folder or hub name to start from, instead of random weights. Its shape and activation are used, and its
    dropouts unless others are given; the store must have been prepared with its vocabulary."""
    hidden_size: int | None = None
    """Hidden size, instead of the named size's."""
    num_layers: int | None = None
    """Number of layers, instead of the named size's."""
    num_heads: int | None = None
    """Attention heads, instead of the named size's."""
    intermediate_size: int | None = None
    """Feed-forward size, instead of four times the hidden size, or the architecture's multiple of it."""
    max_positions: int | None = None
    """Length of the longest sequence that the model can read; unset: 512 (paper), or the architecture's."""
    hidden_dropout: float | None = None
    """Dropout of embeddings and sub-layer outputs; unset: as in --init, else 0.1 (paper, A.2)."""
    attention_dropout: float | None = None
    """Dropout of attention weights; unset: as in --init, else 0.1 (paper, A.2)."""
    activation: Literal["gelu", "gelu_tanh", "relu"] | None = None
    """gelu: exact, by erf; gelu_tanh: the approximation in Google's code since February 2019; relu: as in
    the Transformer (Vaswani et al. 2017). Unset: gelu."""
    sinusoidal_positions: bool | None = None
    """The Transformer's fixed position encodings instead of learned ones (paper). Unset: False."""
    initializer_range: float | None = None
    """Standard deviation of the initial weights; unset: 0.02 (Google's code), and 0.02·√(768 / hidden size) below a
    hidden size of 768, so that products with a state have the same variance as in BASE."""
    init_scheme: Literal["mimetic", "normal"] | None = None
    """mimetic: each attention head initially attends to nearby tokens, so a new model learns to use context much
    earlier; normal: all weights are independent draws (Google's code). Unset: mimetic below a hidden size of 768, else
    normal, for every objective."""
    architecture: str = DEFAULT
    """Kind of model; unset: as in --init. {architectures}. Each has its own objectives and, as defaults, its paper's
    settings: --architecture NAME --help shows them."""

    def __post_init__(self) -> None:
        objectives_of(self.architecture)  # raises for an unknown name
        if self.init is not None and (given := self._collect_given("size", "init_scheme", *NEW_MODEL)):
            values = ", ".join(f"{name} = {value!r}" for name, value in given.items())
            raise ValueError(f"{values}: the model to start from, {self.init}, has its own; omit it")
        if self.sinusoidal_positions and self.init_scheme == "mimetic":
            raise ValueError(
                "sinusoidal_positions, init_scheme mimetic: both set the position vectors; choose one of them"
            )

    def config(self, vocab_size: int, causal: bool, is_reversed: bool = False) -> BertConfig:
        """Return a new BERT's configuration; raises ValueError for an impossible shape."""
        return self.config_of(BertConfig, vocab_size, is_causal=causal, is_reversed=is_reversed)

    def config_of(self, kind: type[C], vocab_size: int, **fixed: bool) -> C:
        """Return a new model's configuration of a class like BERT's; `fixed`: fields that are no settings."""
        intermediate = {} if self.hidden_size is None else {"intermediate_size": round(kind.RATIO * self.hidden_size)}
        given = intermediate | self._collect_given(*NEW_MODEL) | self.dropouts
        config = kind.from_size(self.size or "base", vocab_size, **fixed, **given)
        if self.initializer_range is not None:
            return config
        return replace(config, initializer_range=0.02 * max(1.0, PAPER_HIDDEN_SIZE / config.hidden_size) ** 0.5)

    def scheme_for(self, config: BertConfig) -> str:
        is_mimetic = config.hidden_size < PAPER_HIDDEN_SIZE and not config.sinusoidal_positions
        return self.init_scheme or ("mimetic" if is_mimetic else "normal")

    @property
    def dropouts(self) -> dict[str, float]:
        """Dropouts that are set, by name in the configuration."""
        return self._collect_given("hidden_dropout", "attention_dropout")

    @classmethod
    def field_docs(cls) -> dict[str, str]:
        """Return the help of each option, with the architectures by name."""
        listed = "; ".join(f"{name}: {system.summary}" for name, system in pretrained().items())
        return written_docs(cls, architectures=listed)

    def _collect_given(self, *names: str) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class LongPhase:
    """Last phase, on longer sequences (paper, A.2: 90 % of the steps at length 128, the rest at 512)."""

    long_ratio: float = 0.1
    """Share of all steps that are in the long phase; 0: no long phase."""
    long_length: int = 512
    """Tokens per example in the long phase. --max-predictions-per-seq has its default value for this length."""
    long_batch_size: int | None = None
    """Examples per step in the long phase; unset: --batch-size (paper)."""
    long_mlm_probability: float | None = None
    """Share of tokens that are predicted in the long phase; unset: --mlm-probability (paper)."""

    def __post_init__(self) -> None:
        check_limit(self, "from 0 to 1", "long_ratio")


@dataclass(frozen=True)
class PretrainSettings:
    """Pre-train a BERT on a token store; with --resume, continue an interrupted run."""

    run: Path
    """Run folder, to be created; with --resume, one that exists."""
    store: Path | None = None
    """Token store that `bertwright prepare` wrote; also on object storage, such as s3://BUCKET/store, from where it is
    copied once. Required, except with --resume."""
    resume: bool = False
    """Continue after the run's newest checkpoint with the settings in the run folder. On a CPU, the run ends with the
    same bits as an uninterrupted one if these are the same: PyTorch's version, the processor, the kernels' instruction
    set, the numbers of threads and of processes, the dtype, --micro-batch-size, --pad-batches and --shard. A
    notice reports changes of all but the last three. Under `torchrun --max-restarts`, a run that has begun resumes by
    itself."""
    steps: int = 1_000_000
    """Optimizer steps in total (paper: 1,000,000)."""
    micro_batch_size: int | None = None
    """Sequences per forward pass. It bounds memory and changes only rounding (on a GPU, also the dropout of attention
    weights). Unset: about 4,096 tokens; on a GPU, up to 65,536 if its memory holds them."""
    pad_batches: bool = False
    """Pad each micro-batch to the same number of tokens, sequences and predictions, so that one compiled program or
    CUDA graph serves all steps of a phase. For GPUs: on a CPU it makes steps slower. It changes only rounding."""
    shard: bool = False
    """Under torchrun, divide weights, gradients and the optimizer's moments among the processes, for a model that does
    not fit on one GPU; slower than a copy per process. It changes only rounding, and no file."""
    save_every: int = 1_000
    """Steps between checkpoints."""
    keep_last: int = 2
    """Number of newest checkpoints that are preserved; older ones are deleted."""
    keep_every: int | None = None
    """Steps between checkpoints that are preserved for good, such as 100000 for figure 5 of the paper; a multiple of
    save-every. Unset: none."""
    log_every: int = 20
    """Steps per record of metrics.jsonl; a record also ends at each checkpoint."""
    eval_every: int = 1_000
    """Steps between evaluations on the held-out documents of the store. If they are 100 or more, there is one more
    evaluation after a tenth of them, because the loss falls fastest there."""
    eval_sequences: int = 1_024
    """Held-out sequences per evaluation. In the long phase, as many sequences of its length are read in addition."""
    track: TrackerName | None = None
    """Also send each record of metrics.jsonl to Weights & Biases or MLflow, which their environment variables configure
    (WANDB_PROJECT, MLFLOW_TRACKING_URI). Needs `pip install "bertwright[tracking]"`. Unset: nothing is sent."""
    layerwise_lr_decay: float = 1.0
    """A layer's learning rate as a multiple of the rate of the layer above it: the discriminative rates with which
    ULMFiT is fine-tuned on a task's text (with --init; 1 / 2.6 = 0.385)."""
    show_examples: int = 0
    """Print this many examples of the first step, with what is masked, replaced or kept, and whether B follows A; with
    --dry-run, only look at them: no step is measured."""
    dry_run: bool = False
    """Print the plan, memory, disk space and the time, estimated from a few measured steps; then stop. Nothing is
    written."""
    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    long: LongPhase = field(default_factory=LongPhase)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    device: DeviceSettings = field(default_factory=DeviceSettings)

    def __post_init__(self) -> None:
        names = ("steps", "save_every", "keep_last", "log_every", "eval_every", "eval_sequences", "micro_batch_size")
        check_minimum(self, 1, *names, "keep_every")
        check_minimum(self, 0, "show_examples")
        check_limit(self, "above 0 and up to 1", "layerwise_lr_decay")
        self._check_architecture()
        if self.store is None and not self.resume:
            raise ValueError("no token store given: --store FOLDER, as `bertwright prepare` wrote it")
        if self.keep_every is not None and self.keep_every % self.save_every:
            raise ValueError(f"keep_every = {self.keep_every}: expected a multiple of save_every = {self.save_every}")
        self.objective.check_settings(self.data)
        try:
            self.objective.check_settings(self.phases[-1].data)
        except ValueError as error:
            options = "--long-length, --long-batch-size, --long-mlm-probability"
            raise ValueError(f"long phase ({options}): {error}") from None

    @classmethod
    def defaults(cls, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return the objective of the architecture that a TOML table names, or the reverse, and their settings.

        If it names neither, it is the architecture of the model to start from.
        """
        model, data = (dict(table.get(part) or {}) for part in ("model", "data"))
        named, architecture = str(data.get("objective")), model.get("architecture")
        if architecture is None and (system := system_of_model(model.get("init"))) is not None:
            architecture = system.name
        trained = {name: system.name for system in pretrained().values() for name in system.objectives}
        if named in trained:
            objective = find_objective(named)
        elif architecture in pretrained():
            objective = objectives_of(architecture)[0]
        else:  # none, or an unknown name, which is reported when the settings are checked
            return {}
        chosen = {"model": {"architecture": trained[objective.name]}, "data": {"objective": objective.name}}
        return merge(dict(objective.defaults), chosen)

    def _check_architecture(self) -> None:
        """Raise ValueError for an objective of another architecture, and for settings that this one does not have."""
        model, objective = self.model, self.objective
        if objective not in (known := objectives_of(model.architecture)):
            names = " or ".join(objective.name for objective in known)
            raise ValueError(
                f"objective is {objective.name!r}, for --architecture {architecture_of_objective(objective.name)}; "
                f"expected {names} with --architecture {model.architecture}"
            )
        if objective.model_options is not None:
            common = ("architecture", "init", *objective.model_options)
            given = [option.name for option in fields(model) if getattr(model, option.name) is not None]
            if odd := [name for name in given if name not in common]:
                raise ValueError(f"{', '.join(odd)}: --architecture {model.architecture} has no such option; omit it")

    @property
    def max_checkpoints(self) -> int:
        """Maximum number of checkpoints in the run folder, including the one that is being written."""
        preserved = self.steps // self.keep_every if self.keep_every else 0
        return min(self.keep_last + 1 + preserved, self.steps // self.save_every + 1)

    @property
    def objective(self) -> AnyObjective:
        return find_objective(self.data.objective)

    @property
    def eval_steps(self) -> list[int]:
        """Steps after which the model is evaluated on held-out documents, in addition to the last step."""
        early = [self.eval_every // 10] if self.eval_every >= MIN_FOR_EARLY else []
        return sorted(step for step in {*range(0, self.steps, self.eval_every), *early} if step < self.steps)

    @property
    def phases(self) -> list[Phase]:
        """The run's one or two phases in order; together they cover all steps."""
        first_long = self.steps - round(self.long.long_ratio * self.steps)
        data, long = self.data, self.long
        long_data = replace(
            data,
            max_length=long.long_length,
            batch_size=data.batch_size if long.long_batch_size is None else long.long_batch_size,
            mlm_probability=data.mlm_probability if long.long_mlm_probability is None else long.long_mlm_probability,
            max_predictions_per_seq=None,
        )
        phases = [Phase(0, first_long, self.data), Phase(first_long, self.steps, long_data)]
        return [phase for phase in phases if phase.first < phase.end]


@dataclass(frozen=True)
class Phase:
    """Steps `first` … `end` - 1 of a run, and the settings of their batches."""

    first: int
    end: int
    data: DataSettings


def check_inputs(settings: PretrainSettings) -> None:
    """Check the run folder and, for a new run, store and model, without torch. A finished run needs neither of them."""
    check_run_directory(settings, RESUME_OVERRIDES)
    check_tracker(settings.track)
    if settings.resume:
        return
    assert settings.store is not None  # checked by PretrainSettings
    read_header(settings.store / "train")
    if settings.model.init is not None:
        check_model(settings.model.init)
