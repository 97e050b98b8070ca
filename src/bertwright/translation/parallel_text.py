"""Parallel text: sentences and their translations in two files, line by line; and the batches of each step.

P pairs of sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertwright.base.example_order import permute
from bertwright.base.ragged import Ints, Ragged, flat_ranges, offsets_from_lengths
from bertwright.base.seeding import TranslationStream, derive_key
from bertwright.models.packing import PairBatch, TokenBatch, from_flat
from bertwright.systems.translation_models import TranslationSystem
from bertwright.text.decoding import read_text
from bertwright.text.lines import split_lines
from bertwright.vocabulary.tokenizer import TextTokenizer


class ParallelText(NamedTuple):
    """Sentences, and the translation of each."""

    source: list[str]
    target: list[str]


def read_lines(path: str, encoding: str = "utf-8") -> list[str]:
    """Read the lines of a file without outer spaces. Raises ValueError for another encoding than the one given."""
    return [line.strip() for _, line in split_lines(path, read_text(path, encoding))]


def read_parallel(sources: Sequence[str], targets: Sequence[str], encoding: str = "utf-8") -> ParallelText:
    """Read pairs of files whose lines belong together.

    Raises ValueError for files with different numbers of lines, for empty lines, and for text that cannot be decoded.
    """
    if len(sources) != len(targets):
        raise ValueError(
            f"source and target: expected as many files of one as of the other, got {len(sources)} and {len(targets)}"
        )
    text = ParallelText([], [])
    for paths in zip(sources, targets, strict=True):
        source, target = (read_lines(path, encoding) for path in paths)
        if len(source) != len(target):
            raise ValueError(
                f"{paths[1]}: expected {len(source):,} lines, as in {paths[0]}, got {len(target):,}; line n of one "
                "file is the translation of line n of the other"
            )
        for path, lines in zip(paths, (source, target), strict=True):
            if empty := [number for number, line in enumerate(lines, 1) if not line]:
                raise ValueError(
                    f"{path}, line {empty[0]}: expected a sentence, got an empty line ({len(empty):,} of "
                    f"{len(lines):,} lines are empty); remove these lines from both files"
                )
        text.source.extend(source)
        text.target.extend(target)
    if not text.source:
        raise ValueError(f"{' '.join(sources)}: expected sentences, got no line")
    return text


def overlap_notices(train: ParallelText, dev: ParallelText | None) -> list[str]:
    """Describe pairs that teach or test nothing, one sentence each: copies, and held-out pairs that are trained on."""
    found = list[str]()
    if copies := sum(source == target for source, target in zip(*train, strict=True)):
        count = len(train.source)
        found.append(f"{copies:,} of {count:,} pairs have a target that equals the source: a model learns to copy")
    held_out = Counter[tuple[str, str]]() if dev is None else Counter(zip(*dev, strict=True))
    known = {pair for pair in zip(*train, strict=True) if pair in held_out}  # the training text may be large
    if seen := sum(held_out[pair] for pair in known):
        text = f"dev: {seen:,} of {held_out.total():,} pairs are pairs of the training text"
        found.append(f"{text}; their score says little about other sentences")
    return found


def encode_lines(lines: Sequence[str], tokenizer: TextTokenizer) -> Ragged:
    """Encode texts with the special tokens before and after."""
    encoded = tokenizer.encode_raw(lines)
    placed = tokenizer.layout.place([np.diff(encoded.offsets)])
    ids = placed.ids.astype(np.uint32)
    ids[placed.is_text] = encoded.ids
    return Ragged(ids, offsets_from_lengths(placed.lengths))


def encode_sources(lines: Sequence[str], system: TranslationSystem) -> tuple[Ragged, int]:
    """Encode sources as a model reads them; also return the number of special tokens in each.

    A model of whole words reads the words alone, as where its states are features of a task (CoVe).
    """
    tokenizer = system.source
    if system.model.reads_words:
        return tokenizer.encode_numbers(lines), 0
    return encode_lines(lines, tokenizer), tokenizer.layout.num_specials(1)


def encode_pairs(text: ParallelText, system: TranslationSystem, seed: int = 0) -> EncodedPairs:
    """Encode sentences and their translations; `seed`: of their order in training."""
    return EncodedPairs(encode_sources(text.source, system)[0], encode_lines(text.target, system.target), seed)


def select_texts(texts: Ragged, chosen: Ints) -> Ragged:
    lengths = np.diff(texts.offsets)[chosen]
    return Ragged(texts.ids[flat_ranges(texts.offsets[chosen], lengths)], offsets_from_lengths(lengths))


def pack_texts(texts: Ragged, chosen: Ints) -> TokenBatch:
    selected = select_texts(texts, chosen)
    return from_flat(selected.ids, None, np.diff(selected.offsets))


@dataclass(frozen=True)
class LabeledPairs:
    """A micro-batch: the decoder reads each target without its last token, and predicts it without its first one."""

    pairs: PairBatch
    labels: Tensor
    """T int64, the token after each target token."""
    step_labels: int
    """Labels of the whole step."""

    def to(self, device: torch.device) -> LabeledPairs:
        return LabeledPairs(self.pairs.to(device), self.labels.to(device, non_blocking=True), self.step_labels)


@dataclass(frozen=True)
class EncodedPairs:
    """Pairs of token sequences, and their order in training."""

    source: Ragged
    target: Ragged
    seed: int = 0

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def lengths(self) -> Ints:
        """P, tokens that a pair takes of a step's budget: of the source and, without the last one, of the target."""
        return np.diff(self.source.offsets) + np.diff(self.target.offsets) - 1

    def select(self, chosen: Ints) -> EncodedPairs:
        return EncodedPairs(select_texts(self.source, chosen), select_texts(self.target, chosen), self.seed)

    def pairs_of_step(self, step: int, budget: int) -> Ints:
        """Return the pairs of a step, about `budget` tokens: a function of (seed, step).

        All epochs, each in a random order of its own, are one stream of tokens, and step s has the pairs that begin in
        its tokens s · budget … (s + 1) · budget - 1. So every pair is read once per epoch, and any step can be computed
        alone. The paper makes batches of pairs of similar length, because it pads; packed pairs of any lengths fit.
        `budget` is at least the length of the longest pair, so that no step is empty.
        """
        epoch_tokens, begin, lengths = int(self.lengths.sum()), step * budget, self.lengths.tobytes()
        chosen = []
        for epoch in range(begin // epoch_tokens, -(-(begin + budget) // epoch_tokens)):
            order, starts = _epoch_order(lengths, derive_key(self.seed, TranslationStream.ORDER, epoch))
            first, last = np.searchsorted(starts, [begin - epoch * epoch_tokens, begin + budget - epoch * epoch_tokens])
            chosen.append(order[first:last])
        return np.concatenate(chosen)

    def micro_batches(self, step: int, budget: int, micro_tokens: int) -> list[LabeledPairs]:
        """Return the pairs of a step in micro-batches of about `micro_tokens` tokens."""
        chosen = self.pairs_of_step(step, budget)
        numbers = np.cumsum(self.lengths[chosen]) // micro_tokens
        parts = np.split(chosen, np.flatnonzero(np.diff(numbers)) + 1)
        seed = derive_key(self.seed, TranslationStream.DROPOUT, step)
        labels = int((np.diff(self.target.offsets)[chosen] - 1).sum())
        batches, source_token, target_token = [], 0, 0
        for part in parts:
            pairs, words = self.collate(part)
            source, target = pairs.source, pairs.target
            keyed = PairBatch(source.with_dropout(seed, source_token), target.with_dropout(seed, target_token))
            batches.append(LabeledPairs(keyed, words, labels))
            source_token += source.packing.num_tokens
            target_token += target.packing.num_tokens
        return batches

    def collate(self, chosen: Ints) -> tuple[PairBatch, Tensor]:
        """Pack pairs; also return the label of each target token."""
        starts, lengths = self.target.offsets[chosen], np.diff(self.target.offsets)[chosen] - 1
        inputs = from_flat(self.target.ids[flat_ranges(starts, lengths)], None, lengths)
        labels = self.target.ids[flat_ranges(starts + 1, lengths)].astype(np.int64)
        return PairBatch(pack_texts(self.source, chosen), inputs), torch.from_numpy(labels)


@lru_cache(maxsize=2)
def _epoch_order(lengths: bytes, key: int) -> tuple[Ints, Ints]:
    """Return the order of an epoch's pairs, and the token at which each begins; thousands of steps may ask for it."""
    tokens = np.frombuffer(lengths, np.int64)
    order = permute(np.arange(len(tokens)), len(tokens), key)
    return order, offsets_from_lengths(tokens[order])[:-1]
