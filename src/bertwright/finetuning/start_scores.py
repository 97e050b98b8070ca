"""Scores before the first step, of tasks whose model is of use without training; a run folder keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertwright.base.files import read_json, write_text
from bertwright.metrics.example_scores import ExampleScores

BEFORE = "before.json"


class Start(NamedTuple):
    """Scores of a split before the first step."""

    scores: Mapping[str, float]
    examples: ExampleScores | None
    """Numbers per example, for the interval of the difference; None if the metric has none."""


def read_starts(run: Path) -> dict[str, Start]:
    """Read the scores of a run folder by split; none if it has none."""
    starts: dict[str, Start] = {}
    if (path := run / BEFORE).is_file():
        for name, (scores, examples) in read_json(path).items():
            found = ExampleScores(examples[0], np.array(examples[1], dtype=float)) if examples else None
            starts[name] = Start(scores, found)
    return starts


def write_starts(run: Path, starts: Mapping[str, Start]) -> None:
    records = {
        name: (one.scores, one.examples and (one.examples.formula, one.examples.values.tolist()))
        for name, one in starts.items()
    }
    write_text(run / BEFORE, json.dumps(records) + "\n")
