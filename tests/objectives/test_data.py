"""Batches of whole steps: content, dependence on (store, settings, step) alone, shares of ranks."""

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from bertwright.objectives.data import StoreExamples
from bertwright.objectives.data_settings import DataSettings
from bertwright.objectives.language_model_objective import LanguageModelBatch
from bertwright.systems.registry import find_objective
from bertwright.tokenstore.store import TokenStore
from bertwright.training.loop import prefetch
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

CLS, SEP, MASK = 2, 3, 4
SMALL = DataSettings(max_length=64, batch_size=32, seed=5)


Examples = StoreExamples[LanguageModelBatch]


def open_examples(store: TokenStore, tokenizer: Tokenizer, settings: DataSettings) -> Examples:
    return StoreExamples(store, tokenizer, settings, find_objective(settings.objective))


@pytest.fixture
def data(mixed_store: TokenStore, tokenizer: Tokenizer) -> Examples:
    return open_examples(mixed_store, tokenizer, SMALL)


def with_settings(data: Examples, tokenizer: Tokenizer, **changed: object) -> Examples:
    return open_examples(data.store, tokenizer, replace(SMALL, **changed))


def contents(batches: list[LanguageModelBatch]) -> dict[str, list[int]]:
    """Concatenate micro-batches into one."""
    joined: dict[str, list[int]] = {
        name: [] for name in ("ids", "types", "positions", "lengths", "masked", "labels", "nsp")
    }
    for micro_batch in batches:
        offset = len(joined["ids"])
        joined["ids"] += micro_batch.input.input_ids.tolist()
        joined["types"] += micro_batch.input.token_type_ids.tolist()
        joined["positions"] += micro_batch.packing.position_ids.tolist()
        joined["lengths"] += micro_batch.packing.cu_seqlens.diff().tolist()
        joined["masked"] += (micro_batch.mlm_positions + offset).tolist()
        joined["labels"] += micro_batch.mlm_labels.tolist()
        joined["nsp"] += micro_batch.nsp_labels.tolist()
    return joined


def original_ids(batch: LanguageModelBatch) -> torch.Tensor:
    return batch.input.input_ids.scatter(0, batch.mlm_positions, batch.mlm_labels)


def test_step_on_two_sentences_equals_that_worked_by_hand(make_store, tokenizer: Tokenizer) -> None:
    """Two sentences are one pair; only the order and the masks are random."""
    store = make_store([[[5, 6], [7, 9, 10]], [[21], [22]]])
    data = open_examples(store, tokenizer, DataSettings(max_length=16, batch_size=40, short_seq_prob=0.0))
    (batch,) = data.batches_for_step(0)
    texts = set()
    for number, (first, last) in enumerate(
        zip(batch.packing.cu_seqlens[:-1], batch.packing.cu_seqlens[1:], strict=True)
    ):
        label = ("next", "random")[batch.nsp_labels[number]]
        texts.add((tokenizer.decode(original_ids(batch)[first:last], skip_special=False), label))
    assert texts == {
        ("[CLS] w5 w6 [SEP] w7 w9 w10 [SEP]", "next"),
        ("[CLS] w5 w6 [SEP] w21 w22 [SEP]", "random"),
        ("[CLS] w21 [SEP] w22 [SEP]", "next"),
        ("[CLS] w21 [SEP] w5 w6 w7 w9 w10 [SEP]", "random"),
    }


def test_sequences_have_special_tokens_and_segment_types(data: Examples) -> None:
    (batch,) = data.batches_for_step(3)
    ids, types = original_ids(batch), batch.input.token_type_ids
    bounds = batch.packing.cu_seqlens.tolist()
    assert len(batch.packing) == 32
    assert batch.packing.max_seqlen == max(np.diff(bounds)) <= 64
    for first, last in pairwise(bounds):
        sequence, of = ids[first:last], types[first:last]
        assert sequence[0] == CLS
        assert sequence[-1] == SEP
        middle = int((sequence == SEP).nonzero()[0])
        assert (sequence == SEP).sum() == 2
        assert of.tolist() == [0] * (middle + 1) + [1] * (last - first - middle - 1)
        assert batch.packing.position_ids[first:last].tolist() == list(range(last - first))


def test_shares_of_masked_tokens(data: Examples) -> None:
    shown, labels, tokens = [], [], 0
    for step in range(60):
        (batch,) = data.batches_for_step(step)
        assert batch.lm_count == len(batch.mlm_positions)
        assert (batch.mlm_labels > MASK).all()
        shown.append(batch.input.input_ids[batch.mlm_positions])
        labels.append(batch.mlm_labels)
        tokens += batch.packing.num_tokens
    seen, right = torch.cat(shown), torch.cat(labels)
    assert abs(len(seen) / tokens - 0.15) < 0.01  # rounding, and one at least in the shortest
    deviation = 4 * np.sqrt(0.8 * 0.2 / len(seen))
    assert abs((seen == MASK).double().mean() - 0.8) < deviation
    assert abs((seen == right).double().mean() - 0.1 - 0.1 / 1000) < deviation
    assert (seen[seen != MASK] > MASK).all()


def test_shares_of_next_sentence_labels(data: Examples) -> None:
    labels = torch.cat([data.batches_for_step(step)[0].nsp_labels for step in range(100)]).double()
    one_sentence = data.describe(1).one_sentence_share
    expected = 0.5 + 0.5 * one_sentence
    assert abs(labels.mean() - expected) < 4 * 0.5 / np.sqrt(len(labels))
    assert data.batches_for_step(0)[0].nsp_count == 32


def test_step_is_a_function_of_its_number_and_the_seed(data: Examples, tokenizer: Tokenizer) -> None:
    later = contents(data.batches_for_step(10**9))
    data.batches_for_step(0)
    again = with_settings(data, tokenizer)
    assert contents(again.batches_for_step(10**9)) == later
    assert again.batches_for_step(7)[0].packing.dropout_seed == data.batches_for_step(7)[0].packing.dropout_seed
    assert contents(data.batches_for_step(10**9 + 1)) != later
    other = with_settings(data, tokenizer, seed=6)
    assert contents(other.batches_for_step(10**9)) != later
    assert other.batches_for_step(7)[0].packing.dropout_seed != data.batches_for_step(7)[0].packing.dropout_seed


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"whole_word_mask": True},
        {"objective": "mlm"},
        {"objective": "ltr"},
        {"objective": "mlm", "whole_word_mask": True},
    ],
)
@pytest.mark.parametrize(("world_size", "micro_batch_size"), [(1, 5), (3, None), (4, 3), (32, 1)])
def test_ranks_and_micro_batches_are_slices_of_the_step(
    data: Examples,
    tokenizer: Tokenizer,
    changed: dict[str, object],
    world_size: int,
    micro_batch_size: int | None,
) -> None:
    data = with_settings(data, tokenizer, **changed)
    (whole,) = data.batches_for_step(2)
    micro_batches = [
        micro_batch
        for rank in range(world_size)
        for micro_batch in data.batches_for_step(2, rank, world_size, micro_batch_size)
    ]
    assert contents(micro_batches) == contents([whole])
    assert {micro_batch.lm_count for micro_batch in micro_batches} == {whole.lm_count} == {len(whole.mlm_positions)}
    assert {micro_batch.nsp_count for micro_batch in micro_batches} == {whole.nsp_count}
    assert {micro_batch.packing.dropout_seed for micro_batch in micro_batches} == {whole.packing.dropout_seed}
    sizes = [micro_batch.packing.num_tokens for micro_batch in micro_batches]
    assert [micro_batch.packing.first_token for micro_batch in micro_batches] == [
        0,
        *np.cumsum(sizes)[:-1].tolist(),
    ]


def test_epoch_reads_each_example_once(data: Examples, tokenizer: Tokenizer) -> None:
    """With batches of one example, N steps are an epoch."""
    data = with_settings(data, tokenizer, batch_size=1, objective="mlm", short_seq_prob=0.0)
    for epoch in range(2):
        begins = [data._layout(5, step, 1).segments.a_starts[0] for step in epoch_steps(data, epoch)]
        documents = np.searchsorted(data.store.sentence_starts[data.store.document_starts], begins, side="right") - 1
        counts = np.bincount(documents, minlength=data.store.num_documents)
        assert counts.tolist() == np.diff(data._index.document_examples).tolist()


def epoch_steps(data: Examples, epoch: int) -> range:
    return range(epoch * data.examples_per_epoch, (epoch + 1) * data.examples_per_epoch)


def test_masks_and_segments_differ_between_epochs(make_store, tokenizer: Tokenizer) -> None:
    store = make_store([[[number] * 8 for number in range(10, 14)], [[number] * 8 for number in range(20, 24)]])
    data = open_examples(store, tokenizer, DataSettings(max_length=64, batch_size=2))
    assert data.examples_per_epoch == 2
    epochs = [tuple(contents(data.batches_for_step(epoch))["masked"]) for epoch in range(20)]
    assert len(set(epochs)) == 20


def test_whole_words_are_masked_together(data: Examples, tokenizer: Tokenizer) -> None:
    data = with_settings(data, tokenizer, whole_word_mask=True, mask_mix=(1.0, 0.0, 0.0))
    split = words = 0
    for step in range(5):
        (batch,) = data.batches_for_step(step)
        ids = original_ids(batch)
        hidden = torch.zeros(len(ids), dtype=torch.bool)
        hidden[batch.mlm_positions] = True
        continues = torch.from_numpy(tokenizer.is_continuation)[ids]
        inside = continues[1:] & (ids[:-1] > MASK)
        split += int((inside & (hidden[1:] != hidden[:-1])).sum())
        words += int((inside & hidden[1:]).sum())
    assert words > 50
    assert split <= words / 20  # only in sequences in which no word fits


def test_ltr_predicts_each_next_token(data: Examples, tokenizer: Tokenizer) -> None:
    (batch,) = with_settings(data, tokenizer, objective="ltr").batches_for_step(0)
    ids = batch.input.input_ids
    assert batch.mlm_labels.tolist() == ids[batch.mlm_positions + 1].tolist()
    assert batch.lm_count == batch.packing.num_tokens - 32
    assert MASK not in ids
    assert batch.nsp_count == len(batch.nsp_labels) == 0


def test_single_segments_have_one_separator(data: Examples, tokenizer: Tokenizer) -> None:
    (batch,) = with_settings(data, tokenizer, objective="mlm").batches_for_step(0)
    assert (original_ids(batch) == SEP).sum() == len(batch.packing)
    assert batch.input.token_type_ids.sum() == 0
    assert batch.nsp_count == len(batch.nsp_labels) == 0


def test_validation_batches_do_not_depend_on_seed_and_batch_size(data: Examples, tokenizer: Tokenizer) -> None:
    other = with_settings(data, tokenizer, seed=99, batch_size=7)
    batches = list(data.validation_batches(150))
    assert contents(batches) == contents(list(other.validation_batches(150)))
    assert [len(batch.packing) for batch in batches] == [64, 64, 22]
    assert all(batch.lm_count == len(batch.mlm_positions) for batch in batches)
    assert all(batch.nsp_count == len(batch.packing) for batch in batches)
    assert sum(len(batch.packing) for batch in data.validation_batches(10**9)) == data.examples_per_epoch
    assert contents(batches[:1]) != contents(data.batches_for_step(0))


def test_step_on_a_store_smaller_than_a_batch_has_several_epochs(make_store, tokenizer: Tokenizer) -> None:
    data = open_examples(make_store([[[7, 9], [10]], [[11], [13]]]), tokenizer, SMALL)
    (batch,) = data.batches_for_step(0)
    assert len(batch.packing) == 32


@pytest.mark.parametrize(("objective", "length"), [("mlm+nsp", 5), ("mlm", 4), ("ltr", 4)])
def test_shortest_allowed_length_gives_valid_batches(
    data: Examples, tokenizer: Tokenizer, objective: str, length: int
) -> None:
    (batch,) = with_settings(data, tokenizer, objective=objective, max_length=length).batches_for_step(0)
    assert batch.packing.max_seqlen == length
    assert batch.lm_count >= 32


def test_describe_summarizes_the_store(data: Examples) -> None:
    described = data.describe(100)
    assert described.epochs == 100 * 32 / data.examples_per_epoch
    tokens = np.mean([data.batches_for_step(step)[0].packing.num_tokens for step in range(30)])
    assert abs(described.tokens_per_step / tokens - 1) < 0.03
    assert 0 < described.one_sentence_share < 0.5
    assert any("come from documents of one sentence" in text for text in described.notices())


def check(settings: DataSettings) -> None:
    find_objective(settings.objective).check_settings(settings)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_length": 2}, "max_length is 2; mlm.nsp needs at least 5"),
        ({"max_length": 3, "objective": "ltr"}, "max_length is 3; ltr needs at least 4"),
        ({"batch_size": 0}, "batch_size: expected 1 to 1,048,576, got 0"),
        ({"batch_size": 99_999_999}, "batch_size: expected 1 to 1,048,576, got 99999999"),
        ({"short_seq_prob": 1.5}, "short_seq_prob: .*got 1.5"),
        ({"mlm_probability": 0.0}, "mlm_probability: .*got 0.0"),
        ({"mask_mix": (0.8, 0.1, 0.2)}, "sum to 1"),
        ({"max_predictions_per_seq": 126}, "max_predictions_per_seq is 126; expected 1 … 125"),
        ({"seed": -1}, "seed: .*got -1"),
    ],
)
def test_invalid_settings_raise_an_error(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(DataSettings(**changed))


def test_more_ranks_than_sequences_raise_an_error(data: Examples) -> None:
    with pytest.raises(ValueError, match="less than the 33 ranks"):
        data.batches_for_step(0, rank=0, world_size=33)


def test_store_of_one_sentence_raises_an_error_for_pairs(make_store, tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="needs pairs"):
        open_examples(make_store([[[7, 8]]]), tokenizer, SMALL)


def test_store_of_another_vocabulary_raises_an_error(mixed_store: TokenStore) -> None:
    other = Tokenizer.from_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "else"], lowercase=True)
    with pytest.raises(ValueError, match="another vocabulary"):
        open_examples(mixed_store, other, SMALL)


def test_prefetch_yields_the_same_items() -> None:
    assert list(prefetch(range(50))) == list(range(50))
    assert list(prefetch([])) == []


def test_prefetch_runs_ahead_by_its_depth() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    taken = prefetch(items())
    next(taken)
    deadline = time.monotonic() + 5
    while len(made) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert made == [0, 1, 2]
    taken.close()


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_exception_of_an_item_is_raised(kind: type[BaseException]) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise kind("broken")

    taken = prefetch(items())
    assert next(taken) == 1
    with pytest.raises(kind, match="broken"):
        next(taken)


def test_closing_a_prefetch_ends_its_thread() -> None:
    before = set(threading.enumerate())
    taken = prefetch(iter(int, 1))  # without end
    next(taken)
    assert len(set(threading.enumerate()) - before) == 1
    taken.close()
    assert not set(threading.enumerate()) - before


def test_describe_warns_about_text_that_is_read_too_often(data: Examples) -> None:
    per_epoch = data.examples_per_epoch / data.settings.batch_size
    assert not any("is read" in notice for notice in data.describe(int(20 * per_epoch)).notices())
    summary = data.describe(int(30 * per_epoch) + 1)
    assert any(re.search(r"read 30 times.*20 epochs", notice) for notice in summary.notices())
    large = summary._replace(tokens=2_000_000)
    assert not any("is read" in notice for notice in large.notices())
    assert any(re.search(r"read 60 times.*40 epochs", notice) for notice in large._replace(epochs=60.0).notices())


def test_validation_counts_are_those_of_its_batches(data: Examples) -> None:
    for sequences in (50, 10**9):
        batches = list(data.validation_batches(sequences))
        counted, predictions = data.count_validation(sequences)
        assert counted == sum(batch.num_sequences for batch in batches)
        assert predictions == pytest.approx(sum(batch.num_predictions for batch in batches), rel=0.1)


@pytest.mark.parametrize("objective", ["mlm", "ltr", "rtl"])
def test_pairs_without_next_sentences_are_the_same_as_with_them(
    data: Examples, tokenizer: Tokenizer, objective: str
) -> None:
    pairs = with_settings(data, tokenizer, objective=objective, segments="pair")
    for mine, theirs in [
        (pairs.batches_for_step(7), data.batches_for_step(7)),
        ([*pairs.validation_batches(100)], [*data.validation_batches(100)]),
    ]:
        read, with_nsp = contents(mine), contents(theirs)
        assert with_nsp["nsp"]
        assert read["nsp"] == []
        assert read["types"] == with_nsp["types"]
        assert 1 in read["types"]
        if objective == "mlm":
            assert {name: values for name, values in read.items() if name != "nsp"} == {
                name: values for name, values in with_nsp.items() if name != "nsp"
            }
        else:
            assert torch.cat([batch.input.input_ids for batch in mine]).equal(
                torch.cat([original_ids(batch) for batch in theirs])
            )


def test_next_sentence_prediction_needs_pairs() -> None:
    with pytest.raises(ValueError, match=r"segments is 'single'; --objective mlm\+nsp compares two segments"):
        check(replace(SMALL, segments="single"))
    with pytest.raises(ValueError, match="segments: expected one of pair, single, got 'two'"):
        replace(SMALL, segments="two")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_length is 4; mlm needs at least 5: 3 for"):
        check(DataSettings(max_length=4, objective="mlm", segments="pair"))
    check(DataSettings(max_length=4, objective="mlm"))
