"""`bertwright tokenize`: show the input of a model for a text or a pair, as in figure 2 of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertwright.base.reporter import SILENT, Heading, Line, Reporter, Rows
from bertwright.base.settings import Positional
from bertwright.interop.model_files import vocabulary_folder
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer


@dataclass(frozen=True)
class TokenizeSettings:
    """Show the tokens, ids, segments and positions that a model reads for a text or a pair (paper, figure 2)."""

    vocabulary: Positional[str]
    """Folder with a vocabulary or a model, a run folder, or a hub name."""
    text: Positional[str]
    """Text, or the first one of a pair. It is read as plain text, as in a corpus: [MASK] is no special token."""
    pair: str | None = None
    """Second text of a pair, such as the sentence that follows, or the context of a question."""


class InputToken(NamedTuple):
    """A token as a model reads it: the sum of the embeddings of its id, its segment and its position."""

    token: str
    id: int
    segment: int | None
    """0 for the first text, 1 for the second one; None if sequences of this vocabulary have no segments."""
    position: int
    text: str | None
    """The characters of the text that the token stands for; None for a special token."""


def lay_out_input(tokenizer: TextTokenizer, text: str, pair: str | None = None) -> list[InputToken]:
    """Return the tokens of a text or a pair with the special tokens around it, not truncated."""
    texts = [text] if pair is None else [text, pair]
    encodings = tokenizer.encode_raw_batch(texts)
    ids = tokenizer.encode_raw(texts)
    numbers = ids.ids if ids.ids.ndim == 1 else ids.ids[:, 0]  # words have their characters beside their id
    placed = tokenizer.layout.place([np.array([len(segment)]) for segment in ids])
    placed.ids[placed.is_text] = np.where(
        numbers < tokenizer.vocab_size, numbers, tokenizer.unk_id
    )  # others have a vector by their digest
    spans = [texts[n][start:end] for n, encoding in enumerate(encodings) for start, end in encoding.offsets.tolist()]
    characters = iter(spans)
    types = [None] * len(placed.ids) if placed.token_type_ids is None else placed.token_type_ids.tolist()
    return [
        InputToken(tokenizer.token(number), number, segment, position, next(characters) if is_text else None)
        for position, (number, segment, is_text) in enumerate(
            zip(placed.ids.tolist(), types, placed.is_text.tolist(), strict=True)
        )
    ]


def tokenize(settings: TokenizeSettings, reporter: Reporter = SILENT) -> list[InputToken]:
    """Print a table of the tokens of a text or a pair; return them."""
    tokenizer = open_tokenizer(vocabulary_folder(settings.vocabulary))
    tokens = lay_out_input(tokenizer, settings.text, settings.pair)
    reporter.record(Heading(f"{len(tokens)} tokens, {'uncased' if tokenizer.lowercase else 'cased'} vocabulary of "
                     f"{tokenizer.vocab_size:,}"))  # fmt: skip
    rows = [
        (
            token.token,
            str(token.id),
            "" if token.segment is None else "AB"[token.segment],
            str(token.position),
            token.text or "",
        )
        for token in tokens
    ]
    reporter.record(Rows(("token", "id", "segment", "position", "text"), rows, texts=(0,)))
    unknown = [token.text for token in tokens if token.id == tokenizer.unk_id and token.text is not None]
    if unknown:
        by_characters = "; the model reads words by their characters" if tokenizer.reads_any_word else ""
        reporter.note(f"the vocabulary lacks {', '.join(map(repr, dict.fromkeys(unknown)))}{by_characters}")
    if tokenizer.layout.has_types:
        text = "A model reads the sum of three embeddings: of the id, the segment and the position."
        reporter.record(Line(text, "minor"))
    return tokens
