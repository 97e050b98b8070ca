"""A configuration whose sizes its weights do not have is refused at once, without memory for these sizes."""

from __future__ import annotations

import copy
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from artefacts import HERE, unpack_all

import bertwright

SECONDS = 20  # in which one model is opened or refused
NAMES = sorted(path.name.partition(".")[0] for path in (HERE / "archives").glob("*.tar.xz"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of every architecture and head."""
    path = tmp_path_factory.mktemp("models")
    unpack_all(path)
    for model in [*(path / "finished").glob("*/model")]:
        model.joinpath("checksums.json").unlink(missing_ok=True)
        shutil.move(model, path / model.parent.name)
    return path


def integers(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each integer of nested objects and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if type(item) is int:
            yield (*place, key)
        else:
            yield from integers(item, (*place, key))


def stop(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def open_model(load: Callable[[Path], Any], folder: Path) -> str:
    """Open a model for use; return the message of a refusal, or an empty one."""
    signal.alarm(SECONDS)
    try:
        load(folder)
    except ValueError as error:
        return str(error)
    finally:
        signal.alarm(0)
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_sizes_beyond_the_weights_are_refused(name: str, models: Path) -> None:
    config = models / name / "config.json"
    if not config.is_file():
        pytest.skip("no model")
    values = json.loads(config.read_text())
    is_translator = values["model_type"] in ("marian", "mt-lstm")
    load: Any = bertwright.load_translator if is_translator else bertwright.load
    former = signal.signal(signal.SIGALRM, stop)
    try:
        load(config.parent)  # imports what it needs
        for place in integers(values):
            for size in (-1, 10**9):
                changed = copy.deepcopy(values)
                target = changed
                for key in place[:-1]:
                    target = target[key]
                target[place[-1]] = size
                config.write_text(json.dumps(changed))
                message = open_model(load, config.parent)
                assert str(config.parent) in message or not message, (place, size, message)
    finally:
        signal.signal(signal.SIGALRM, former)
