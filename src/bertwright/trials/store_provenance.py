"""Text, vocabulary and store of an experiment for its report: digests, and the two commands that made them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from bertwright.base.settings import from_table, read_toml, to_arguments
from bertwright.pretraining.prepare import PrepareSettings
from bertwright.tokenstore.store import read_header
from bertwright.trials.pretrain_trials import digest_store
from bertwright.vocabulary.learn.learn_vocabulary import LearnSettings
from bertwright.vocabulary.open_tokenizer import open_tokenizer

SETTINGS = "settings.toml"


def describe_store(store: Path) -> dict[str, str]:
    """Return names and values of what a token store contains, and the commands that made it, as far as they are known.

    The digest of a text is computed from all documents in order, so that it recognizes the text whatever its files.
    """
    train, held_out = (read_header(store / split) for split in ("train", "held_out"))
    tokenizer = open_tokenizer(store / "tokenizer")
    sizes = [f"{part.num_documents:,} documents, {part.num_tokens:,} tokens" for part in (train, held_out)]
    described = {
        "text": f"{sizes[0]}, digest {train.corpus_digest}; held out {sizes[1]}, digest {held_out.corpus_digest}",
        "vocabulary": f"{tokenizer.vocab_size:,} tokens, {'uncased' if tokenizer.lowercase else 'cased'}, digest "
        f"{tokenizer.digest}",
        "store": f"digest {digest_store(store)}",
    }
    preparation = read_command("prepare", PrepareSettings, store)
    if preparation is None:
        return described
    prepare, settings = preparation
    learning = read_command("vocabulary", LearnSettings, Path(settings.vocabulary))
    commands = {"command of the vocabulary": learning[0]} if learning else {}
    return described | commands | {"command of the store": prepare}


def read_command(name: str, cls: type[Any], folder: Path) -> tuple[str, Any] | None:
    """Return the command that made a folder, with its settings; None if the folder has no settings of this command."""
    try:
        settings = from_table(cls, read_toml(folder / SETTINGS), str(folder / SETTINGS))
    except (OSError, ValueError):
        return None
    return shlex.join(["bertwright", name, *to_arguments(settings)]), settings
