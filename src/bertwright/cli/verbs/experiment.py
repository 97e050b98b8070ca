"""`bertwright experiment`."""

from __future__ import annotations

from bertwright.cli.verbs import importing_torch
from bertwright.trials.experiment_settings import ExperimentSettings, check_inputs

SETTINGS = ExperimentSettings
ORDER = 11
SUMMARY = "repeat an experiment of the paper within a budget"
EXAMPLE = "bertwright experiment table5 --store store --data glue --work experiments --level demo --dry-run"


def run(settings: ExperimentSettings) -> None:
    check_inputs(settings)
    with importing_torch():
        from bertwright.trials.experiment import experiment
    experiment(settings)
