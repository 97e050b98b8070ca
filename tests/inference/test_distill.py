"""`bertwright distill`: layers of a teacher, another student, translations, static vectors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

import bertwright
from bertwright.base.reporter import SILENT
from bertwright.cli.main import run
from bertwright.finetuning import run as finetuning_run
from bertwright.finetuning.run import finetune
from bertwright.finetuning.settings import FinetuneSettings
from bertwright.inference import static_vectors
from bertwright.inference.bert import Bert, open_model
from bertwright.inference.distill import DistillSettings, check_inputs, distill, fit_size, save_layers
from bertwright.tasks.classification import soft_cross_entropy
from bertwright.tasks.presets import TaskSettings
from bertwright.tasks.teacher_outputs import OutputRecord, write_record
from bertwright.training.optimizer_settings import OptimizerSettings
from bertwright.training.run_folder import read_run_settings
from helpers import CPU, read_output, text_reporter
from small_runs import LOCATIONS, NOUNS, VERBS, save_random_bert

TEXTS = [f"the {noun} {verb} in the {place}" for noun in NOUNS for verb in VERBS for place in LOCATIONS]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return str(path)


def cosines(teacher: Path, student: Path) -> float:
    """Return the mean cosine of the vectors of both models."""
    return float(
        (bertwright.load(teacher, "cpu").embed(TEXTS) * bertwright.load(student, "cpu").embed(TEXTS)).sum(1).mean()
    )


def test_a_student_of_some_layers_learns_the_vectors(tmp_path: Path, tiny_bert: Path, texts: str) -> None:
    settings = DistillSettings(
        str(tiny_bert),
        tmp_path / "run",
        (1,),
        texts=(texts,),
        epochs=8.0,
        batch_size=32,
        learning_rate=3e-3,
        device=CPU,
    )
    folder = distill(settings)
    (start,) = (tmp_path / "run" / "teacher").glob("layers-1-*")
    assert bertwright.load(folder, "cpu").config.num_layers == 1
    before, after = cosines(tiny_bert, start), cosines(tiny_bert, folder)
    assert after > 0.5 + 0.5 * before  # less than half of the distance is left
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS[:9])
    np.testing.assert_allclose(bertwright.load(folder, "cpu").embed(TEXTS[:9]), theirs, atol=1e-6)


def test_vectors_are_computed_once_and_belong_to_teacher_and_texts(
    tmp_path: Path, tiny_bert: Path, texts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"texts": (texts,), "cache": tmp_path / "cache", "epochs": 0.1, "device": CPU}
    distill(DistillSettings(str(tiny_bert), tmp_path / "first", (0,), **given))
    monkeypatch.setattr(Bert, "embed_and_count", lambda *_: pytest.fail("computed the vectors again"))
    reporter = text_reporter()
    distill(DistillSettings(str(tiny_bert), tmp_path / "second", (1,), **given), reporter)
    assert "vectors.npy" in read_output(reporter)
    (tmp_path / "other.txt").write_text("the bear\nthe wolf\n")
    with pytest.raises(ValueError, match=r"vectors.npy: .*other texts.*--cache"):
        distill(
            DistillSettings(
                str(tiny_bert), tmp_path / "third", (1,), **given | {"texts": (str(tmp_path / "other.txt"),)}
            )
        )
    save_random_bert(tmp_path / "model", NOUNS, hidden_size=32, num_heads=2, num_layers=2, intermediate_size=64)
    with pytest.raises(ValueError, match=r"vectors.npy: .*another teacher"):
        distill(DistillSettings(str(tmp_path / "model"), tmp_path / "third", (1,), **given))
    np.save(tmp_path / "cache" / "vectors.npy", np.zeros((250, 32), np.float32))
    with pytest.raises(ValueError, match=r"vectors.npy: .*changed"):
        distill(DistillSettings(str(tiny_bert), tmp_path / "third", (1,), **given))
    assert not (tmp_path / "third" / "model").exists()


def test_layers_in_a_cache_are_those_of_their_teacher(tmp_path: Path, tiny_bert: Path, texts: str) -> None:
    save_random_bert(tmp_path / "model", NOUNS, hidden_size=32, num_heads=2, num_layers=2, intermediate_size=64)
    folders = set()
    for teacher in (tiny_bert, tmp_path / "model", tiny_bert):
        given = {"texts": (texts,), "cache": tmp_path / "cache", "device": CPU}
        settings = DistillSettings(str(teacher), tmp_path / "run", (1,), **given)
        folder = save_layers(open_model(str(teacher), "cpu"), settings)
        folders.add(folder)
        one, two = (bertwright.load(path, "cpu").model.state_dict() for path in (folder, teacher))
        torch.testing.assert_close(one["encoder.embeddings.word.weight"], two["encoder.embeddings.word.weight"])
    assert len(folders) == 2


def test_an_interrupted_training_ends_with_the_same_bits(
    tmp_path: Path, tiny_bert: Path, texts: str, interrupted_in: object
) -> None:
    def settings(name: str) -> DistillSettings:
        cache = tmp_path / "cache"
        return DistillSettings(
            str(tiny_bert), tmp_path / name, (0,), texts=(texts,), cache=cache, epochs=2.0, device=CPU
        )

    whole = distill(settings("whole"))
    with interrupted_in(finetuning_run, "summarize", 1):
        distill(settings("broken"))
    resumed = read_run_settings(FinetuneSettings, tmp_path / "broken")
    folder = finetune(replace(resumed, run=tmp_path / "broken", resume=True))
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_a_smaller_student_learns_the_main_directions(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, 3)) @ rng.normal(size=(3, 8))  # in three directions
    np.save(path := tmp_path / "vectors.npy", vectors.astype(np.float32))
    write_record(path, OutputRecord("a", "b", ""))
    assert fit_size(path, 8) == path
    for size in (3, 5, 12):
        fitted = np.load(fit_size(path, size))
        assert fitted.shape == (50, size)
        np.testing.assert_allclose(fitted @ fitted.T, vectors @ vectors.T, atol=1e-4)


def test_a_translation_learns_the_vector_of_its_source(tmp_path: Path, tiny_bert: Path) -> None:
    words = [*NOUNS, *VERBS, *LOCATIONS, "the", "in", "der"]
    save_random_bert(tmp_path / "student", words, hidden_size=16, num_heads=2, num_layers=1, intermediate_size=32)
    (tmp_path / "en.txt").write_text("\n".join(TEXTS) + "\n")
    (tmp_path / "de.txt").write_text("\n".join(text.replace("the", "der") for text in TEXTS) + "\n")
    (tmp_path / "dev.tsv").write_text(
        "sentence1\tsentence2\tscore\n"
        + "".join(f"{a}\t{b}\t{n}\n" for n, (a, b) in enumerate(zip(TEXTS[:9], TEXTS[9:], strict=False)))
    )
    folder = distill(
        DistillSettings(
            str(tiny_bert),
            tmp_path / "run",
            student=str(tmp_path / "student"),
            dev=(str(tmp_path / "dev.tsv"),),
            translations=(str(tmp_path / "en.txt"), str(tmp_path / "de.txt")),
            epochs=6.0,
            learning_rate=3e-3,
            device=CPU,
        )
    )
    student = bertwright.load(folder, "cpu")
    targets = np.load(tmp_path / "run" / "teacher" / "vectors-16.npy")
    targets /= np.linalg.norm(targets, axis=1, keepdims=True)
    assert (student.embed([text.replace("the", "der") for text in TEXTS]) * targets).sum(1).mean() > 0.8
    assert "spearman_cosine" in json.loads((tmp_path / "run" / "report.json").read_text())["scores"]["dev"]


def test_static_vectors_equal_those_of_sentence_transformers(tmp_path: Path, tiny_bert: Path) -> None:
    arguments = ["distill", str(tiny_bert), "--static", "8", "--run", str(tmp_path / "static")]
    assert run(arguments) == 0
    model = bertwright.load(tmp_path / "static", "cpu")
    given = [*TEXTS[:9], "the zebra", ""]
    ours, theirs = model.embed(given), SentenceTransformer(str(tmp_path / "static"), device="cpu").encode(given)
    assert ours.shape == (11, 8)
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert not ours[-1].any()
    np.testing.assert_allclose(ours[0], model.embed("forest the in the bear sees"), atol=1e-6)  # whatever the order
    model.save(tmp_path / "copy")
    np.testing.assert_array_equal(bertwright.load(tmp_path / "copy", "cpu").embed(given), ours)


def test_characters_that_are_rare_by_themselves_rank_last() -> None:
    tokens = ["[CLS]", "a", "é", "##a", ",", "the", "##ing", "字"]
    continues = np.array([token.startswith("##") for token in tokens])
    ranked = static_vectors.rank_tokens(tokens, continues, chosen := np.arange(1, len(tokens)))
    assert [tokens[place] for place in chosen[ranked]] == ["a", ",", "the", "##ing", "é", "##a", "字"]


@pytest.mark.parametrize("removed", [0, 2])
def test_static_vectors_are_weighted_main_directions_of_states(
    removed: int, tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(static_vectors, "NUMBERS_PER_REMOVED", 2 if removed else 100)
    distill(DistillSettings(str(tiny_bert), tmp_path / "static", static=4, device=CPU))
    model, teacher = bertwright.load(tmp_path / "static", "cpu"), bertwright.load(tiny_bert, "cpu")
    words = [teacher.tokenizer.token(number) for number in range(5, teacher.tokenizer.vocab_size)]
    states = teacher.embed(words, pooling="mean", normalize=False).astype(np.float64)
    table = model.model.encoder.embeddings.weight.detach().numpy()
    assert not table[:5].any()  # special tokens
    shares = 1 / np.arange(2, len(words) + 2)
    weights = 5e-4 / (5e-4 + shares / shares.sum())
    u, s, _ = np.linalg.svd(states - states.mean(0), full_matrices=False)
    np.testing.assert_allclose(np.abs(table[5:]), np.abs(u * s)[:, removed : removed + 4] * weights[:, None], atol=1e-7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "one of --layers, --student and --static, got none"),
        ({"layers": (0,), "static": 8}, "got layers and static"),
        ({"layers": (0,)}, "either --texts, .* or --translations"),
        ({"layers": (0,), "translations": ("a",)}, "translations: expected two files, got 1"),
        ({"static": 8, "texts": ("a",)}, "texts: --static reads the vocabulary alone"),
    ],
)
def test_settings_that_do_not_go_together(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DistillSettings("teacher", Path("run"), **changes)


def test_unusable_layers_sizes_and_runs(tmp_path: Path, tiny_bert: Path, texts: str) -> None:
    with pytest.raises(ValueError, match=r"layers: expected 0 to 1, .*got 2"):
        distill(DistillSettings(str(tiny_bert), tmp_path / "a", (0, 2), texts=(texts,), device=CPU))
    with pytest.raises(ValueError, match=r"static = 64: expected at most 32"):
        distill(DistillSettings(str(tiny_bert), tmp_path / "b", static=64, device=CPU))
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "settings.toml").touch()
    with pytest.raises(ValueError, match="finetune --resume"):
        check_inputs(DistillSettings(str(tiny_bert), tmp_path / "c", (0,), texts=(texts,)))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a classifier of the verb, with labels whose order is not the alphabet's."""
    folder = tmp_path_factory.mktemp("classifier")
    sizes = {"hidden_size": 32, "num_heads": 2, "num_layers": 2, "intermediate_size": 64, "initializer_range": 0.1}
    save_random_bert(folder / "model", [*NOUNS, *VERBS, *LOCATIONS, "the", "in"], **sizes)
    labels = {verb: f"label {9 - number}" for number, verb in enumerate(VERBS)}
    write_labeled(folder / "train.tsv", labels)
    task = TaskSettings("classification", train=(str(folder / "train.tsv"),))
    optimizer = OptimizerSettings(learning_rate=3e-3)
    finetune(
        FinetuneSettings(folder / "run", task, str(folder / "model"), epochs=3.0, optimizer=optimizer, device=CPU),
        SILENT,
    )
    return folder


def write_labeled(path: Path, labels: dict[str, str]) -> None:
    lines = [f"{text}\t{next(label for verb, label in labels.items() if verb in text)}" for text in TEXTS]
    path.write_text("\n".join(["text\tlabel", *lines]) + "\n")


def probabilities(folder: Path) -> np.ndarray:
    return np.array([[*one.probabilities.values()] for one in bertwright.load(folder, "cpu").classify(TEXTS)])


@pytest.mark.parametrize("student", ["layers", "other"])
def test_a_student_learns_a_classifiers_probabilities(
    student: str, tmp_path: Path, classifier: Path, texts: str
) -> None:
    chosen = {"layers": (1,)} if student == "layers" else {"student": str(classifier / "model")}
    given = {"texts": (texts,), "dev": (str(classifier / "train.tsv"),), "epochs": 6.0, "batch_size": 32}
    settings = DistillSettings(
        str(classifier / "run"), tmp_path / "run", learning_rate=3e-3, device=CPU, **chosen, **given
    )
    folder = distill(settings)
    small, teacher = bertwright.load(folder, "cpu"), bertwright.load(classifier / "run", "cpu")
    assert small.task is not None
    assert teacher.task is not None
    assert small.task.label_names == teacher.task.label_names
    assert small.config.num_layers == (1 if student == "layers" else 2)
    expected, found = probabilities(classifier / "run"), probabilities(folder)
    assert expected.std(0).min() > 0.05  # the teacher has learned something
    assert np.abs(found - expected).mean() < 0.25 * np.abs(expected - expected.mean(0)).mean()


def test_logits_of_other_texts_and_translations_are_refused(tmp_path: Path, classifier: Path, texts: str) -> None:
    given = {"cache": tmp_path / "cache", "epochs": 0.1, "device": CPU}
    distill(DistillSettings(str(classifier / "run"), tmp_path / "first", (0,), texts=(texts,), **given))
    (tmp_path / "other.txt").write_text("the bear\nthe wolf\n")
    with pytest.raises(ValueError, match=r"logits.npy: .*other texts.*--cache"):
        distill(
            DistillSettings(
                str(classifier / "run"), tmp_path / "second", (0,), texts=(str(tmp_path / "other.txt"),), **given
            )
        )
    with pytest.raises(ValueError, match=r"translations: .*classifier"):
        distill(
            DistillSettings(str(classifier / "run"), tmp_path / "second", (0,), translations=(texts, texts), **given)
        )
    assert not (tmp_path / "second" / "model").exists()


def test_loss_of_logits_is_that_of_the_formula() -> None:
    rng = np.random.default_rng(0)
    teacher, student = (torch.from_numpy(rng.normal(scale=3, size=(5, 4))) for _ in range(2))
    student.requires_grad_()
    soft_cross_entropy(student, teacher.float()).backward()
    p, q = ((logits / 2).exp() / (logits / 2).exp().sum(1, keepdim=True) for logits in (teacher, student.detach()))
    value = float(soft_cross_entropy(student.detach(), teacher))
    assert value == pytest.approx(float(4 * (p * (p / q).log()).sum()), rel=1e-9)
    assert student.grad is not None
    torch.testing.assert_close(student.grad, 2 * (q - p), atol=1e-5, rtol=0)
