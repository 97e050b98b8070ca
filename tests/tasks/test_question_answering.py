"""Question answering: hand-worked windows, windows as in `transformers`, decoding as in a reference implementation."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertTokenizerFast

from bertwright.models.task_model import EncoderForTask
from bertwright.systems.bert.bert_config import BertConfig
from bertwright.systems.bert.bert_encoder import BertEncoder
from bertwright.tables.qa_example import GoldAnswer, QaExample
from bertwright.tasks.collation import collate
from bertwright.tasks.context_windows import max_context_window
from bertwright.tasks.prediction import predict_chunks
from bertwright.tasks.question_answering import Answer, Candidate, EncodedQuestions, QuestionAnswering
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from helpers import ALL_DATA, uncased_vocabulary

LETTERS = "abcdefghij"
TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS)], lowercase=True)
SMALL = QuestionAnswering(max_length=10, doc_stride=2, max_query_length=3, max_answer_length=3, n_best_size=4)

WORDS = st.lists(st.text(LETTERS, min_size=1, max_size=3), max_size=14).map(" ".join)
QUESTIONS = st.lists(
    st.tuples(WORDS, st.sampled_from([*LETTERS, "a b c d e f", ""])).map(
        lambda pair: QaExample("q", question=pair[1], context=pair[0])
    ),
    min_size=1,
    max_size=4,
)
TASKS = st.builds(
    QuestionAnswering,
    max_length=st.integers(7, 14),
    doc_stride=st.integers(1, 12),
    max_query_length=st.integers(1, 3),
    max_answer_length=st.integers(1, 20),
    n_best_size=st.integers(1, 30),
    allow_no_answer=st.booleans(),
    threshold=st.sampled_from([0.0, -1.5, 2.0]),
)


def make_question(context: str, question: str = "a b", answer: str | None = None, **changes: Any) -> QaExample:
    gold = () if answer is None else (GoldAnswer(answer, context.index(answer)),)
    return replace(QaExample("q", question, context, gold), **changes)


def show(encoded: EncodedQuestions) -> list[str]:
    """Return the tokens of each window."""
    tokens = [TOKENIZER.token(int(number)) for number in encoded.input_ids]
    return [" ".join(tokens[begin:end]) for begin, end in itertools.pairwise(encoded.starts)]


def draw_outputs(encoded: EncodedQuestions, seed: int = 0, levels: int | None = None) -> np.ndarray:
    """Draw outputs for every position; few `levels` make many of them equal."""
    rng = np.random.default_rng(seed)
    shape = (len(encoded.positions), 2)
    return (rng.normal(size=shape) if levels is None else rng.integers(levels, size=shape)).astype(np.float32)


# Windows


def test_windows_hand_worked() -> None:
    example = make_question("c d e f g h i j", answer="g h")
    encoded = SMALL.encode([example], TOKENIZER)
    assert show(encoded) == [
        "[CLS] a b [SEP] c d e f g [SEP]",
        "[CLS] a b [SEP] e f g h i [SEP]",
        "[CLS] a b [SEP] g h i j [SEP]",
    ]
    assert encoded.token_type_ids[:10].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    assert encoded.labels.tolist() == [[0, 0], [6, 7], [4, 5]]  # only half of "g h" is in the first window
    assert encoded.label_counts.tolist() == [1, 1, 1]
    assert encoded.example_ids.tolist() == [0, 0, 0]
    assert encoded.positions.tolist() == [*range(10), *range(10), *range(9)]
    assert encoded.position_counts.tolist() == encoded.lengths.tolist()
    assert (encoded.num_items, encoded.truncated) == (3, 0)


def test_special_tokens_in_question_and_context_are_ordinary_words() -> None:
    task = replace(SMALL, max_length=30, max_query_length=10)
    found = task.encode([make_question("[MASK] c [SEP]", "a [SEP] b", "c")], TOKENIZER)
    words = " ".join(["[UNK]"] * 3)  # the brackets and the word between them
    assert show(found) == [f"[CLS] a {words} b [SEP] {words} c {words} [SEP]"]
    assert found.labels.tolist() == [[10, 10]]
    assert found.token_type_ids.tolist() == [0] * 7 + [1] * 8


def test_long_question_is_truncated_and_counted() -> None:
    encoded = SMALL.encode([make_question("i", "a b c d e"), make_question("i", "a b c")], TOKENIZER, labeled=False)
    assert show(encoded) == ["[CLS] a b c [SEP] i [SEP]"] * 2
    assert encoded.truncated == 1


def test_stride_longer_than_a_window_is_shortened() -> None:
    encoded = replace(SMALL, doc_stride=100).encode([make_question("c d e f g h i j a b c")], TOKENIZER, labeled=False)
    assert [window.split("[SEP]")[1] for window in show(encoded)] == [" c d e f g ", " h i j a b ", " c "]


def test_answer_covers_the_tokens_that_share_a_character_with_it() -> None:
    task = replace(SMALL, max_length=20)
    cases = {
        "b": (1, 1),  # inside a word
        "bc d": (1, 3),
        " d ": (3, 3),  # white space around it belongs to no token
        "abc d e": (0, 4),
    }
    for answer, (first, last) in cases.items():
        encoded = task.encode([make_question("abc d e", answer=answer)], TOKENIZER)
        assert (encoded.labels - encoded.context_start[:, None]).tolist() == [[first, last]], answer


def test_questions_that_cannot_be_learned_are_skipped_and_named() -> None:
    lost = make_question("c d", location="own.jsonl, line 2", answers=(GoldAnswer("x", None),))
    examples = [make_question("c d", answer="d"), lost, make_question("e f", is_impossible=True)]
    encoded = SMALL.encode(examples, TOKENIZER)
    assert encoded.example_ids.tolist() == [0, 2]
    assert encoded.labels.tolist() == [[5, 5], [0, 0]]
    (note,) = SMALL.warnings(examples)
    assert note.endswith("(own.jsonl, line 2)")
    fields = {"moved": (), "left_out": ("own.jsonl, line 2",), "unanswered": ()}
    assert SMALL.report_fields(examples) == {"answers": fields}
    assert SMALL.encode(examples, TOKENIZER, labeled=False).example_ids.tolist() == [0, 1, 2]  # it is answered
    assert SMALL.encode(examples, TOKENIZER, labeled=False).labels.shape == (0, 2)
    assert SMALL.with_labels_of(examples) == SMALL
    with pytest.raises(ValueError, match=r"own\.jsonl, line 2: none of 1 questions has an answer"):
        SMALL.with_labels_of([lost])


def test_scored_questions_need_answers_but_no_positions() -> None:
    SMALL.check(
        [
            make_question("c d", answers=(GoldAnswer("x", None),)),
            make_question("e f", is_impossible=True),
            make_question("c d", answer="d"),
            make_question("e f"),
        ]
    )
    with pytest.raises(ValueError, match=r"^own\.jsonl, line 3: .*answer"):
        SMALL.check([make_question("e f", location="own.jsonl, line 3"), make_question("e f")])


def test_answer_without_a_token_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"^dev\.json, question 7: the answer '\\x00' has no token"):
        SMALL.encode([make_question("c \x00 d", answer="\x00", location="dev.json, question 7")], TOKENIZER)


def test_context_is_tokenized_once_for_all_its_questions() -> None:
    twice, same = "".join(["c ", "d"]), "".join(["c", " d"])
    assert twice is not same
    examples = [make_question(twice), make_question("e f g"), make_question(same), make_question(twice)]
    encoded = SMALL.encode(examples, TOKENIZER, labeled=False)
    assert encoded.offsets.tolist() == [[0, 1], [2, 3], [0, 1], [2, 3], [4, 5]]
    assert encoded.first.tolist() == [0, 2, 0, 0]


@given(TASKS, QUESTIONS)
def test_every_context_token_is_in_a_window(task: QuestionAnswering, examples: list[QaExample]) -> None:
    encoded = task.encode(examples, TOKENIZER, labeled=False)
    assert encoded.lengths.max() <= task.max_length
    for number, example in enumerate(examples):
        tokens = TOKENIZER.encode(example.context).ids[1:-1].tolist()
        covered = np.zeros(len(tokens), dtype=bool)
        own = np.flatnonzero(encoded.example_ids == number)
        for window in own:
            index = encoded.first[window] - encoded.first[own[0]]
            begin = encoded.starts[window] + encoded.context_start[window]
            content = encoded.context_lengths[window]
            assert encoded.input_ids[begin : begin + content].tolist() == tokens[index : index + content]
            covered[index : index + content] = True
        assert covered.all()


@pytest.mark.parametrize("data", ALL_DATA)
@pytest.mark.parametrize(("max_length", "doc_stride"), [(384, 128), (96, 20)])
def test_windows_and_targets_equal_those_of_transformers(
    data: Path, max_length: int, doc_stride: int, tmp_path: Path
) -> None:
    """Compare with its run_qa.py, whose `stride` is the overlap of two windows."""
    vocab = tmp_path / "vocab.txt"
    vocab.write_bytes(uncased_vocabulary().read_bytes())
    theirs, ours = BertTokenizerFast.from_pretrained(tmp_path), Tokenizer.load(vocab, lowercase=True)
    task = QuestionAnswering(max_length=max_length, doc_stride=doc_stride)
    examples = list(task.read(str(data / "squad" / "dev-v1.1.json")))[:2_000]
    examples = examples[:: max(len(examples) // 100, 1)]
    encoded = task.encode(examples, ours)
    window = 0
    for example in examples:
        target = example.target
        assert target is not None
        assert target.start is not None
        room = max_length - 3 - len(theirs(example.question, add_special_tokens=False)["input_ids"])
        windows = theirs(
            example.question,
            example.context,
            truncation="only_second",
            max_length=max_length,
            stride=room - doc_stride,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for number, offsets in enumerate(windows["offset_mapping"]):
            begin, end = encoded.starts[window : window + 2]
            assert encoded.input_ids[begin:end].tolist() == windows["input_ids"][number]
            assert encoded.token_type_ids[begin:end].tolist() == windows["token_type_ids"][number]
            context = [position for position, side in enumerate(windows.sequence_ids(number)) if side == 1]
            stop = target.start + len(target.text)
            expected = [0, 0]
            if offsets[context[0]][0] <= target.start and offsets[context[-1]][1] >= stop:
                expected = [
                    max(position for position in context if offsets[position][0] <= target.start),
                    min(position for position in context if offsets[position][1] >= stop),
                ]
            assert encoded.labels[window].tolist() == expected
            window += 1
    assert window == len(encoded.lengths) >= len(examples) * (1 if max_length == 384 else 2)


def test_very_long_context_is_answered_from_any_window() -> None:
    words = ["".join(LETTERS[int(digit)] for digit in f"{number:05}") for number in range(20_000)]
    context = " ".join(words)
    assert len(context) > 100_000
    answers = [words[0], words[9_999], words[19_999]]
    examples = [make_question(context, answer=answer) for answer in answers]
    task = QuestionAnswering()
    encoded = task.encode(examples, TOKENIZER)
    assert len(encoded.lengths) == 3 * (1 + -(-(100_000 - 379) // 128))
    outputs = np.zeros((len(encoded.positions), 2), np.float32)
    hits = np.flatnonzero(encoded.labels[:, 0] > 0)
    outputs[encoded.starts[hits] + encoded.labels[hits, 0], 0] = 9  # the output for the target is the largest
    outputs[encoded.starts[hits] + encoded.labels[hits, 1], 1] = 9
    found = task.decode(examples, encoded, outputs)
    assert [answer.text for answer in found] == answers
    assert [context[answer.start : answer.end] for answer in found] == answers


# Loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_is_the_sum_over_windows(smoothing: float) -> None:
    examples = [
        make_question("c d e f g h i j", answer="g h"),
        make_question("a", answer="a"),
        make_question("b c", is_impossible=True),
    ]
    batch = collate(SMALL.encode(examples, TOKENIZER), np.array([4, 0, 2, 3, 1]))
    generator = torch.Generator().manual_seed(0)
    logits = (30 * torch.randn(batch.packing.num_tokens, 2, generator=generator)).requires_grad_()
    reference = logits.detach().clone().requires_grad_()
    bounds = batch.packing.cu_seqlens.tolist()
    losses = [
        torch.nn.functional.cross_entropy(reference[begin:end, side], target[side], label_smoothing=smoothing)
        for begin, end, target in zip(bounds[:-1], bounds[1:], batch.labels, strict=True)
        for side in (0, 1)
    ]
    expected = torch.stack(losses).sum() / 2
    loss = SMALL.loss(logits, batch, smoothing)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(logits.grad, reference.grad)
    assert batch.num_labels == 5


def test_loss_of_equal_outputs() -> None:
    batch = collate(SMALL.encode([make_question("c d", answer="d")], TOKENIZER), np.array([0]))
    assert SMALL.loss(torch.full((7, 2), 1e4), batch).item() == pytest.approx(np.log(7))


def test_model_learns_to_find_a_span() -> None:
    """Train a model from reading to scores."""
    examples = [
        make_question(" ".join([*"bcd"[: n % 4], marker, "e", "f"]), marker, f"{marker} e", id=f"{n}{marker}")
        for n in range(4)
        for marker in "hij"
    ]
    task = replace(SMALL, max_length=12)
    sizes = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "intermediate_size": 64, "max_positions": 16}
    config = BertConfig(vocab_size=TOKENIZER.vocab_size, hidden_dropout=0.0, attention_dropout=0.0, **sizes)
    model = EncoderForTask(BertEncoder(config), task.head)
    batch = collate(encoded := task.encode(examples, TOKENIZER), np.arange(len(examples)))
    assert encoded.num_items == len(examples)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss = task.loss(model(batch), batch) / batch.num_labels
        loss.backward()
        optimizer.step()
    answers = next(predict_chunks(model.eval(), task, TOKENIZER, examples)).predictions
    assert task.score(examples, answers) == {"exact_match": 1.0, "f1": 1.0}
    assert min(answer.probability for answer in answers) > 0.5


# Decoding


def decode_naively(task: QuestionAnswering, example: QaExample, windows: list[dict[str, Any]]) -> list[Candidate]:
    """Return all spans by falling score, then by position, as in Google's code, window by window."""
    scored: list[tuple[float, int, int]] = []
    for number, window in enumerate(windows):
        for i in range(len(window["start"])):
            token = window["first"] + i
            rivals = []
            for rival, other in enumerate(windows):
                left = token - other["first"]
                right = len(other["start"]) - 1 - left
                if left >= 0 and right >= 0:
                    rivals.append((min(left, right) + 0.01 * len(other["start"]), -rival))
            if -max(rivals)[1] != number:
                continue
            for j in range(i, min(i + task.max_answer_length, len(window["start"]))):
                score = float(window["start"][i]) + float(window["end"][j])
                scored.append((-score, token, window["first"] + j))
    offsets = TOKENIZER.encode(example.context).offsets[1:-1]
    candidates = []
    for negative, i, j in sorted(scored)[: task.n_best_size]:
        begin, end = int(offsets[i, 0]), int(offsets[j, 1])
        candidates.append(Candidate(example.context[begin:end], begin, end, 0.0, -negative))
    return candidates


def answer_naively(task: QuestionAnswering, example: QaExample, windows: list[dict[str, Any]]) -> Answer:
    candidates = decode_naively(task, example, windows)
    null = Candidate("", 0, 0, 0.0, min(window["null"] for window in windows))
    best = candidates[0] if candidates else null
    speaks = bool(candidates) and not (task.allow_no_answer and best.score <= null.score + task.threshold)
    if task.allow_no_answer or not candidates:
        candidates = sorted([null, *candidates], key=lambda candidate: -candidate.score)
    total = sum(np.exp(candidate.score) for candidate in candidates)
    candidates = [candidate._replace(probability=np.exp(candidate.score) / total) for candidate in candidates]
    given = next(candidate for candidate in candidates if bool(candidate.text) == speaks)
    return Answer(given.text, given.start, given.end, given.probability, best.score, null.score, tuple(candidates))


@settings(max_examples=150)
@given(TASKS, QUESTIONS, st.integers(0, 99), st.sampled_from([None, 1, 3]))
def test_decoding_equals_the_reference_implementation(
    task: QuestionAnswering, examples: list[QaExample], seed: int, levels: int | None
) -> None:
    encoded = task.encode(examples, TOKENIZER, labeled=False)
    outputs = draw_outputs(encoded, seed, levels)
    for number, (example, answer) in enumerate(zip(examples, task.decode(examples, encoded, outputs), strict=True)):
        windows: list[dict[str, Any]] = []
        for window in np.flatnonzero(encoded.example_ids == number):
            rows = outputs[encoded.starts[window] : encoded.starts[window + 1]]
            asked_tokens = min(len(TOKENIZER.encode(example.question)) - 2, task.max_query_length)
            context = rows[asked_tokens + 2 : -1]
            first = windows[-1]["first"] + min(task.doc_stride, len(windows[-1]["start"])) if windows else 0
            windows.append(
                {"start": context[:, 0], "end": context[:, 1], "null": float(rows[0, 0]) + float(rows[0, 1])}
                | {"first": first}
            )
        expected = answer_naively(task, example, windows)
        assert answer == expected._replace(
            probability=pytest.approx(expected.probability),
            candidates=tuple(c._replace(probability=pytest.approx(c.probability)) for c in expected.candidates),
        )
        assert answer.text == example.context[answer.start : answer.end]
        assert sum(candidate.probability for candidate in answer.candidates) == pytest.approx(1)


def test_token_counts_in_the_window_with_its_widest_context() -> None:
    #                      token  0 1 2 3 4 5 6 7 8
    # window 0 (0-5)   shows      0 1 2 2 1 0
    # window 1 (2-7)                  0 1 2 2 1 0
    # window 2 (4-8)                      0 1 2 1 0     one token shorter, so ties are lost
    assert max_context_window(np.array([0, 2, 4]), np.array([6, 6, 5])).tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2]


def test_answer_is_a_slice_of_the_context() -> None:
    example = make_question("  C,  É-d  (JA)!")
    encoded = SMALL.encode([example], TOKENIZER, labeled=False)
    begin = int(encoded.starts[0] + encoded.context_start[0])
    outputs = np.zeros((len(encoded.positions), 2), np.float32)
    outputs[begin + 2, 0] = outputs[begin + 4, 1] = 5  # c , e - d ( j ##a ) !
    (answer,) = SMALL.decode([example], encoded, outputs)
    assert (answer.text, answer.start, answer.end) == ("É-d", 6, 9)


KOREAN = Tokenizer.from_tokens(
    [
        *SPECIAL_TOKENS,
        "서울",
        "서울은",
        "##에서",
        "한강",
        "##이",
        "흐른다",
        ".",
        "강우",
        "##는",
        "중력",
        "##의",
        "영향",
        "##으로",
        "내린다",
    ],
    lowercase=False,
)


@pytest.mark.parametrize(
    ("context", "gold", "position", "text", "f1"),
    [
        ("서울에서 한강이 흐른다.", "서울", 2, "서울", 1),  # [CLS] [SEP] 서울 ##에서 한강 ##이 흐른다 . [SEP]
        ("서울에서 한강이 흐른다.", "한강", 4, "한강", 1),
        ("강우는 중력의 영향으로 내린다.", "중력", 4, "중력", 1),  # what makes rain fall: SQuAD's first example
        ("서울은 흐른다.", "서울", 2, "서울은", 0.8),  # noun and particle are one token
    ],
)
def test_answer_ends_before_the_particle_if_a_token_does(
    context: str, gold: str, position: int, text: str, f1: float
) -> None:
    task = replace(SMALL, scoring="korquad", max_length=12)
    example = make_question(context, "", gold)
    labeled = task.encode([example], KOREAN)
    assert labeled.labels.tolist() == [[position, position]]
    assert labeled.cut_answers == (text != gold)
    encoded = task.encode([example], KOREAN, labeled=False)
    outputs = np.zeros((len(encoded.positions), 2), np.float32)
    outputs[position] = 9
    (answer,) = task.decode([example], encoded, outputs)
    assert (answer.text, answer.start, answer.end) == (text, context.index(gold), context.index(gold) + len(text))
    assert task.score([example], [answer]) == {"exact_match": text == gold, "f1": pytest.approx(f1)}


def test_frequent_answers_inside_tokens_cause_a_notice() -> None:
    def notes(*examples: QaExample) -> list[str]:
        task = replace(SMALL, allow_no_answer=True)
        return task.encoding_warnings(task.encode(examples, KOREAN))

    whole, cut = make_question("서울에서 흐른다.", "", "서울"), make_question("서울은 흐른다.", "", "서울")
    begins_inside = make_question("서울은 흐른다.", "", "은")
    none = make_question("서울은 흐른다.", "", is_impossible=True)
    (note,) = notes(cut, whole, begins_inside, none)
    assert note.startswith("2 of 4 questions (50.0%) ")
    assert not notes(*[whole] * 19, cut)  # one in twenty
    assert not notes(none)


def test_answers_longer_than_the_limit_cause_a_notice_also_on_dev() -> None:
    context = "a b c d e"
    examples = [make_question(context, answer=answer) for answer in ("a b c d", "a b c", "b c d e")]
    for labeled in (True, False):
        notes = SMALL.encoding_warnings(SMALL.encode(examples, TOKENIZER, labeled))
        assert [note.partition(" have an")[0] for note in notes] == ["2 of 3 questions (66.7%)"]
        assert notes[0].endswith("raise --max-answer-length, up to 4")
    assert SMALL.encoding_warnings(SMALL.encode(examples[1:2], TOKENIZER)) == []


def test_answer_ends_after_the_combining_marks_of_its_last_letter() -> None:
    context = "abe\u0301\u0323 c"  # the tokenizer strips the accents
    example = QaExample("q", question="a", context=context)
    encoded = SMALL.encode([example], TOKENIZER, labeled=False)
    outputs = np.zeros((int(encoded.lengths.sum()), 2), np.float32)
    outputs[3, 0] = outputs[5, 1] = 9  # [CLS] a [SEP] a ##b ##e c [SEP]
    (answer,) = SMALL.decode([example], encoded, outputs)
    assert (answer.text, answer.start, answer.end) == ("abe\u0301\u0323", 0, 5)


def test_no_answer_unless_the_margin_exceeds_the_threshold() -> None:
    example = make_question("c d")
    task = replace(SMALL, allow_no_answer=True)
    encoded = task.encode([example], TOKENIZER, labeled=False)
    outputs = np.full((7, 2), -9, np.float32)
    outputs[0] = 1  # [CLS]: 2
    outputs[4] = 1.5  # "c": 3
    for threshold, text in [(0.0, "c"), (0.5, "c"), (1.0, ""), (7.0, "")]:
        (answer,) = replace(task, threshold=threshold).decode([example], encoded, outputs)
        assert (answer.text, answer.score, answer.null_score, answer.margin) == (text, 3.0, 2.0, 1.0)
        assert answer.best_span == "c"
        assert answer.probability == pytest.approx((1 if text else np.exp(-1)) / (1 + np.exp(-1)), abs=1e-3)
    (answer,) = replace(SMALL, threshold=7.0).decode([example], encoded, outputs)  # an answer is required
    assert answer.text == "c"
    assert all(candidate.text for candidate in answer.candidates)


def test_null_score_is_the_minimum_over_windows() -> None:
    example = make_question("c d e f g h i j")
    encoded = SMALL.encode([example], TOKENIZER, labeled=False)
    outputs = draw_outputs(encoded)
    outputs[encoded.starts[:-1]] = [[3, 1], [-1, 0.5], [2, 2]]
    (answer,) = SMALL.decode([example], encoded, outputs)
    assert answer.null_score == -0.5


@pytest.mark.parametrize("impossible", [False, True])
def test_context_without_tokens_has_no_answer(impossible: bool) -> None:
    task = replace(SMALL, allow_no_answer=impossible, threshold=-9.0)
    examples = [make_question(""), make_question(" \x00 "), make_question("c")]
    encoded = task.encode(examples, TOKENIZER, labeled=False)
    *empty, answer = task.decode(examples, encoded, draw_outputs(encoded))
    for found in empty:
        assert (found.text, found.start, found.end, found.probability, found.margin) == ("", 0, 0, 1.0, 0.0)
    assert answer.text == "c"
    assert [text for text, *_ in task.decode([], task.encode([], TOKENIZER, labeled=False), np.empty((0, 2)))] == []


# Threshold, scores, files


def test_tuned_threshold_maximizes_f1() -> None:
    rng = np.random.default_rng(1)
    examples = [
        make_question(" ".join(rng.choice(list(LETTERS), 12)), is_impossible=bool(n % 2), id=str(n)) for n in range(30)
    ]
    examples = [e if e.is_impossible else replace(e, answers=(GoldAnswer(e.context[4:7], 4),)) for e in examples]
    task = replace(SMALL, allow_no_answer=True)
    encoded = task.encode(examples, TOKENIZER, labeled=False)
    outputs = draw_outputs(encoded)

    def f1(task: QuestionAnswering) -> float:
        return task.score(examples, task.decode(examples, encoded, outputs))["f1"]

    answers = task.decode(examples, encoded, outputs)
    tuned = task.with_threshold_from(examples, answers)
    assert f1(tuned) > f1(task)
    assert f1(tuned) >= max(f1(replace(task, threshold=answer.margin)) for answer in answers)
    assert (
        tuned.with_threshold_from(examples, tuned.decode(examples, encoded, outputs)) == tuned
    )  # for any τ at decoding
    assert replace(task, allow_no_answer=False).with_threshold_from(examples, answers).threshold == 0
    assert tuned.score(examples, answers).keys() == {
        *("exact_match", "f1", "has_answer_exact_match", "has_answer_f1", "no_answer_accuracy")
    }


def test_record_of_an_answer() -> None:
    examples = [make_question("c d", id="x"), make_question("", id="y")]
    encoded = SMALL.encode(examples, TOKENIZER, labeled=False)
    answers = SMALL.decode(examples, encoded, draw_outputs(encoded))
    records = [SMALL.to_record(example, answer) for example, answer in zip(examples, answers, strict=True)]
    assert json.loads(json.dumps(records)) == records
    names = ["id", "answer", "start", "end", "probability", "score", "null_score", "candidates"]
    assert [list(record) for record in records] == [names, names]
    assert [(record["id"], record["answer"]) for record in records] == [("x", answers[0].text), ("y", "")]
    assert records[0]["candidates"][0]["text"] == answers[0].candidates[0].text


def test_impossible_question_needs_allow_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"question": "?", "context": "c", "answers": [], "is_impossible": true}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"own\.jsonl, line 1: the question has no answer; .* --allow-no-answer"):
        list(QuestionAnswering().read(str(path)))
    (example,) = QuestionAnswering(allow_no_answer=True).read(str(path))
    assert example.is_impossible
    (example,) = QuestionAnswering().read(str(path), labeled=False)
    assert not example.is_impossible


def test_question_without_an_answer_in_the_file_is_impossible_only_if_that_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"question": "?", "context": "c", "answers": []}\n', encoding="utf-8")
    assert [
        next(QuestionAnswering(allow_no_answer=allow).read(str(path))).is_impossible for allow in (True, False)
    ] == [
        True,
        False,
    ]
    (example,) = QuestionAnswering(allow_no_answer=True).read(str(path), labeled=False)
    assert not example.is_impossible


def test_any_answer_to_a_question_without_one_is_wrong() -> None:
    examples = [make_question("c d", answer="d"), make_question("e f", id="2")]
    encoded = SMALL.encode(examples, TOKENIZER, labeled=False)
    outputs = np.zeros((len(encoded.input_ids), 2), np.float32)
    outputs[encoded.context_start[0] + 1] = 1  # the token d
    scores = SMALL.score(examples, SMALL.decode(examples, encoded, outputs))
    assert scores == {
        "exact_match": 0.5, "f1": 0.5, "has_answer_exact_match": 1, "has_answer_f1": 1, "no_answer_accuracy": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"doc_stride": 0}, "doc_stride: expected at least 1, got 0"),
        ({"max_answer_length": 0}, "max_answer_length: expected at least 1, got 0"),
        ({"n_best_size": -1}, "n_best_size: expected at least 1, got -1"),
        ({"max_query_length": 0}, "max_query_length: expected at least 1, got 0"),
        ({"max_length": 67}, "max_length = 67: .* max_query_length = 64 .* at least 68"),
        ({"scoring": "korqad"}, "scoring = 'korqad': did you mean \"korquad\""),
        ({"metric": "accuracy"}, "metric = 'accuracy': known: exact_match, f1"),
        ({"threshold": float("nan")}, "threshold = nan: a finite number"),
    ],
)
def test_settings_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QuestionAnswering(**changes)
    assert QuestionAnswering(max_length=68).head == ("span", 2)
