"""`bertwright ladder`."""

from __future__ import annotations

from bertwright.cli.verbs import importing_torch
from bertwright.trials.ladder_settings import LadderSettings, check_inputs

SETTINGS = LadderSettings
ORDER = 8
SUMMARY = "compare the systems that led to BERT on one task"
EXAMPLE = "bertwright ladder --task conll2003 --data data/conll2003 --bert runs/mini --elmo runs/elmo --run runs/ladder"


def run(settings: LadderSettings) -> None:
    check_inputs(settings)
    with importing_torch():
        from bertwright.trials.ladder import ladder
    ladder(settings)
