"""Plans: the run that they recommend, and what they print and write."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import bertwright
from bertwright import BuildSettings, DeviceSettings, PlanSettings, VocabularySettings
from bertwright.base.settings import from_table, read_toml
from bertwright.cli.options import read_settings
from bertwright.planning import candidates
from bertwright.planning import plan as plans
from bertwright.planning.candidates import Candidate, Planner
from bertwright.planning.plan import Plan
from bertwright.planning.scaling_law import ScalingLaw, count_effective_tokens
from bertwright.pretraining.settings import PretrainSettings
from bertwright.surveying.small_corpus import MAX_EPOCHS_OF_SMALL
from bertwright.systems.bert.defaults import SIZES
from bertwright.training import cost
from harness import run_with_output
from helpers import CPU

BRIEF = 0.01  # minutes of short runs


def make_settings(folder: Path, **changes: Any) -> PlanSettings:
    fields: dict[str, Any] = {
        "hours": 0.01,
        "store": folder,
        "model_sizes": ("tiny",),
        "measure_minutes": BRIEF,
        "device": CPU,
    }
    return PlanSettings(**(fields | changes))


@pytest.fixture(scope="module")
def finished_plan(store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[PlanSettings, Plan, str]:
    """Return a plan of two sizes on this machine, and what it printed; a fast machine may read the text often."""
    output = tmp_path_factory.mktemp("plan") / "plan.toml"
    settings = make_settings(store, model_sizes=("mini", "tiny"), output=output)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertwright.planning.candidates.max_epochs", lambda tokens: 1_000_000)
        return settings, *run_with_output(bertwright.plan, settings, columns=120)


def test_plan_chooses_the_size_with_the_smallest_expected_loss(finished_plan: tuple[PlanSettings, Plan, str]) -> None:
    _, found, printed = finished_plan
    assert [one.size for one in found.candidates] == ["tiny", "mini"]
    assert found.best.loss.mean == min(one.loss.mean for one in found.candidates)
    (chosen,) = [line for line in printed.split("\n") if line.strip().startswith("*")]
    assert chosen.split()[1] == found.best.size


def test_plan_uses_the_hours(finished_plan: tuple[PlanSettings, Plan, str]) -> None:
    settings, found, printed = finished_plan
    for one in found.candidates:
        assert one.cost.seconds == pytest.approx(3600 * settings.hours)
    assert "36 s, measured on this machine" in printed


def test_larger_sizes_see_fewer_tokens_and_need_more_memory(finished_plan: tuple[PlanSettings, Plan, str]) -> None:
    tiny, mini = finished_plan[1].candidates
    assert mini.tokens < tiny.tokens
    assert mini.cost.memory is not None
    assert tiny.cost.memory is not None
    assert mini.cost.memory >= tiny.cost.memory


def test_short_runs_have_one_two_and_four_times_as_many_tokens(finished_plan: tuple[PlanSettings, Plan, str]) -> None:
    first, second, third = (short.tokens for short in finished_plan[1].short_runs)
    assert second == pytest.approx(2 * first)
    assert third == pytest.approx(4 * first)


def expected_by(law: ScalingLaw, one: Candidate) -> float:
    return law.predict(one.config.num_layer_parameters, count_effective_tokens(one.tokens, one.epochs)).mean


def test_short_runs_on_the_plateau_do_not_decide_the_expected_loss(
    finished_plan: tuple[PlanSettings, Plan, str],
) -> None:
    _, found, printed = finished_plan
    assert found.best.loss.mean == pytest.approx(expected_by(ScalingLaw.fit([]), found.best))
    assert "raise --measure-minutes" in printed


@pytest.mark.slow
def test_short_runs_beyond_the_plateau_decide_the_expected_loss(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (candidates, plans):
        monkeypatch.setattr(module, "has_left_plateau", lambda *_: True)
    found, printed = run_with_output(bertwright.plan, make_settings(store), columns=120)
    law = ScalingLaw.fit(found.short_runs)
    assert found.best.loss.mean == pytest.approx(expected_by(law, found.best))
    assert "raise --measure-minutes" not in printed


def test_output_holds_the_settings_of_the_planned_run(
    finished_plan: tuple[PlanSettings, Plan, str], store: Path
) -> None:
    settings, found, _ = finished_plan
    assert settings.output is not None
    (command,) = found.commands
    arguments = shlex.split(command)
    assert arguments[:4] == ["bertwright", "pretrain", "--config", str(settings.output)]
    run_settings = read_settings(PretrainSettings, "pretrain", arguments[2:], example="")
    assert run_settings == found.best.settings
    table = read_toml(settings.output)
    assert not {"run", "store", "resume"} & table.keys()
    assert from_table(PretrainSettings, table | {"run": "run", "store": str(store)}, "plan") == found.best.settings


def test_plan_for_a_gpu_is_an_estimate_and_times_only_the_short_runs(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = []

    def measure(run: PretrainSettings) -> cost.CostEstimate:
        timed.append(run.model.size)
        return cost.CostEstimate(run.steps, seconds=1e4)

    monkeypatch.setattr(candidates, "measure_cost", measure)
    settings = make_settings(store, gpu="h200", model_sizes=("tiny", "base"), hours=1e-4)
    found, printed = run_with_output(bertwright.plan, settings, columns=120)
    assert timed == ["tiny"]
    assert "estimated, not measured" in printed
    tiny, base = found.candidates
    assert tiny.tokens > base.tokens
    assert base.cost.seconds == pytest.approx(0.36)


def test_no_plan_reads_a_small_text_more_often_than_a_run_should(store: Path) -> None:
    found, printed = run_with_output(bertwright.plan, make_settings(store, gpu="h200", hours=100.0), columns=120)
    assert found.best.epochs == pytest.approx(MAX_EPOCHS_OF_SMALL, rel=0.3)  # epochs count [CLS] and [SEP], too
    assert found.best.cost.seconds < 3600
    flowing = " ".join(printed.split())
    assert f"it ends after {MAX_EPOCHS_OF_SMALL} epochs" in flowing
    assert f"the text is read {found.best.epochs:,.0f} times" in flowing


def test_sizes_beyond_the_memory_are_left_out(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "memory_of", lambda _: 2e9)
    planner = Planner(make_settings(store), store)
    fitting = [size for size in SIZES if planner.fits_memory(planner.choose_settings(size, 1e6))]
    assert fitting == ["tiny", "mini", "small", "medium", "base"]  # BASE needs 1.4 GB, LARGE 4.9


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"store": None}, "--text"),
        ({"text": ("a.txt",)}, "--text"),
        ({"hours": 0.0}, "hours: .*got 0.0"),
        ({"hours": float("nan")}, "hours: .*got nan"),
        ({"measure_minutes": -1.0}, "measure_minutes: .*got -1.0"),
        ({"gpu": "h2000"}, 'did you mean "h200"'),
        ({"model_sizes": ("tinny",)}, 'did you mean "tiny"'),
        ({"model_sizes": ()}, "--model-sizes"),
        ({"vocabulary": VocabularySettings(size=100)}, "--store"),
        ({"store": None, "text": ("a.txt",), "build": BuildSettings(held_out=0.0)}, "--held-out"),
    ],
)
def test_settings_that_contradict_are_rejected(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_settings(Path("store"), **changes)


def test_store_without_held_out_documents_is_rejected(
    tmp_path: Path, vocabulary_folder: Path, small_corpus: bertwright.CorpusSettings
) -> None:
    preparation = bertwright.PrepareSettings(
        small_corpus, str(vocabulary_folder), tmp_path / "store", BuildSettings(held_out=0.0, workers=1)
    )
    run_with_output(bertwright.prepare, preparation)
    with pytest.raises(ValueError, match="--held-out"):
        bertwright.plan(make_settings(tmp_path / "store"))


def test_plan_under_torchrun_is_rejected(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="torchrun"):
        plans.plan(make_settings(store))


def test_an_interrupted_plan_does_not_offer_to_resume(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    def interrupt(settings: PretrainSettings, reporter: object) -> None:
        raise KeyboardInterrupt(f"step 1 is saved; resume with: bertwright pretrain --run {settings.run} --resume")

    monkeypatch.setattr(candidates, "pretrain", interrupt)
    with pytest.raises(KeyboardInterrupt, match="nothing is saved"):
        plans.plan(make_settings(store))


def test_the_device_of_this_machine_is_not_that_of_a_planned_gpu(store: Path) -> None:
    planner = Planner(make_settings(store, gpu="h200"), store)
    assert planner.choose_settings("tiny", 1e6).device == DeviceSettings()
    assert Planner(make_settings(store), store).choose_settings("tiny", 1e6).device == CPU
