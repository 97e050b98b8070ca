"""The encoder of words and characters against loops, alone and in batches, and the head of sentences and pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bertwright.base.settings import from_table
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.kernels.dropout import Dropout
from bertwright.models import distinct_words
from bertwright.models.distinct_words import DistinctWords
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import Packing, WordBatch
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bilstm.bilstm import BiLSTMConfig, BiLSTMEncoder
from bertwright.systems.registry import word_models
from bertwright.systems.word_encoder import SentenceHead
from bertwright.tasks.classification import Classification
from bertwright.tasks.collation import collate, micro_batches
from bertwright.tasks.text_task import TextExample
from bertwright.tasks.unknown_rates import InputCounts
from bertwright.vocabulary.word_tokenizer import WordRules, WordTokenizer

TEXTS = ["The cat saw Rome", "a", "the dog saw a cat , and a cat saw the dog", "", "Rome saw the unfathomable cat"]
TOKENIZER = WordTokenizer.learn(TEXTS, WordRules(max_characters=8))
CONFIG = BiLSTMConfig(
    TOKENIZER.vocab_size, TOKENIZER.num_characters, word_size=6, char_size=4, char_features=4, lstm_size=5,
    num_layers=2, classifier_size=7,
)  # fmt: skip


def batch_of(texts: list[str]) -> WordBatch:
    encoded = TOKENIZER.encode_ids(texts)
    return WordBatch(Packing.of(np.diff(encoded.offsets)), torch.from_numpy(encoded.ids.astype(np.int64)))


def loop_features(encoder: BiLSTMEncoder, row: Tensor) -> Tensor:
    """Compute the character CNN of one word, filter by filter, over the word with two zero vectors at either end."""
    characters = encoder.embeddings.characters
    assert characters is not None
    letters = [characters.embedding.weight[c] for c in row[row > 0]]
    nothing = torch.zeros(CONFIG.char_size)
    padded = [nothing, nothing, *letters, nothing, nothing]
    windows = [torch.cat(padded[n : n + 3]) for n in range(len(padded) - 2)]
    return torch.stack([characters.filters(window) for window in windows]).max(0).values.tanh()


def test_character_cnn_equals_a_loop_and_rows_of_special_tokens_are_zero() -> None:
    encoder, batch = BiLSTMEncoder(CONFIG).eval(), batch_of(TEXTS)
    words, states = encoder.hidden_states(batch, [0, 2])
    for row, vector, state in zip(batch.rows, words, states, strict=True):
        if row[0] < 2:
            assert not vector.any()
            assert not state.any()
        else:
            expected = torch.cat([encoder.embeddings.word.weight[row[0]], loop_features(encoder, row[1:])])
            torch.testing.assert_close(vector, expected)


@pytest.mark.parametrize("char_model", ["cnn", "lstm", "none"])
def test_states_do_not_depend_on_the_batch(char_model: str) -> None:
    encoder = BiLSTMEncoder(replace(CONFIG, char_model=char_model)).eval()  # type: ignore[arg-type]
    states = encoder(batch_of(TEXTS)).split(batch_of(TEXTS).packing.lengths.tolist())
    for text, together in zip(TEXTS, states, strict=True):
        torch.testing.assert_close(encoder(batch_of([text])), together)


def test_states_at_positions_are_rows_of_all_states() -> None:
    encoder, positions = BiLSTMEncoder(CONFIG).eval(), torch.tensor([1, 4, 7])
    torch.testing.assert_close(encoder(batch_of(TEXTS), positions), encoder(batch_of(TEXTS))[positions])


def test_character_lstm_is_run_once_for_each_distinct_word() -> None:
    encoder = BiLSTMEncoder(replace(CONFIG, char_model="lstm")).eval()
    seen = list[int]()
    characters = encoder.embeddings.characters
    assert characters is not None
    characters.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    encoder(batch_of(["a cat saw a cat", "a Cat saw the cat"]))
    assert seen == [5]  # a, cat, saw, Cat, the


def test_words_with_equal_hashes_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    characters = batch_of(TEXTS).rows[:, 1:]
    monkeypatch.setattr(distinct_words, "HASH_MULTIPLIER", 0)
    distinct = DistinctWords.of(characters)
    width = distinct.rows.shape[1]
    assert torch.equal(distinct.rows[distinct.words], characters[:, :width])
    assert not characters[:, width:].any()


def test_a_word_has_one_dropout_mask_in_the_whole_step() -> None:
    encoder = BiLSTMEncoder(CONFIG).train()
    drop = Dropout(0.5, seed=3)
    alone = encoder.embeddings(batch_of(["cat"]).rows[1:2], drop, sparse=False)
    moved = encoder.embeddings(batch_of(["the dog saw a cat"]).rows[5:6], drop._replace(first_token=99), sparse=False)
    torch.testing.assert_close(alone, moved)


def test_losses_do_not_depend_on_micro_batches() -> None:
    task = Classification(labels=("no", "yes"))
    examples = [TextExample(text, None, "yes" if "cat" in text else "no", "") for text in TEXTS]
    encoded = task.encode(examples, TOKENIZER)
    model = EncoderForTask(BiLSTMEncoder(CONFIG), task.head, seed=1).train()

    def loss(max_tokens: int) -> float:
        batches = micro_batches(encoded, 0, batch_size=5, seed=0, max_tokens=max_tokens)
        return sum(float(task.loss(model(batch), batch).detach()) for batch in batches)

    assert loss(max_tokens=8) == pytest.approx(loss(max_tokens=1000), rel=1e-5)


def test_pairs_are_compared_by_their_maxima() -> None:
    task = Classification(labels=("no", "yes"), text_pair="pair")
    examples = [TextExample(a, b, "no", "") for a, b in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True)]
    encoded = task.encode(examples, TOKENIZER)
    batch = collate(encoded, np.arange(len(examples)))
    encoder = BiLSTMEncoder(replace(CONFIG, texts=2)).eval()
    model = EncoderForTask(encoder, task.head, seed=1).eval()
    assert isinstance(model.head, SentenceHead)

    def vector(text: str) -> Tensor:
        return encoder(batch_of([text]))[1:-1].max(0).values if text else torch.zeros(CONFIG.hidden_size)

    for example, logits in zip(examples, model(batch), strict=True):
        u, v = vector(example.text), vector(example.text_pair or "")
        hidden = torch.tanh(model.head.dense(torch.cat([u, v, (u - v).abs(), u * v])))
        torch.testing.assert_close(logits, model.head.classifier(hidden))


def test_a_model_of_single_texts_rejects_pairs() -> None:
    head = SentenceHead(HeadSpec("sequence", 2), CONFIG, CONFIG.hidden_size)
    task = Classification(labels=("no", "yes"), text_pair="pair")
    batch = collate(task.encode([TextExample("a cat", "the dog", "no", "")], TOKENIZER), np.arange(1))
    assert isinstance(batch, TaskBatch)
    with pytest.raises(ValueError, match=r"texts = 1: .* got 2; .*--architecture"):
        head(torch.zeros(batch.packing.num_tokens, CONFIG.hidden_size), batch, None)


def test_first_weights_are_functions_of_seed_and_name() -> None:
    encoder = BiLSTMEncoder(CONFIG, seed=1)
    other = BiLSTMEncoder(replace(CONFIG, num_layers=1, char_model="none"), seed=1)
    for name, parameter in other.named_parameters():
        if not name.startswith("layers."):
            assert torch.equal(parameter, dict(encoder.named_parameters())[name])
    assert float(encoder.embeddings.word.weight.detach().abs().max()) <= (3 / CONFIG.word_size) ** 0.5
    bias = encoder.layers[0].get_parameter("bias_ih_l0")
    assert bias.tolist() == [0.0] * 5 + [1.0] * 5 + [0.0] * 10  # only the forget gate is open
    assert not torch.equal(BiLSTMEncoder(CONFIG, seed=2).embeddings.word.weight, encoder.embeddings.word.weight)


def test_an_unknown_word_of_the_strategy_random_determines_its_vector() -> None:
    tokenizer = WordTokenizer.learn(TEXTS, WordRules(max_characters=8, unknown_words="random"))
    task = Classification(labels=("no", "yes"), text_pair="pair")
    examples = [TextExample("zebra saw Oslo", "the zebra", "no", ""), TextExample("Oslo", "a cat", "no", "")]
    encoded = task.encode(examples, tokenizer)
    assert InputCounts.count(2, encoded, tokenizer).words == 8
    encoder = BiLSTMEncoder(replace(CONFIG, char_model="none", texts=2)).eval()
    vectors = encoder.hidden_states(collate(encoded, np.arange(2)).input, [0])[0]
    zebra, saw, oslo, again, oslo_again = vectors[[1, 2, 3, 6, 9]]
    assert torch.equal(zebra, again)
    assert torch.equal(oslo, oslo_again)
    assert not torch.equal(zebra, oslo)
    assert torch.equal(saw, encoder.embeddings.word.weight[tokenizer.id("saw")])


def test_vectors_of_a_file_start_the_table_and_serve_unknown_words(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("cat 1 2\nzebra 3 4\n1996 5 6\n", encoding="utf-8")
    settings = from_table(
        FinetuneSettings,
        {
            "run": "run",
            "task": {"task": "classification"},
            "architecture": "bilstm",
            "words": {"vectors": str(path), "unknown_words": "pretrained", "freeze_vectors": True},
        },
        "",
    )
    examples = [TextExample("a cat", None, "yes", ""), TextExample("in 1996", None, "no", "")]
    model, tokenizer = word_models()["bilstm"].build(settings, Classification(labels=("no", "yes")), examples)
    table = model.encoder.get_parameter("embeddings.word.weight")
    assert not table.requires_grad
    ids = tokenizer.encode_raw(["Cat zebra 1996 a x"]).ids[:, 0].astype(np.int64)
    assert table[ids[:3]].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert ids[4] == tokenizer.unk_id
    assert tokenizer.token(int(ids[3])) == "a"
