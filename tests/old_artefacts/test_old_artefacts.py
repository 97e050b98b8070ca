"""Files that earlier code wrote are opened, and their runs resumed to the bit, by the present code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from artefacts import (
    CHANGED,
    HERE,
    OPENED,
    REFUSED,
    RUNS,
    SWEEPS,
    Artefact,
    check_command,
    describe,
    find_differences,
    read_json,
    resume,
    unpack_all,
)
from initial_weights import describe_initial_weights
from private_names import read_environment, small_sizes
from public_names import describe_names
from reader_rows import digest_folder

from bertwright.cli.main import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all artefacts."""
    path = tmp_path_factory.mktemp("old-artefacts")
    unpack_all(path)
    return path


@pytest.fixture(autouse=True)
def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in the folder, because the runs have recorded relative paths."""
    monkeypatch.chdir(folder)


ANSWERS = read_json("answers")


def has_same_bits() -> bool:
    """Return whether this machine computes the same bits as the one that made the answers."""
    return bool(ANSWERS["environment"] == read_environment())


def check_same(expected: Any, actual: Any) -> None:
    """Fail with the differences, one per line."""
    lines = find_differences(expected, json.loads(json.dumps(actual)))
    shown = "\n".join([*lines[:40], *([f"and {len(lines) - 40} more"] if len(lines) > 40 else [])])
    if lines:
        pytest.fail(
            f"{len(lines)} differences (before → now):\n{shown}\nIf they are intended: python "
            "tests/old_artefacts/make.py --update NAME, where NAME.json is the file beside it that has changed",
            pytrace=False,
        )


# A softmax does not change when one number is added to all logits, so Adam moves these biases by rounding alone.
WITHOUT_GRADIENT = re.compile(r"k_proj\.bias$|qa_outputs\.bias$")
ALL = [*RUNS, *SWEEPS]
RESUMED = [artefact for artefact in ALL if artefact.name not in REFUSED]


@pytest.mark.filterwarnings("ignore:.*are .UNK.")
@pytest.mark.parametrize("artefact", ALL, ids=lambda artefact: artefact.name)
def test_an_old_model_gives_the_same_answers(artefact: Artefact) -> None:
    check_same(ANSWERS[artefact.name]["predictions"], artefact.ask(artefact.finished))


@pytest.mark.filterwarnings("ignore:.*are .UNK.")
@pytest.mark.parametrize("name", OPENED)
def test_an_old_file_is_opened_and_gives_the_same_answers(name: str) -> None:
    check_same(ANSWERS[name], OPENED[name]())


@pytest.mark.parametrize("artefact", RESUMED, ids=lambda artefact: artefact.name)
def test_an_old_run_is_resumed_to_the_same_weights(artefact: Artefact) -> None:
    finished_jobs = {path: path.read_bytes() for path in artefact.stopped.glob("jobs/*/result.json")}
    assert bool(finished_jobs) == (artefact.name == "experiment")
    resume(artefact, artefact.stopped)
    check_results(artefact, artefact.stopped)
    assert all(path.read_bytes() == content for path, content in finished_jobs.items()), "a finished job was repeated"


@pytest.mark.parametrize("name", REFUSED)
def test_an_old_series_of_runs_is_refused_with_the_way_out(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--resume", "--run", f"finished/{name}"]) == 2
    assert re.search(rf"finished/{name}/results.jsonl: .*another --run$", capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.parametrize(
    "artefact", [one for one in RESUMED if one.name not in CHANGED], ids=lambda artefact: artefact.name
)
def test_a_new_run_ends_with_the_weights_of_the_old_one(artefact: Artefact, tmp_path: Path) -> None:
    with small_sizes():
        check_command(*artefact.command, artefact.flag, str(tmp_path / "run"))
    check_results(artefact, tmp_path / "run")


def check_results(artefact: Artefact, folder: Path) -> None:
    """Compare a finished run's results with the old ones: their bits, or on another machine the numbers."""
    actual = without_identity(json.loads(json.dumps(describe(artefact, folder))))
    expected = without_identity({name: ANSWERS[artefact.name][name] for name in actual})
    if not has_same_bits() and "weights" in actual:
        expected, actual = without_digests(expected), without_digests(actual)
    check_same(expected, actual)
    assert expected == actual or not has_same_bits()


def without_identity(results: Any) -> Any:
    """Return results of trials without their settings, which new versions have more of."""
    if isinstance(results, dict):
        return {name: without_identity(value) for name, value in results.items() if name != "identity"}
    return [without_identity(item) for item in results] if isinstance(results, list) else results


def without_digests(found: dict[str, Any]) -> dict[str, Any]:
    return found | {"weights": drop_digests(found["weights"])}


def drop_digests(weights: dict[str, Any]) -> dict[str, Any]:
    """Return shapes and norms alone, and no norm of weights whose gradient is only rounding."""
    return {
        name: value if value == "absent" else value[:1] if WITHOUT_GRADIENT.search(name) else value[::2]
        for name, value in weights.items()
    }


def test_public_names_flags_and_keys_are_unchanged() -> None:
    check_same(read_json("public_names"), describe_names())


def test_readers_give_the_same_rows() -> None:
    check_same(read_json("rows"), digest_folder(HERE.parent / "data"))


def test_systems_and_heads_start_with_the_same_weights() -> None:
    expected, actual = read_json("initial_weights"), describe_initial_weights()
    models = [content["models"] for content in (expected, actual)]
    if expected["environment"] != actual["environment"]:
        models = [{name: drop_digests(weights) for name, weights in content.items()} for content in models]
    check_same(*models)


@pytest.mark.parametrize(("before", "now"), [({"a": 1}, {}), ([1.0], [1.1]), ({"a": [1]}, {"a": [1, 2]}), ("x", "y")])
def test_a_difference_is_found(before: Any, now: Any) -> None:
    assert len(find_differences(before, now)) == 1
    assert not find_differences(before, before)
