"""TSDAE: loss and gradients as in sentence-transformers, and the words that are deleted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from bertwright.interop.huggingface import start_task_model
from bertwright.tables.text_roles import TextRow
from bertwright.tasks.collation import collate
from bertwright.tasks.embedding import Embedding
from bertwright.tasks.encoded import Encoded
from bertwright.vocabulary.open_tokenizer import open_tokenizer
from bertwright.vocabulary.tokenizer import TextTokenizer
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from small_runs import LOCATIONS, NOUNS, VERBS

TEXTS = [f"the {noun} {verb} the {other} in the {place}" for noun, other, verb, place in
         zip(NOUNS, NOUNS[3:], VERBS * 2, LOCATIONS * 2, strict=False)]  # fmt: skip
OF_DECODER = {  # of transformers → ours
    "crossattention.self.value": "value",
    "crossattention.output.dense": "output",
    "crossattention.output.LayerNorm": "norm",
}


def make_reference(folder: Path) -> tuple[SentenceTransformer, losses.DenoisingAutoEncoderLoss]:
    """Return a model of sentence-transformers without dropout, and its loss."""
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "checksums.json").unlink()
    transformer = Transformer(str(folder))
    model = SentenceTransformer(
        modules=[transformer, Pooling(transformer.get_embedding_dimension(), "mean")], device="cpu"
    )
    torch.manual_seed(0)
    return model, losses.DenoisingAutoEncoderLoss(model, tie_encoder_decoder=True)


def test_loss_and_gradients_equal_sentence_transformers(one_layer_folder: Path) -> None:
    theirs, loss = make_reference(one_layer_folder)
    task = Embedding(vector_loss="tsdae").with_model(one_layer_folder)
    model = start_task_model(one_layer_folder, task.head_for(one_layer_folder), 0, dropout=0.0).model
    task.prepare_training(model, 0, None)
    decoder = loss.decoder
    states = {f"written.{name}": value for name, value in (
        ("dense.weight", decoder.cls.predictions.transform.dense.weight),
        ("dense.bias", decoder.cls.predictions.transform.dense.bias),
        ("norm.weight", decoder.cls.predictions.transform.LayerNorm.weight),
        ("norm.bias", decoder.cls.predictions.transform.LayerNorm.bias),
        ("bias", decoder.cls.predictions.bias),
    )}  # fmt: skip
    for number, layer in enumerate(decoder.bert.encoder.layer):
        for path, name in OF_DECODER.items():
            module = layer.get_submodule(path)
            states |= {f"cross.{number}.{name}.weight": module.weight, f"cross.{number}.{name}.bias": module.bias}
    model.head.load_state_dict(states)

    texts = [text.strip() for text in TEXTS]
    tokenizer = open_tokenizer(one_layer_folder)
    whole = task.encode([TextRow(text, "") for text in texts], tokenizer)
    encoded, items = task.step_input(whole, np.arange(len(texts)), step=3, seed=1)
    batch = collate(encoded, items)
    features = [theirs.preprocess(given) for given in (read_words(encoded, tokenizer), texts)]
    expected = loss.train()(features, None)
    expected.backward()
    value = task.loss(model.train()(batch), batch) / batch.num_labels
    value.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(value.detach(), expected.detach(), atol=1e-6, rtol=0)
    pairs = {
        model.encoder.embeddings.word.weight: decoder.bert.embeddings.word_embeddings.weight,  # type: ignore[attr-defined]
        model.encoder.layers[0].output.weight: decoder.bert.encoder.layer[0].output.dense.weight,  # type: ignore[attr-defined]
        model.head.cross[0].value.weight: decoder.bert.encoder.layer[0].crossattention.self.value.weight,  # type: ignore[attr-defined]
        model.head.written.dense.weight: decoder.cls.predictions.transform.dense.weight,  # type: ignore[attr-defined]
    }
    for ours, other in pairs.items():
        assert ours.grad is not None
        assert other.grad.abs().max() > 1e-4
        torch.testing.assert_close(ours.grad.to_dense(), other.grad, atol=1e-6, rtol=0)


def read_words(encoded: Encoded, tokenizer: TextTokenizer) -> list[str]:
    """Return the words that a model reads of each text."""
    parts = np.split(encoded.input_ids, encoded.starts[1:-1])
    return [" ".join(map(tokenizer.token, ids[1:-1])).replace(" ##", "") for ids in parts]


def test_six_of_ten_words_are_deleted_and_one_stays() -> None:
    words = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(200)]
    tokenizer = Tokenizer.from_tokens([*SPECIAL_TOKENS, *words, "##x"], lowercase=True)
    long, short = " ".join(f"{word}x" for word in words), "aa ab"
    task = Embedding(vector_loss="tsdae", max_length=512)
    encoded = task.encode([TextRow(text, "") for text in (long, short, "aa", "")], tokenizer)
    counts, found = [], set()
    for step in range(50):
        given, items = task.step_input(encoded, np.array([3, 0, 1, 2]), step, seed=0)
        empty, remaining, one, single = read_words(given, tokenizer)
        assert (empty, single) == ("", "aa")
        assert one in ("aa", "ab", short)
        assert remaining.split() == [word for word in long.split() if word in remaining.split()]  # whole, in order
        assert len(items) == 4
        np.testing.assert_array_equal(given.labels[: given.label_counts[0]], encoded.labels[-1:, :2])
        counts.append(len(remaining.split()))
        found.add(remaining)
    assert 0.37 < np.mean(counts) / 200 < 0.43
    assert len(found) == 50  # every step deletes others


def test_a_step_reads_the_same_words_again() -> None:
    tokenizer = Tokenizer.from_tokens([*SPECIAL_TOKENS, *"abcdefgh"], lowercase=True)
    task = Embedding(vector_loss="tsdae")
    encoded = task.encode([TextRow("a b c d e f g h", ""), TextRow("b c", "")], tokenizer)
    first, again = (task.step_input(encoded, np.array([1, 0]), step=7, seed=2)[0] for _ in range(2))
    assert read_words(first, tokenizer) == read_words(again, tokenizer)
