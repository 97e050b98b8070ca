"""Word vectors from text: counting, three models, their folders, and scores."""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from bertwright.base.files import read_json
from bertwright.base.reporter import MUTE
from bertwright.cli.main import run
from bertwright.corpus.documents import CorpusSettings
from bertwright.inference.info import InfoSettings, info
from bertwright.kernels.word_vectors import make_alias_table
from bertwright.systems.word_vectors import train_vectors
from bertwright.systems.word_vectors.glove import count_cooccurrences
from bertwright.systems.word_vectors.skip_gram import SubwordRows, keep_probabilities, noise_weights
from bertwright.systems.word_vectors.train_vectors import train_word_vectors
from bertwright.systems.word_vectors.vector_evaluation import (
    NearestSettings,
    ScoreVectorsSettings,
    nearest_words,
    read_examples,
    score_vectors,
)
from bertwright.systems.word_vectors.vector_settings import VectorModel, WordRule, WordVectorSettings
from bertwright.systems.word_vectors.word_stream import WordStream, read_words
from bertwright.vocabulary.fasttext_file import Subwords, hash_subwords
from bertwright.vocabulary.vector_file import VectorFile, load_vectors
from helpers import read_output, text_reporter, write_file

FRUIT, METALS = "apple pear plum cherry".split(), "iron copper zinc silver".split()


def write_topics(folder: Path) -> str:
    """Write sentences about fruit and about metals, whose words share contexts only with their own kind."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(400):
        for words, others in ((FRUIT, ["eats", "sweet", "tree"]), (METALS, ["melts", "hard", "mine"])):
            lines.append(" ".join(rng.permutation([*rng.choice(words, 2, replace=False), *others])))
    return write_file(folder, "\n".join(lines), "topics.txt")


def make_stream(tmp_path: Path, text: str, **rule: object) -> WordStream:
    path = write_file(tmp_path, text, "text.txt")
    corpus = CorpusSettings((path,), sentence_splitter="line")
    return read_words(corpus, WordRule(**rule), tmp_path, lambda _: None)  # type: ignore[arg-type]


def settings_for(tmp_path: Path, model: VectorModel, name: str = "vectors") -> WordVectorSettings:
    return WordVectorSettings(
        CorpusSettings((write_topics(tmp_path),), sentence_splitter="line"),
        tmp_path / name,
        model,
        size=20,
        sample=0,
        epochs=8,
        threads=1,
        subwords=Subwords(3, 4, 500),
    )


def test_the_text_becomes_word_ids_in_order_of_frequency(tmp_path: Path) -> None:
    stream = make_stream(tmp_path, "The cat, the dog.\nA cat in 1999", min_count=2, zero_digits=True)
    assert stream.words == ["the", "cat"]
    assert stream.counts.tolist() == [2, 2]
    (ids,) = stream.stretches(100)
    assert ids.tolist() == [0, 1, 0, -1, 1, -1]
    assert [ids.tolist() for ids in stream.stretches(3)] == [[0, 1], [0], [-1, 1], [-1]]
    blanks = make_stream(tmp_path, "The cat, the dog.\nA cat in 1999", min_count=1, split_punctuation=False)
    assert {"cat,", "dog.", "1999"} < set(blanks.words)


def test_frequent_words_are_skipped_by_word2vecs_formula(tmp_path: Path) -> None:
    stream = make_stream(tmp_path, "a a a a a a a a b c", min_count=1)
    probabilities = keep_probabilities(stream, 0.2)
    np.testing.assert_allclose(probabilities, [(0.2 / 0.8) ** 0.5 + 0.2 / 0.8, 1, 1], rtol=1e-6)
    assert keep_probabilities(stream, 0).tolist() == [1, 1, 1]


def test_noise_words_are_drawn_as_in_the_papers(tmp_path: Path) -> None:
    stream = make_stream(tmp_path, "a " * 16 + "b", min_count=1)
    weights = {subwords: noise_weights(stream, subwords) for subwords in (False, True)}
    assert {subwords: found[0] / found[1] for subwords, found in weights.items()} == {False: 8.0, True: 4.0}
    shares, alias = make_alias_table(weights[True])
    drawn = np.random.default_rng(0).random((2, 100_000))
    words = np.where(
        drawn[1] < np.asarray(shares)[picked := (drawn[0] * 2).astype(int)], picked, np.asarray(alias)[picked]
    )
    assert (words == 0).mean() == pytest.approx(0.8, abs=0.01)


def test_cooccurrences_equal_a_loop_over_pairs(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    text = "\n".join(" ".join(rng.choice(list("abcdef"), rng.integers(1, 15))) for _ in range(40))
    stream = make_stream(tmp_path, text, min_count=1)
    expected: Counter[tuple[int, int]] = Counter()
    for line in text.split("\n"):
        ids = [stream.words.index(word) for word in line.split()]
        for position, word in enumerate(ids):
            for distance in range(1, 5):
                if position + distance < len(ids):
                    low, high = sorted((word, ids[position + distance]))
                    expected[low, high] += 1 / distance  # type: ignore[assignment]
    pairs = count_cooccurrences(stream, 4, lambda _: None)
    assert [divmod(key, 6) for key in pairs.keys.tolist()] == sorted(expected)
    np.testing.assert_allclose(pairs.counts, [expected[pair] for pair in sorted(expected)])


def test_a_word_of_fasttext_has_its_own_row_and_its_ngrams(tmp_path: Path) -> None:
    stream = make_stream(tmp_path, "cat dogs cat", min_count=1)
    settings = WordVectorSettings(CorpusSettings(("x",)), Path("y"), subwords=Subwords(3, 3, 50))
    rows = SubwordRows(stream, settings)
    grams = hash_subwords(["cat", "dogs"], Subwords(3, 3, 50))
    assert rows.rows.tolist() == [0, *(2 + grams[0].astype(int)), 1, *(2 + grams[1].astype(int))]
    assert rows.offsets.tolist() == [0, 4, 9]


@pytest.mark.parametrize("model", ["skip-gram", "fasttext", "glove"])
def test_words_of_one_topic_become_similar_and_the_files_agree(tmp_path: Path, model: VectorModel) -> None:
    reporter = text_reporter()
    settings = settings_for(tmp_path, model)
    vectors = train_word_vectors(settings, reporter)
    for topic in (FRUIT, METALS):
        assert cosine(vectors, topic[0], topic[1]) > cosine(vectors, FRUIT[0], METALS[0]) + 0.2
    names = sorted(path.name for path in settings.output.iterdir())
    text = {"skip-gram": "vectors.txt", "fasttext": "vectors.vec", "glove": "vectors.txt"}[model]
    files = {"counts.txt", "report.json", "settings.toml", text}
    assert names == sorted(files | ({"vectors.bin"} if model != "glove" else set()))
    words = sum(int(line.split()[1]) for line in (settings.output / "counts.txt").read_text().splitlines())
    assert read_json(settings.output / "report.json")["tokens"] == words * settings.recipe.epochs
    from_text = load_vectors(settings.output / text)
    assert from_text.words == vectors.words
    np.testing.assert_allclose(from_text.vectors, vectors.vectors, atol=1e-6)
    assert (settings.output / "counts.txt").read_text().split("\n")[0].split() == [vectors.words[0], "400"]
    assert vectors.lookup(["apples"]).has_vector[0] == (model == "fasttext")
    assert "14 of 14" in read_output(reporter)
    info(InfoSettings(settings.output), reporter)
    described = read_output(reporter)
    assert f"{settings.output}: word vectors\n" in described
    assert all(text in described for text in (model, f"{len(vectors):,} words", f"{vectors.width} numbers"))


def cosine(vectors: VectorFile, left: str, right: str) -> float:
    a, b = vectors.unit_vectors([left, right])
    return float(a @ b)


@pytest.mark.parametrize("model", ["skip-gram", "fasttext", "glove"])
def test_one_thread_gives_the_same_files_from_the_same_seed(tmp_path: Path, model: VectorModel) -> None:
    for name in ("one", "two"):
        train_word_vectors(settings_for(tmp_path, model, name), MUTE)
    for path in (tmp_path / "one").glob("vectors.*"):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_misuse_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_file(tmp_path, "one two three", "text.txt")
    output = str(tmp_path / "vectors")
    assert run(["word-vectors", path, "--output", output]) == 2
    assert "text.txt: expected words that occur 5 times (--min-count), got 0 among 3 words" in capsys.readouterr().err
    assert run(["word-vectors", path, "--output", output, "--window", "0"]) == 2
    assert "window" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt"]
    assert run(["word-vectors", path, "--output", path, "--min-count", "1"]) == 2
    assert "text.txt: already exists" in capsys.readouterr().err


def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    settings = settings_for(tmp_path, "skip-gram")
    monkeypatch.setattr("bertwright.systems.word_vectors.train_vectors.write_text", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train_word_vectors(settings, MUTE)
    assert [path.name for path in tmp_path.iterdir()] == ["topics.txt"]


TOY = "man 1 0 0\nwoman 1 0 1\nking 1 0.5 0\nqueen 1 0.5 1\nstone -1 0 0\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("model", ["skip-gram", "glove"])
def test_after_a_kill_the_same_command_leaves_nothing_else(tmp_path: Path, model: VectorModel) -> None:
    settings = settings_for(tmp_path, model)
    before = {path.name for path in tmp_path.iterdir()}
    if not (child := os.fork()):
        train_vectors._train = lambda *_: os._exit(9)  # type: ignore[assignment]
        train_word_vectors(settings)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert {path.name for path in tmp_path.iterdir()} - before != set()
    train_word_vectors(settings)
    assert {path.name for path in tmp_path.iterdir()} - before == {"vectors"}
    assert not [path for path in (tmp_path / "vectors").iterdir() if path.name.startswith(".")]


def test_scores_by_hand(tmp_path: Path) -> None:
    vectors = write_file(tmp_path, TOY, "v.txt")
    pairs = write_file(tmp_path, "Man\tking\t9\nman\tstone\t1\nman\tqueen\t5\nman\tdog\t7\n", "pairs.txt")
    questions = write_file(tmp_path, ": family\nMan King woman QUEEN\nman woman king stone\nman a b c\n", "q.txt")
    reporter = text_reporter()
    settings = ScoreVectorsSettings(Path(vectors), (pairs, questions), tmp_path / "scores.json")
    first, second = score_vectors(settings, reporter)
    assert (first.metric, first.score, first.used, first.total) == ("spearman", pytest.approx(1), 3, 4)
    assert (second.metric, second.score, second.used, second.total) == ("accuracy", 0.5, 2, 3)
    assert "accuracy" in read_output(reporter)
    assert (tmp_path / "scores.json").is_file()


SIMLEX = "word1\tword2\tPOS\tSimLex999\tconc(w1)\tSD(SimLex)\n"


@pytest.mark.parametrize(
    ("content", "column"),
    [
        ("a\tb\t1.6\nc\td\t5\n", None),
        ("a b 1.6\nc d 5\n", None),
        ("a b\t1.6\nc d\t5\n", None),
        ("a;b;1.6\r\nc;d;5\r\n", "3, separated by ';'"),
        ("a;b;1,6\nc;d;5\n", "3, separated by ';'"),
        ("a b 1,6\nc d 5\n", None),
        (SIMLEX + "a\tb\tA\t1.6\t2.7\t0.4\nc\td\tN\t5\t2.8\t1\n", "4 .'SimLex999'"),
        ("a\tb\tV\t1.6\tSYNONYMS\nc\td\tV\t5\tNONE\n", "4$"),
        ("a\tb\tV\t1.6\nc\td\tV\t5\n", "4$"),
        ("Word 1,Word 2,Human (mean)\na,b,1.6\nc,d,5\n", "3 .'Human .mean.' in line 1"),
        ('Word 1,Word 2,Human (mean),1,2\na,"b",1.6,1,2\nc,d,5,4,6\n', "3 .'Human"),
        ("Word 1\tWord 2\tHuman (mean)\na\tb\t1.6\nc\td\t5\n", "3 .'Human"),
        ("a\tb\t1.6\t1\t2\nc\td\t5\t4\t6\n", "3$"),
        ("# pairs\nw1 w2 mean\na b 1.6\nc d 5\n", "3 .'mean' in line 2"),
    ],
)
def test_pairs_are_read_as_they_are_published(tmp_path: Path, content: str, column: str | None) -> None:
    path = write_file(tmp_path, content, "pairs.txt")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rows = [(first, second, float(rating)) for first, second, rating in read_examples(path)]
    assert rows == [("a", "b", 1.6), ("c", "d", 5.0)]
    assert len(caught) == (column is not None)
    assert all(re.search(f"pairs.txt: .*column {column}", str(warning.message)) for warning in caught)


def test_a_number_may_be_a_word(tmp_path: Path) -> None:
    path = write_file(tmp_path, "1999 year 5\na b 1\nc d 2\n", "pairs.txt")
    assert next(iter(read_examples(path))) == ["1999", "year", "5"]


@pytest.mark.parametrize(
    "content", [": capitals\na b c d\ne f g h\n", "a,b,c,d\ne,f,g,h\n", "a\tb\tc\td\ne\tf\tg\th\n"]
)
def test_analogies_are_four_words(tmp_path: Path, content: str) -> None:
    assert list(read_examples(write_file(tmp_path, content, "q.txt"))) == [[*"abcd"], [*"efgh"]]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("a b 1\nc d\n", 2),
        ("a b 1\nc d nan\ne f 2\n", 2),
        ("a\nb c 1\nd e 2\n", 1),
        ("a,b,1,6\nc,d,5,0\n", 1),  # a decimal comma, or a second number
        ("a,b,1\nc,d,5,3\n", 2),
        ("w1,w2,mean\na,b,1\nc,d,5,3\n", 3),
        ("0,a,b,1.6\n1,c,d,5\n", 1),  # numbers of rows
        ("a b c d\ne f g\n", 2),
        ("a b c d\ne f g h i\n", 2),
        ("a b c\nd e f\n", 1),
    ],
)
def test_pairs_in_another_form_name_the_line(tmp_path: Path, content: str, line: int) -> None:
    with pytest.raises(ValueError, match=rf"p\.txt, line {line}: expected (two|four) words"):
        list(read_examples(write_file(tmp_path, content, "p.txt")))


def test_a_field_longer_than_the_csv_module_reads_names_the_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"p\.txt, line 2: expected word pairs or analogies, got 'aaa"):
        list(read_examples(write_file(tmp_path, f"a,b,1\n{'a' * 200_000},b,2\n", "p.txt")))


def test_nearest_words_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vectors = write_file(tmp_path, TOY, "v.txt")
    assert run(["nearest-words", vectors, "man", "king", "woman", "--analogy", "--top-k", "1"]) == 0
    assert "queen" in capsys.readouterr().out
    (similar,) = nearest_words(NearestSettings(Path(vectors), ("man",), top_k=2), MUTE)
    assert [word.word for word in similar] == ["king", "woman"]
    for arguments, message in (
        (["nearest-words", vectors, "man", "--analogy"], "expected three words"),
        (["nearest-words", vectors], "name a word"),
        (["nearest-words", vectors, "dog"], "no vector for 'dog'"),
        (["nearest-words", "absent.txt", "dog"], "absent.txt"),
        (
            ["score-vectors", vectors, write_file(tmp_path, "a b 1\na b\n", "p.txt")],
            "p.txt, line 2: expected two words",
        ),
    ):
        assert run(arguments) == 2
        assert message in capsys.readouterr().err
