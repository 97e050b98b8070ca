"""`classify`, `choose`, `tag` and `answer`: equal to the network's own output, for any batch; and misuse."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import polars
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import bertwright
from bertwright.base.files import write_text
from bertwright.inference.bert import Bert
from bertwright.models.heads import TaskBatch
from bertwright.models.packing import pack
from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.systems.bert.bert_for_pretraining import BertForPretraining
from bertwright.tables.qa_example import QaExample
from bertwright.tables.tag_example import TagExample
from bertwright.tables.tag_schemes import find_spans, spell
from bertwright.tables.tagged_sentences import with_document_context
from bertwright.tasks import prediction
from bertwright.tasks.classification import Classification
from bertwright.tasks.multiple_choice import MultipleChoice
from bertwright.tasks.question_answering import QuestionAnswering
from bertwright.tasks.regression import Regression
from bertwright.tasks.tagging import Tagging
from bertwright.tasks.task import AnyTask
from bertwright.tasks.task_folder import TaskModel, write_task_folder
from bertwright.tasks.text_task import TextExample
from bertwright.training import checkpoint
from bertwright.vocabulary.wordpiece_tokenizer import SPECIAL_TOKENS, Tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:.* lose tokens")  # texts of random lengths do

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENIZER = Tokenizer.from_tokens(
    [*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), ".", "the", "cat", "sat"], lowercase=True
)
THEIRS = transformers.BertTokenizerFast(vocab={token: number for number, token in enumerate(TOKENIZER.tokens)})
TEXT = st.text(LETTERS + " .", max_size=60)


def small(task: AnyTask | None, **changes: object) -> Bert:
    """Build a model with random weights, large enough that predictions differ."""
    sizes = {"hidden_size": 24, "num_layers": 2, "num_heads": 3, "intermediate_size": 40, "max_positions": 32}
    config = BertConfig(**({"vocab_size": TOKENIZER.vocab_size, "initializer_range": 0.3} | sizes | changes))
    if task is None:
        return Bert(BertForPretraining(config, 1), TOKENIZER)
    return Bert(TaskModel(EncoderForTask(BertEncoder(config, seed=1), task.head, seed=1), task), TOKENIZER)


CLASSIFIER = small(Classification(labels=("bad", "so-so", "gut"), max_length=16))
PAIRS = small(Classification(text_pair="second", labels=("no", "yes"), max_length=16))
REGRESSION = small(Regression(max_length=16))
CHOOSER = small(MultipleChoice(max_length=16))
TAGGER = small(Tagging(labels=("O", "B-X", "I-X", "B-Y", "I-Y"), scheme="iob2", max_length=12))
ANSWERER = small(QuestionAnswering(max_length=20, doc_stride=5, max_query_length=8))
PRETRAINED = small(None)
ALL = (CLASSIFIER, PAIRS, REGRESSION, CHOOSER, TAGGER, ANSWERER, PRETRAINED)


@torch.no_grad()
def logits(bert: Bert, text: str, pair: str | None = None) -> torch.Tensor:
    """Compute the network's logits of one sequence, truncated by the tokenizer of `transformers`."""
    # In lists: transformers treats a single empty pair as no pair.
    encoding = THEIRS(
        [text], None if pair is None else [pair], truncation="longest_first", max_length=bert.task.max_length
    )
    ids, types = (np.array(encoding[name][0]) for name in ("input_ids", "token_type_ids"))
    return bert.model(TaskBatch(pack([ids], [types]), torch.tensor([0])))[0]


# ---- Predictions


def test_label_is_the_argmax_of_the_softmax_of_the_logits():
    for text in ("the cat sat.", "", "a b c d e f g h i j k l m n o p q r s t u v w x y z"):
        found = CLASSIFIER.classify(text)
        expected = logits(CLASSIFIER, text).softmax(0).tolist()
        assert list(found.probabilities) == ["bad", "so-so", "gut"]
        assert list(found.probabilities.values()) == pytest.approx(expected, abs=1e-6)
        assert found.label == max(found.probabilities, key=found.probabilities.get)


def test_pair_has_one_label_and_regression_one_number():
    found = PAIRS.classify(("the cat", "sat. " * 9))
    assert found.probabilities["yes"] == pytest.approx(
        logits(PAIRS, "the cat", "sat. " * 9).softmax(0)[1].item(), abs=1e-6
    )
    assert PAIRS.classify([["a", "b"], ("the cat", "sat. " * 9)])[1].label == found.label
    assert REGRESSION.classify("the cat") == pytest.approx(logits(REGRESSION, "the cat").item(), abs=1e-6)
    assert REGRESSION.classify(["the cat", "a"])[0] == pytest.approx(REGRESSION.classify("the cat"), abs=1e-6)


def test_sentences_of_a_document_are_tagged_in_context():
    task = replace(TAGGER.task, context=True)
    bert = Bert(TaskModel(TAGGER.model, task), TOKENIZER)
    texts = ["The cat sat.", ("bad", "cat"), "", "a b c d e f g h i j k l m n"]
    found = bert.tag(texts, document=True)
    sentences = [TagExample(one.words) for one in bert.tag(texts)]
    assert (
        found[1]
        == next(
            prediction.predict_chunks(bert.model, task, TOKENIZER, list(with_document_context(sentences, 10)))
        ).predictions[1]
    )
    assert found[1] != bert.tag(texts)[1]
    assert [one.words for one in found] == [one.words for one in bert.tag(texts)]
    assert bert.tag([texts[0]], document=True) == bert.tag([texts[0]])  # it has no context
    assert bert.tag([], document=True) == []


def test_choice_is_the_softmax_over_endings():
    endings = ["sat.", "the cat", "z z z"]
    found = CHOOSER.choose("the cat", endings)
    scores = torch.cat([logits(CHOOSER, "the cat", ending) for ending in endings])
    assert found.probabilities == pytest.approx(scores.softmax(0).tolist(), abs=1e-6)
    assert found.choice == scores.argmax()


def test_tag_is_predicted_at_each_word_s_first_token():
    found = TAGGER.tag("The cat\u00a0sat, bad.")
    assert found.words == ("The", "cat", "sat", ",", "bad", ".")
    encoding = TOKENIZER.encode("the cat sat , bad .")
    tokens = [TOKENIZER.token(number) for number in encoding.ids]
    first = [position for position, token in enumerate(tokens) if not token.startswith(("##", "[CLS]", "[SEP]"))]
    with torch.no_grad():
        probabilities = TAGGER.model(TaskBatch(pack([encoding.ids]), torch.tensor(first))).softmax(1)
    assert found.tags == tuple(TAGGER.task.labels[number] for number in probabilities.argmax(1))
    assert found.probabilities == pytest.approx(probabilities.amax(1).tolist(), abs=1e-6)


def test_entities_have_offsets_in_the_text_or_in_the_joined_words():
    text = "The  cat sat\tbad. " * 20
    found = TAGGER.tag(text)
    assert len(found.words) == 100  # read in windows of 12 tokens
    assert found.entities
    assert all(text[entity.start : entity.end] == entity.text for entity in found.entities)
    by_words = TAGGER.tag(found.words)
    assert by_words.tags == found.tags
    assert all(" ".join(found.words)[e.start : e.end] == e.text for e in by_words.entities)
    assert [entity.text.split() for entity in by_words.entities] == [entity.text.split() for entity in found.entities]


def test_answer_has_its_offsets_in_the_context():
    context = "The cat sat.  " * 30
    found = ANSWERER.answer("the cat?", context)
    assert context[found.start : found.end] == found.text != ""
    assert found.probability == max(candidate.probability for candidate in found.candidates)
    assert ANSWERER.answer("the cat?", "").text == ""


# ---- Lists


CALLS = {
    "classify": CLASSIFIER.classify,
    "regression": REGRESSION.classify,
    "tag": TAGGER.tag,
    "choose": lambda texts: (
        CHOOSER.choose("the cat", ["sat.", texts])
        if isinstance(texts, str)
        else CHOOSER.choose(["the cat"] * len(texts), [["sat.", text] for text in texts])
    ),
    "answer": lambda texts: (
        ANSWERER.answer("the cat", texts)
        if isinstance(texts, str)
        else ANSWERER.answer(["the cat"] * len(texts), texts)
    ),
}


def numbers(prediction: object) -> list[float]:
    """Return the numbers of a prediction; rounding may change their last digits."""
    if isinstance(prediction, float):
        return [prediction]
    found = getattr(prediction, "probabilities", None)
    found = [candidate.score for candidate in prediction.candidates] if found is None else found
    return list(found.values() if isinstance(found, dict) else found)


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=8)
@given(
    texts=st.lists(TEXT, min_size=1, max_size=7),
    max_examples=st.integers(1, 4),
    characters=st.integers(1, 300),
    budget=st.integers(1, 80),
)
def test_predictions_of_a_list_do_not_depend_on_the_batch(name, texts, max_examples, characters, budget):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction, "MAX_CHUNK_EXAMPLES", max_examples)
        patch.setattr(prediction, "MAX_CHUNK_CHARACTERS", characters)
        patch.setitem(prediction.BATCH_TOKENS, "cpu", budget)
        together = CALLS[name](texts)
    assert len(together) == len(texts)
    for text, found in zip(texts, together, strict=True):
        alone = CALLS[name](text)
        assert type(found) is type(alone)
        assert numbers(found) == pytest.approx(numbers(alone), rel=1e-4, abs=1e-5)


def test_chunk_is_bounded_in_examples_and_characters(monkeypatch):
    monkeypatch.setattr(prediction, "MAX_CHUNK_EXAMPLES", 3)
    monkeypatch.setattr(prediction, "MAX_CHUNK_CHARACTERS", 10)
    pairs = [("aaaa", None), ("bbb", "bbb"), ("c", None), ("d" * 30, None), *[("", None)] * 3, ("e" * 10, None)]
    examples = [TextExample(*pair, None, "") for pair in pairs]
    chunks = list(prediction.split_into_chunks(iter(examples)))
    assert [len(chunk) for chunk in chunks] == [2, 1, 1, 3, 1]
    assert [one for chunk in chunks for one in chunk] == examples


def test_questions_about_a_long_text_are_predicted_in_chunks():
    context = "the cat sat. " * 8_000  # 104,000 characters, which the windows of each question repeat
    questions = [QaExample(str(number), "who", context) for number in range(150)]
    chunks = list(prediction.split_into_chunks(questions))
    assert [len(chunk) for chunk in chunks] == [38, 38, 38, 36]
    assert len(list(prediction.split_into_chunks([TagExample.from_text("the cat sat")] * 2_049))) == 2


def test_empty_list_returns_an_empty_list():
    assert CLASSIFIER.classify([]) == TAGGER.tag([]) == ANSWERER.answer([], []) == CHOOSER.choose([], []) == []


def test_several_questions_share_one_context():
    questions, context = ["the cat?", "who sat"], "The cat sat. " * 5
    assert ANSWERER.answer(questions, context) == ANSWERER.answer(questions, [context] * 2)


@pytest.mark.filterwarnings("ignore:.*UNK")
def test_truncation_is_warned_of_at_the_call():
    with pytest.warns(UserWarning, match=r"1 of 2 examples \(50.0%\) lose tokens: max_length is 16; raise max_length"):
        CLASSIFIER.classify(["the cat", "a " * 40])
    for call in (lambda: CLASSIFIER.classify("a " * 40), lambda: CHOOSER.choose("the cat", ["sat", "a " * 60])):
        with pytest.warns(UserWarning, match="lose tokens") as caught:
            call()
        assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*lose tokens")
        CLASSIFIER.classify(["the cat", "sat."])
        ANSWERER.answer("the cat?", "the cat sat. " * 90)  # read in windows


def test_model_with_one_segment_rejects_pairs():
    one = small(PAIRS.task, type_vocab_size=1)
    with pytest.raises(ValueError, match=r"type_vocab_size = 1: .* one segment embedding"):
        one.classify([("the cat", "sat.")])
    assert TAGGER.tag(["", ()]) == [((), (), (), ())] * 2


def test_list_may_mix_texts_and_words():
    texts = TAGGER.tag(["the cat", ["the", "cat"], ("the", "cat")])
    assert len({found.tags for found in texts}) == 1
    assert len(TAGGER.tag(["the", "cat"])) == 2  # a list is of several texts


# ---- Folders


def predict(bert: Bert) -> list[object]:
    """Predict something with a model of any kind."""
    calls = {
        "classification": lambda: bert.classify(
            [("the", "cat") if bert is PAIRS or bert.task.text_pair else "the cat"]
        ),
        "regression": lambda: bert.classify("the cat"),
        "multiple-choice": lambda: bert.choose("the", ["cat", "sat"]),
        "tagging": lambda: bert.tag("the cat sat."),
        "question-answering": lambda: bert.answer("the", "cat sat."),
    }
    return calls[bert.task.kind]() if bert.task else bert.fill_mask("the [MASK]")


def test_features_are_the_states_of_each_word_s_first_token() -> None:
    words = ("the", "cat", "satz", ".")  # "satz" is several tokens
    found = PRETRAINED.features([words, "the cat."], layers=(-1, 0))
    assert [vectors.shape for vectors in found] == [(4, 2, 24), (3, 2, 24)]
    tokens = [TOKENIZER.encode_raw([word])[0] for word in words]
    ids = np.concatenate([[TOKENIZER.cls_id], *tokens, [TOKENIZER.sep_id]])
    firsts = 1 + np.cumsum([0, *map(len, tokens[:-1])])
    with torch.no_grad():
        embedded, *_, last = PRETRAINED.model.encoder.hidden_states(pack([ids]))
    np.testing.assert_allclose(found[0][:, 0], last[firsts], atol=1e-5)
    np.testing.assert_allclose(found[0][:, 1], embedded[firsts], atol=1e-5)
    with pytest.raises(ValueError, match=r"layers: expected 0 \(embeddings\) to 2, got 3"):
        PRETRAINED.features(["the"], layers=(3,))


@pytest.mark.parametrize("bert", ALL, ids=lambda bert: bert.task.kind if bert.task else "pre-training")
def test_saved_model_loads_with_its_task(tmp_path, bert):
    bert.save(tmp_path / "m")
    again = bertwright.load(tmp_path / "m", device="cpu")
    assert again.task_model == (None if bert.task is None else bert.task_model._replace(model=again.model))
    assert predict(again) == predict(bert)
    np.testing.assert_array_equal(again.embed(["the cat", "a"]), bert.embed(["the cat", "a"]))
    with pytest.raises(ValueError, match="already exists"):
        bert.save(tmp_path / "m")


def test_run_loads_its_newest_checkpoint_or_its_model(tmp_path):
    run = tmp_path / "run"
    write_text(run / "settings.toml", "")
    write = partial(write_task_folder, trained=TaskModel(TAGGER.model, TAGGER.task), tokenizer=TOKENIZER)
    checkpoint.save(run / "checkpoints", 3, write, {"moment": torch.zeros(1)})
    assert bertwright.load(run, "cpu").tag("the cat") == TAGGER.tag("the cat")
    CLASSIFIER.save(run / "model")
    assert bertwright.load(str(run), "cpu").classify("the cat") == CLASSIFIER.classify("the cat")


def test_dtype_and_device_are_those_of_the_call(tmp_path):
    CLASSIFIER.save(tmp_path / "m")
    rough = bertwright.load(tmp_path / "m", "cpu", torch.bfloat16)
    assert rough.model.encoder.compute_dtype == torch.bfloat16
    assert rough.device == torch.device("cpu")
    expected = CLASSIFIER.classify("the cat").probabilities
    assert rough.classify("the cat").probabilities == pytest.approx(expected, abs=0.1)


def theirs(folder: Path, name: str, **fields: object) -> Path:
    """Write a folder with `transformers`, except the vocabulary."""
    config = transformers.BertConfig(
        vocab_size=TOKENIZER.vocab_size, hidden_size=24, num_hidden_layers=1, num_attention_heads=3,
        intermediate_size=40, max_position_embeddings=32, initializer_range=0.3, **fields,
    )  # fmt: skip
    getattr(transformers, name)(config).save_pretrained(folder)
    TOKENIZER.save(folder)
    return folder


def test_task_of_a_folder_of_transformers_is_inferred_from_its_configuration(tmp_path):
    folder = theirs(tmp_path / "nli", "BertForSequenceClassification", id2label={0: "no", 1: "yes"})
    bert = bertwright.load(folder, "cpu")
    reference = transformers.pipeline("text-classification", str(folder), device="cpu")
    for text, pair in (("the cat", "sat"), ("the cat", None)):  # the folder does not state which it was trained on
        expected = {one["label"]: one["score"] for one in reference({"text": text, "text_pair": pair}, top_k=None)}
        found = bert.classify(text if pair is None else (text, pair))
        assert found.probabilities == pytest.approx(expected, abs=1e-5)
    bert.save(tmp_path / "again")
    assert bertwright.load(tmp_path / "again", "cpu").classify(("the cat", "sat")) == bert.classify(("the cat", "sat"))

    folder = theirs(tmp_path / "ner", "BertForTokenClassification", id2label={0: "O", 1: "B-X", 2: "I-X"})
    tagged = bertwright.load(folder, "cpu").tag("the cat sat .")
    expected = transformers.pipeline("token-classification", str(folder), ignore_labels=[], device="cpu")(
        "the cat sat ."
    )
    assert tagged.tags == spell(find_spans([one["entity"] for one in expected]), 4, "iob2")
    assert tagged.probabilities == pytest.approx([one["score"] for one in expected], abs=1e-5)

    folder = theirs(tmp_path / "qa", "BertForQuestionAnswering")
    answer = bertwright.load(folder, "cpu").answer("the", "cat sat.")
    assert "cat sat."[answer.start : answer.end] == answer.text != ""
    folder = theirs(tmp_path / "number", "BertForSequenceClassification", num_labels=1)
    assert isinstance(bertwright.load(folder, "cpu").classify("the cat"), float)
    folder = theirs(tmp_path / "bare", "BertModel")
    assert bertwright.load(folder, "cpu").task is None


# ---- Misuse

FINE_TUNE = r"needs a model from: bertwright finetune --task "


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TAGGER.classify("a"), rf"is for tagging: call tag\(text\); classify {FINE_TUNE}classification …"),
        (lambda: CLASSIFIER.tag("a"), rf"is for classification: call classify\(texts\); tag {FINE_TUNE}tagging"),
        (lambda: REGRESSION.choose("a", ["b", "c"]), rf"is for regression: .*; choose {FINE_TUNE}multiple-choice"),
        (lambda: CHOOSER.answer("a", "b"), rf"call choose\(prompt, endings\); answer {FINE_TUNE}question-answering"),
        (lambda: PRETRAINED.classify("a"), rf"this model was not fine-tuned for a task; classify {FINE_TUNE}"),
        (
            lambda: ANSWERER.fill_mask("[MASK]"),
            r"fine-tuned for question-answering .* pre-trained model that it started from",
        ),
        (lambda: CLASSIFIER.classify(["a", 5]), r"text 1: expected a text or a pair of texts .*, got 5 \(int\)"),
        (lambda: CLASSIFIER.classify(("a", "b", "c")), "text 0: expected a text or a pair of texts"),
        (lambda: CLASSIFIER.classify(["a", ("a", "b")]), "text 1: expected one text, got a pair"),
        (lambda: PAIRS.classify(["a"]), "text 0: expected a pair of texts, got one text"),
        (lambda: CHOOSER.choose("a", "bc"), "this choice: expected a list of at least two endings, got 'bc'"),
        (lambda: CHOOSER.choose("a", ["b"]), "at least two endings"),
        (lambda: CHOOSER.choose(None, ["b", "c"]), "prompt: expected a list, an array or a column, got None"),
        (lambda: CHOOSER.choose(["a"], "bc"), "endings: expected a list, an array or a column, got 'bc'"),
        (
            lambda: CLASSIFIER.classify(polars.DataFrame({"text": ["a"]})),
            "texts: expected a list.*, got a DataFrame; give one of its columns",
        ),
        (lambda: TAGGER.tag({"text": ["a"]}), "texts: .*got a dict; give its values as a list"),
        (lambda: PRETRAINED.embed({"a", "b"}), "texts: .*got a set; give its values as a list"),
        (lambda: PRETRAINED.embed([b"a"]), "text 0: expected a text, got b'a'"),
        (lambda: PRETRAINED.fill_mask(b"[MASK]"), r"texts: expected a list.*\(bytes\)"),
        (lambda: PAIRS.classify([{"text": "x", "pair": "y"}]), "text 0: expected a text or a pair of texts"),
        (lambda: ANSWERER.answer(None, None), "question: expected a list"),
        (lambda: ANSWERER.answer("a", 5), r"context of one question: expected a text, got 5 \(int\)"),
        (
            lambda: ANSWERER.answer("a", ["b", "c"]),
            r"context of one question: expected a text, got .*\(list\)",
        ),
        (
            lambda: ANSWERER.answer(["q"] * 5, ["a"] * 4 + ["\ud800"]),
            r"context 4: lone surrogate U\+D800 at character 0",
        ),
        (lambda: CLASSIFIER.classify(["a"] * 3000 + ["b\ud800"]), r"text 3000: lone surrogate U\+D800 at character 1"),
        (lambda: CHOOSER.choose(["a", "b"], [["c", "d"], ["e", "\ud800"]]), "choice 1: lone surrogate"),
        (lambda: CLASSIFIER.classify(np.array("a film")), "texts: expected a list"),
        (lambda: bertwright.load(""), "the name of the model is empty"),
        (lambda: TAGGER.tag("a\ud800"), r"text 0: lone surrogate U\+D800 at character 1"),
        (lambda: bertwright.load("model", "mps"), 'device: expected "cpu", "cuda" or "cuda:1", got .mps.'),
        (lambda: bertwright.load("model", "gpu"), 'device: expected "cpu", "cuda" or "cuda:1", got .gpu.'),
        (
            lambda: bertwright.load("model", "cuda:77"),
            "device: expected one of [0-9]+ GPUs that PyTorch sees, got .cuda:77.",
        ),
        (
            lambda: bertwright.load("model", "cpu", torch.int32),
            "expected torch.float32, torch.bfloat16 or torch.int8, got torch.int32",
        ),
        (
            lambda: bertwright.load("model", "cpu", "bfloat16"),
            "expected torch.float32, torch.bfloat16 or torch.int8, got 'bfloat16'",
        ),
        (lambda: TAGGER.tag(5), "texts: expected a list"),
        (lambda: TAGGER.tag(["a"], document=True), "trained without document context; train with --context True"),
        (lambda: TAGGER.tag("a", document=True), "document: expected a list of sentences, got one text"),
        (lambda: CHOOSER.choose(["a", "d"], [["b", "c"]]), "endings: expected one for each of 2 prompts, got 1"),
        (lambda: CHOOSER.choose(["a", 5], [["b", "c"], ["b", "c"]]), "choice 1: expected a text, got 5"),
        (lambda: CHOOSER.choose(["a", "d"], [["b", "c"], ["b"]]), "choice 1: expected a list of at least two endings"),
        (lambda: CHOOSER.choose(["a", "d"], [["b", "c"], ["b", "c", "d"]]), "choice 1: expected 2 endings"),
        (lambda: CHOOSER.choose("a", ["b", 5]), "this choice: expected a text, got 5"),
        (lambda: ANSWERER.answer(["a"], [None]), "context 0: expected a text, got None"),
        (lambda: TAGGER.tag([5]), "text 0: expected a text or a list of its words, got 5"),
        (lambda: TAGGER.tag([["a", ""]]), "text 0: expected a text or a list of its words"),
        (lambda: ANSWERER.answer(["a"], ["b", "c"]), "context: expected one for each of 1 questions, got 2"),
        (lambda: Bert(TAGGER.model, TOKENIZER), "do not belong together"),
        (lambda: Bert(TaskModel(CLASSIFIER.model, TAGGER.task), TOKENIZER), "do not belong together"),
    ],
)
def test_misuse_is_rejected(call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_sequence_longer_than_the_model_s_positions_is_rejected():
    bert = Bert(TaskModel(CLASSIFIER.model, replace(CLASSIFIER.task, max_length=40)), TOKENIZER)
    assert bert.classify("the cat").label
    with pytest.raises(ValueError, match=r"expected at most 32 tokens per sequence \(max_positions\), got 40"):
        bert.classify("a " * 50)
