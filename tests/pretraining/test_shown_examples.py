"""`pretrain --show-examples`: what a model reads, what it predicts, and whether B follows A."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bertwright.objectives.data import StoreExamples
from bertwright.objectives.data_settings import DataSettings
from bertwright.objectives.language_model_objective import LanguageModelBatch
from bertwright.systems.registry import find_objective
from bertwright.tokenstore.store import TokenStore
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer

Make = Callable[[Any], TokenStore]


def show(store: TokenStore, tokenizer: Tokenizer, **settings: Any) -> tuple[LanguageModelBatch, list[Any]]:
    data = DataSettings(max_length=32, batch_size=24, seed=3, **settings)
    objective = find_objective(data.objective)
    (batch,) = StoreExamples(store, tokenizer, data, objective).batches_for_step(0)
    return batch, objective.format_examples(batch, tokenizer)


def test_shown_examples_agree_with_the_batch(mixed_store: TokenStore, tokenizer: Tokenizer) -> None:
    batch, shown = show(mixed_store, tokenizer)
    ids, labels = batch.input.input_ids.tolist(), batch.mlm_labels.tolist()
    stands = [ids[position] for position in batch.mlm_positions.tolist()]
    assert len(shown) == 24
    predicted = [word for example in shown for word in example.text.split() if word.startswith("(")]
    assert predicted == [f"({tokenizer.token(label)})" for label in labels]
    counts = dict.fromkeys(("masked", "replaced", "kept"), 0)
    for example in shown:
        for part in example.targets.partition(";")[0].split(", "):
            number, name = part.split()
            counts[name] += int(number)
    same = sum(one == label for one, label in zip(stands, labels, strict=True))
    masked = stands.count(tokenizer.mask_id)
    assert counts == {"masked": masked, "kept": same, "replaced": len(labels) - masked - same}
    assert masked > same
    assert same > 0
    answers = [example.targets.endswith("; B is random") for example in shown]
    assert answers == [bool(answer) for answer in batch.nsp_labels.tolist()]
    assert shown[0].text.startswith("[CLS] ")
    assert all(example.text.count("[SEP]") == 2 for example in shown)


def test_causal_examples_are_shown_without_marks(mixed_store: TokenStore, tokenizer: Tokenizer) -> None:
    _, shown = show(mixed_store, tokenizer, objective="rtl")
    assert not any("(" in example.text for example in shown)
    assert {example.targets for example in shown} == {"every token predicts the next one, right to left"}


def test_a_negative_number_of_examples_is_named() -> None:
    from bertwright.pretraining.settings import PretrainSettings

    with pytest.raises(ValueError, match="show_examples: expected at least 0, got -1"):
        PretrainSettings(run=Path("run"), store=Path("store"), show_examples=-1)
