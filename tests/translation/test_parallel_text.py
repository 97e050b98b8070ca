"""Parallel text: files that do not belong together, and the batches of each step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bertwright.base.ragged import Ragged, offsets_from_lengths
from bertwright.base.seeding import make_rng
from bertwright.systems.transformer.transformer import Transformer, TransformerConfig
from bertwright.systems.translation_models import TranslationSystem
from bertwright.translation.parallel_text import (
    EncodedPairs,
    ParallelText,
    encode_pairs,
    overlap_notices,
    read_parallel,
)
from bertwright.vocabulary.learn.joint_vocabulary import learn_joint_vocabulary


def write(folder: Path, source: bytes, target: bytes) -> tuple[tuple[str], tuple[str]]:
    (folder / "a.en").write_bytes(source)
    (folder / "a.de").write_bytes(target)
    return (str(folder / "a.en"),), (str(folder / "a.de"),)


def test_lines_are_read_in_pairs_from_several_files(tmp_path: Path) -> None:
    first = write(tmp_path, "the dog \r\ntwo\u2028x\n".encode(), b"der Hund\nzwei x")
    text = read_parallel(first[0] * 2, first[1] * 2)
    assert text.source == ["the dog", "two\u2028x"] * 2
    assert text.target == ["der Hund", "zwei x"] * 2


@pytest.mark.parametrize(
    ("source", "target", "where", "expected"),
    [
        (b"a\nb\nc\n", b"x\ny\n", "a.de", "expected 3 lines.*a.en, got 2"),
        (b"a\n\n \nc\n", b"x\ny\nz\nw\n", "a.en, line 2", r"empty line \(2 of 4 lines are empty\)"),
        (b"a\nb\n", b"x\n\n", "a.de, line 2", r"empty line \(1 of 2 lines are empty\)"),
        (b"a\n", b"gr\xfcn\n", "a.de, byte 2", "fc is not UTF-8 text.*--encoding"),
        (b"a\0b\n", b"x\n", "a.en, byte 1", "NUL"),
    ],
)
def test_files_that_do_not_belong_together_are_errors(
    tmp_path: Path, source: bytes, target: bytes, where: str, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected) as error:
        read_parallel(*write(tmp_path, source, target))
    assert str(tmp_path / where) in str(error.value)


def test_copies_and_held_out_pairs_of_the_training_text_are_noticed() -> None:
    train = ParallelText(["a", "b", "c"], ["x", "b", "z"])
    copied, seen = overlap_notices(train, ParallelText(["a", "c", "d"], ["x", "y", "d"]))
    assert copied.startswith("1 of 3 pairs have a target that equals the source")
    assert seen.startswith("dev: 1 of 3 pairs are pairs of the training text")
    assert overlap_notices(ParallelText(["a"], ["x"]), None) == []


def test_another_encoding_can_be_named(tmp_path: Path) -> None:
    assert read_parallel(*write(tmp_path, b"green\n", b"gr\xfcn\n"), "latin-1").target == ["grün"]


def make_pairs(count: int = 50, seed: int = 4) -> EncodedPairs:
    rng = make_rng(seed, 2)
    sides = []
    for _ in range(2):
        offsets = offsets_from_lengths(rng.integers(3, 12, count))
        sides.append(Ragged(np.arange(offsets[-1]).astype(np.uint32), offsets))
    return EncodedPairs(*sides, seed=seed)


def test_each_epoch_reads_every_pair_once_in_steps_of_the_budget() -> None:
    pairs, budget = make_pairs(), 60
    epoch = int(pairs.lengths.sum())
    steps = [pairs.pairs_of_step(step, budget) for step in range(3 * epoch // budget)]
    read = np.concatenate(steps)
    for number in range(2):
        assert sorted(read[number * 50 : (number + 1) * 50]) == list(range(50))
    assert read[:50].tolist() != read[50:100].tolist()
    tokens = np.array([pairs.lengths[chosen].sum() for chosen in steps])
    assert (abs(tokens - budget) < 24).all()  # the longest pair has 21 tokens
    assert abs(tokens.sum() - budget * len(steps)) < 24


def test_a_step_is_a_function_of_seed_and_number() -> None:
    forward = [make_pairs().pairs_of_step(step, 60).tolist() for step in range(40)]
    pairs = make_pairs()
    assert [pairs.pairs_of_step(step, 60).tolist() for step in reversed(range(40))] == forward[::-1]
    assert EncodedPairs(pairs.source, pairs.target, 5).pairs_of_step(3, 60).tolist() != forward[3]


def test_micro_batches_are_the_step_with_one_dropout_key_and_consecutive_tokens() -> None:
    pairs = make_pairs()
    whole, parts = pairs.micro_batches(7, 90, 10**6), pairs.micro_batches(7, 90, 30)
    assert len(whole) == 1
    assert len(parts) > 2
    joined = np.concatenate([part.labels.numpy() for part in parts])
    assert joined.tolist() == whole[0].labels.tolist()
    assert {part.step_labels for part in parts} == {len(joined)}
    for side in ("source", "target"):
        packings = [getattr(part.pairs, side).packing for part in parts]
        assert [p.first_token for p in packings] == np.cumsum([0, *(p.num_tokens for p in packings)])[:-1].tolist()
        assert {p.dropout_seed for p in packings} == {getattr(whole[0].pairs, side).packing.dropout_seed}


def test_the_decoder_reads_a_target_shifted_by_one() -> None:
    tokenizer = learn_joint_vocabulary(["a b c", "x y"], 60)
    model = Transformer(TransformerConfig.from_size("tiny", tokenizer.vocab_size))
    pairs = encode_pairs(ParallelText(["a b c"], ["x y"]), TranslationSystem(model, tokenizer, tokenizer))
    batch, labels = pairs.collate(np.array([0]))
    x, y = (tokenizer.id(token) for token in "xy")
    assert batch.source.input_ids.tolist() == [2, *(tokenizer.id(token) for token in "abc"), 3]
    assert batch.target.input_ids.tolist() == [2, x, y]
    assert labels.tolist() == [x, y, 3]
