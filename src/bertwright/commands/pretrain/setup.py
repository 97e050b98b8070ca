"""How a pre-training run begins or goes on: all of it is opened and checked before anything is written."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bertwright.commands.pretrain.settings import PretrainSettings
from bertwright.console import notice
from bertwright.files import digest_bytes
from bertwright.interop import huggingface
from bertwright.interop.model_files import model_folder
from bertwright.models.config import BertConfig
from bertwright.models.heads import BertForPretraining
from bertwright.pretraining.data import PretrainingData
from bertwright.tokenstore.store import TokenStore
from bertwright.training import checkpoint
from bertwright.training.context import ExecutionContext
from bertwright.training.loop import check_finite_weights
from bertwright.training.optimizer import AdamW
from bertwright.training.run_directory import changed_files, prepare_model, record_run
from bertwright.vocabulary.tokenizer import Tokenizer


@dataclass
class PretrainState:
    """What a run's steps touch, as it is after the steps done so far."""

    tokenizer: Tokenizer
    model: BertForPretraining
    optimizer: AdamW
    train: TokenStore
    data: list[PretrainingData]
    """One for each phase."""
    held_out: PretrainingData | None


def open_run(settings: PretrainSettings, place: ExecutionContext, console: Console) -> PretrainState:
    """Store, model and optimizer, from the newest checkpoint where there is one.

    A run that begins compares every byte of its store with the store's header; one that goes on, which should take no
    time, compares samples. Raises ValueError for what is missing, damaged, or does not fit together; nothing has been
    written then.
    """
    if settings.store is None:
        raise ValueError("no token store given: --store FOLDER, as `bertwright prepare` wrote it")
    latest = checkpoint.latest(settings.run / "checkpoints")
    tokenizer = Tokenizer.load(settings.store / "tokenizer")
    train = TokenStore.open(settings.store / "train", tokenizer.digest, verify=not settings.resume)
    data = [PretrainingData(train, tokenizer, phase.data) for phase in settings.phases]
    for phase in settings.phases:
        phase.data.check_world_size(place.world_size)
    held_out = _held_out(settings, tokenizer, console if place.is_main_process else None)
    model = _starting_model(settings, tokenizer, latest, console if place.is_main_process else None)
    check_finite_weights(model, 0)
    _check_fit(settings, model.config)
    prepare_model(model, place)
    optimizer = AdamW(dict(model.named_parameters()), settings.optimizer)
    if latest is not None:
        optimizer.load_state(checkpoint.load_optimizer(latest))
        if place.is_main_process and (changes := checkpoint.environment_changes(latest)):
            notice(console, changes)
    return PretrainState(tokenizer, model, optimizer, train, data, held_out)


def _held_out(settings: PretrainSettings, tokenizer: Tokenizer, console: Console | None) -> PretrainingData | None:
    """The held-out part of the store; without one that can be scored, a run trains without evaluations."""
    assert settings.store is not None
    folder = settings.store / "held_out"
    if not folder.is_dir():
        return None
    store, first = TokenStore.open(folder, tokenizer.digest, verify=not settings.resume), settings.phases[0].data
    if store.num_sentences < first.min_sentences:  # a small corpus, whose shortest document was set aside
        if console is not None:
            notice(console, f"{folder} has one sentence: too little to score; nothing is evaluated")
        return None
    return PretrainingData(store, tokenizer, first)


def _starting_model(
    settings: PretrainSettings, tokenizer: Tokenizer, latest: Path | None, console: Console | None
) -> BertForPretraining:
    """The model at the run's newest checkpoint; else the one to start from; else one with random weights."""
    if latest is None and settings.model.init is None:
        config = settings.model.config(tokenizer.vocab_size, causal=settings.data.objective == "ltr")
        _check_memory(config)
        return settings.model.new_model(config, settings.data.seed)
    folder = latest or model_folder(str(settings.model.init))
    if Tokenizer.load(folder).digest != tokenizer.digest:
        raise ValueError(
            f"{folder}: its vocabulary is not the one that {settings.store} was prepared with; prepare the text again "
            f"with --vocabulary {folder}"
        )
    loaded = huggingface.load_model(folder, "required" if latest else "optional", **settings.model.dropouts)
    if not isinstance(loaded.model, BertForPretraining):
        raise ValueError(
            f"{folder}: expected a BERT, got model_type {loaded.model.encoder.model_type}; give another --init"
        )
    if loaded.model.config.is_causal != (settings.data.objective == "ltr"):
        raise ValueError(
            f"{folder}: a {_direction(loaded.model.config)} model does not fit --objective {settings.data.objective}"
        )
    huggingface.check_vocabulary(tokenizer, loaded.model.config, folder)
    if console is not None:
        for head in loaded.missing_heads:
            notice(console, f"{folder} has no {head} head: it starts from random weights")
    return loaded.model


def _check_memory(config: BertConfig) -> None:
    """A slip in a size would take all memory, and the system would end this process or another one without a word."""
    if not hasattr(os, "sysconf"):  # Windows ends no other process for lack of memory
        return
    needed, there = 4 * config.num_parameters, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ValueError(
            f"{config.num_parameters:,} parameters take {needed / 1e9:,.0f} GB, and this machine has "
            f"{there / 1e9:,.0f} GB of memory; lower --num-layers ({config.num_layers:,}) or --hidden-size "
            f"({config.hidden_size:,})"
        )


def _direction(config: BertConfig) -> str:
    return "left-to-right" if config.is_causal else "bidirectional"


def _check_fit(settings: PretrainSettings, config: BertConfig) -> None:
    for phase in settings.phases:
        if phase.data.max_length > config.max_positions:
            raise ValueError(
                f"sequences of {phase.data.max_length} tokens are asked for, but the model has {config.max_positions} "
                "positions; raise --max-positions, lower --max-length or --long-length, or leave the long phase out "
                "(--long-ratio 0)"
            )
    if settings.data.objective == "mlm+nsp" and config.type_vocab_size < 2:
        raise ValueError(
            "the model knows one kind of segment (type_vocab_size 1), and --objective mlm+nsp reads pairs; choose "
            "--objective mlm"
        )


def begin(settings: PretrainSettings, opened: PretrainState) -> None:
    """Write down what is run, once all of it has been opened; hold a resumed run to the store that it began with."""
    stores = [opened.train] if opened.held_out is None else [opened.train, opened.held_out.store]
    digests = {
        store.folder.name: digest_bytes(*(file.digest.encode() for file in store.header.files)) for store in stores
    }
    if settings.resume and changed_files(settings.run, digests):
        raise ValueError(
            f"{settings.store}: holds another text, or the same in other sentences, than the run began with; give it "
            f"back its text, or start a new run from the newest checkpoint: --init {settings.run} --run FOLDER"
        )
    record_run(settings, "pretrain", digests)
