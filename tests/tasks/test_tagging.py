"""Tagging: windows (property), encodings and scores (hand-worked), and a small model that learns."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from bertwright.interop.head_config import HeadRecord
from bertwright.models.head_spec import HeadSpec
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import pack
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.tables.tag_example import TagExample
from bertwright.tables.tag_schemes import find_invalid_tag, find_spans, spell, to_canonical_scheme
from bertwright.tables.tagged_sentences import with_document_context
from bertwright.tasks.collation import collate
from bertwright.tasks.prediction import predict_chunks, predict_logits
from bertwright.tasks.tagging import TAG_HEADS, Entity, Tagging, TagPrediction
from bertwright.tasks.unknown_rates import InputCounts
from bertwright.vocabulary.wordpiece_tokenizer import SPECIAL_TOKENS, Tokenizer
from helpers import PUBLISHED, SAMPLES, needs_data, uncased_vocabulary

TOKENIZER = Tokenizer.from_tokens(
    [*SPECIAL_TOKENS, *"abcdefgh.", *(f"##{letter}" for letter in "abcdefgh"), "Anna", "lives", "in", "Paris"],
    lowercase=False,
)
TASK = Tagging(scheme="iob2", labels=("O", "B-LOC", "B-PER", "I-PER"))


def tokens(ids: np.ndarray) -> str:
    return " ".join(TOKENIZER.token(int(number)) for number in ids)


def show(encoded) -> list[str]:
    """Return every window, with the tokens that the head reads in brackets."""
    found = []
    for number, (begin, end) in enumerate(zip(encoded.starts, encoded.starts[1:], strict=False)):
        names = tokens(encoded.input_ids[begin:end]).split()
        for row in encoded.positions[encoded.position_starts[number] : encoded.position_starts[number + 1]]:
            names[row] = f"<{names[row]}>"
        found.append(" ".join(names))
    return found


# Raw text


@pytest.mark.parametrize(
    ("sentence", "unit", "words"),
    [
        (["서울은", "넓다"], "word", ["서울은", "넓다", "."]),
        ([*"서울은", "넓다"], "word", ["서울은", "넓다", "."]),
        ([*"서울은넓다"], "character", [*"서울은넓다."]),
        ([*"서울은 넓다"], "character or blank", [*"서울은 넓다."]),  # as in KLUE-NER
    ],
)
def test_raw_text_is_split_as_the_training_data_are(tmp_path, sentence, unit, words):
    task = Tagging().with_labels_of([TagExample(tuple(sentence), ("B-LC", *["O"] * (len(sentence) - 1)))])
    assert task.unit == unit
    (tmp_path / "a.jsonl").write_text(json.dumps({"words": "서울은 넓다."}))
    (read,) = task.read(str(tmp_path / "a.jsonl"), labeled=False)
    (given,) = task.examples_from_texts(["서울은 넓다."], "here")
    assert list(read.words) == list(given.words) == words
    assert ["서울은 넓다."[begin:end] for begin, end in given.offsets] == words
    assert TagExample(("서울은",)).split_into(task.unit).words == ("서울은",)  # words that were given stay whole


def test_entity_of_a_character_model_ends_before_the_particle():
    task = Tagging(labels=("O", "B-LC", "I-LC"), scheme="iob2", unit="character or blank")
    (example,) = task.examples_from_texts(["나는 서울에서 산다."], "here")
    outputs = np.eye(3, dtype=np.float32)[[0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0]]
    (prediction,) = task.decode([example], task.encode([example], TOKENIZER, labeled=False), outputs)
    (entity,) = prediction.entities
    assert entity[:4] == ("LC", "서울", 3, 5)


def test_words_without_tokens_are_not_counted_as_the_vocabulary_s_unknown_words():
    task = Tagging(labels=("O",), scheme="none", unit="character or blank")
    encoded = task.encode([TagExample((*"a b", "?")), TagExample((" ", "\u200b", "b"))], TOKENIZER, labeled=False)
    assert show(encoded) == ["[CLS] <a> <[UNK]> <b> <[UNK]> [SEP]", "[CLS] <[UNK]> <[UNK]> <b> [SEP]"]
    assert InputCounts.count(2, encoded, TOKENIZER) == InputCounts(2, 0, words=4, tokens=4, unknown=1)


# Dialects of tags


@pytest.mark.parametrize(
    "tags",
    [
        ("B-PER", "I-PER", "0", "B-LOC"),
        ("B-PER", "I-PER", "o", "B-LOC"),
        ("b-PER", "i-PER", "O", "b-LOC"),
        ("B_PER", "I_PER", "_", "B_LOC"),
        ("PER-B", "PER-I", "-", "LOC-B"),
        ("PER_b", "PER_i", "o", "LOC_b"),
    ],
)
def test_dialects_of_tags_are_learned_as_iob2(tags):
    example = TagExample(("Anna", "B", "in", "Paris"), tags)
    task = Tagging().with_labels_of([example])
    assert (task.scheme, task.labels, task.metric) == ("iob2", TASK.labels, "f1")
    assert task.encode([example], TOKENIZER).labels.tolist() == [2, 3, 0, 1]
    assert task.warnings([example]) == []
    perfect = task._predict(example, ("B-PER", "I-PER", "O", "B-LOC"), (1.0,) * 4)
    assert set(task.score([example], [perfect]).values()) == {1.0}


def test_bmes_is_learned_as_bioes():
    example = TagExample(tuple("abcd"), ("B_X", "M_X", "E_X", "S_Y"))
    task = Tagging().with_labels_of([example, TagExample(("a",), ("O",))])
    assert (task.scheme, task.labels) == ("bioes", ("O", "B-X", "E-X", "I-X", "S-Y"))


@pytest.mark.parametrize(
    ("tags", "shown"),
    [
        (("PER", "O", "O", "O"), "PER"),
        (("PER", "0", "0", "0"), "PER"),
        (("B-PER", "I-PER", "PER", "B-LOC"), "B-LOC, B-PER, I-PER"),
        (("NOUN", "VERB", "DET", "NOUN"), None),
    ],
)
def test_classes_that_look_like_entities_are_noticed(tags, shown):
    example = TagExample(("a", "b", "c", "d"), tags)
    task = Tagging().with_labels_of([example])
    assert task.scheme == "none"
    notes = task.warnings([example])
    assert [note.partition(" look like entities")[0] for note in notes] == ([f"tags such as {shown}"] if shown else [])


def test_labels_of_a_foreign_model_in_another_dialect_spell_spans():
    record = HeadRecord(HeadSpec("token", 3), ("0", "B_PER", "I_PER"), False)
    task = Tagging.from_head(record, 512)
    assert (task.scheme, task.labels) == ("iob1", ("O", "B-PER", "I-PER"))  # I- may begin a span


def test_blank_cells_at_the_ends_of_lines_are_ignored_and_counted(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("# doc 1\n1\tAnna\tB-PER\tO\n2\tin\tO\tO\t\n\n1\tGraz\tB-LOC\tO\t \n")
    with pytest.warns(UserWarning, match=r"a\.tsv: 2 lines end in blank cells"):
        found = list(Tagging(words="2", tags="3").read(str(path)))
    assert [(one.words, one.tags) for one in found] == [(("Anna", "in"), ("B-PER", "O")), (("Graz",), ("B-LOC",))]


# Encoding


def test_sentence_is_a_window_and_the_first_token_of_a_word_has_its_tag():
    examples = [TagExample(("Anna", "ab", "\x00", "in"), ("B-PER", "I-PER", "O", "B-LOC")), TagExample(("a",), ("O",))]
    encoded = TASK.encode(examples, TOKENIZER)
    assert show(encoded) == ["[CLS] <Anna> <a> ##b <[UNK]> <in> [SEP]", "[CLS] <a> [SEP]"]
    assert encoded.labels.tolist() == [2, 3, 0, 1, 0]
    assert (encoded.example_ids.tolist(), encoded.position_counts.tolist(), encoded.label_counts.tolist()) == (
        [0, 1],
        [4, 1],
        [4, 1],
    )
    assert encoded.token_type_ids.tolist() == [0] * 10
    batch = collate(encoded, np.array([1, 0]))
    assert batch.positions.tolist() == [1, 4, 5, 7, 8]
    assert batch.labels.tolist() == [0, 2, 3, 0, 1]
    unlabeled = TASK.encode(examples, TOKENIZER, labeled=False)
    assert (unlabeled.labels.tolist(), unlabeled.label_counts.tolist()) == ([], [0, 0])


def test_long_sentence_is_split_between_words_into_overlapping_windows():
    encoded = replace(TASK, max_length=10).encode([TagExample(tuple("abcdefgh.abcd"))], TOKENIZER, labeled=False)
    assert show(encoded) == [
        "[CLS] <a> <b> <c> <d> <e> <f> g h [SEP]",
        "[CLS] f <g> <h> <.> <a> <b> <c> d [SEP]",
        "[CLS] f g h . a b c <d> [SEP]",
    ]
    assert (encoded.example_ids.tolist(), encoded.truncated) == ([0, 0, 0], 0)


def test_word_longer_than_the_window_is_truncated_and_counted():
    example = TagExample(("a", "abcdefghab", "b"), ("O", "B-PER", "O"))
    encoded = replace(TASK, max_length=8).encode([example, example, TagExample(("a",), ("O",))], TOKENIZER)
    assert show(encoded)[:3] == ["[CLS] <a> [SEP]", "[CLS] <a> ##b ##c ##d ##e ##f [SEP]", "[CLS] <b> [SEP]"]
    assert encoded.labels.tolist() == [0, 2, 0, 0, 2, 0, 0]
    assert encoded.truncated == 2


def test_document_context_fills_the_window_from_both_sides(tmp_path):
    path = tmp_path / "a.conll"
    sentences = ["a b", "Anna lives in", "cde", "f g h", "-DOCSTART-", "Paris"]
    path.write_text("\n\n".join("\n".join(f"{word} O" for word in one.split()) for one in sentences))
    expected = {
        7: [
            "[CLS] <a> <b> Anna lives in [SEP]",
            "[CLS] a b <Anna> <lives> <in> [SEP]",  # cde is three tokens, and words are not split
            "[CLS] in <c> ##d ##e f [SEP]",
            "[CLS] <f> <g> <h> [SEP]",
            "[CLS] <Paris> [SEP]",  # another document
        ],
        12: [
            "[CLS] <a> <b> Anna lives in c ##d ##e f g [SEP]",
            "[CLS] a b <Anna> <lives> <in> c ##d ##e f g [SEP]",
            "[CLS] b Anna lives in <c> ##d ##e f g h [SEP]",
            "[CLS] b Anna lives in c ##d ##e <f> <g> <h> [SEP]",
            "[CLS] <Paris> [SEP]",
        ],
    }
    for max_length, windows in expected.items():
        task = replace(TASK, context=True, max_length=max_length)
        encoded = task.encode(list(task.read(str(path))), TOKENIZER)
        assert show(encoded) == windows
        assert len(encoded.labels) == 10
    alone = TASK.encode(list(TASK.read(str(path))), TOKENIZER)
    assert show(alone)[1:3] == ["[CLS] <Anna> <lives> <in> [SEP]", "[CLS] <c> ##d ##e [SEP]"]


WORDS = st.text("abcdefgh.", max_size=9) | st.sampled_from(["Paris", "\x00", "語", "a" * 120])
SENTENCES = st.lists(st.tuples(st.lists(WORDS, max_size=9), st.booleans()), max_size=8)


@settings(max_examples=150)
@given(sentences=SENTENCES, max_length=st.integers(3, 20), context=st.booleans())
def test_every_word_is_read_once_in_consecutive_windows(sentences, max_length, context):
    document, examples = 0, []
    for words, new in sentences:
        document += new
        examples.append(TagExample(tuple(words), document=document))
    given_examples = list(with_document_context(examples, max_length - 2)) if context else examples
    encoded = replace(TASK, max_length=max_length).encode(given_examples, TOKENIZER, labeled=False)

    def word_tokens(words):
        return [(TOKENIZER.encode_raw([word])[0].tolist() or [TOKENIZER.unk_id])[: max_length - 2] for word in words]

    def flat(lists):
        return list(chain.from_iterable(lists))

    assert encoded.position_counts.all()
    assert encoded.lengths.max(initial=0) <= max_length
    assert (np.diff(encoded.example_ids) >= 0).all()
    read: list[list[int]] = [[] for _ in examples]
    for number, owner in enumerate(encoded.example_ids):
        ids = encoded.input_ids[encoded.starts[number] : encoded.starts[number + 1]].tolist()
        rows = encoded.positions[encoded.position_starts[number] : encoded.position_starts[number + 1]].tolist()
        assert (ids[0], ids[-1]) == (TOKENIZER.cls_id, TOKENIZER.sep_id)
        assert rows == sorted(set(rows))
        example = given_examples[owner]
        first = len(read[owner])
        read[owner] += [ids[row] for row in rows]
        # The window is a range of whole words of the sentence and its context; its positions are those of its words.
        around = [flat(side) for side in (example.before, example.after)]
        own = word_tokens(example.words)
        before, after = word_tokens(around[0]) + own[:first], own[first + len(rows) :] + word_tokens(around[1])
        tagged = flat(own[first : first + len(rows)])
        left, right = ids[1 : rows[0]], ids[rows[0] + len(tagged) : -1]
        assert ids[rows[0] : rows[0] + len(tagged)] == tagged
        assert rows == [rows[0] + sum(map(len, own[first : first + count])) for count in range(len(rows))]
        begin = [flat(before[count:]) for count in range(len(before) + 1)].index(left)
        end = [flat(after[:count]) for count in range(len(after) + 1)].index(right)
        # The range is maximal: no further word would fit.
        assert all(
            len(ids) + len(word) > max_length for word in before[max(begin - 1, 0) : begin] + after[end : end + 1]
        )
    assert read == [[word[0] for word in word_tokens(example.words)] for example in examples]
    holders = [
        one for one in examples if any(len(TOKENIZER.encode_raw([word])[0]) > max_length - 2 for word in one.words)
    ]
    assert encoded.truncated == len(holders)


# Predictions


def model(task: Tagging) -> EncoderForTask:
    config = BertConfig(
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        intermediate_size=64,
        max_positions=64,
        initializer_range=0.2,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    return EncoderForTask(BertEncoder(config, seed=1), task.head, seed=1)


@settings(max_examples=15)
@given(sentences=st.lists(st.lists(st.text("abcdefgh.", min_size=1, max_size=4), min_size=1, max_size=9), max_size=6))
def test_predictions_do_not_depend_on_the_batch(sentences):
    network = model(TASK).eval()
    examples = [TagExample(tuple(words)) for words in sentences]
    predictions = [one for chunk in predict_chunks(network, TASK, TOKENIZER, examples) for one in chunk.predictions]
    assert len(predictions) == len(sentences)
    for words, prediction in zip(sentences, predictions, strict=True):
        ids, rows = [TOKENIZER.cls_id], []
        for word in words:
            rows.append(len(ids))
            ids += TOKENIZER.encode_raw([word])[0].tolist()
        with torch.no_grad():
            logits = network(TaskBatch(pack([np.array([*ids, TOKENIZER.sep_id])]), torch.tensor(rows)))
        likely, best = logits.softmax(1).max(1)
        assert prediction.words == tuple(words)
        spans = find_spans([TASK.labels[number] for number in best])
        assert prediction.tags == spell(spans, len(words), "iob2")
        np.testing.assert_allclose(prediction.probabilities, likely.numpy(), rtol=1e-4)


def logits_for(tags: list[str], share: float = 0.5) -> np.ndarray:
    """Return outputs that give each tag this probability, and share the rest equally among the others."""
    rest = (1 - share) / (len(TASK.labels) - 1)
    return np.log(np.array([[share if tag == label else rest for label in TASK.labels] for tag in tags], np.float32))


def decode(examples: list[TagExample], tags: list[str], task: Tagging = TASK) -> list[TagPrediction]:
    return task.decode(examples, task.encode(examples, TOKENIZER, labeled=False), logits_for(tags))


def test_entities_have_word_indices_and_character_offsets():
    words = TagExample(("Anna", "B.", "lives", "in", "Paris"))
    text = TagExample.from_text("  Anna B lives\nin Paris.")
    tags = ["B-PER", "I-PER", "O", "O", "B-LOC"]
    from_words, from_text, nothing = decode([words, text, TagExample(())], [*tags, *tags, "O"])
    assert from_words.tags == tuple(tags)
    assert from_words.probabilities == pytest.approx([0.5] * 5)
    assert from_words.entities == (
        Entity("PER", "Anna B.", 0, 7, pytest.approx(0.25)),
        Entity("LOC", "Paris", 17, 22, pytest.approx(0.5)),
    )
    assert [(one.text, one.start, one.end) for one in from_text.entities] == [("Anna B", 2, 8), ("Paris", 18, 23)]
    assert nothing == TagPrediction((), (), (), ())


def test_ill_formed_predictions_are_decoded_as_they_are_scored():
    (found,) = decode([TagExample(("Anna", "in", "Paris"))], ["I-PER", "B-LOC", "I-PER"])
    assert found.tags == ("B-PER", "B-LOC", "B-PER")  # valid IOB2
    assert [(one.label, one.text) for one in found.entities] == [("PER", "Anna"), ("LOC", "in"), ("PER", "Paris")]


@given(tags=st.lists(st.sampled_from(["O", "B-X", "I-X", "E-X", "S-X", "I-Y", "E-Y", "B", "I"]), min_size=1))
def test_spelled_tags_are_valid_and_have_the_same_spans(tags):
    for scheme in ("iob2", "bioes"):
        valid = spell(find_spans(tags), len(tags), scheme)
        assert find_spans(valid) == find_spans(tags)
        assert find_invalid_tag(valid, scheme) is None


@settings(max_examples=60)
@given(text=st.text() | st.text("Ana Bo.-’s\n"), data=st.data())
def test_every_entity_is_a_slice_of_the_text(text, data):
    example = TagExample.from_text(text)
    count = len(example.words)
    tags = data.draw(st.lists(st.sampled_from(TASK.labels), min_size=count, max_size=count))
    if not tags:
        return
    (found,) = decode([example], tags)
    assert all(text[one.start : one.end] == one.text for one in found.entities)
    assert (found.entities == ()) == (set(tags) == {"O"})


def test_plain_classes_have_no_entities():
    task = Tagging(scheme="none", labels=TASK.labels)
    (found,) = decode([TagExample(("Anna",))], ["B-PER"], task)
    assert (found.tags, found.entities) == (("B-PER",), ())


def test_record_is_plain_and_has_the_same_columns_for_every_example():
    examples = [TagExample(("Anna",)), TagExample(())]
    records = [TASK.to_record(*pair) for pair in zip(examples, decode(examples, ["B-PER"]), strict=True)]
    assert json.loads(json.dumps(records[0])) == {
        "words": ["Anna"],
        "tags": ["B-PER"],
        "probabilities": [pytest.approx(0.5)],
        "entities": [{"label": "PER", "text": "Anna", "start": 0, "end": 4, "probability": pytest.approx(0.5)}],
    }
    assert records[0].keys() == records[1].keys()


# Loss and score


def test_loss_is_the_sum_over_words():
    examples = [TagExample(("Anna", "in"), ("B-PER", "O")), TagExample(("Paris",), ("B-LOC",))]
    batch = collate(TASK.encode(examples, TOKENIZER), np.array([1, 0]))
    logits = torch.from_numpy(logits_for(["B-LOC", "O", "O"]))
    assert TASK.loss(logits, batch).item() == pytest.approx(-math.log(0.5) - math.log(0.5 / 3) - math.log(0.5))
    smoothed = F.cross_entropy(logits, batch.labels, label_smoothing=0.1).item()
    assert TASK.loss(logits, batch, smoothing=0.1).item() == pytest.approx(smoothed * 3)


def test_scores_hand_worked():
    examples = [TagExample(("Anna", "B", "in", "Paris"), ("I-PER", "I-PER", "O", "I-LOC")), TagExample((), ())]
    predictions = decode(examples, ["B-PER", "I-PER", "O", "O"])
    assert replace(TASK, scheme="iob1").score(examples, predictions) == {
        "f1": pytest.approx(2 / 3),
        "precision": 1.0,
        "recall": 0.5,
        "accuracy": 0.75,
    }
    assert replace(TASK, scheme="none").score(examples, predictions) == {"accuracy": 0.5}


def test_iob1_predictions_are_scored_by_the_spans_they_spell():
    examples = [TagExample(("Anna", "B", "Cd", "in"), ("I-PER", "I-PER", "B-PER", "O"))]
    task = Tagging(scheme="iob1", labels=("O", "I-PER", "B-PER"))
    for tags in (("I-PER", "I-PER", "B-PER", "O"), ("B-PER", "I-PER", "B-PER", "O")):
        assert set(task.score(examples, decode(examples, tags)).values()) == {1.0}
    worse = task.score(examples, decode(examples, ("I-PER", "I-PER", "I-PER", "O")))
    assert (worse["accuracy"], worse["f1"]) == (0.75, 0.0)
    two = Tagging(scheme="iob2", labels=("O", "B-PER", "I-PER"))  # I- begins no span there: it is written as B-
    assert two.score(examples, decode(examples, ("I-PER", "I-PER", "B-PER", "O")))["accuracy"] == 1.0


def test_small_model_learns_tags_and_tags_a_long_text():
    # A word has the same tag everywhere, so that a model that has learned the tags can name each word's.
    words, tags = ("Anna", "lives", "in", "Paris"), ("B-PER", "O", "O", "B-LOC")
    turned = [TagExample(words[first:] + words[:first], tags[first:] + tags[:first]) for first in range(4)]
    examples = [TagExample(3 * one.words, 3 * one.tags) for one in turned]
    task = Tagging(max_length=16).with_labels_of(examples)
    network = model(task)
    encoded = task.encode(examples, TOKENIZER)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(60):
        batch = collate(encoded, np.arange(encoded.num_items))
        optimizer.zero_grad()
        (task.loss(network(batch), batch) / batch.num_labels).backward()
        optimizer.step()
    network.eval()
    assert task.score(examples, task.decode(examples, encoded, predict_logits(network, encoded)))["f1"] == 1.0
    text = "Anna lives in Paris " * 30
    (found,) = next(predict_chunks(network, task, TOKENIZER, [TagExample.from_text(text)])).predictions
    assert list(found.words) == text.split()
    assert {one.text for one in found.entities if one.label == "LOC"} == {"Paris"}


# Settings, labels, misuse


def make_labeled(*tags: str) -> TagExample:
    return TagExample(tuple(f"w{number}" for number in range(len(tags))), tags, "a.conll", range(5, 5 + len(tags)))


@pytest.mark.parametrize(
    ("task", "sequences", "scheme", "labels", "metric"),
    [
        (Tagging(), [("I-B", "I-A", "O"), ("I-A", "B-A")], "iob1", ("O", "B-A", "B-B"), "f1"),
        (Tagging(), [("B-A", "I-A", "O")], "iob2", ("O", "B-A", "I-A"), "f1"),
        (Tagging(), [("B-A", "L-A", "U-A")], "bioes", ("B-A", "E-A", "S-A"), "f1"),
        (Tagging(), [("VERB", "NOUN", "O")], "none", ("O", "NOUN", "VERB"), "accuracy"),
        (Tagging(scheme="none"), [("B-A", "O")], "none", ("O", "B-A"), "accuracy"),
        (Tagging(metric="accuracy"), [("B-A", "O")], "iob2", ("O", "B-A"), "accuracy"),
        (Tagging(scheme="iob1"), [("B-A", "O")], "iob1", ("O", "B-A"), "f1"),
        (Tagging(), [("B", "I", "O"), ("O", "B", "B")], "iob2", ("O", "B", "I"), "f1"),
        (Tagging(), [("I", "I", "O")], "iob1", ("O", "B", "I"), "f1"),
    ],
)
def test_scheme_labels_and_metric_follow_from_the_training_tags(task, sequences, scheme, labels, metric):
    examples = [make_labeled(*tags) for tags in sequences]
    fitted = task.with_labels_of(examples)
    assert (fitted.scheme, fitted.labels, fitted.metric) == (scheme, labels, metric)
    assert fitted.head == ("token", len(labels))
    assert fitted.label_names == labels
    assert fitted.with_labels_of(examples) == fitted
    assert fitted.metric in fitted.score(
        examples, [TagPrediction(one.words, to_canonical_scheme(one.tags, scheme), (), ()) for one in examples]
    )


@pytest.mark.parametrize(
    ("task", "sequences", "message"),
    [
        (
            Tagging(),
            [("B-A", "O"), ("O", "X-A")],
            "a.conll, line 6: tag 'X-A' of 'w1': expected a tag of iob2: O, B-…, I-…",
        ),
        (Tagging(), [("B-A", "PER", "O")], "a.conll, line 6: tag 'PER' of 'w1': expected a tag of iob2"),
        (Tagging(scheme="iob2"), [("O", "O", "I-A")], "a.conll, line 7: tag 'I-A' of 'w2': a span of iob2 begins with"),
        (Tagging(scheme="bioes"), [("O", "NN")], "a.conll, line 6: tag 'NN' of 'w1': expected a tag of bioes"),
        (Tagging(), [("B-A", "O"), ("O", "B")], "a.conll, line 6: tag 'B' of 'w1': it has no type"),
        (Tagging(), [("O", "O")], "a.conll, line 5: all words have the tag 'O'; at least two are needed"),
        (Tagging(), [], "no sentences to learn from"),
    ],
)
def test_invalid_training_tags_are_rejected(task, sequences, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        task.with_labels_of([make_labeled(*tags) for tags in sequences])


def test_unknown_tag_is_rejected_with_its_location():
    message = (
        "a.conll, line 6: tag 'I-ORG' of 'w1': it is unknown; the tags of the training data are O, B-LOC, B-PER, I-PER"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        TASK.encode([make_labeled("O", "O"), make_labeled("B-LOC", "I-ORG")], TOKENIZER)
    with pytest.raises(ValueError, match=re.escape(message)):
        TASK.check([make_labeled("O", "O"), make_labeled("B-LOC", "I-ORG")])
    with pytest.raises(ValueError, match="tag 'S-LOC' of 'w0': it is unknown"):  # a tag of another scheme
        TASK.check([make_labeled("S-LOC", "O")])
    with pytest.raises(ValueError, match="tag 'X' of 'w1': it is unknown"):
        Tagging(scheme="none", labels=("N", "V")).check([make_labeled("N", "X")])


def test_unknown_spelling_of_a_known_type_counts_but_is_never_predicted():
    """Example: I-LST in CoNLL-2000, whose training file has B-LST only."""
    sentences = [make_labeled("B-LOC", "I-LOC"), make_labeled("O", "I-LOC"), make_labeled("B-PER", "O")]
    TASK.check(sentences)
    assert TASK.warnings(sentences) == [
        "1 word has a tag that the training data lack (I-LOC): scored, but never predicted"
    ]
    assert not TASK.warnings(sentences[2:])
    assert not Tagging(labels=("O", "I-X"), scheme="iob1").warnings(
        [make_labeled("I-X", "O"), make_labeled("B-X", "B-X")]
    )
    foreign = Tagging(labels=("O", "B-PER", "I-PER", "X"), scheme="iob1")  # as in a folder of the hub; X is in no span
    with pytest.raises(ValueError, match="tag 'B' of 'w0'"):
        foreign.check([make_labeled("B", "O")])
    encoded = TASK.encode(sentences, TOKENIZER)
    logits = torch.randn(len(encoded.positions), len(TASK.labels))
    known = [number for number, target in enumerate(encoded.labels) if target >= 0]
    assert len(known) == 5
    batch = collate(encoded, np.arange(3))
    expected = torch.nn.functional.cross_entropy(logits[known], batch.labels[known], reduction="sum")
    torch.testing.assert_close(TASK.loss(logits, batch), expected)
    found = [TagPrediction(one.words, tags, (1.0,) * 2, ()) for one, tags in
             zip(sentences, [("B-LOC", "O"), ("O", "B-LOC"), ("B-PER", "O")], strict=True)]  # fmt: skip
    scores = TASK.score(sentences, found)
    assert (scores["precision"], scores["recall"], scores["accuracy"]) == (2 / 3, 2 / 3, 5 / 6)


def test_entities_of_one_type_may_have_no_type_name():
    """Example: biomedical corpora that mark diseases only: B I O."""
    task = Tagging().with_labels_of([make_labeled("B", "O")])
    assert task.labels == ("O", "B")
    sentences = [make_labeled("B", "I"), make_labeled("O", "B")]
    assert task.warnings(sentences) == ["1 word has a tag that the training data lack (I): scored, but never predicted"]
    outputs = np.array([[0, 9], [9, 0], [9, 0], [0, 9]], dtype=np.float32)
    found = task.decode(sentences, task.encode(sentences, TOKENIZER), outputs)
    assert [entity.label for tagged in found for entity in tagged.entities] == ["_", "_"]
    assert task.score(sentences, found)["f1"] == 0.5
    with pytest.raises(ValueError, match="tag 'B-X' of 'w0': it is unknown"):
        task.check([make_labeled("B-X", "O")])


def test_properties_that_depend_on_labels_raise_before_they_are_known():
    with pytest.raises(ValueError, match="labels are not known"):
        _ = Tagging().head
    with pytest.raises(ValueError, match="text 3: no tags; they are needed"):
        TASK.encode([TagExample(("a",), source="text 3")], TOKENIZER)
    with pytest.raises(ValueError, match="text 4: 2 words, but 1 tags"):
        TagExample(("a", "b"), ("O",), "text 4")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"metric": "f2"}, "metric = 'f2': known: accuracy, f1"),
        ({"scheme": "iob"}, "scheme = 'iob': did you mean \"iob2\""),
        ({"max_length": 2}, r"max_length = 2: at least 3"),
    ],
)
def test_settings_out_of_bounds_are_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        Tagging(**values)


@pytest.mark.parametrize(
    ("data", "sentences", "words"), [(SAMPLES, 20, 122), pytest.param(PUBLISHED, 3_250, 51_362, marks=needs_data)]
)
@pytest.mark.parametrize("context", [False, True])
def test_real_sentences_keep_every_word(data, sentences, words, context):
    task = Tagging(context=context, max_length=256)
    examples = list(task.read(str(data / "conll2003" / "valid.txt")))
    task = task.with_labels_of(examples)
    encoded = task.encode(examples, Tokenizer.load(uncased_vocabulary(), lowercase=True))
    assert task.labels == ("O", *(f"{prefix}-{name}" for prefix in "BI" for name in ("LOC", "MISC", "ORG", "PER")))
    assert (encoded.num_items, len(encoded.positions), len(encoded.labels), encoded.truncated) == (
        sentences,
        words,
        words,
        0,
    )
    gold = [TagPrediction(one.words, one.tags or (), (), ()) for one in examples]
    assert task.score(examples, gold) == {"f1": 1.0, "precision": 1.0, "recall": 1.0, "accuracy": 1.0}


@pytest.mark.parametrize("name", [name for name in TAG_HEADS if name != "linear"])
def test_a_tag_head_is_a_module_of_its_name(name: str) -> None:
    task = Tagging(labels=("O", "S-PER"), scheme="bioes", tag_head=name)
    encoder = SimpleNamespace(config=SimpleNamespace(hidden_size=4))
    head = task.head_builder(encoder)  # type: ignore[misc, arg-type]
    assert type(head).__module__ == f"bertwright.models.{name}"
    assert head.num_scores == len(task.labels) + 1


def test_an_unknown_tag_head_is_named() -> None:
    with pytest.raises(ValueError, match=r"tag_head = 'crff': .*crf"):
        Tagging(tag_head="crff")
