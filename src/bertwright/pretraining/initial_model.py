"""The model with which a pre-training begins, and whether it suits the sequences of the run."""

from __future__ import annotations

from pathlib import Path

from bertwright.base.object_storage import display
from bertwright.base.reporter import Reporter
from bertwright.models.encoder import EncoderModel
from bertwright.pretraining.settings import PretrainSettings
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer


def initial_model(
    settings: PretrainSettings, tokenizer: TextTokenizer, folder: Path | None, reporter: Reporter, is_checkpoint: bool
) -> EncoderModel:
    """Return the model of a folder, a checkpoint or that of --init; without one, a new model with random weights."""
    model: EncoderModel
    if folder is None:
        model = settings.objective.new_model(settings.model, tokenizer.vocab_size, settings.data.seed)
        return model
    assert settings.store is not None  # checked by PretrainSettings
    if not settings.objective.adapts_vocabulary and open_tokenizer(folder).digest != tokenizer.digest:
        raise ValueError(
            f"{folder}: expected the vocabulary of {display(settings.store)}, got another; prepare the text again with "
            f"--vocabulary {folder}"
        )
    model, notices = settings.objective.load_model(folder, settings.model, tokenizer, is_checkpoint)
    for text in notices:
        reporter.note(text)
    return model


def check_lengths(settings: PretrainSettings, model: EncoderModel) -> None:
    """Raise ValueError for sequences that the model cannot read: too long, or pairs without a second segment type."""
    if settings.data.segments == "pair" and model.config.type_vocab_size < 2:
        raise ValueError(
            "segments = pair: expected a model with two segment types, got type_vocab_size = 1; use --segments single"
        )
    source = f"{settings.run / 'settings.toml'}: " if settings.resume else ""
    for phase in settings.phases:
        if phase.data.max_length > model.config.max_positions:
            raise ValueError(
                f"{source}max_length = {phase.data.max_length}: the model has {model.config.max_positions} positions; "
                "raise --max-positions, lower --max-length or --long-length, or omit the long phase (--long-ratio 0)"
            )


def describe_untrained_positions(settings: PretrainSettings, model: EncoderModel) -> str | None:
    """Return a notice if a new model has learned positions that no step reads; else None."""
    longest, positions = max(phase.data.max_length for phase in settings.phases), model.config.max_positions
    learned = any("position" in name for name, parameter in model.named_parameters() if parameter.requires_grad)
    if longest >= positions or not learned:
        return None
    return (
        f"the model has {positions:,} positions, but the longest sequences of this run have {longest:,} tokens, so "
        f"positions {longest:,} to {positions - 1:,} keep their random vectors and longer texts are read badly; use "
        f"--max-positions {longest}, or a long phase (--long-ratio 0.1 --long-length {positions})"
    )
