"""Open a pre-training run, new or resumed: read and check store, model and optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bertwright.console import notice
from bertwright.corpus.limits import MIN_ANSWERS, MIN_PREDICTIONS, accuracy_error, loss_error
from bertwright.files import digest_bytes
from bertwright.interop import huggingface
from bertwright.interop.model_files import model_folder
from bertwright.kernels.cpu import available_memory
from bertwright.models.config import BertConfig
from bertwright.models.heads import BertForPretraining
from bertwright.pretraining.data import PretrainingData
from bertwright.pretraining.settings import PretrainSettings
from bertwright.tokenstore.store import TokenStore
from bertwright.training import checkpoint
from bertwright.training.context import ExecutionContext
from bertwright.training.loop import check_finite_weights
from bertwright.training.optimizer import Optimizer
from bertwright.training.run_folder import find_changed_data, prepare_model, record_run
from bertwright.vocabulary.tokenizer import Tokenizer


@dataclass
class PretrainState:
    """State of a run after its finished steps, and its data."""

    tokenizer: Tokenizer
    model: BertForPretraining
    optimizer: Optimizer
    train: TokenStore
    data: list[PretrainingData]
    """One per phase."""
    held_out: list[PretrainingData]
    """One per phase; empty if the store has none."""


def open_run(settings: PretrainSettings, context: ExecutionContext, console: Console) -> PretrainState:
    """Open the store; load model and optimizer, from the newest checkpoint if there is one.

    A new run compares the whole store with its digests. A resumed run compares only samples, so that it starts at once.
    Nothing is written. Raises ValueError for missing, damaged or inconsistent input.
    """
    assert settings.store is not None  # checked by PretrainSettings
    latest = checkpoint.verify_latest(settings.run / "checkpoints")
    tokenizer = Tokenizer.load(settings.store / "tokenizer")
    train = TokenStore.open(settings.store / "train", tokenizer.digest, verify=not settings.resume)
    data = [PretrainingData(train, tokenizer, phase.data) for phase in settings.phases]
    for phase in settings.phases:
        phase.data.check_world_size(context.world_size)
    held_out = _open_held_out(settings, tokenizer, console)
    model = _initial_model(settings, tokenizer, latest, console)
    check_finite_weights(model, 0)
    _check_lengths(settings, model.config)
    prepare_model(model, context)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    optimizer = Optimizer(trained, settings.optimizer)
    if latest is not None:
        optimizer.load_state(checkpoint.load_optimizer(latest))
    return PretrainState(tokenizer, model, optimizer, train, data, held_out)


def _open_held_out(settings: PretrainSettings, tokenizer: Tokenizer, console: Console) -> list[PretrainingData]:
    """Open the held-out documents of the store for each phase.

    If they are too few to evaluate on, the list is empty, and a notice says so. If they are too few to measure exactly,
    a notice states the standard errors.
    """
    assert settings.store is not None
    folder = settings.store / "held_out"
    if not folder.is_dir():
        return []
    store = TokenStore.open(folder, tokenizer.digest, verify=not settings.resume)
    if store.num_sentences < settings.data.min_sentences:  # `prepare` holds out the shortest document of a small corpus
        notice(console, f"{folder}: one sentence is too few to evaluate on; the run trains without evaluations")
        return []
    found = [PretrainingData(store, tokenizer, phase.data) for phase in settings.phases]
    for data in found:
        if text := _describe_small_validation(data, settings.eval_sequences):
            notice(console, f"{folder}: {text}")
    return found


def _describe_small_validation(data: PretrainingData, eval_sequences: int) -> str | None:
    """Return a notice with the standard errors if the held-out text is too small for exact scores; else None."""
    sequences, predictions = data.count_validation(eval_sequences)
    has_nsp = data.settings.objective == "mlm+nsp"
    is_small = predictions < MIN_PREDICTIONS or (has_nsp and sequences < MIN_ANSWERS)
    if not is_small or sequences == eval_sequences:  # the limit is then the user's setting
        return None
    nsp = f", the next-sentence accuracy {100 * accuracy_error(sequences):.1f} points" if has_nsp else ""
    return (
        f"{sequences:,} sequences of length {data.settings.max_length} and {predictions:,} predictions in them are too "
        f"few for exact scores: the loss has a standard error of {loss_error(predictions):.2f} nats{nsp}. Do not trust "
        "smaller differences; to measure them, prepare the text again with a larger --held-out."
    )


def _initial_model(
    settings: PretrainSettings, tokenizer: Tokenizer, latest: Path | None, console: Console
) -> BertForPretraining:
    """Return the model of the newest checkpoint, else the model of --init, else a new one with random weights."""
    if latest is None and settings.model.init is None:
        objective = settings.data.objective
        config = settings.model.config(tokenizer.vocab_size, settings.data.is_causal, is_reversed=objective == "rtl")
        _check_memory(config)
        return settings.model.new_model(config, settings.data.seed)
    folder = latest or model_folder(str(settings.model.init))
    if Tokenizer.load(folder).digest != tokenizer.digest:
        raise ValueError(
            f"{folder}: its vocabulary differs from that of {settings.store}; prepare the text again "
            f"with --vocabulary {folder}"
        )
    loaded = huggingface.load_model(folder, "required" if latest else "optional", **settings.model.dropouts)
    if not isinstance(loaded.model, BertForPretraining):
        raise ValueError(
            f"{folder}: expected a BERT, got model_type {loaded.model.encoder.model_type}; give another --init"
        )
    reads, objective = loaded.model.config.direction, settings.data.objective
    if reads != {"ltr": "left-to-right", "rtl": "right-to-left"}.get(objective, "bidirectional"):
        raise ValueError(f"{folder}: a {reads} model does not fit --objective {objective}")
    huggingface.check_vocabulary(tokenizer, loaded.model.config, folder)
    for head in loaded.missing_heads:
        notice(console, f"{folder} has no {head} head: it starts from random weights")
    return loaded.model


def _check_memory(config: BertConfig) -> None:
    """Raise ValueError if the model does not fit in memory; Linux would kill this process or another one."""
    needed, available = 4 * config.num_parameters, available_memory()
    if available is not None and needed > available:
        raise ValueError(
            f"{config.num_parameters:,} parameters take {needed / 1e9:,.0f} GB, and this machine has "
            f"{available / 1e9:,.0f} GB of memory; lower --num-layers ({config.num_layers:,}) or --hidden-size "
            f"({config.hidden_size:,})"
        )


def _check_lengths(settings: PretrainSettings, config: BertConfig) -> None:
    """Raise ValueError for sequences that the model cannot read."""
    source = f"{settings.run / 'settings.toml'}: " if settings.resume else ""
    for phase in settings.phases:
        if phase.data.max_length > config.max_positions:
            raise ValueError(
                f"{source}max_length = {phase.data.max_length}: the model has {config.max_positions} positions; raise "
                "--max-positions, lower --max-length or --long-length, or omit the long phase (--long-ratio 0)"
            )
    if settings.data.objective == "mlm+nsp" and config.type_vocab_size < 2:
        raise ValueError(
            "type_vocab_size = 1: the model has one segment type, and --objective mlm+nsp reads pairs; choose "
            "--objective mlm"
        )


def record_start(settings: PretrainSettings, state: PretrainState) -> None:
    """Write the settings and data digests of a run that has been opened.

    Raises ValueError if the store of a resumed run has changed.
    """
    stores = [state.train, *(data.store for data in state.held_out[:1])]
    digests = {
        store.folder.name: digest_bytes(*(file.digest.encode() for file in store.header.files)) for store in stores
    }
    if settings.resume and find_changed_data(settings.run, digests):
        raise ValueError(
            f"{settings.store}: its text or sentences changed since the run started; restore it, or start a new run "
            f"from the newest checkpoint: --init {settings.run} --run FOLDER"
        )
    record_run(settings, "pretrain", digests)
