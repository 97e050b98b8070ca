"""Training of translation models and translating with them: a toy language, resuming to the bit, and misuse."""

from __future__ import annotations

import json
import os
import re
import signal
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bertwright.base.reporter import MUTE
from bertwright.base.seeding import make_rng
from bertwright.base.settings import from_table
from bertwright.cli.render.terminal import TerminalReporter
from bertwright.inference.info import InfoSettings, info
from bertwright.systems.registry import translation_records
from bertwright.systems.transformer.defaults import NAMES
from bertwright.systems.transformer.marian import load_system, write_system
from bertwright.training import checkpoint
from bertwright.training.optimizer_settings import OptimizerSettings
from bertwright.translation import run as translation_run
from bertwright.translation.run import average_checkpoints, train_translation
from bertwright.translation.settings import TrainTranslationSettings, TranslateSettings, check_training_inputs
from bertwright.translation.translator import load_translator, translate
from harness import read_untimed, run_and_capture, run_until_killed
from helpers import CPU, read_output

WORDS = dict(zip("one two three four five six".split(), "eins zwei drei vier fünf sechs".split(), strict=True))


def write_toy(folder: Path, name: str, count: int, seed: int) -> tuple[tuple[str], tuple[str]]:
    """Write sentences of numbers, and their German words in reversed order."""
    rng = make_rng(seed, count)
    sentences = [rng.choice(list(WORDS), rng.integers(1, 6)).tolist() for _ in range(count)]
    source, target = folder / f"{name}.en", folder / f"{name}.de"
    source.write_text("".join(" ".join(words) + "\n" for words in sentences), encoding="utf-8")
    reversed_words = (" ".join(WORDS[word] for word in reversed(words)) for words in sentences)
    target.write_text("".join(line + "\n" for line in reversed_words), encoding="utf-8")
    return (str(source),), (str(target),)


def make_settings(folder: Path, run: str = "run", **changes: object) -> TrainTranslationSettings:
    train, dev = write_toy(folder, "train", 400, 1), write_toy(folder, "dev", 20, 2)
    optimizer = OptimizerSettings(
        0.01, warmup_ratio=0.1, schedule="noam", beta2=0.98, eps=1e-9, weight_decay=0.0, bias_correction=True
    )
    settings = TrainTranslationSettings(
        folder / run, *train, *dev, vocab_size=100, size="tiny", dropout=0.1, steps=12, batch_tokens=200, average=2,
        save_every=4, eval_every=6, log_every=3, bleu_tokenize="none", optimizer=optimizer, device=CPU,
    )  # fmt: skip
    return replace(settings, **changes)  # type: ignore[arg-type]


SMALL = {
    "mt-lstm": {"word_size": 16, "hidden_size": 64},
    "transformer": dict(zip(NAMES, (1, 32, 2, 64, 0.1), strict=True)),
}


def write_vectors(folder: Path, left_out: str = "six") -> Path:
    """Write vectors of all words of the toy but one, and of a word that it lacks."""
    words = [word for word in (*WORDS, "uno") if word != left_out]
    vectors = make_rng(3, 3).normal(size=(len(words), 8))
    vectors[-1] = vectors[0]  # uno has the vector of one
    lines = [" ".join([word, *(f"{x:.4f}" for x in row)]) for word, row in zip(words, vectors, strict=True)]
    (folder / "vectors.txt").write_text("\n".join(lines) + "\n")
    return folder / "vectors.txt"


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes "tiny" one layer of 32 dimensions, and for mt-lstm states of 64."""
    for name, sizes in SMALL.items():
        monkeypatch.setitem(translation_records()[name].sizes, "tiny", sizes)


@pytest.mark.usefixtures("small_model")
@pytest.mark.parametrize("architecture", ["transformer", "mt-lstm"])
def test_info_describes_a_run_and_its_model(tmp_path: Path, architecture: str) -> None:
    changes = {"steps": 6, "eval_every": 3, "save_every": 3, "keep_checkpoints": True, "architecture": architecture}
    settings = make_settings(tmp_path, **changes)
    folder = train_translation(settings, MUTE)
    printed = run_and_capture(info, InfoSettings(settings.run, verify=True), columns=120)
    assert f"{settings.run}: translation run\n" in printed
    assert all(text in " ".join(printed.split()) for text in ("state finished", "parameters", "best on dev bleu"))
    for model in (folder, settings.run / "checkpoints" / "step-00000006"):
        printed = run_and_capture(info, InfoSettings(model), columns=120)
        assert f"{model}: translation model\n" in printed
        assert "every byte" in printed
    (folder / "checksums.json").unlink()
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        info(InfoSettings(folder), MUTE)


@pytest.mark.usefixtures("small_model")
def test_text_in_an_archive_is_read_and_its_changes_are_noticed(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, steps=4, save_every=2)
    archive = tmp_path / "corpus.zip"

    def pack(*first: str) -> None:
        with zipfile.ZipFile(archive, "w") as file:
            for name in ("train.en", "train.de"):
                file.writestr(name, "".join(first) + (tmp_path / name).read_text(encoding="utf-8"))

    pack()
    members = {"train_source": (f"{archive}#train.en",), "train_target": (f"{archive}#train.de",)}
    packed = replace(settings, run=tmp_path / "packed", **members)
    check_training_inputs(packed)
    digests = json.loads((train_translation(packed, MUTE).parent / "data.json").read_text())
    assert digests.keys() > {f"{archive}#train.en", f"{archive}#train.de"}
    assert len({*digests.values()}) == 4
    (packed.run / "model").rename(tmp_path / "model")
    pack("one\n")
    with pytest.raises(ValueError, match=r"corpus\.zip#train.*changed"):
        train_translation(replace(packed, resume=True), MUTE)


def test_files_are_checked_before_the_work(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("x.en", "one")
        archive.writestr("y.en", "two")
    for path, reason in ((tmp_path / "*.en", "pattern"), (tmp_path, "folder"), (f"{tmp_path}/a.zip#z.en", "x.en")):
        with pytest.raises(ValueError, match=reason) as error:
            check_training_inputs(replace(settings, dev_target=(str(path),)))
        assert str(error.value).startswith(str(path).partition("#")[0])


@pytest.mark.usefixtures("small_model")
def test_a_toy_language_is_learned_and_translated(tmp_path: Path, reporter: TerminalReporter) -> None:
    settings = make_settings(tmp_path, steps=250, eval_every=1000, save_every=10, batch_tokens=1000, average=3)
    folder = train_translation(settings, reporter)
    printed = read_output(reporter)
    assert "mean of 3 checkpoints, beam 4" in printed
    assert "nrefs:1|case:mixed|eff:no|tok:none" in printed
    report = json.loads((settings.run / "report.json").read_text())
    assert report["checkpoints"] == [230, 240, 250]
    assert report["scores"]["mean of 3 checkpoints, beam 4"]["bleu"] > 80
    assert not list((settings.run / "checkpoints").glob("step-*"))
    translator = load_translator(settings.run)
    assert translator.translate(["one two three", "", "six"]) == ["drei zwei eins", "", "sechs"]

    source, target = write_toy(tmp_path, "test", 30, 5)
    output = tmp_path / "out.txt"
    translate(TranslateSettings(str(folder), (), source, output, target, bleu_tokenize="none", device=CPU), reporter)
    printed = read_output(reporter)
    assert "30 translations" in printed
    assert "BLEU" in printed
    lines = output.read_text(encoding="utf-8").splitlines()
    references = Path(target[0]).read_text(encoding="utf-8").splitlines()
    assert sum(a == b for a, b in zip(lines, references, strict=True)) > 20
    other = tmp_path / "other.de"
    other.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    both = TranslateSettings(
        str(folder), (), source, references=(*target, str(other)), bleu_tokenize="none", device=CPU
    )
    translate(both, reporter)
    assert re.search(r"BLEU 100\.00 .*nrefs:2", read_output(reporter))
    translate(TranslateSettings(str(folder), ("four five",), device=CPU), reporter)
    assert "fünf vier" in read_output(reporter)


@pytest.mark.usefixtures("small_model")
def test_an_mt_lstm_learns_the_toy_language_and_reads_new_words_by_their_vectors(tmp_path: Path) -> None:
    vectors = write_vectors(tmp_path)
    settings = make_settings(
        tmp_path, architecture="mt-lstm", vectors=vectors, steps=120, eval_every=1000, save_every=1000, average=1,
        batch_tokens=1000, dropout=0.0, label_smoothing=0.0,
        optimizer=OptimizerSettings(0.02, bias_correction=True, max_grad_norm=5.0),
    )  # fmt: skip
    train_translation(settings, MUTE)
    report = json.loads((settings.run / "report.json").read_text())
    assert report["scores"]["last checkpoint, beam 4"]["bleu"] > 80
    for beam in (1, 4):
        translator = load_translator(settings.run, beam)
        assert translator.translate(["one two three", "", "UNO two"]) == ["drei zwei eins", "", "zwei eins"]
    system = translator.system
    words = load_file(settings.run / "model" / "model.safetensors")["encoder.words.weight"]
    given = [[float(x) for x in line.split()[1:]] for line in vectors.read_text().splitlines()]
    row = system.source.tokens.index("two")
    torch.testing.assert_close(words[row], torch.tensor(given[1]))  # not trained
    assert not words[system.source.tokens.index("six")].any()


def train_and_kill(settings: TrainTranslationSettings, kill_at: int) -> None:
    """Train until the loss of step `kill_at`, then end this process with SIGKILL."""
    original = translation_run.TranslationRun.loss

    def loss(self: translation_run.TranslationRun, batch: translation_run.LabeledPairs) -> object:
        if self.optimizer.steps == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, batch)

    translation_run.TranslationRun.loss = loss  # type: ignore[method-assign, assignment]
    train_translation(settings, MUTE)


@pytest.mark.usefixtures("small_model")
@pytest.mark.parametrize("architecture", ["transformer", "mt-lstm"])
def test_a_killed_run_resumes_to_the_bit(tmp_path: Path, architecture: str) -> None:
    changes: dict[str, object] = {"architecture": architecture, "keep_checkpoints": True}
    if architecture == "mt-lstm":
        changes["vectors"] = write_vectors(tmp_path)
    unbroken, killed = (make_settings(tmp_path, name, **changes) for name in ("unbroken", "killed"))
    train_translation(unbroken, MUTE)
    for settings, kill_at in ((killed, 5), (replace(killed, resume=True), 9)):
        run_until_killed(partial(train_and_kill, kill_at=kill_at), settings)
    train_translation(replace(killed, resume=True), MUTE)
    assert read_untimed(unbroken.run) == read_untimed(killed.run)
    for name in ("model", "checkpoints/step-00000012"):
        first, second = (load_file(settings.run / name / "model.safetensors") for settings in (unbroken, killed))
        assert all(torch.equal(second[key], tensor) for key, tensor in first.items())


@pytest.mark.usefixtures("small_model")
def test_a_finished_run_that_was_killed_before_its_checkpoints_were_deleted_deletes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(tmp_path, steps=2, save_every=1, eval_every=2, dev_source=(), dev_target=())
    with monkeypatch.context() as killed:
        killed.setattr("bertwright.training.train_run.delete_weights", lambda *_, **__: None)
        train_translation(settings)
    checkpoints = settings.run / "checkpoints"
    assert len(checkpoint.list_checkpoints(checkpoints)) == 2
    (checkpoints / ".step-00000002.part-1-1").mkdir()
    train_translation(replace(settings, resume=True, keep_checkpoints=True))
    assert len(checkpoint.list_checkpoints(checkpoints)) == 2
    train_translation(replace(settings, resume=True))
    assert [*checkpoints.iterdir()] == []
    assert (settings.run / "model").is_dir()


@pytest.mark.usefixtures("small_model")
def test_the_mean_of_equal_checkpoints_is_the_checkpoint(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, steps=2, save_every=1, keep_checkpoints=True)
    model_folder = train_translation(settings, MUTE)
    steps = checkpoint.list_checkpoints(settings.run / "checkpoints")
    assert len(steps) == 2
    system = load_system(steps[0])
    model = system.model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    average_checkpoints(model, [steps[0]] * 3)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in before.items())
    average_checkpoints(model, steps)
    write_system(tmp_path, system)
    assert (tmp_path / "model.safetensors").read_bytes() == (model_folder / "model.safetensors").read_bytes()


@pytest.mark.usefixtures("small_model")
def test_long_pairs_are_left_out_and_counted_and_the_budget_is_checked(
    tmp_path: Path, reporter: TerminalReporter
) -> None:
    settings = make_settings(tmp_path, dry_run=True)
    train_translation(replace(settings, max_length=4), reporter)
    printed = read_output(reporter)
    assert "pairs have more than 4 tokens: left out" in printed
    assert "estimated time" in printed
    assert len(re.findall(r"^  source +\S", printed, re.MULTILINE)) == 1
    assert not settings.run.exists()
    with pytest.raises(ValueError, match="max_length = 3: expected some pairs"):
        train_translation(
            replace(settings, max_length=3, train_source=_long(tmp_path), train_target=_long(tmp_path)), reporter
        )
    with pytest.raises(ValueError, match=r"batch_tokens = 5: expected at least 1\d"):
        train_translation(replace(settings, batch_tokens=5), reporter)


def _long(folder: Path) -> tuple[str]:
    (folder / "long").write_text("one two three four\n")
    return (str(folder / "long"),)


def test_changed_text_and_wrong_folders_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--train-source FILE and --train-target FILE"):
        TrainTranslationSettings(tmp_path / "run")
    source, target = write_toy(tmp_path, "text", 3, 0)
    with pytest.raises(ValueError, match="expected --inputs"):
        TranslateSettings("model", ("a text",), references=target)
    Path(target[0]).write_text("eins\n")
    with pytest.raises(ValueError, match=r"text.de: expected 3 lines.*, got 1"):
        translate(TranslateSettings("model", (), source, references=target, device=CPU), MUTE)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"architecture": "mt-lstm", "size": "big"}, "size = 'big': expected tiny or base"),
        ({"vectors": Path("v.txt")}, "vectors: expected architecture = 'mt-lstm'"),
    ],
)
def test_settings_of_the_other_architecture_are_errors(
    tmp_path: Path, changes: dict[str, object], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        make_settings(tmp_path, **changes)


def test_an_mt_lstm_has_defaults_of_its_own() -> None:
    table = {"run": "r", "architecture": "mt-lstm", "train_source": ["a"], "train_target": ["b"]}
    settings = from_table(TrainTranslationSettings, table | {"optimizer": {"learning_rate": 1e-3}}, "test")
    assert (settings.batch_tokens, settings.average, settings.label_smoothing) == (2_000, 1, 0.0)
    assert (settings.optimizer.learning_rate, settings.optimizer.max_grad_norm) == (1e-3, 5.0)
    assert settings.optimizer.bias_correction


def test_the_default_rate_is_the_papers() -> None:
    rate = TrainTranslationSettings.defaults({"size": "base", "steps": 100_000})["optimizer"]["learning_rate"]
    assert rate == pytest.approx(512**-0.5 * 4000**-0.5)
    tiny = TrainTranslationSettings.defaults({"size": "tiny", "steps": 1000, "optimizer": {"warmup_ratio": 0.1}})
    assert tiny["optimizer"]["learning_rate"] == pytest.approx((128 * 100) ** -0.5)


@pytest.mark.parametrize(
    ("given", "warmup"),
    [
        ({}, 4_000),  # section 5.3, whatever the number of steps
        ({"warmup_steps": 1_000}, 1_000),
        ({"warmup_ratio": 0.04}, 12_000),  # an older run's settings, which count the warm-up as a share
        ({"warmup_ratio": 0.01, "warmup_steps": 500}, 500),  # as a new run writes its settings
    ],
)
def test_the_warm_up_counts_steps_and_the_rate_of_noam_follows(given: dict[str, Any], warmup: int) -> None:
    table = {"run": "r", "size": "big", "steps": 300_000, "train_source": ["a"], "train_target": ["b"]}
    optimizer = from_table(TrainTranslationSettings, table | {"optimizer": given}, "test").optimizer
    assert optimizer.count_warmup_steps(300_000) == warmup
    rate = optimizer.make_schedule(300_000)
    for step in (0, warmup - 1, warmup, 250_000):
        expected = 1024**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup**-1.5)
        assert rate(step) == pytest.approx(expected)
