"""The seam of the sequence layout: GPT's, for a causal encoder, with the specials of another tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path

import numpy as np

from bertwright.base.ragged import Ragged, offsets_from_lengths
from bertwright.models.heads import TaskBatch
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.tasks.classification import Classification
from bertwright.tasks.text_task import TextExample
from bertwright.training.fit import TrainingSpec
from bertwright.vocabulary.sequence_layout import SequenceLayout
from toys import check_resumes_to_the_bit, task_spec

WORDS = ["<start>", "$", "<extract>", *"cat dog sees hears a the".split()]


class WordTokenizer:
    """Words of a list; start, delimiter and extract tokens as in GPT, and no segment types."""

    layout = SequenceLayout(first=0, between=1, last=2, has_types=False)

    def encode_raw(self, texts: Sequence[str]) -> Ragged:
        ids = [[WORDS.index(word) for word in text.split()] for text in texts]
        return Ragged(np.array([*chain(*ids)], dtype=np.uint32), offsets_from_lengths(np.array([*map(len, ids)])))


RNG = np.random.default_rng(0)
SENTENCES = [" ".join(RNG.choice(WORDS[3:], RNG.integers(1, 5))) for _ in range(48)]
PAIRS = [TextExample(a, b, "yes" if "cat" in a + b else "no", "toy") for a, b in pairwise(SENTENCES)]
TASK = Classification(text_pair="pair", labels=("no", "yes"))


def make_spec() -> TrainingSpec[TaskBatch]:
    shape = {"type_vocab_size": 1, "is_causal": True, "hidden_dropout": 0.0, "initializer_range": 0.2}
    config = BertConfig(len(WORDS), 32, 1, 2, 64, 16, **shape)
    model = EncoderForTask(BertEncoder(config, seed=1), TASK.head, seed=1)
    return task_spec(TASK, model, TASK.encode(PAIRS, WordTokenizer()))  # type: ignore[arg-type]


def test_pairs_are_laid_out_as_in_gpt() -> None:
    encoded = TASK.encode([TextExample("the cat", "sees", "yes", "toy")], WordTokenizer())  # type: ignore[arg-type]
    assert [WORDS[token] for token in encoded.input_ids] == ["<start>", "the", "cat", "$", "sees", "<extract>"]
    assert encoded.token_type_ids is None


def test_a_causal_classifier_reads_the_extract_token_and_resumes_to_the_bit(tmp_path: Path) -> None:
    spec = check_resumes_to_the_bit(make_spec, tmp_path)
    model = spec.model.eval()
    batches = next(spec.batches(0))
    correct = [(model.predict_batch(batch).argmax(1) == batch.labels).tolist() for batch in batches]
    assert np.mean([*chain(*correct)]) > 0.8
