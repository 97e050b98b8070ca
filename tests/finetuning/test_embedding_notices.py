"""What a user hears of rows that would harm the training of text vectors: before training, and in training."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertwright
from bertwright import FinetuneSettings, PairSurveySettings, TaskOptions, TaskSettings
from bertwright.base.reporter import MUTE
from bertwright.tables.text_roles import TextRow
from bertwright.tasks.embedding import Embedding
from bertwright.tasks.embedding_objective import VectorObjective
from bertwright.tasks.pair_checks import expect_masked
from bertwright.tasks.task_data import digest_files
from bertwright.vocabulary.wordpiece_files import SPECIAL_TOKENS
from bertwright.vocabulary.wordpiece_tokenizer import Tokenizer
from harness import run_and_capture, run_with_output
from small_runs import FILLERS, NOUNS

UNKNOWN = "[UNK]"  # the small vocabulary lacks most of these words
ASKED = [(f"what is the {noun} ?", f"the {noun} is near") for noun in NOUNS[:8]]


@pytest.fixture
def survey(tmp_path: Path, tiny_bert: Path) -> Any:
    """Return a function that surveys a table and returns the rows, the warnings on them and what is printed."""

    def run(header: str, rows: Sequence[Sequence[Any]], dev: Sequence[Sequence[Any]] = ()) -> Any:
        paths = []
        for name, given in (("train", rows), ("dev", dev)):
            if given:
                lines = [header, *("\t".join(map(str, row)) for row in given)]
                (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
                paths.append((str(tmp_path / f"{name}.tsv"),))
        settings = PairSurveySettings(paths[0], str(tiny_bert), *paths[1:])
        found, printed = run_with_output(bertwright.survey_pairs, settings)
        return found.rows, [text for text in found.warnings if UNKNOWN not in text], " ".join(printed.split())

    return run


def test_survey_of_sound_pairs_has_figures_and_no_warning(survey: Any) -> None:
    pairs = [(f"the {noun} sees the {NOUNS[0]}", f"the {noun} in the forest") for noun in NOUNS]
    rows, warnings, printed = survey("question\tanswer", pairs * 2)
    assert rows == 2 * len(pairs)
    assert [" ".join(text.split()[2:5]) for text in warnings] == [f"of {rows} rows"]  # copies
    assert f"anchor {pairs[0][0]!r}, positive {pairs[0][1]!r}" in printed
    assert "16 " in printed
    rows, warnings, printed = survey("question\tanswer", pairs)
    assert (rows, warnings) == (len(pairs), [])
    assert "Nothing here will hurt training." in printed


@pytest.mark.parametrize(
    ("header", "rows", "dev", "named"),
    [
        ("question\tanswer", [*ASKED, ("the bear", "the bear")], (), "1 of 9 rows have the same text.*line 10"),
        ("question\tanswer", [*ASKED, ASKED[3]], (), "1 of 9 rows are copies of others, such as of .*line 5"),
        ("question\tanswer", [(b, a) for a, b in ASKED], (), "line 2: are the columns swapped.* 100% of the positives"),
        ("question\tanswer", [("the bear sees the forest " * 2, b) for _, b in ASKED], (), "swapped.*50 characters"),
        (
            "question\tanswer",
            ASKED,
            [ASKED[2], ("who ?", "a bear")],
            "dev: 1 of 2 examples have the text",
        ),
        ("question\tanswer", [*ASKED, ("where ?", "the bear " * 60)], (), r"1 of 9 positives \(11.1%\) are cut at 64"),
    ],
    ids=["equal texts", "copies", "swapped questions", "swapped lengths", "dev in train", "cut"],
)
def test_survey_warns_of_what_harms_training(survey: Any, header: str, rows: Any, dev: Any, named: str) -> None:
    _, (warning,), printed = survey(header, rows, dev)
    assert f"! {warning}" in printed
    assert re.search(named, warning), warning


@pytest.mark.parametrize(
    ("header", "rows", "named"),
    [
        ("question\tanswer", [("a", " ")], "line 2: the text in 'answer' is empty; fill it in, or delete the row"),
        ("question\tanswer", [("a", "b")], "line 2: a single row"),
        ("text\tlabel", [("a", "x"), ("b", "x")], "all 2 rows have the class 'x'"),
        ("sentence1\tsentence2\tscore", [("a", "b", 3), ("c", "d", 3)], "all 2 rows have the score 3"),
    ],
)
def test_unusable_rows_are_refused_by_the_survey(survey: Any, header: str, rows: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        survey(header, rows)


def test_training_says_what_the_survey_says_and_that_a_step_is_too_large(
    survey: Any, tmp_path: Path, tiny_bert: Path
) -> None:
    rows = [*ASKED, ("the bear", "the bear"), ASKED[3]]
    _, warnings, _ = survey("question\tanswer", rows)
    assert len(warnings) == 2
    task = TaskSettings("embedding", train=(str(tmp_path / "train.tsv"),))
    settings = FinetuneSettings(tmp_path / "run", task, str(tiny_bert), batch_size=64, dry_run=True)
    printed = " ".join(run_and_capture(bertwright.finetune, settings).split())
    for warning in warnings:
        assert warning in printed
    assert "a step of 64 rows is larger than the 10 of the data" in printed
    assert "--batch-size 10" in printed


def test_texts_that_are_their_own_answer_are_no_oddity_of_simcse(survey: Any) -> None:
    assert survey("text", [(text,) for text, _ in ASKED])[1] == []


def test_prompts_of_unknown_roles_are_refused(tmp_path: Path, tiny_bert: Path, survey: Any) -> None:
    survey("question\tanswer", ASKED)
    task = TaskSettings(
        "embedding", train=(str(tmp_path / "train.tsv"),), overrides=TaskOptions(prompts=("qery=find ",))
    )
    with pytest.raises(ValueError, match="the role 'qery'; did you mean \"query\""):
        bertwright.finetune(FinetuneSettings(tmp_path / "run", task, str(tiny_bert)), MUTE)
    assert not (tmp_path / "run").exists()


def test_masked_pairs_are_expected_as_steps_count_them() -> None:
    rng = np.random.default_rng(0)
    texts = [f"{noun} {filler}" for noun in NOUNS for filler in FILLERS[:2]]
    rows = [TextRow(rng.choice(texts), f"file, line {n}", (rng.choice(texts),)) for n in range(40)]
    task = Embedding(vector_loss="ranking", pooling=("mean",), size=32)
    encoded = task.encode(rows, Tokenizer.from_tokens([*SPECIAL_TOKENS, *NOUNS, *FILLERS], lowercase=True))
    objective = VectorObjective.of(task, rows)

    def count(items: Any) -> int:
        import torch

        labels = np.concatenate([encoded.labels[2 * item : 2 * item + 2] for item in items])
        return len(objective.make_ranking(torch.from_numpy(labels)).masked.rows)

    assert expect_masked(rows, 40) == count(range(40))
    counts = [count(rng.permutation(40)[:10]) for _ in range(300)]
    assert np.mean(counts) == pytest.approx(expect_masked(rows, 10), abs=4 * np.std(counts) / 300**0.5)


def test_digest_of_judgements_covers_documents_and_queries(tmp_path: Path) -> None:
    for name, text in (("corpus", "a bear"), ("queries", "who?")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"_id": "1", "title": "", "text": text}) + "\n")
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n1\t1\t1\n")
    task = TaskSettings("embedding", train=(str(tmp_path / "qrels" / "train.tsv"),))
    before = digest_files(task)
    (tmp_path / "corpus.jsonl").write_text((tmp_path / "corpus.jsonl").read_text().replace("bear", "bird"))
    assert digest_files(task) != before
